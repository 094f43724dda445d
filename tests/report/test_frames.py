"""Charts are drawn from the frame that is saved: what is in it is in the picture, and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from pipelag.report import explore
from pipelag.report.charts import greek, heat
from pipelag.report.frames import Axis, Bars, Lines, Scatter
from pipelag.report.panels import columns_of, letters_of, over_seeds, with_all_seeds, wrapped
from pipelag.report.style import COLOURS, WHOLE, broken, freeze, save
from pipelag.results.drawing import Drawn

CURVES = pd.DataFrame(
    [
        {"task": task, "arm": arm, "seed": seed, "epoch": epoch, "accuracy": 10.0 * epoch + seed + (arm == "b")}
        for task in ("one", "two")
        for arm in ("a", "b")
        for seed in (0, 1, 2)
        for epoch in (1, 2, 3)
    ]
)


def test_a_line_is_the_mean_over_seeds_with_a_band() -> None:
    fig = Lines("epoch", Axis("accuracy", "accuracy (%)"), line="arm", panel="task").draw(CURVES)
    assert [axes.get_title() for axes in fig.axes] == ["one", "two"]
    for axes in fig.axes:
        assert [list(line.get_ydata()) for line in axes.lines] == [[11.0, 21.0, 31.0], [12.0, 22.0, 32.0]]
        assert len(axes.collections) == 2  # bands
        assert all(line.get_marker() == marker for line, marker in zip(axes.lines, "os", strict=True))  # few points
        assert axes.get_xlabel() == "epoch" and axes.get_ylabel() == "accuracy (%)"
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["a", "b"]


def test_titles_of_crowded_groups_go_on_in_further_lines_before_they_meet() -> None:
    groups = ["VGG16", "ResNet-\n152", "Residual\nLSTM", "mean, CNN", "mean,\nFCN/RNN", "mean, all", "SNN", "all", "v4"]
    rows = [
        {"panel": panel, "group": group, "bar": bar, "value": 1.0}
        for panel, some in (("one", groups[:6]), ("two", groups))
        for group in some
        for bar in "abc"
    ]
    fig = Bars("value", "group", "bar", panel="panel").draw(pd.DataFrame(rows))
    fig.canvas.draw()
    for axes in fig.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(one.x1 <= other.x0 for one, other in zip(boxes, boxes[1:], strict=False))
        assert axes.get_xticklabels()[3].get_text() == "mean,\nCNN"


def test_each_panel_may_have_axes_of_its_own() -> None:
    x = {"one": Axis("epoch", "epochs"), "two": Axis("epoch", "hours")}
    y = {"one": Axis("accuracy", "accuracy (%)"), "two": Axis("accuracy", "BLEU")}
    fig = Lines(x, y, line="arm", panel="task").draw(CURVES)
    assert [axes.get_xlabel() for axes in fig.axes] == ["epochs", "hours"]
    assert [axes.get_ylabel() for axes in fig.axes] == ["accuracy (%)", "BLEU"]


def test_one_seed_has_no_band_and_many_points_no_markers() -> None:
    frame = pd.DataFrame({"x": range(50), "y": range(50)})
    (axes,) = Lines("x", "y").draw(frame).axes
    assert not axes.collections and axes.lines[0].get_marker() == "None"


def test_a_line_a_little_longer_than_the_others_is_marked_as_they_are_and_one_that_ends_early_is_found() -> None:
    def markers(*counts: int) -> list[str]:
        rows = [{"arm": f"arm {n}", "x": x, "y": x} for n, count in enumerate(counts) for x in range(count)]
        return [str(line.get_marker()) for line in Lines("x", "y", line="arm").draw(pd.DataFrame(rows)).axes[0].lines]

    assert markers(16, 16, 17) == ["o", "s", "^"]
    assert markers(40, 40, 3) == ["None", "None", "^"]


def test_a_long_legend_takes_no_room_from_the_panels() -> None:
    def height(arms: int) -> float:
        """Of the panel, in inches."""
        rows = [{"arm": f"an arm with a long name, {n}", "x": x, "y": x + n} for n in range(arms) for x in (1, 2)]
        fig = Lines("x", "y", line="arm").draw(pd.DataFrame(rows))
        freeze(fig)
        return float(fig.axes[0].get_position().height * fig.get_figheight())

    assert height(7) == pytest.approx(height(4), abs=0.05) and height(4) < height(2)


def test_long_lines_are_smoothed_over_faint_points_and_say_so() -> None:
    frame = pd.DataFrame({"x": range(300), "y": [i % 2 for i in range(300)]})
    (axes,) = Lines("x", "y", smooth=True).draw(frame).axes
    faint, _, smooth = axes.lines
    assert faint.get_alpha() == 0.25 and max(smooth.get_ydata()[20:-20]) < 0.6
    assert axes.get_legend_handles_labels()[1] == ["evaluations; lines: running mean of 10"] and not axes.texts
    (axes,) = Lines("x", "y", smooth=True).draw(frame[:50]).axes
    assert len(axes.lines) == 1 and not axes.get_legend_handles_labels()[1]


def test_a_trailing_mean_is_of_the_latest_points_alone() -> None:
    frame = pd.DataFrame({"x": range(30), "y": [0.0] * 15 + [1.0] * 15})
    (axes,) = Lines("x", "y", trailing=10).draw(frame).axes
    faint, _, trailing = axes.lines
    assert list(faint.get_ydata()) == list(frame["y"])
    assert "latest 10" in axes.get_legend_handles_labels()[1][0]
    assert [round(value, 9) for value in trailing.get_ydata()[14:26]] == [0.0, *(i / 10 for i in range(1, 11)), 1.0]


def test_a_panel_may_have_levels_of_its_own_and_each_level_its_dashes() -> None:
    y = {"one": Axis("accuracy", levels={"goal": 50.0}), "two": Axis("accuracy")}
    fig = Lines("epoch", y, line="arm", panel="task", levels={"all": 10.0, "more": 20.0}).draw(CURVES)
    lines = [{line.get_label(): line for line in axes.lines} for axes in fig.axes]
    assert "goal" in lines[0] and "goal" not in lines[1] and {"all", "more"} <= lines[1].keys()
    assert lines[1]["all"]._dash_pattern != lines[1]["more"]._dash_pattern


def test_points_carry_the_labels_of_their_rows() -> None:
    (axes,) = Lines("epoch", "accuracy", line="arm", label="name").draw(CURVES.assign(name=CURVES["epoch"] + 6)).axes
    assert [text.get_text() for text in axes.texts] == ["7", "8", "9"] * 2


def test_bars_are_means_and_stacks_add_up() -> None:
    frame = CURVES[CURVES["epoch"] == 3]
    (axes,) = Bars("accuracy", group="task", bar="arm").draw(frame).axes
    assert sorted(bar.get_height() for bar in axes.patches) == [31.0, 31.0, 32.0, 32.0]
    stacked = pd.DataFrame({"who": ["x", "x"], "part": ["p", "q"], "seconds": [1.0, 2.5]})
    (axes,) = Bars("seconds", group="who", stack="part").draw(stacked).axes
    assert [(bar.get_y(), bar.get_height()) for bar in axes.patches] == [(0.0, 1.0), (1.0, 2.5)]
    assert [text.get_text() for text in axes.texts] == ["3.50"]


def test_a_vertical_line_has_its_lines_colour_and_one_that_lines_share_is_grey_as_in_the_legend() -> None:
    ends = {"a": 2.0, "b": 2.0, "c": 3.0}
    rows = [{"arm": arm, "x": x, "y": x, "end": end} for arm, end in ends.items() for x in (1.0, 4.0)]
    fig = Lines("x", "y", line="arm", vertical="end", vertical_title="switch").draw(pd.DataFrame(rows))
    drawn = {line.get_xdata()[0]: line.get_color() for line in fig.axes[0].lines if len({*line.get_xdata()}) == 1}
    assert drawn == {2.0: "#7F7F7F", 3.0: COLOURS[2]}
    alone = Lines("x", "y", line="arm", vertical="end", vertical_title="switch").draw(pd.DataFrame(rows[4:]))
    assert alone.legends[0].get_lines()[1].get_color() == COLOURS[0]
    assert len(Lines("x", "y", line="arm", vertical="start").draw(pd.DataFrame(rows)).axes[0].lines) == 3  # none has it
    names = [text.get_text() for text in fig.legends[0].get_texts()]
    assert names == ["a", "b", "c", "switch"] and fig.legends[0].get_lines()[3].get_color() == "#7F7F7F"


def test_the_axis_parts_thousands_as_the_numbers_above_the_bars_do() -> None:
    bars = pd.DataFrame([{"model": "a", "speed": 10_612.0}, {"model": "b", "speed": 1_100_000.0}])
    (axes,) = Bars("speed", "model", number="{:,.0f}").draw(bars).axes
    ticks = [axes.yaxis.get_major_formatter()(tick) for tick in (0.5, 10_000.0, 1_200_000.0)]
    assert ticks == ["0.5", "10,000", "1,200,000"]


@pytest.mark.parametrize("chart", [Lines("x", "y"), Bars("y", group="x")])
def test_an_empty_frame_says_so(chart: Lines | Bars) -> None:
    drawn = Drawn.of(chart, [])
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == ["no run logged"]


def test_the_order_of_groups_is_the_frames_but_numbers_are_sorted() -> None:
    frame = pd.DataFrame({"k": ["b", "a", "b"], "n": [3, 1, 3], "y": [1.0, 2.0, 3.0]})
    assert list(over_seeds(frame, "k", "y").index) == ["b", "a"]
    assert list(over_seeds(frame, "n", "y").index) == [1, 3]


def test_a_footer_is_in_the_picture_and_equal_figures_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fig = Lines("epoch", "accuracy", line="arm", panel="task").draw(CURVES)
        save(fig, tmp_path / name, footer="resnet20 on CIFAR-10, 2,400 updates; one seed. " * 4)
        assert len(fig.texts) == 1
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_figure_is_laid_out_once_whatever_it_is_written_as_and_in_which_order(tmp_path: Path) -> None:
    for name, ends in (("a", (".pdf", ".svg", ".png")), ("b", (".svg", ".png")), ("c", (".png", ".svg"))):
        fig = Lines(Axis("epoch", "step size alpha"), Axis("accuracy", limits=(9.0, 35.0)), line="arm").draw(CURVES)
        save(fig, tmp_path / name, ends)
    assert len({(tmp_path / f"{name}.svg").read_bytes() for name in "abc"}) == 1
    assert len({(tmp_path / f"{name}.png").read_bytes() for name in "abc"}) == 1


def test_a_line_of_one_point_has_a_whisker_for_a_band_has_no_width() -> None:
    rows = [{"x": x, "y": y} for x in (1, 2) for y in (3.0, 5.0)]
    one, two = (Lines("x", "y").draw(pd.DataFrame(some)).axes[0] for some in (rows[:2], rows))
    assert len(one.containers) == 1 and len(two.containers) == 0 and len(two.collections) == 1


def test_where_runs_diverge_the_point_is_hollow_and_the_mean_is_of_the_others() -> None:
    rows = [{"x": x, "y": y, "seed": seed} for x, seed, y in ((1, 0, 1.0), (1, 1, 3.0), (2, 0, 5.0), (2, 1, None))]
    axes = Lines("x", "y", hollow=True).draw(pd.DataFrame(rows)).axes[0]
    whole, small, hollow = axes.lines
    assert list(whole.get_ydata()) == [2.0, 5.0] and sorted(small.get_ydata()) == [1.0, 3.0, 5.0]
    assert (list(hollow.get_xdata()), list(hollow.get_ydata())) == ([2], [5.0])
    assert hollow.get_markerfacecolor() == "white" and not axes.collections


def test_a_mean_ends_where_the_first_of_its_seeds_does() -> None:
    rows = pd.DataFrame(
        [
            {"seed": seed, "epoch": epoch, "value": 10.0 * seed + epoch}
            for seed, last in ((0, 4), (1, 2))
            for epoch in range(1, last + 1)
        ]
    )
    whole = with_all_seeds(rows, "epoch")
    assert over_seeds(whole, "epoch", "value")["mean"].to_dict() == {1: 6.0, 2: 7.0}
    assert with_all_seeds(rows.drop(columns="seed"), "epoch").equals(rows.drop(columns="seed"))
    stages = rows.rename(columns={"epoch": "stages"})  # of which some may not be trained with every seed
    assert with_all_seeds(stages, "stages").equals(stages)


def test_a_browsers_curve_ends_where_the_figures_does() -> None:
    """It is drawn from the same CSV by another program: the mean over seeds that go on would flatter there as here."""
    rows = [{"seed": s, "epoch": e, "value": 10.0 * s + e} for s, last in ((0, 4), (1, 2)) for e in range(1, last + 1)]
    chart = Lines("epoch", "value")
    (line,) = chart.draw(pd.DataFrame(rows)).axes[0].lines
    ((curve,),) = (panel["lines"] for panel in explore.panels(chart, pd.DataFrame(rows)))
    assert curve["x"] == list(line.get_xdata()) == [1, 2] and curve["y"] == list(line.get_ydata()) == [6.0, 7.0]


def told(chart: object, rows: list[dict[str, Any]]) -> str:
    """What is said of a figure whose record has this chart."""
    kept = json.loads(json.dumps({"kind": type(chart).__name__, **asdict(chart)}))  # type: ignore[call-overload]
    return explore.seen(SimpleNamespace(chart=kept, runs=[]), pd.DataFrame(rows))  # type: ignore[arg-type]


def test_of_bars_one_hears_the_means_over_seeds_by_panel_or_of_many_the_ends() -> None:
    rows = [
        {"p": p, "net": net, "arm": arm, "v": v + seed}
        for seed in (0.0, 1.0)
        for p, net, arm, v in (("one", "a", "x", 1.0), ("one", "a", "tau", 3.0), ("two", "b", "x", -0.5))
    ]
    chart = Bars(Axis("v", "time\n(s)"), group="net", bar="arm", panel="p")
    assert told(chart, rows) == "one: bars of time (s); a x 1.5, a τ 3.5. two: bars of time (s); b x 0."
    assert told(Bars("v", group="net"), rows) == "bars of v; a 2.5, b 0."
    many = [{"net": f"n{i}", "v": float((i - 7) ** 2)} for i in range(explore.NAMED + 1)]
    assert told(Bars("v", group="net"), many) == f"bars of v; {explore.NAMED + 1} bars from 0 (n7) to 49 (n0)."


def test_of_points_one_hears_both_axes_of_each_panel_and_group() -> None:
    """Panels that have axes of their own are not mixed."""
    rows = [
        {"p": p, "g": g, "x": x, "y": 10.0 * x}
        for p, g, x in (("one", "crowd", 1.0), ("one", "crowd", 2.0), ("one", "best", 3.0), ("two", "crowd", 400.0))
    ]
    chart = Scatter("x", {"one": Axis("y", "rate"), "two": Axis("y", "speed")}, group="g", panel="p")
    assert told(chart, rows) == (
        "one: 2 points of crowd, x 1 to 2, rate 10 to 20; 1 point of best, x 3, rate 30. "
        "two: 1 point of crowd, x 400, speed 4000."
    )
    assert told(Scatter(Axis("x", "steps"), "y"), rows[:2]) == "2 points, steps 1 to 2, y 10 to 20."


def test_of_many_panels_one_hears_how_many_are_left() -> None:
    long = ["word " * 100] * 3
    assert explore.listened(iter(long[:2])).endswith("The CSV has the values of 1 more panel.")
    assert explore.listened(iter(long)).endswith("The CSV has the values of 2 more panels.")


def test_an_end_of_an_axis_that_is_free_leaves_room_for_all_panels() -> None:
    rows = pd.DataFrame([{"p": p, "x": x, "y": top * x} for p, top in (("low", 1), ("high", 100)) for x in (1, 2)])
    for limits in ((0, None), (None, 500)):
        fig = Lines("x", Axis("y", limits=limits), panel="p", shared_y=True).draw(rows)
        for axes in fig.axes:
            below, above = axes.get_ylim()
            assert below <= 1 and above >= 200
            assert limits[0] is None or below == limits[0]
            assert limits[1] is None or above == limits[1]


def test_a_value_above_a_bar_is_read_where_a_level_crosses_it() -> None:
    bars = pd.DataFrame([{"model": "a", "speed": 0.9}, {"model": "b", "speed": 2.0}])
    for levels, strokes in (({"single GPU": 1.0}, 1), ({}, 0)):
        (axes,) = Bars("speed", "model", levels=levels).draw(bars).axes
        assert [len(text.get_path_effects() or ()) for text in axes.texts] == [strokes] * 2


def test_a_title_is_not_broken_between_a_number_and_its_unit() -> None:
    title = "Transformer (small), Multi30k de-en, 33 stages"
    assert wrapped(title, 3.0).split("\n") == ["Transformer (small), Multi30k de-en,", "33 stages"]
    assert wrapped("GNMT-8 4 layers", 0.9).split("\n") == ["GNMT-8", "4 layers"]


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_a_long_title_of_the_x_axis_stays_in_the_figure(panels: int) -> None:
    title = "time (hours; an epoch as simulated for the paper's data)"
    points = pd.DataFrame([{"hours": i, "accuracy": i, "panel": str(p)} for i in range(3) for p in range(panels)])
    bars = points.assign(hours=points["hours"].astype(str))
    for fig in (
        Lines(Axis("hours", title), "accuracy", panel="panel").draw(points),
        Scatter(Axis("hours", title), "accuracy", panel="panel").draw(points),
        Bars("accuracy", "hours", panel="panel", x_title=title).draw(bars),
    ):
        freeze(fig)
        for axes in fig.axes:
            box = axes.xaxis.label.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= fig.bbox.x1 and box.width <= fig.bbox.width / panels
            assert " ".join(axes.get_xlabel().split()) == title


def test_a_spread_over_seeds_is_the_samples_standard_deviation() -> None:
    """Of bands and whiskers, as tables have it: over n - 1, for seeds are a sample of all there could be."""
    frame = pd.DataFrame({"epoch": [1, 1, 1, 2], "seed": [0, 1, 2, 0], "accuracy": [1.0, 2.0, 6.0, 5.0]})
    means, spreads = (over_seeds(frame, "epoch", "accuracy")[column] for column in ("mean", "std"))
    assert list(spreads) == pytest.approx([stdev([1.0, 2.0, 6.0]), 0.0])
    assert list(means) == [3.0, 5.0]
    both = pd.concat([frame[frame["epoch"] == 1].assign(epoch=epoch) for epoch in (1, 2)])
    (axes,) = Lines("epoch", "accuracy").draw(both).axes
    (band,) = axes.collections
    edges = sorted({y for x, y in band.get_paths()[0].vertices if x == 1})
    assert edges == pytest.approx([3.0 - stdev([1.0, 2.0, 6.0]), 3.0 + stdev([1.0, 2.0, 6.0])])
    (axes,) = Bars("accuracy", group="epoch").draw(frame).axes
    (bar,) = (each for each in axes.containers if isinstance(each, ErrorbarContainer))
    whisker, none = bar.lines[2][0].get_segments()
    assert whisker[:, 1] == pytest.approx(edges)
    assert axes.texts[0].xy[1] == pytest.approx(edges[1])  # the number stands above the whisker
    assert len(none) == 0  # a whisker of no length would say that seeds of the other bar agree, and it has one
    assert [pd.notna(pd.Series(list(cap.get_ydata()))).sum() for cap in bar.lines[1]] == [1, 1]


@pytest.mark.parametrize("log", [True, False])
def test_an_axis_is_logarithmic_where_it_says_so(log: bool) -> None:
    frame = pd.DataFrame({"gpus": [1, 2, 4], "share": [1.0, 10.0, 100.0]})
    scale = "log" if log else "linear"
    (axes,) = Lines(Axis("gpus", log=log, ticks=(1, 2, 4)), Axis("share", log=log)).draw(frame).axes
    assert (axes.get_xscale(), axes.get_yscale()) == (scale, scale)
    (axes,) = Bars(Axis("share", log=log), "gpus").draw(frame).axes
    assert axes.get_yscale() == scale


def test_lines_and_bars_have_the_colours_that_they_are_given() -> None:
    """One of an arm in all its figures, whichever else they show."""
    from matplotlib.colors import to_hex

    fig = Lines("epoch", "accuracy", line="arm", styles={"a": (3, 2), "b": (5, 0)}).draw(CURVES)
    lines = {line.get_label(): line.get_color() for line in fig.axes[0].get_lines()}
    assert (lines["a"], lines["b"]) == (COLOURS[3], COLOURS[5])
    fig = Bars("accuracy", "task", "arm", colours={"a": 3, "b": 5}).draw(CURVES)
    seen = {to_hex(patch.get_facecolor()).upper() for patch in fig.axes[0].patches}
    assert seen == {COLOURS[3].upper(), COLOURS[5].upper()}


def test_marks_of_a_line_that_soon_ends_do_not_run_together_and_its_end_is_marked() -> None:
    def rows(ends: dict[str, int]) -> pd.DataFrame:
        return pd.DataFrame(
            [{"arm": a, "x": x, "y": x, "panel": p} for a, n in ends.items() for x in range(n) for p in "abc"]
        )

    for ends, marked in (
        ({"long": 40, "lost": 4}, {"long": None, "lost": [3]}),
        ({"a": 16, "b": 3}, {"a": None, "b": None}),
    ):
        fig = Lines("x", "y", line="arm", panel="panel").draw(rows(ends))
        for axes in fig.axes:
            assert {line.get_label(): line.get_markevery() for line in axes.get_lines()} == marked
    words = pd.DataFrame({"x": ["one", "two"], "y": [1, 2]})
    assert Lines("x", "y").draw(words).axes[0].get_lines()[0].get_markevery() is None


def test_a_legend_has_the_order_of_the_lines_also_where_the_first_panel_lacks_one() -> None:
    rows = [
        {"D": d, "panel": p, "x": x, "y": x}
        for d in "abcd"
        for p, some in (("one", "abd"), ("two", "bc"))
        for x in (1, 2)
        if d in some
    ]
    fig = Lines("x", "y", line="D", panel="panel", levels={"goal": 1.0}).draw(pd.DataFrame(rows))
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["a", "b", "c", "d", "goal"]


def test_vertical_lines_may_be_something_else_in_each_panel() -> None:
    rows = pd.DataFrame([{"panel": p, "x": x, "y": x, "root": 1.5} for p in ("one", "two") for x in (1, 2)])
    titles = {"one": "S = sqrt(P)", "two": "S = sqrt(N)"}
    chart = Lines("x", "y", panel="panel", vertical="root", vertical_title=titles, own_legends=True)
    legends = [axes.get_legend() for axes in chart.draw(rows).axes]
    assert [[text.get_text() for text in legend.get_texts()] for legend in legends] == [
        ["S = sqrt(P)"],
        ["S = sqrt(N)"],
    ]


def test_a_legend_has_as_many_columns_as_its_words_are_long_and_not_their_markup() -> None:
    assert letters_of(greek("27 stages, tau_fwd > tau_bkwd")) == len("27 stages, xfwd > xbkwd")
    assert columns_of([greek(f"{P} stages, tau_fwd = tau_bkwd") for P in (14, 27, 54)], 7.0) == 3
    assert columns_of(["a word", "or two"], 3.4) == 2


def test_a_footer_is_not_broken_within_a_size_or_a_value() -> None:
    footer = "GPipe 4 x 85 sequences, 8 x 156; 56.2 (sd 0.8) at P = 107, 50 % of it, 1 to 3 seeds"
    for letters in range(12, 40):
        lines = broken(footer, letters, WHOLE)
        assert " ".join(lines) == footer and all(len(line) <= letters for line in lines)
        whole = ("4 x 85", "8 x 156;", "(sd 0.8)", "P = 107,", "50 %", "1 to 3")
        assert all(any(words in line for line in lines) for words in whole)


def test_a_heat_map_says_what_its_grey_cells_are_where_it_has_some() -> None:
    def legend(cell: float) -> list[str]:
        fig = heat(
            [[1.0, cell], [1.0, 1.0]], [1.0, 2.0], [1.0, 2.0], ("x", "y", "z"), [(1.0, 1.0)], "bound", blank="diverged"
        )
        return [text.get_text() for text in fig.legends[0].get_texts()]

    assert legend(float("nan")) == ["bound", "diverged"] and legend(2.0) == ["bound"]
