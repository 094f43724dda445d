"""The workers of a real run: for pipelines, DistributedDataParallel, a parameter server, and torch's own pipelines."""
