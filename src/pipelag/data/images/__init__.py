"""Image data sets, in memory or in folders, and their minibatches."""
