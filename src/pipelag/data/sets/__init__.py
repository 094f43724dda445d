"""The data sets that need more than a reader of their layout, one module each; `generated_*` need no download."""
