"""What stands below a figure is of the runs that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pipelag.commands.result import save
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from tests.results.cases.pipemare import PAPER, training
from tests.results.made_up import both


def images_alone(labels: Mapping[str, str]) -> float | None:
    """No pipeline translates."""
    return 90.0 if labels["task"] == "images" else 30.0 if labels["arm"] == "Sync" else None


def everything(labels: Mapping[str, str]) -> float:
    return 90.0 if labels["task"] == "images" else 30.0


@pytest.mark.usefixtures("in_project")
def test_a_task_that_has_no_panel_is_not_told_of() -> None:
    some, whole = both(PAPER, "figure_8", training(images_alone), training(everything), scale="paper")
    for context, panels in ((some, 1), (whole, 2)):
        load_results(context.paper)
        drawn = draw(context)
        assert drawn.data is not None and drawn.data["panel"].nunique() == panels
        assert ("transformer" in drawn.footer(context)) is (panels == 2) and "resnet50" in drawn.footer(context)
    assert "transformer" in some.footer()


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize(("result", "tasks"), [("figure_13", ["translation"]), ("figure_15", []), ("figure_17", [])])
def test_training_without_a_pipeline_or_recomputation_is_not_drawn_alone(result: str, tasks: list[str]) -> None:
    def some(labels: Mapping[str, str]) -> float | None:
        alone = labels["arm"] == "Sync" or labels.get("checkpoints") == "none"
        return 30.0 if alone or labels["task"] in tasks else None

    found, whole = both(PAPER, result, training(some), training(everything), scale="paper")
    load_results(found.paper)
    drawn, drawn_whole = draw(found), draw(whole)
    assert drawn.data is not None and drawn_whole.data is not None
    assert len(set(drawn.data.get("panel", ()))) == len(tasks) < drawn_whole.data["panel"].nunique()
    assert bool(drawn.footer(found)) is bool(tasks)  # an empty frame says itself why it is empty


@pytest.mark.usefixtures("in_project")
def test_a_table_has_its_footer_and_counts_the_seeds_of_an_arm_once(tmp_path: Path) -> None:
    context, _ = both(PAPER, "table_8", training(everything), training(everything), scale="paper")
    load_results(context.paper)
    drawn = draw(context)
    footer = drawn.footer(context)
    seeds = {item.arm.seed for item in context.items}
    assert f"; {len(seeds)} seeds" in footer and "one standard deviation" not in footer
    save(drawn, tmp_path / "table_8", "table", footer)
    for end in (".md", ".tex"):
        assert "updates;" in (tmp_path / "table_8").with_suffix(end).read_text()
