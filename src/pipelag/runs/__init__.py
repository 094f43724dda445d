"""Runs: their specs, the code that carries them out, and their logs."""
