"""What the tests of the papers' settings have in common."""

from __future__ import annotations

from pipelag.experiments import Arm, arms, load_paper, load_scale
from pipelag.experiments.expand import matches


def at_paper_scale(paper: str, result: str, **labels: str) -> list[Arm]:
    """A result's runs at the paper scale that have these labels; there are some, or nothing would be compared."""
    matching = [arm for arm in arms(load_paper(paper), result, load_scale("paper")) if matches(arm.labels, labels)]
    assert matching, (result, labels)
    return matching
