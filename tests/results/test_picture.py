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
    redrawn, committed = ((folder / "staleness.svg").read_text() for folder in (tmp_path, Path("docs/images")))
    assert texts(committed) == texts(redrawn)
    assert sum(bool(re.fullmatch(r"-?\d+\.\d", text)) for text in texts(committed)) >= 10  # a number beside every point


@pytest.mark.usefixtures("in_project")
def test_the_headline_figures_are_of_the_published_logs(tmp_path: Path) -> None:
    script, committed = runpy.run_path("workflow/scripts/headline.py"), Path("figures/headline")
    script["main"](tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in committed.iterdir())
    for redrawn in tmp_path.glob("*.svg"):
        assert texts(redrawn.read_text()) == texts((committed / redrawn.name).read_text()), redrawn.name
        assert "no run logged" not in redrawn.read_text()
    assert (tmp_path / "README.md").read_text() == (committed / "README.md").read_text()
    assert sum(path.stat().st_size for path in committed.iterdir()) < 2.5e6
    assert {paper for paper, results in script["HEADLINES"].items() if results} == set(papers()) - {"at_scale"}
