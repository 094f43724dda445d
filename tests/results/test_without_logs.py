"""No result of any paper draws a number or judges a claim without its logs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import yaml

from pipelag.experiments import load_paper, load_scale
from pipelag.results.context import Context
from pipelag.results.drawing import DRAWINGS
from pipelag.results.verdict import verdicts

ROOT = Path(__file__).resolve().parents[2]
RESULTS = [
    (path.stem, name)
    for path in sorted((ROOT / "config/papers").glob("*.yaml"))
    for name in yaml.safe_load(path.read_text())["results"]
]


@pytest.mark.usefixtures("nothing_logged")
@pytest.mark.parametrize(("paper", "result"), RESULTS)
def test_without_logs_nothing_can_be_judged(paper: str, result: str) -> None:
    importlib.import_module(f"pipelag.results.{paper}")
    context = Context.load(load_paper(paper), result, load_scale("quick"))
    assert {judgement.verdict for judgement in verdicts(context)} <= {"cannot be judged"}
    drawn = DRAWINGS[paper, context.result.draw or result](context)
    assert (drawn.table is None) != (drawn.figure is None)
    if drawn.figure is not None:
        import matplotlib.pyplot as plt

        plt.close("all")
        assert drawn.data is not None and drawn.data.empty
