"""The picture at the head of the README, from the suite itself: `make picture` writes docs/images/staleness.svg.

Above, the schedule of the stale-weights paper with the version that each pass reads; below, from the logs under
results/published, what networks trained so reach, against how late their first stage's weights are.
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
from pipelag.runs.kinds.timeline import rows_of

STAGES, MINIBATCHES, FOLLOWED = 4, 10, 6  # the minibatch that is drawn strongly, from 0


def main(out: Path) -> None:
    """Write the picture."""
    fig, (above, below) = figure(PAGE, 4.1, nrows=2, height_ratios=[1.35, 1.0])
    pipeline(above)
    curves(below)
    save(fig, out.with_suffix(""), (out.suffix,))


def pipeline(axes: Any) -> None:
    """Four stages, a minibatch followed: W_v is the version that is read."""
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
    """Final test accuracy of each network of table 2 that was trained, against the delay of its first stage."""
    context = Context.load(load_paper("stale_weights"), "table_2", load_scale("published", "cpu"))
    for place, model in enumerate(context.values("model")):
        points = sorted(
            (log.summary["phases"][0]["forward_delays"][0], log.accuracy)
            for log in context.logs(model=model)
            if log.accuracy is not None
        )
        if not points:
            continue
        log = context.logs(model=model)[0]
        title = f"{model}, {log.summary['data']['title']}, {log.summary['steps']:,} steps"
        axes.plot(*zip(*points, strict=True), marker="o", color=COLOURS[1 + place % 7], label=title)
        for late, accuracy in points:
            above = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center", "fontsize": 7}
            axes.annotate(f"{accuracy:.1f}", (late, accuracy), **above)
    axes.set_xlabel("updates that the weights of stage 1's forwards are late")
    axes.set_ylabel("test accuracy, %")
    axes.margins(y=0.2)
    axes.legend(loc="center right")
    axes.set_title("What that costs (logs of results/published/cpu)", loc="left")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
