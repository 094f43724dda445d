"""Sets of text, parallel, running or labelled: words and pieces of words as numbers, and minibatches."""
