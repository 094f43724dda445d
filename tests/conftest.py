"""For all tests: one thread. Their tensors are tiny, and threads that wait for each other on a busy machine crawl."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipelag.experiments import load_paper, load_scale


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Also where a test before has let a run set the number, which would change sums in their last bits."""
    torch.set_num_threads(1)


@pytest.fixture
def in_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the project's own folder, with its config read anew."""
    monkeypatch.chdir(Path(__file__).resolve().parents[1])
    load_paper.cache_clear()
    load_scale.cache_clear()
