"""The simulated executor."""
