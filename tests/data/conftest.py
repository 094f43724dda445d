"""No test of this folder sees the caller's data folder or mirrors, unless it asks for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REAL_MIRROR = os.environ.get("PIPELAG_MIRROR")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data folder is under `tmp_path`; no mirrors."""
    monkeypatch.setenv("PIPELAG_DATA", str(tmp_path / "downloads"))
    monkeypatch.delenv("PIPELAG_MIRROR", raising=False)


@pytest.fixture
def real_mirror(monkeypatch: pytest.MonkeyPatch) -> str:
    """The mirror that the caller named in PIPELAG_MIRROR."""
    if not REAL_MIRROR:
        pytest.skip("PIPELAG_MIRROR names no folder with real data")
    monkeypatch.setenv("PIPELAG_MIRROR", REAL_MIRROR)
    return REAL_MIRROR
