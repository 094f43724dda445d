"""The data sets that are more than a layout of files, a module each; `generated_*` need no download."""
