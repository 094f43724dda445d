"""What makes up a stage in every executor: weights, versions, what passes read, optimizer and phase."""
