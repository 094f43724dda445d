"""Conditions of claims that the cases leave alone: logs in which one of them alone is not met, a file per paper."""
