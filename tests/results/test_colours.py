"""A method's colour is the same in all papers, and no two methods of a figure are drawn alike."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pipelag.experiments import load_paper, load_scale
from pipelag.report.style import COLOURS
from pipelag.results import colours
from pipelag.results.at_scale import cost
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.leaderboard import scores
from pipelag.results.loading import load_results
from pipelag.results.pipedream import targets
from pipelag.results.pipemare import curves, quadratic, segments, stages
from pipelag.results.pipeoptim import curves as pipeoptim
from pipelag.results.pipeoptim import throughput
from pipelag.results.spectrain import learning_curves, prediction, timing

MODELS = {  # of the quadratic model
    "figure 6b": ("discrepancy", "T2, D = 0.1", "no discrepancy"),
    "figure 10": ("original", "T2 corrected"),
    "figure 16": ("discrepancy and recompute", "discrepancy, no recompute", "corrected, D = 0.1", "no discrepancy"),
}
LINES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "at_scale": cost.STYLES,
    "at_scale, staleness": cost.LATE,
    "leaderboard": scores.STYLES,
    "pipedream": targets.STYLES,
    "pipemare": curves.STYLES,
    "pipemare, stages": stages.STYLES,
    **{f"pipemare, {figure}": {name: quadratic.STYLES[name] for name in some} for figure, some in MODELS.items()},
    "pipeoptim": pipeoptim.STYLES,
    "spectrain": learning_curves.STYLES,
    "spectrain, prediction": prediction.STYLES,
}
BARS: Mapping[str, Mapping[str, int]] = {"pipeoptim": throughput.COLOURS, "spectrain": timing.COLOURS}
NAMES = {  # as the papers call them
    colours.PIPEDREAM: ("PipeDream",),
    colours.TWO_BW: ("PipeDream-2BW",),
    colours.PIPEMARE: ("PipeMare", "T1+T2", "PipeMare T1+T2", "PipeMare T2", "T2, D = 0.1", "T2 corrected"),
    colours.PIPEMARE_W: ("PipeMareW", "T1+T2+W"),
    colours.SPECTRAIN: ("SpecTrain", "SpecTrain on 1F1B", "DualPipe"),
    colours.PIPEOPTIM: ("PipeOptim",),
    colours.UNMENDED: (
        *("Vanilla-1F1B", "Vanilla DualPipe", "1F1B, latest weights", "no correction"),
        *("discrepancy", "original", "stale (SpecTrain's run)"),
    ),
    colours.BASELINE: ("sequential", "Sync", "Data P.", "data parallelism", "no discrepancy"),
}


@pytest.mark.parametrize("name", [name for names in NAMES.values() for name in names])
def test_a_method_has_its_colour_in_every_paper(name: str) -> None:
    """Every table of styles that names it; it stands in one at least."""
    drawn = {where: styles[name][0] for where, styles in LINES.items() if name in styles}
    drawn |= {f"{where}, bars": styles[name] for where, styles in BARS.items() if name in styles}
    (wanted,) = (colour for colour, names in NAMES.items() if name in names)
    assert drawn and set(drawn.values()) == {wanted}, drawn


@pytest.mark.parametrize("where", LINES)
def test_no_two_methods_of_a_figure_are_drawn_alike(where: str) -> None:
    of_lines = [colour for colour, _ in LINES[where].values()]
    assert len(set(of_lines)) == len(of_lines) and max(of_lines) < len(COLOURS)


@pytest.mark.parametrize("where", BARS)
def test_no_two_bars_are_drawn_alike(where: str) -> None:
    assert len(set(BARS[where].values())) == len(BARS[where])


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize(
    ("result", "ours"),
    [
        ("figure_14a", "PipeDream"),
        ("figure_14b", "with pipelining"),
        ("figure_17", "several stages, least predicted time"),
    ],
)
def test_pipedreams_bars_have_its_colour_whatever_they_are_called(result: str, ours: str) -> None:
    runs = Context.load(load_paper("pipedream"), result, load_scale("published", "cpu"))
    load_results(runs.paper)
    chart = draw(runs).chart
    assert chart is not None and chart["colours"][ours] == colours.PIPEDREAM


def test_pipelines_of_as_many_stages_are_drawn_alike_in_both_panels_and_no_two_of_one() -> None:
    panels = (
        ["P = 64", "P = 107", "P = 256"],
        ["P = 64, N = 64", "P = 107, N = 8", "P = 107, N = 16", "P = 256, N = 256"],
    )
    styles = segments.styles_of([line for lines in panels for line in lines])
    assert [styles[line] for line in panels[0]] == [styles[line] for line in panels[1] if line != "P = 107, N = 16"]
    for lines in panels:
        for kind in (0, 1):  # told apart by the colour alone, and in grey by the dashes alone
            assert len({styles[line][kind] for line in lines}) == len(lines)
