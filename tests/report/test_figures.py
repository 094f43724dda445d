"""Figures show what is logged and nothing else, and equal figures are equal files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from pipelag.report.diagrams import workflow
from pipelag.report.figures import space_time
from pipelag.report.frames import Lines
from pipelag.report.panels import MANY, label_points, running_mean
from pipelag.report.style import COLUMN, figure, save, slim
from pipelag.report.timelines import PALE, STRONG, timeline

SHORT = {"non-pipelined": [20.0, 10.0, 90.0], "4-stage": [15.0, 40.0, 80.0]}


def curves(lines: Mapping[str, Sequence[float]]) -> Any:
    """A figure of these values, step by step."""
    rows = [{"arm": arm, "x": x, "y": y} for arm, values in lines.items() for x, y in enumerate(values, start=1)]
    return Lines("x", "y", line="arm", smooth=True).draw(pd.DataFrame(rows))


def texts(fig: Any) -> list[str]:
    return [text.get_text() for text in fig.axes[0].texts]


@pytest.mark.parametrize("end", ["pdf", "svg", "png"])
def test_equal_figures_are_equal_files(tmp_path: Path, end: str) -> None:
    for name in ("a", "b"):
        save(curves(SHORT), tmp_path / name)
    assert (tmp_path / f"a.{end}").read_bytes() == (tmp_path / f"b.{end}").read_bytes()


def test_a_users_own_style_changes_no_figure(tmp_path: Path) -> None:
    save(curves(SHORT), tmp_path / "a")
    with plt.rc_context({"axes.grid": True, "axes.facecolor": "grey", "savefig.bbox": "tight", "lines.marker": "x"}):
        save(curves(SHORT), tmp_path / "b")
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()


def test_without_logs_there_is_nothing_to_read_off() -> None:
    axes = curves({}).axes[0]
    assert not axes.lines and not axes.axison
    assert [text.get_text() for text in axes.texts] == ["no run logged"]


def test_long_curves_say_that_they_are_running_means() -> None:
    def legend(count: int) -> list[str]:
        return curves({"arm": [float(x) for x in range(count)]}).axes[0].get_legend_handles_labels()[1]

    assert legend(MANY) == ["arm"]
    assert set(legend(MANY + 10)) == {"arm", f"evaluations; lines: running mean of {(MANY + 10) // 30}"}


def test_the_legend_hides_no_curve() -> None:
    fig = curves(SHORT)
    fig.canvas.draw()
    (legend,) = fig.legends
    assert not legend.get_window_extent().overlaps(fig.axes[0].get_window_extent())


def test_a_running_mean_of_fewer_at_the_ends() -> None:
    assert running_mean([0.0, 3.0, 6.0, 9.0], 3) == [1.5, 3.0, 6.0, 7.5]


def test_labels_do_not_fall_on_one_another() -> None:
    points = [(0.0, 1.0, "3"), (1.0, 1.0, "5"), (50.0, 1.0, "7"), (100.0, 1.0, "9")]
    fig, axes = figure(COLUMN)
    label_points(axes, points, "black", over=True)
    assert texts(fig) == ["3", "7", "9"]


def test_a_box_for_every_pass() -> None:
    rows = [
        {"worker": 0, "start": 0, "end": 1, "kind": "F", "minibatch": 0, "reads": 0, "writes": None},
        {"worker": 1, "start": 1, "end": 2, "kind": "F", "minibatch": 0, "reads": 0, "writes": None},
        {"worker": 1, "start": 1, "end": 2, "kind": "B", "minibatch": 0, "reads": 0, "writes": 1},
    ]
    fig = space_time(rows, ["A0", "A1"], versions=True)
    assert texts(fig) == ["F0", "reads $W_{0}$", "F0", "$W_{0}$", "B0", "$W_{1}$"]
    hatched = [patch for patch in fig.axes[0].patches if patch.get_hatch()]
    assert len(fig.axes[0].patches) == 3 + 2 and len(hatched) == 1  # two idle cells; the backward pass is hatched


def test_an_arrow_between_steps_is_as_far_from_the_one_as_from_the_other_however_wide_they_are() -> None:
    fig = workflow([("a", "narrow"), ("b", "much wider than the one before it"), ("c", "narrow\nagain")])
    fig.canvas.draw()
    (axes,) = fig.axes
    boxes = [box.get_window_extent() for text in axes.texts if (box := text.get_bbox_patch()) is not None]
    arrows = [text.arrow_patch.get_window_extent() for text in axes.texts if getattr(text, "arrow_patch", None)]
    assert len(boxes) == 3 and len(arrows) == 2
    for left, arrow, right in zip(boxes, arrows, boxes[1:], strict=False):
        gaps = arrow.x0 - left.x1, right.x0 - arrow.x1
        assert min(gaps) > 0 and max(gaps) < 2 * min(gaps)


def test_an_svg_keeps_its_text_and_loses_digits_that_nobody_sees(tmp_path: Path) -> None:
    save(curves({"tenth 0.12345 x=&quot;0.98765&quot;": [1.0, 2.0]}), tmp_path / "a")
    svg = (tmp_path / "a.svg").read_text()
    assert ">y</text>" in svg and "tenth 0.12345 x=" in svg and "0.98765" in svg
    assert not re.search(r' (?:d|x|y)="[^"]*\.\d{3}', svg) and "<!--" not in svg.split("<svg")[1]
    assert slim(svg) == svg


def test_a_pass_that_is_cut_off_does_not_look_whole() -> None:
    rows = [
        {"worker": 0, "kind": "F", "minibatch": 1, "start": 0.0, "end": 1.0},
        {"worker": 0, "kind": "B", "minibatch": 1, "start": 1.0, "end": 3.0},
    ]

    def edges(until: float) -> list[int]:
        """Of each pass, how many places its right edge takes."""
        figure = timeline(rows, ["worker 1"], number=lambda row: str(row["minibatch"]), until=until)
        _, passes, _ = figure.axes[0].collections
        return [len({float(x) for x, _ in box.vertices[1:-2]}) for box in passes.get_paths()]

    assert edges(3.0) == [1, 1] and edges(2.0) == [1, 2]


@pytest.mark.parametrize("palette", [STRONG, PALE])
def test_in_grey_a_forward_is_darker_than_a_backward_and_gradients_of_weights_are_lighter(
    palette: Mapping[str, str],
) -> None:
    def luminance(kind: str) -> float:
        """Of the palette's colour, by the sRGB standard; from 0, black, to 1."""
        channels = [int(palette[kind][place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [((each + 0.055) / 1.055) ** 2.4 for each in channels]
        return sum(share * each for share, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    assert (luminance("B") + 0.05) / (luminance("F") + 0.05) > (2 if palette is STRONG else 1.3)
    assert (luminance("W") + 0.05) / (luminance("B") + 0.05) > (2 if palette is STRONG else 1.1)


def test_what_is_written_on_a_light_box_is_dark() -> None:
    rows = [
        {"worker": 0, "kind": kind, "minibatch": place, "start": place, "end": place + 1}
        for place, kind in enumerate("FBW")
    ]
    figure = timeline(rows, ["worker 1"], number=lambda row: row["kind"])
    assert {text.get_text(): text.get_color() for text in figure.axes[0].texts} == {
        "F": "white",
        "B": "white",
        "W": "#444444",
    }


def test_a_timeline_of_very_many_workers_is_drawn_at_once_and_can_be_seen() -> None:
    """An artist per pass took a minute, its white edges hid narrow passes, and the picture was 27 feet high."""
    rows = [
        {"worker": worker, "kind": "F", "minibatch": minibatch, "start": start, "end": start + 1}
        for worker in range(1000)
        for minibatch, start in enumerate(range(worker, worker + 3))
    ]
    names = [f"worker {worker + 1}" for worker in range(1000)]
    figure = timeline(rows, names, number=lambda row: str(row["minibatch"]))
    axes = figure.axes[0]
    _, passes, _ = axes.collections
    assert len(passes.get_paths()) == 3000 and len(axes.get_children()) < 20  # no number: none could be read
    width = 72 * 6.2 / 1002  # of a pass, in points
    assert max(passes.get_linewidths()) < width / 2
    assert figure.get_figheight() < 21
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["worker 1", "worker 11"]


def test_a_timeline_of_few_workers_names_and_numbers_all() -> None:
    rows = [{"worker": worker, "kind": "F", "minibatch": 7, "start": 0, "end": 1} for worker in range(60)]
    figure = timeline(rows, [f"worker {worker + 1}" for worker in range(60)], number=lambda row: str(row["minibatch"]))
    assert len(figure.axes[0].get_yticklabels()) == 60 == len(figure.axes[0].texts)
    assert figure.get_figheight() == pytest.approx(0.62 + 0.32 * 60)


def test_a_timeline_of_more_workers_than_can_be_named_names_the_first() -> None:
    rows = [{"worker": worker, "kind": "F", "minibatch": 7, "start": 0, "end": 1} for worker in range(20_000)]
    names = [f"worker {worker + 1}" for worker in range(20_000)]
    figure = timeline(rows, names, number=lambda row: str(row["minibatch"]))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["worker 1"]
