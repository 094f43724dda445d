"""The README's picture is what the published logs say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest


def texts(svg: str) -> list[str]:
    """What is written in an SVG, tags left out."""
    return [re.sub(r"<[^>]*>|\s+", "", text) for text in re.findall(r"<text.*?</text>", svg, re.S)]


@pytest.mark.usefixtures("in_project")
def test_the_picture_is_of_the_published_logs(tmp_path: Path) -> None:
    runpy.run_path("workflow/scripts/picture.py")["main"](tmp_path / "staleness.svg")
    made, kept = ((folder / "staleness.svg").read_text() for folder in (tmp_path, Path("docs/images")))
    assert texts(kept) == texts(made)
    assert sum(bool(re.fullmatch(r"\d\d\.\d", text)) for text in texts(kept)) >= 9  # a number beside every point
