"""The kinds of workers of a real run: a pipeline's, DistributedDataParallel's, a parameter server's, torch's own."""
