"""The README's picture is what the published logs say, and the docs' schedules are what the timed executor says."""

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
def test_the_zero_bubble_schedules_are_drawn_as_they_are(tmp_path: Path) -> None:
    """The titles by the papers' formulas: of 24 units of work the bubble adds 3 (P-1) in 1F1B and P-1 in ZB-H1."""
    runpy.run_path("workflow/scripts/schedules.py")["main"](tmp_path / "zero_bubble.svg")
    redrawn, committed = ((folder / "zero_bubble.svg").read_text() for folder in (tmp_path, Path("docs/images")))
    assert texts(committed) == texts(redrawn)
    titles = [text for text in texts(committed) if "bubble," in text]
    shares = [round(100 * bubble / (24 + bubble)) for bubble in (9, 3, 0, 0, 0)]
    assert [title.split(":")[-1].split("%bubble,")[0] for title in titles] == list(map(str, shares))
    held = [re.findall(r"activationsof(\d+)microbatches,(.*)", title)[0] for title in titles]
    assert held == [(n, "nostaleness") for n in "4474"] + [("4", "weights1updatelate,2copies")]


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
