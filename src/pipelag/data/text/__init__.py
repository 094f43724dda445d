"""Text data sets, parallel, running or labelled: words or pieces of words as numbers, and their minibatches."""
