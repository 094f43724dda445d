"""The real executor: one process per worker, connected by torch.distributed."""
