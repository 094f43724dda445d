"""Runs: their spec, their carrying out, their logs."""
