"""Tables of the study at scale: which estimate answers, and where the other one would answer otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from pipelag.experiments import load_paper, load_scale
from pipelag.report.tables import Table
from pipelag.results.at_scale.cost import GAINS, measures, verdict
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results

pytestmark = pytest.mark.usefixtures("in_project")


def method(name: str, timed: float, on_paper: float, late: int = 0) -> dict[str, Any]:
    """A method's row, with these seconds of an update."""
    return {
        "method": name,
        "timed": timed,
        "on_paper": on_paper,
        "layout": "2 x 2",
        "share": 50.0,
        "late": late,
        "gap": late and 1,
    }


def test_the_timed_executor_says_whether_asynchrony_pays_and_what_paper_would_say_is_told() -> None:
    flush = method("GPipe", 3.0, 3.0)
    turned = verdict([flush, method("PipeDream", 2.0, 4.0, 3), method("SpecTrain", 2.5, 3.5, 3)])
    assert turned["free method"] == "PipeDream" and turned["mend"] == "3 (1 within a minibatch)"
    assert turned["pays"] == "yes (on paper no)"
    assert (turned["gain timed"], turned["gain on_paper"]) == (1.5, 3.0 / 3.5)
    alike = verdict([flush, method("PipeDream", 2.0, 2.5, 3)])
    assert alike["pays"] == "yes"
    back = verdict([flush, method("PipeDream", 3.0, 2.0, 3)])
    assert back["pays"] == "no (on paper yes)" and "mend" not in back


def test_asynchrony_is_compared_with_whatever_reads_no_late_weights_and_besides_with_plain_flushes() -> None:
    others = [{"method": "ZB-H2", "why": "does not fit"}, method("GPipe", 3.0, 3.0), method("PipeDream", 2.0, 2.0, 1)]
    line = verdict([*others, method("ZB-H1", 2.1, 2.1)])
    assert (line["waiting method"], line["pays"]) == ("ZB-H1", "no")
    assert (line["gain timed"], line["gain plain"]) == (2.1 / 2.0, 3.0 / 2.0)
    only = verdict([method("ZB-H1", 2.1, 2.1), others[2]])
    assert "gain plain" not in only and only["gain timed"] == 2.1 / 2.0


def test_what_is_drawn_of_a_row_is_of_the_timed_executor_and_in_the_units_of_its_column() -> None:
    row = {"timed": 4.0, "on_paper": 3.0, "ideal": 1.0, "memory": 3 * 2**30, "leaving": 7e9}
    row |= {"stages": 8, "workers": 8, "replicas": 2, "microbatches": 16, "samples": 4, "recompute": True}
    assert measures(row, 64) == {
        "samples_per_second": 16.0,
        "share": 25.0,
        "paper": 0.75,
        "GiB": 3.0,
        "GB": 7.0,
        "layout": "8 x 2",
        "parts": "16 of 4 (R)",
    }
    assert measures(row | {"recompute": False}, 64)["parts"] == "16 of 4"
    assert measures(row | {"stages": 24}, 64)["layout"] == "8 x 2, 24 stages"
    shared = row | {"tensor": 4, "sharded": True, "stages": 24}
    assert measures(shared, 64)["layout"] == "32 x 2, 24 stages, tensor 4, sharded"
    assert measures({"why": "no layout fits"}, 64) == {}


def drawn(result: str) -> Table:
    """A published table."""
    paper = load_paper("at_scale")
    load_results(paper)
    table = draw(Context.load(paper, result, load_scale("published", "cpu"))).table
    assert table is not None
    return table


def test_what_a_layout_was_computed_from_stands_in_the_table() -> None:
    table = drawn("table_3")
    rows = [{column.heading: row.get(column.key) for column in table.columns} for row in table.rows]
    by_model = {row["model"]: row for row in rows}
    assert (
        by_model["Transformer"]["words of a sample"] == "50 + 50"
        and by_model["ResNet-110"]["words of a sample"] is None
    )
    for row in rows:
        for needed in ("TFLOP/s", "GB/s of its memory", "memory, GiB", "% of it that products reach"):
            assert row[f"GPU: {needed}"] is not None, (row["model"], needed)


def test_rates_that_differ_are_not_shown_alike() -> None:
    table = drawn("table_2")
    rows = [{column.heading: row.get(column.key) for column in table.columns} for row in table.rows]
    by_method = {row["method"]: row for row in rows if row["model"] == "GPT 70B" and row["GPUs"] == 64}
    slow, fast = by_method["GPipe"], by_method["PipeDream"]
    assert slow["% of ideal"] != fast["% of ideal"] and slow["samples/s"] != fast["samples/s"]
    assert any("ResNet-110 on 256 GPUs" in note for note in table.notes)
    assert not any("Microbatches" in note for note in drawn("table_1").notes)


def test_what_asynchrony_gains_shrinks_as_synchronous_methods_may_do_more() -> None:
    """From plain flushes to all schedules it cannot grow; the third line is of other runs, whose table has the same."""
    paper = load_paper("at_scale")
    load_results(paper)
    frame = draw(Context.load(paper, "figure_6", load_scale("published", "cpu"))).data
    assert frame is not None
    gains = frame.pivot_table(index=["model", "gpus"], columns="compared with", values="gain")
    plain, every, shared = (gains[name] for _, _, name in GAINS)
    assert len(gains) == 12 and (plain >= every).all()
    table = drawn("table_1")
    for row in ({column.heading: row.get(column.key) for column in table.columns} for row in table.rows):
        if str(row["model"]).startswith("GPT"):
            assert shared[row["model"], row["GPUs"]] == row["times as fast: timed"]
