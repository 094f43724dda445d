"""`make picture`: draw the picture at the head of the README, docs/images/staleness.svg.

Above is the schedule of the stale-weights paper, with the version of the weights that each pass reads. Below, from the
logs under results/published, is the accuracy that networks lose, against how late their first stage's weights are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pipelag import methods
from pipelag.experiments import load_paper, load_scale
from pipelag.report.style import COLOURS, PAGE, figure, save
from pipelag.report.timelines import draw_on
from pipelag.results.context import Context
from pipelag.results.judging import Difference, by_seed
from pipelag.results.stale_weights.reading import BASELINE, CONTROL
from pipelag.runs.kinds.timeline import rows_of

STAGES, MINIBATCHES, FOLLOWED = 4, 10, 6  # FOLLOWED: the minibatch that is highlighted, counted from 0


def main(out: Path) -> None:
    """Write the picture."""
    fig, (above, below) = figure(PAGE, 4.4, nrows=2, height_ratios=[1.2, 1.0])
    pipeline(above)
    curves(below)
    save(fig, out.with_suffix(""), (out.suffix,))


def pipeline(axes: Any) -> None:
    """Four stages, with one minibatch highlighted; W_v is the version that a pass reads."""
    method = methods.get("stale_weights")
    rows = rows_of(method.schedule(STAGES, MINIBATCHES), method)
    late = method.delays(STAGES).forward[0]
    draw_on(
        axes,
        rows,
        [f"stage {stage}" for stage in range(1, STAGES + 1)],
        number=lambda row: str(row["minibatch"] + 1),
        follow=lambda row: row["minibatch"] == FOLLOWED,
        label=lambda row: f"$W_{{{row['reads']}}}$",
    )
    axes.set_xlabel("time in cycles; blue: forwards, green: backwards, numbered by minibatch; W: the weights they read")
    axes.set_title(f"Without waiting, stage 1 goes forwards with weights that are {late} updates late", loc="left")


def curves(axes: Any) -> None:
    """Points lost to training without a pipeline, against the delay of the first stage, of each network of table 2 that
    was trained; and, where that has a log, to training without a pipeline at the pipelines' own, smaller rate.
    """
    scale, paper = load_scale("published", "cpu"), load_paper("stale_weights")
    context = Context.load(paper, "table_2", scale)
    for model in context.values("model"):
        if logs := context.logs(model=model):
            title = f"{model}, {logs[0].summary['data']['title']}, {logs[0].summary['steps']:,} updates"
            line(axes, context, BASELINE, title, model=model)
    line(axes, Context.load(paper, "control", scale), CONTROL, "the same ResNet-20, at equal rates")
    axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
    axes.set_xlabel("updates that the weights of stage 1's forwards are late (networks side by side)")
    axes.set_ylabel("points lost")
    axes.margins(y=0.25)
    axes.set_xticks(range(2, 9, 2))
    axes.set_xlim(1, 14.6)  # room for the legend
    axes.legend(loc="upper right")
    axes.set_title("Test accuracy that such pipelines lose (logs of results/published/cpu; 95 % intervals)", loc="left")


def line(axes: Any, context: Context, base: str, title: str, **labels: str) -> None:
    """What each pipelined arm loses to an arm without a pipeline, paired over seeds; one seed: the test set's error."""
    ends = {}
    for arm in dict.fromkeys(item.arm.labels["arm"] for item in context.select(**labels)):
        log = context.log(arm=arm, **labels)
        if log is not None and arm.endswith("-stage"):
            against = [by_seed(context, arm=each, **labels) for each in (base, arm)]
            ends[log.summary["phases"][0]["forward_delays"][0]] = Difference.of(*against)
    if not ends:
        return
    few, many = (choose(lost.seeds for lost in ends.values()) for choose in (min, max))
    seeds = "one seed" if many == 1 else f"{many} seeds" if few == many else f"{few} to {many} seeds"
    drawn = len(axes.containers)
    colour, shift = COLOURS[1 + drawn], 0.36 * (drawn - 2)  # side by side: neither bars nor numbers cover one another
    axes.errorbar(
        [late + shift for late in ends],
        [lost.mean for lost in ends.values()],
        [lost.error or 0.0 for lost in ends.values()],
        fmt="o",
        capsize=2,
        color=colour,
        label=f"{title} ({seeds})",
    )
    for late, lost in ends.items():
        above = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 7, "color": colour}
        axes.annotate(f"{lost.mean:.1f}", (late + shift, lost.mean + (lost.error or 0.0)), **above)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
