"""The examples in docstrings: what they show is what comes."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from pipelag.methods import prediction

SOURCE = Path(__file__).resolve().parents[1] / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "RULES", dict(prediction.RULES))  # one of them registers a rule
    done = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert done.attempted and not done.failed
