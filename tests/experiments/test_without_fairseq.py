"""Where fairseq could not be built, what needs it is left out, with the reason; nothing fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelag import compat
from pipelag.experiments import arms, load_paper, load_scale
from pipelag.results.leaderboard.networks import table
from pipelag.results.verdict import verdicts
from tests.results.cases.leaderboard import networks
from tests.results.made_up import context

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(compat, "find_spec", lambda name: None)
    compat.installed.cache_clear()
    yield
    compat.installed.cache_clear()


def test_what_needs_fairseq_says_so() -> None:
    assert "make env builds it where there is a C++ compiler" in compat.lacking("fairseq_transformer", {})
    assert compat.lacking("transformer", {"generator": "fairseq"})
    assert not compat.lacking("transformer", {"beam": 5})


def test_its_runs_are_left_out_and_no_others() -> None:
    left = {
        arm.labels["task"]: arm.left_out
        for arm in arms(load_paper("pipemare"), "table_3", load_scale("paper"))
        if arm.spec.kind == "train"
    }
    assert left["images"] == "" and left["translation"].startswith("fairseq is not installed here")
    assert not any(arm.left_out for arm in arms(load_paper("pipemare"), "table_3", load_scale("quick")))


def test_the_table_of_both_networks_says_so_in_its_cells() -> None:
    ours = context("leaderboard", "table_5", lambda arm: None if arm.left_out else networks()(arm), "quick")
    drawn = table(ours).table
    assert drawn is not None
    texts = drawn.texts()
    bleu = texts["titles"].index("BLEU")
    assert [row[bleu] for row in texts["rows"]] == ["90.0 ± 1.0", *["left out"] * 2, "40.0 ± 1.0", *["left out"] * 2]
    assert any(note.startswith("Left out: fairseq is not installed here") for note in texts["notes"])
    assert {verdict.verdict for verdict in verdicts(ours)} == {"cannot be judged"}
