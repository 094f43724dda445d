"""PipeDream's partitioner: clusters, plans, the hierarchical dynamic program, published profiles."""
