"""PipeDream's planner: clusters, plans, the hierarchical dynamic program, published profiles."""
