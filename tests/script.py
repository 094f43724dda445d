"""`python -m tests.script page.py`: a script, run in a process that has torch loaded already."""

from __future__ import annotations

import os
import runpy
import sys

import torch


def main(words: list[str]) -> int:
    """Be the script, in its folder; on one thread, as all tests."""
    torch.set_num_threads(1)
    sys.argv = words
    sys.path[0] = os.getcwd()
    runpy.run_path(words[0], run_name="__main__")
    return 0
