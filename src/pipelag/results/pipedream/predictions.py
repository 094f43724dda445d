"""Figure 15: how well the partitioner's cost model predicts the throughput of VGG-16's partitions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import correlation, median

from pipelag.report.frames import Axis, Scatter
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import measured
from pipelag.results.plans import ALONE, PRINTED, RING
from pipelag.results.verdict import Finding, NotLogged, judge

PAPER = "pipedream"
STRONG = 0.95
STRONG_WORDS = "strongly linear: Pearson's r of 0.95 or more (nine tenths of the variance)"
FEWEST = 8  # the least number of partitions for a correlation
FORMS = {"paper": PRINTED, "ring": RING}  # by form of the cost, the plan that its search gives
TITLES = {"paper": "VGG-16, 16 workers, cost as printed", "ring": "VGG-16, 16 workers, a ring's cost"}
HERE = "VGG-16 of half width, two workers here"
MARKERS = {"data parallelism": "^", "the optimiser's choice": "D"}  # as in the paper
Point = tuple[str, float, float]  # (plan, predicted, real samples per second)


def partitions(context: Context, form: str) -> list[Point]:
    """Every partition over 16 workers and both chosen plans: throughput predicted by a form of the cost, and timed."""
    log = context.log(panel="timed")
    rows = [row for row in log.rows if row["what"] == "plan"] if log else []
    batch = log.summary["batch"] if log else 1
    return [(row["plan"], batch / row["predicted"][form], batch / row["timed"]) for row in rows]


def measured_here(context: Context) -> list[Point]:
    """The two-worker partitions of this machine: throughput predicted from its profile, and measured."""
    profile = context.log(panel="measured", arm="profile")
    points = []
    for item in context.select(panel="measured", arm="two workers"):
        if profile is None or item.log is None:
            continue
        cut = int(item.arm.labels["cut"])
        times = [row["forward_ms"] + row["backward_ms"] for row in profile.rows]
        rates = [row["samples_per_second"] for row in item.log.rows if row["arm"] == "pipelined"]
        predicted = item.log.summary["batch"] * 1e3 / max(sum(times[:cut]), sum(times[cut:]))
        points.append((f"cut after layer {cut}", predicted, median(rates)))
    return points


@drawing(PAPER, "figure_15")
def figure_15(context: Context) -> Drawn:
    """Simulated throughput against that predicted by each form of the cost; and measured against predicted."""
    rows: list[dict[str, object]] = []
    for form, chosen in FORMS.items():
        kinds = {ALONE: "data parallelism", chosen: "the optimiser's choice"}
        of_form = [
            {"panel": TITLES[form], "kind": kinds.get(name, "partition"), "plan": name, "predicted": p, "real": r}
            for name, p, r in partitions(context, form)
            if name not in FORMS.values() or name == chosen
        ]
        rows += sorted(of_form, key=lambda row: row["kind"] != "partition")  # the chosen plans are drawn on top
    rows += [
        {"panel": HERE, "kind": "partition", "plan": name, "predicted": predicted, "real": real}
        for name, predicted, real in measured_here(context)
    ]
    if not rows:
        return not_logged("no partition has a log")
    y = {TITLES[form]: Axis("real", "simulated (samples/s)") for form in FORMS} | {
        HERE: Axis("real", "measured (samples/s)")
    }
    return Drawn.of(
        Scatter(
            Axis("predicted", "predicted (samples/s)"), y, group="kind", panel="panel", markers=MARKERS, equal=True
        ),
        rows,
    )


def linear(points: Sequence[Point]) -> float:
    """Pearson's correlation of predicted and real throughput.

    Raises:
        NotLogged: there are fewer than `FEWEST` points.
    """
    if len(points) < FEWEST:
        raise NotLogged(f"only {len(points)} partitions are logged, of at least {FEWEST}")
    return correlation([p for _, p, _ in points], [r for _, _, r in points])


@judge(PAPER, "figure_15", "correlated")
def correlated(context: Context) -> Finding:
    """Holds if Pearson's r over partitions on 16 workers is at least 0.95, by the printed recurrence.

    "Real" throughput is simulated by discrete events. The verdict also gives r by a ring's cost.
    """
    printed, ring = (linear(partitions(context, form)) for form in FORMS)
    count = len(partitions(context, "paper"))
    why = (
        f"r = {printed:.3f} over {count} partitions by the cost as printed, {ring:.3f} by a ring's; 'real' is simulated"
    )
    return measured(context, printed >= STRONG, why, STRONG_WORDS, panel="timed")


@judge(PAPER, "figure_15", "correlated_here")
def correlated_here(context: Context) -> Finding:
    """Holds if Pearson's r over partitions on two workers of this machine is at least 0.95."""
    points = measured_here(context)
    why = f"r = {linear(points):.3f} over {len(points)} partitions"
    return measured(context, linear(points) >= STRONG, why, STRONG_WORDS, panel="measured")


@judge(PAPER, "figure_15", "best_chosen")
def best_chosen(context: Context) -> Finding:
    """Holds if the plan chosen by the printed recurrence has the highest timed throughput of all partitions tried."""
    rates = {name: rate for name, _, rate in partitions(context, "paper")}
    if PRINTED not in rates or len(rates) < FEWEST:
        raise NotLogged("the partitions have no log")
    others = {name: rate for name, rate in rates.items() if name not in FORMS.values()}
    best = max(others.values())
    why = (
        f"{rates[PRINTED]:.0f} samples/s chosen (a ring's cost: {rates.get(RING, float('nan')):.0f}), {best:.0f} the "
        f"best of {len(others)} others"
    )
    return measured(context, rates[PRINTED] >= best * (1 - 1e-9), why, "none: the highest of all", panel="timed")
