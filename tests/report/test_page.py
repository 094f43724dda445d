"""The page opens with every claim, its verdict and what that rests on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipelag.__main__ import main
from pipelag.experiments import load_paper, load_scale
from pipelag.report.tables import Column, Table

ROOT = Path(__file__).resolve().parents[2]
PAPER = "stale_weights"


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record per result, as `pipelag result` leaves it: one claim each, with a reason that wants escaping."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    load_paper.cache_clear()
    load_scale.cache_clear()
    folder = tmp_path / "figures" / "quick" / PAPER
    verdicts = ("holds", "fails", "cannot be judged")
    for number, name in enumerate(load_paper(PAPER).results):
        verdict = {"claim": "c", "text": f"claim of {name}", "verdict": verdicts[number % 3], "why": f"a < b in {name}"}
        verdict["tolerance"] = "exact"
        run = {"id": "0123456789ab", "labels": {"arm": "4-stage"}, "seed": 0, "status": "no log"}
        record = {
            "result": name,
            "caption": "A caption.",
            "is_figure": False,
            "shortfall": "",
            "data": [],
            "devices": [],
        }
        record |= {"logged": 0, "asked": 1, "runs": [run], "verdicts": [verdict]}
        table = Table([Column("a", "A")], [{"a": None}])
        table.save(folder / name)
        record["table"] = table.texts()
        (folder / f"{name}.json").write_text(json.dumps(record))
    return tmp_path


def test_the_scoreboard_says_why_and_counts_right(records: Path) -> None:
    assert main(["report", "stale_weights"]) == 0
    page = (records / "figures/quick/index.html").read_text()
    scoreboard = page[page.index('id="scoreboard"') : page.index(f'<h2 id="{PAPER}"')]
    names = list(load_paper(PAPER).results)
    assert all(f"claim of {name}" in scoreboard and f"a &lt; b in {name}" in scoreboard for name in names)
    counts = [len(names[start::3]) for start in range(3)]
    for count, word in zip(counts, ("hold", "fail", "cannot be judged"), strict=True):
        assert f">{count} {word}" in scoreboard
    assert "0 of 1 runs logged" in page and "no log" in page


def test_the_page_loads_nothing_from_elsewhere(records: Path) -> None:
    assert main(["report", "stale_weights"]) == 0
    page = (records / "figures/quick/index.html").read_text()
    assert "http" not in page and "<script" not in page and "<link" not in page


def test_results_come_in_reading_order() -> None:
    from pipelag.experiments import load_paper
    from pipelag.experiments.schema import reading_order

    names = reading_order(load_paper("pipemare"))
    assert names[:2] == ["table_1", "table_2"] and names[8] == "table_9"
    assert names[9:11] == ["figure_1", "figure_2"] and names.index("figure_5b") == names.index("figure_5a") + 1
    assert names[-1].startswith("text_") and sorted(names) == sorted(load_paper("pipemare").results)
