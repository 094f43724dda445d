"""A scale's records as `pipelag result` leaves them: for every result one claim, one table; for one result curves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipelag.commands.result import save
from pipelag.experiments import load_paper
from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Col, table
from pipelag.results.drawing import Drawn

ROOT = Path(__file__).resolve().parents[2]
PAPER = "stale_weights"
CURVES = "figure_5a"
HOSTILE = "</script><script>alert(1)</script> #show $x$ _a_ *b* @c <img src=x onerror=alert(1)> \\ `d`"
VERDICTS = ("holds", "fails", "cannot be judged")
WHY = "a < b in {name} (ambiguity A4)"
FRAME = pd.DataFrame(
    [
        {"arm": arm, "seed": seed, "step": step, "accuracy": base + step + 2.0 * seed}
        for arm, base in (("baseline", 50.0), (HOSTILE, 40.0))
        for seed in (0, 1)
        for step in (1, 2, 3)
    ]
)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with the records of the paper at the quick scale."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(load_paper(PAPER).results):
        leave(tmp_path, name, VERDICTS[number % 3])
    return tmp_path


def leave(project: Path, name: str, verdict: str) -> None:
    """One result's files."""
    base = project / "figures/quick" / PAPER / name
    run = {"id": "0123456789ab", "labels": {"arm": HOSTILE}, "seed": 0, "status": "no log"}
    record: dict[str, Any] = {"result": name, "caption": f"A caption of {name}.", "is_figure": False, "shortfall": ""}
    record |= {"data": ["digits"], "devices": [], "logged": 0, "asked": 1, "runs": [run], "chart": None, "table": None}
    judged = {"claim": "c", "text": f"claim of {name}", "verdict": verdict, "why": WHY.format(name=name)}
    record["verdicts"] = [judged | {"tolerance": "exact"}]
    if name == CURVES:
        chart = Lines(
            Axis("step", "iteration"),
            Axis("accuracy", "accuracy (%)", log=True, limits=(None, 80.0), levels={"goal": 50.0}),
            line="arm",
        )
        drawn = Drawn.of(chart, FRAME)
        record |= {"is_figure": True, "chart": drawn.chart}
    else:
        cols = [Col("model", "m"), Col("ours", "o", "{:.1f}", "accuracy"), Col("paper", "p", "{:.1f}", "accuracy")]
        drawn = Drawn(table=table([{"m": HOSTILE, "o": 1.26, "p": None}], cols, "A caption", ["A note (D8)."]))
        assert drawn.table is not None
        record["table"] = drawn.table.texts()
    save(drawn, base, "figure")
    base.with_suffix(".json").write_text(json.dumps(record))
