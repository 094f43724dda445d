"""Experiments are data: papers' results and scales are read from config/ and expanded into runs. No torch."""

from pipelag.experiments.expand import (
    Arm,
    all_arms,
    arms,
    check_workflow,
    load_paper,
    load_scale,
    papers,
    result_of,
    run_dir,
    scales,
)
from pipelag.experiments.schema import Paper, Result, Scale

__all__ = [
    "Arm", "Paper", "Result", "Scale", "all_arms", "arms", "check_workflow", "load_paper", "load_scale", "papers",
    "result_of", "run_dir", "scales",
]  # fmt: skip
