"""The parts of `pipelag.train`: a user's data and optimizer, measuring and reporting, checkpoints, real workers."""
