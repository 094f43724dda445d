"""The real executor: one process per worker on torch.distributed."""
