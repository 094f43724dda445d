"""The README's picture is what the published logs say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from pipelag.experiments.expand import papers


def texts(svg: str) -> list[str]:
    """What is written in an SVG, tags left out."""
    return [re.sub(r"<[^>]*>|\s+", "", text) for text in re.findall(r"<text.*?</text>", svg, re.S)]


@pytest.mark.usefixtures("in_project")
def test_the_picture_is_of_the_published_logs(tmp_path: Path) -> None:
    runpy.run_path("workflow/scripts/picture.py")["main"](tmp_path / "staleness.svg")
    made, kept = ((folder / "staleness.svg").read_text() for folder in (tmp_path, Path("docs/images")))
    assert texts(kept) == texts(made)
    assert sum(bool(re.fullmatch(r"-?\d+\.\d", text)) for text in texts(kept)) >= 10  # a number beside every point


@pytest.mark.usefixtures("in_project")
def test_the_headline_figures_are_of_the_published_logs(tmp_path: Path) -> None:
    script, kept = runpy.run_path("workflow/scripts/headline.py"), Path("figures/headline")
    script["main"](tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in kept.iterdir())
    for made in tmp_path.glob("*.svg"):
        assert texts(made.read_text()) == texts((kept / made.name).read_text()), made.name
        assert "no run logged" not in made.read_text()
    assert (tmp_path / "README.md").read_text() == (kept / "README.md").read_text()
    assert sum(path.stat().st_size for path in kept.iterdir()) < 2.5e6
    assert {paper for paper, results in script["HEADLINES"].items() if results} == set(papers()) - {"at_scale"}
