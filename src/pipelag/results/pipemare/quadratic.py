"""Figures 5a, 6, 10 and 16: losses of the quadratic model, and its largest eigenvalue by step size."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.results import colours
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact, listing
from pipelag.results.logs import RunLog
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipemare"
HUGE = 1e12  # a line ends where its loss is larger
EIGENVALUES = "exact, eigenvalues to 1e-9"
# Black is the model without discrepancy, grey what discrepancy makes of it, and T2 has the colour of T1+T2.
STYLES = {
    "no discrepancy": (colours.BASELINE, 0),
    **dict.fromkeys(("discrepancy", "discrepancy, no recompute", "original"), (colours.UNMENDED, 1)),
    **dict.fromkeys(("T2, D = 0.1", "corrected, D = 0.1", "T2 corrected"), (colours.PIPEMARE, 2)),
    "discrepancy and recompute": (colours.PIPEDREAM, 4),
}


@drawing(PAPER, "figure_5a", "figure_6a")
def losses(context: Context) -> Drawn:
    """Mean loss against steps, a line per arm, and a panel per step size if there are several.

    A line ends where its loss explodes.
    """
    rows = []
    for item in context.items:
        for row in item.log.rows if item.log else []:
            if row["loss"] is None or row["loss"] > HUGE:
                break
            rows.append(dict(item.arm.labels) | {"step": row["step"], "loss": max(row["loss"], 1e-6)})
    runs = listing(dict.fromkeys(item.arm.spec.options["runs"] for item in context.items))
    chart = Lines(
        Axis("step"),
        Axis("loss", f"mean loss of {runs} runs", log=True, limits=(1e-3, 1e6)),
        line="arm",
        panel="panel" if context.values("panel") else "",
        shared_y=True,
    )
    return Drawn.of(chart, rows)


def growth(log: RunLog) -> float:
    """The mean loss of the last quarter of the steps over that of the second; infinite where a loss is not finite."""
    values = [row["loss"] for row in log.rows]
    if any(value is None for value in values):
        return float("inf")
    quarter = len(values) // 4
    return fmean(values[-quarter:]) / fmean(values[quarter : 2 * quarter])


def bounded(log: RunLog) -> bool | None:
    """Whether the loss has stopped growing: at most twofold from the second to the last quarter of the steps.

    False where it grows more than tenfold; None in between, where neither can be told.
    """
    value = growth(log)
    return True if value <= 2 else False if value > 10 else None


GROWTH = (
    "bounded: the mean loss grows at most twofold from the second to the last quarter of the steps; diverging: more "
    "than tenfold"
)


@judge(PAPER, "figure_5a", "tau_10_diverges")
def tau_10_diverges(context: Context) -> Finding:
    """Holds if tau = 10 diverges (`bounded`), and quickly: its loss grows a thousandfold within the steps shown."""
    log = log_of(context, arm="tau = 10")
    start, end = (fmean(part) if None not in part else float("inf") for part in ends(log))
    steps = log.rows[-1]["step"]
    text = f"the mean loss grows from {start:.3g} to {end:.3g} over {steps} steps, and {growth(log):.3g} times at last"
    return exact(bounded(log) is False and end > 1e3 * start, text, GROWTH + "; quickly: a thousandfold in all")


def ends(log: RunLog) -> tuple[list[Any], list[Any]]:
    """The losses of the first and of the last tenth of the steps."""
    values = [row["loss"] for row in log.rows]
    part = max(1, len(values) // 10)
    return values[:part], values[-part:]


@judge(PAPER, "figure_5a", "small_tau_bounded")
def small_tau_bounded(context: Context) -> Finding:
    """Holds if every arm with tau up to 7 stays bounded."""
    arms = [arm for arm in context.values("arm") if int(arm.split("=")[1]) <= 7]
    logs = {arm: log_of(context, arm=arm) for arm in arms}
    text = "growth at last: " + ", ".join(f"{arm} {growth(log):.2f}x" for arm, log in logs.items())
    states = {bounded(log) for log in logs.values()}
    return exact(False if False in states else None if None in states else True, text, GROWTH)


@judge(PAPER, "figure_6a", "larger_delta_diverges")
def larger_delta_diverges(context: Context) -> Finding:
    """Holds if, at every step size shown, Delta = 0 stays bounded and some larger Delta diverges."""
    texts, holds = [], True
    for panel in context.values("panel"):
        logs = {arm: log_of(context, arm=arm, panel=panel) for arm in context.values("arm")}
        states = {arm: bounded(log) for arm, log in logs.items()}
        holds &= states.pop("Delta = 0") is True and False in states.values()
        texts.append(f"{panel}: growth " + ", ".join(f"{arm} {growth(log):.3g}x" for arm, log in logs.items()))
    return exact(holds, "; ".join(texts), GROWTH)


@drawing(PAPER, "figure_6b", "figure_16")
def radii(context: Context) -> Drawn:
    """The largest eigenvalue against alpha, a line per variant, and the unit circle."""
    rows = [
        {"variant": item.arm.labels["arm"], "alpha": row["alpha"], "radius": row["radius"]}
        for item in context.items
        for row in (item.log.rows if item.log else [])
    ]
    chart = Lines(
        Axis("alpha", "step size alpha", limits=(0, 0.3 if context.name == "figure_6b" else 0.16)),
        Axis("radius", "largest |eigenvalue|", limits=(0.85, 1.3)),
        line="variant",
        styles=STYLES,
        levels={"|eigenvalue| = 1": 1.0},
    )
    return Drawn.of(chart, rows)


def stable(context: Context, arm: str) -> float:
    """The largest stable step size of a variant."""
    return float(log_of(context, arm=arm).rows[0]["largest_stable"])


def interesting(context: Context, *arms: str) -> list[tuple[float, ...]]:
    """Largest eigenvalues of variants, at the step sizes where the first variant is unstable and the last is stable.

    Raises:
        NotLogged: there is no such step size, so that the range is empty.
    """
    logs = [log_of(context, arm=arm).rows for arm in arms]
    low, high = stable(context, arms[0]), stable(context, arms[-1])
    inside = [tuple(r["radius"] for r in rows) for rows in zip(*logs, strict=True) if low <= rows[0]["alpha"] <= high]
    if not inside:
        raise NotLogged(f"{arms[0]} is stable as far as {arms[-1]}: there is no range in between")
    return inside


def limits(context: Context, *arms: str) -> str:
    """The largest stable step sizes of variants, in words."""
    return "largest stable step size " + ", ".join(f"{stable(context, arm):.4f} ({arm})" for arm in arms)


RANGE = f"{EIGENVALUES}, where the uncorrected model is unstable and the one without discrepancy is not"


def lower(context: Context, worse: str, mended: str, best: str) -> Finding:
    """Judge whether the correction lowers the largest eigenvalue over the interesting range.

    It must raise it at no step size, and lower it by more than 0.001 at one at least.
    """
    rows = interesting(context, worse, mended, best)
    count = sum(b <= a + 1e-9 for a, b, _ in rows)
    some = sum(b < a - 1e-3 for a, b, _ in rows)
    text = f"lower at {count} of {len(rows)} step sizes, by more than 0.001 at {some}"
    return exact(count == len(rows) and some > 0, f"{text}; {limits(context, worse, mended, best)}", RANGE)


def nearer(context: Context, worse: str, mended: str, best: str) -> Finding:
    """Judge whether the correction brings the largest eigenvalue nearer to the one without discrepancy, in that range.

    It must take it further away at no step size, and be nearer on average.
    """
    rows = interesting(context, worse, mended, best)
    count = sum(abs(b - c) < abs(a - c) + 1e-9 for a, b, c in rows)
    gap = fmean(abs(a - c) for a, _, c in rows), fmean(abs(b - c) for _, b, c in rows)
    text = f"nearer at {count} of {len(rows)} step sizes, on average {gap[1]:.3f} away instead of {gap[0]:.3f}"
    return exact(count == len(rows) and gap[1] < gap[0], text, RANGE)


for _claim, _judge in (("t2_lowers", lower), ("t2_nearer", nearer)):
    judge(PAPER, "figure_6b", _claim)(partial(_judge, worse="discrepancy", mended="T2, D = 0.1", best="no discrepancy"))


RECOMPUTED = ("discrepancy and recompute", "corrected, D = 0.1", "no discrepancy")


@judge(PAPER, "figure_16", "correction_lowers")
def correction_lowers(context: Context) -> Finding:
    """Holds if, with recomputation, the correction both lowers the largest eigenvalue and brings it nearer."""
    first, second = lower(context, *RECOMPUTED), nearer(context, *RECOMPUTED)
    return exact(first.holds and second.holds, f"{first.why}; {second.why}", RANGE)


@judge(PAPER, "figure_16", "correction_widens")
def correction_widens(context: Context) -> Finding:
    """Holds if the largest stable step size with recomputation is larger with the correction than without.

    How near it comes to the one without discrepancy is another claim.
    """
    worse, mended, _ = (stable(context, arm) for arm in RECOMPUTED)
    return exact(worse < mended, limits(context, *RECOMPUTED), EIGENVALUES)


@judge(PAPER, "figure_16", "discrepancy_raises")
def discrepancy_raises(context: Context) -> Finding:
    """Holds if discrepancy raises the largest eigenvalue at every step size of the interesting range.

    This must be so both with and without recomputation, each over its own range.
    """
    texts, holds = [], True
    for arm in ("discrepancy and recompute", "discrepancy, no recompute"):
        rows = interesting(context, arm, "no discrepancy")
        above = sum(a > c for a, c in rows)
        holds &= above == len(rows)
        texts.append(f"{arm}: above the curve without discrepancy at {above} of {len(rows)} step sizes")
    return exact(holds, "; ".join(texts), RANGE)


JUDGED = ALL, BELOW, TRAINED = "all", "below 0", "pipelines"  # panels of figure 10 that are judged but not drawn
SELDOM = 0.25


def over_delta(context: Context, *panels: str) -> list[dict[str, Any]]:
    """A row per panel and Delta, with the largest stable step sizes of the original and the T2-corrected model."""
    rows = []
    for panel in panels:
        first, second = (log_of(context, arm=arm, panel=panel).rows for arm in ("original", "T2"))
        for a, b in zip(first, second, strict=True):
            values = {"original": a["largest_stable"], "T2": b["largest_stable"]}
            rows.append({"panel": panel, "delta": a["delta"]} | values)
    return rows


def narrower(row: dict[str, Any]) -> bool:
    """Whether T2 narrows the range of stable step sizes."""
    return bool(row["T2"] < row["original"] - 1e-9)


def shown_pairs(context: Context) -> list[str]:
    """The pairs of delays that the figure draws, the paper's first."""
    return [panel for panel in context.values("panel") if panel not in JUDGED]


@drawing(PAPER, "figure_10")
def figure_10(context: Context) -> Drawn:
    """Largest stable step size against Delta, a panel per pair of delays."""
    panels = [panel for panel in shown_pairs(context) if len(context.logs(panel=panel)) == 2]
    rows = [
        {"panel": row["panel"], "variant": name, "delta": row["delta"], "alpha": row[key]}
        for row in over_delta(context, *panels)
        for key, name in (("original", "original"), ("T2", "T2 corrected"))
    ]
    chart = Lines(
        Axis("delta", "sensitivity to discrepancy, Delta"),
        Axis("alpha", "largest stable step size", log=True),
        line="variant",
        panel="panel",
        styles=STYLES,
    )
    return Drawn.of(chart, rows)


@judge(PAPER, "figure_10", "t2_wider")
def t2_wider(context: Context) -> Finding:
    """Holds if T2 narrows the stable range at no Delta from 0 on, at the paper's pair of delays."""
    rows = [row for row in over_delta(context, shown_pairs(context)[0]) if row["delta"] >= 0]
    wider = sum(not narrower(row) for row in rows)
    most = max(rows, key=lambda row: row["T2"] / row["original"])
    times = most["T2"] / most["original"]
    text = f"at {wider} of {len(rows)} values of Delta; up to {times:.1f} times, at {most['delta']:g}"
    return exact(wider == len(rows), text, EIGENVALUES)


@judge(PAPER, "figure_10", "sometimes_worse")
def sometimes_worse(context: Context) -> Finding:
    """Holds if T2 narrows the stable range at some Delta below 0, at the paper's pair of delays."""
    rows = over_delta(context, shown_pairs(context)[0])
    below = [row for row in rows if row["delta"] < 0]
    worse = [row for row in below if narrower(row)]
    text = f"at {len(worse)} of {len(below)} values of Delta below 0"
    if worse:
        last = worse[-1]
        text += f", as at Delta = {last['delta']:g}: {last['T2']:.4f} with T2, {last['original']:.4f} without"
    return exact(bool(worse), text, EIGENVALUES)


@judge(PAPER, "figure_10", "all_pairs")
def all_pairs(context: Context) -> Finding:
    """Holds if T2 narrows the stable range at no pair of delays and no Delta from 0 on, and fails if it does at any.

    The pairs are counted: with fewer than all 820 logged, and none narrowed, nothing is told.
    """
    rows = log_of(context, panel=ALL).rows
    pairs = {(row["forward"], row["backward"]) for row in rows}
    worse = [row for row in rows if row["delta"] >= 0 and narrower(row)]
    deltas = sorted({row["delta"] for row in rows})
    text = f"{len(pairs)} of 820 pairs at Delta = {', '.join(f'{delta:g}' for delta in deltas)}: worse at {len(worse)}"
    if worse:
        text += f", as at tau_fwd = {worse[0]['forward']}, tau_bkwd = {worse[0]['backward']}"
    return exact(False if worse else len(pairs) == 820 or None, text, EIGENVALUES)


def narrowed(context: Context, forward_only: bool) -> tuple[int, int, str]:
    """At how many combinations of delays and Delta below 0 T2 narrows the stable range, of how many; and that in words.

    Args:
        forward_only: count only pairs without a backward delay.
    """
    rows = [row for row in log_of(context, panel=BELOW).rows if row["backward"] == 0 or not forward_only]
    worse = {
        delta: [narrower(row) for row in rows if row["delta"] == delta]
        for delta in sorted({row["delta"] for row in rows})
    }
    words = [f"{sum(some)} of {len(some)} pairs at Delta = {delta:g}" for delta, some in worse.items()]
    return sum(map(sum, worse.values())), len(rows), f"T2 narrows the stable range of {', '.join(words)}"


@judge(PAPER, "figure_10", "seldom_worse")
def seldom_worse(context: Context) -> Finding:
    """Holds if T2 narrows the stable range in less than a quarter of all combinations of delays and Delta below 0.

    The values of Delta are spread evenly over the figure's range.
    """
    worse, total, words = narrowed(context, forward_only=False)
    few, pairs, _ = narrowed(context, forward_only=True)
    words += f"; of PipeMare's own pairs, without a backward delay, at {few} of {pairs}"
    return exact(worse < SELDOM * total, words, f"occasionally: in less than a quarter; {EIGENVALUES}")


@judge(PAPER, "figure_10", "own_delays_worse_here")
def own_delays_worse(context: Context) -> Finding:
    """Holds if T2 narrows the stable range in more than half of these combinations without a backward delay."""
    worse, total, words = narrowed(context, forward_only=True)
    return exact(2 * worse > total, f"tau_bkwd = 0: {words}", f"most: more than half; {EIGENVALUES}")


@judge(PAPER, "figure_10", "covers_the_delays")
def covers_the_delays(context: Context) -> Finding:
    """Holds if no trained pipeline has a larger delay than the pairs of delays that are examined.

    A pipeline's largest delay, in updates, is that of its first stage.
    """
    rows = [row for row in log_of(context, panel=TRAINED).rows if row["method"] == "PipeMare"]
    delays = {(row["stages"], row["microbatches"]): max(row["forward_delays"]) for row in rows}
    words = ", ".join(f"{most} ({stages} stages, {micro} microbatches)" for (stages, micro), most in delays.items())
    most = max(row["forward"] for row in log_of(context, panel=ALL).rows)
    return exact(max(delays.values()) <= most, f"largest delay in updates, {most} covered: {words}", "exact")
