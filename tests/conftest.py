"""For all tests: one thread. Their tensors are tiny, and threads that wait for each other on a busy machine crawl."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Also where a test before has let a run set the number, which would change sums in their last bits."""
    torch.set_num_threads(1)
