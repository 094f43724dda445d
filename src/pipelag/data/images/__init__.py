"""Sets of images, in memory or in folders, and their minibatches."""
