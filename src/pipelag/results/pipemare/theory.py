"""Figures 5, 6, 10 and 16 and the lemmas: the quadratic model, its eigenvalues against the paper's bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log10, pi, sin
from statistics import fmean
from typing import Any

import pandas as pd

from pipelag.report.charts import heat
from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Col, table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import exact
from pipelag.results.logs import Context, RunLog
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipemare"
HUGE = 1e12  # losses beyond are drawn no further
EIGENVALUES = "exact, eigenvalues to 1e-9"


@drawing(PAPER, "figure_5a", "figure_6a")
def losses(context: Context) -> Drawn:
    """Mean loss against steps, a line per arm, a panel per step size if there are several; up to where it explodes."""
    rows = []
    for item in context.items:
        for row in item.log.rows if item.log else []:
            if row["loss"] is None or row["loss"] > HUGE:
                break
            rows.append(dict(item.arm.labels) | {"step": row["step"], "loss": max(row["loss"], 1e-6)})
    chart = Lines(
        Axis("step"),
        Axis("loss", "mean loss of 20 runs", log=True, limits=(1e-3, 1e6)),
        line="arm",
        panel="panel" if context.values("panel") else "",
        shared_y=True,
    )
    return Drawn.of(chart, rows)


def growth(log: RunLog) -> float:
    """The mean loss of the last quarter of the steps over that of the second; infinity where it left the numbers."""
    values = [row["loss"] for row in log.rows]
    if any(value is None for value in values):
        return float("inf")
    quarter = len(values) // 4
    return fmean(values[-quarter:]) / fmean(values[quarter : 2 * quarter])


def bounded(log: RunLog) -> bool | None:
    """Whether the loss does not grow any more (at most twofold from the second to the last quarter of the steps).

    None where it grows less than tenfold, of which one cannot tell.
    """
    value = growth(log)
    return True if value <= 2 else False if value > 10 else None


GROWTH = (
    "bounded: the mean loss grows at most twofold from the second to the last quarter of the steps; diverging: more "
    "than tenfold"
)


@judge(PAPER, "figure_5a", "tau_10_diverges")
def tau_10_diverges(context: Context) -> Finding:
    """The arm named so; quickly: a thousandfold within the steps shown."""
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
    """Every arm up to 7."""
    arms = [arm for arm in context.values("arm") if int(arm.split("=")[1]) <= 7]
    logs = {arm: log_of(context, arm=arm) for arm in arms}
    text = "growth at last: " + ", ".join(f"{arm} {growth(log):.2f}x" for arm, log in logs.items())
    states = {bounded(log) for log in logs.values()}
    return exact(False if False in states else None if None in states else True, text, GROWTH)


@judge(PAPER, "figure_6a", "larger_delta_diverges")
def larger_delta_diverges(context: Context) -> Finding:
    """At every step size shown: Delta = 0 stays bounded, and some larger one does not."""
    texts, holds = [], True
    for panel in context.values("panel"):
        logs = {arm: log_of(context, arm=arm, panel=panel) for arm in context.values("arm")}
        states = {arm: bounded(log) for arm, log in logs.items()}
        holds &= states.pop("Delta = 0") is True and False in states.values()
        texts.append(f"{panel}: growth " + ", ".join(f"{arm} {growth(log):.3g}x" for arm, log in logs.items()))
    return exact(holds, "; ".join(texts), GROWTH)


@drawing(PAPER, "figure_6b", "figure_16")
def radii(context: Context) -> Drawn:
    """The largest eigenvalue over alpha, a line per variant, with the unit circle."""
    rows = [
        {"variant": item.arm.labels["arm"], "alpha": row["alpha"], "radius": row["radius"]}
        for item in context.items
        for row in (item.log.rows if item.log else [])
    ]
    chart = Lines(
        Axis("alpha", "step size alpha", limits=(0, 0.3 if context.name == "figure_6b" else 0.16)),
        Axis("radius", "largest |eigenvalue|", limits=(0.85, 1.3)),
        line="variant",
        levels={"unit circle": 1.0},
    )
    return Drawn.of(chart, rows)


def stable(context: Context, arm: str) -> float:
    """A variant's largest stable step size."""
    return float(log_of(context, arm=arm).rows[0]["largest_stable"])


def interesting(context: Context, *arms: str) -> list[tuple[float, ...]]:
    """Eigenvalues of variants at the step sizes at which the first is unstable and the last is not."""
    logs = [log_of(context, arm=arm).rows for arm in arms]
    low, high = stable(context, arms[0]), stable(context, arms[-1])
    inside = [tuple(r["radius"] for r in rows) for rows in zip(*logs, strict=True) if low <= rows[0]["alpha"] <= high]
    if not inside:
        raise NotLogged(f"{arms[0]} is stable as far as {arms[-1]}: there is no range in between")
    return inside


def limits(context: Context, *arms: str) -> str:
    """The largest stable step sizes in words."""
    return "largest stable step size " + ", ".join(f"{stable(context, arm):.4f} ({arm})" for arm in arms)


RANGE = f"{EIGENVALUES}, where the uncorrected model is unstable and the one without discrepancy is not"


def lower(context: Context, worse: str, mended: str, best: str) -> Finding:
    """Whether the correction lowers the largest eigenvalue over the interesting range."""
    rows = interesting(context, worse, mended, best)
    count = sum(b <= a + 1e-9 for a, b, _ in rows)
    some = sum(b < a - 1e-3 for a, b, _ in rows)
    text = f"lower at {count} of {len(rows)} step sizes, by more than 0.001 at {some}"
    return exact(count == len(rows) and some > 0, f"{text}; {limits(context, worse, mended, best)}", RANGE)


def nearer(context: Context, worse: str, mended: str, best: str) -> Finding:
    """Whether it brings the largest eigenvalue nearer to that without discrepancy, there."""
    rows = interesting(context, worse, mended, best)
    count = sum(abs(b - c) < abs(a - c) + 1e-9 for a, b, c in rows)
    gap = fmean(abs(a - c) for a, _, c in rows), fmean(abs(b - c) for _, b, c in rows)
    text = f"nearer at {count} of {len(rows)} step sizes, on average {gap[1]:.3f} away instead of {gap[0]:.3f}"
    return exact(count == len(rows) and gap[1] < gap[0], text, RANGE)


@judge(PAPER, "figure_6b", "t2_lowers")
def t2_lowers(context: Context) -> Finding:
    """See `lower`."""
    return lower(context, "discrepancy", "T2, D = 0.1", "no discrepancy")


@judge(PAPER, "figure_6b", "t2_nearer")
def t2_nearer(context: Context) -> Finding:
    """See `nearer`."""
    return nearer(context, "discrepancy", "T2, D = 0.1", "no discrepancy")


RECOMPUTED = ("discrepancy and recompute", "corrected, D = 0.1", "no discrepancy")


@judge(PAPER, "figure_16", "correction_lowers")
def correction_lowers(context: Context) -> Finding:
    """Lower, and nearer."""
    first, second = lower(context, *RECOMPUTED), nearer(context, *RECOMPUTED)
    return exact(first.holds and second.holds, f"{first.why}; {second.why}", RANGE)


@judge(PAPER, "figure_16", "correction_widens")
def correction_widens(context: Context) -> Finding:
    """Stable ranges in order."""
    worse, mended, best = (stable(context, arm) for arm in RECOMPUTED)
    return exact(worse < mended <= best, limits(context, *RECOMPUTED), EIGENVALUES)


@judge(PAPER, "figure_16", "discrepancy_raises")
def discrepancy_raises(context: Context) -> Finding:
    """With and without recomputation, over the interesting range of each."""
    texts, holds = [], True
    for arm in ("discrepancy and recompute", "no recompute"):
        rows = interesting(context, arm, "no discrepancy")
        above = sum(a > c for a, c in rows)
        holds &= above == len(rows)
        texts.append(f"{arm}: above the curve without discrepancy at {above} of {len(rows)} step sizes")
    return exact(holds, "; ".join(texts), RANGE)


def over_delta(context: Context, *panels: str) -> list[dict[str, Any]]:
    """Rows of (panel, delta, original, T2): the largest stable step sizes."""
    rows = []
    for panel in panels:
        first, second = (log_of(context, arm=arm, panel=panel).rows for arm in ("original", "T2"))
        for a, b in zip(first, second, strict=True):
            values = {"original": a["largest_stable"], "T2": b["largest_stable"]}
            rows.append({"panel": panel, "delta": a["delta"]} | values)
    return rows


def shown_pairs(context: Context) -> list[str]:
    """The pairs of delays that are drawn, the paper's first."""
    return [panel for panel in context.values("panel") if panel != "all"]


@drawing(PAPER, "figure_10")
def figure_10(context: Context) -> Drawn:
    """Largest stable step size over Delta, a panel per pair of delays."""
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
    )
    return Drawn.of(chart, rows)


@judge(PAPER, "figure_10", "t2_wider")
def t2_wider(context: Context) -> Finding:
    """Every Delta from 0 on, at the paper's delays."""
    rows = [row for row in over_delta(context, shown_pairs(context)[0]) if row["delta"] >= 0]
    wider = sum(row["T2"] >= row["original"] - 1e-9 for row in rows)
    most = max(rows, key=lambda row: row["T2"] / row["original"])
    times = most["T2"] / most["original"]
    text = f"at {wider} of {len(rows)} values of Delta; up to {times:.1f} times, at {most['delta']:g}"
    return exact(wider == len(rows), text, EIGENVALUES)


@judge(PAPER, "figure_10", "sometimes_worse")
def sometimes_worse(context: Context) -> Finding:
    """Some Delta below 0, at the paper's delays."""
    rows = over_delta(context, shown_pairs(context)[0])
    worse = [row for row in rows if row["delta"] < 0 and row["T2"] < row["original"] - 1e-9]
    text = f"at {len(worse)} values of Delta"
    if worse:
        last = worse[-1]
        text += f", as at {last['delta']:g}: {last['T2']:.4f} against {last['original']:.4f}"
    return exact(bool(worse), text, EIGENVALUES)


@judge(PAPER, "figure_10", "all_pairs")
def all_pairs(context: Context) -> Finding:
    """Every pair of delays; they are counted."""
    rows = log_of(context, panel="all").rows
    pairs = {(row["forward"], row["backward"]) for row in rows}
    worse = [row for row in rows if row["delta"] >= 0 and row["T2"] < row["original"] - 1e-9]
    deltas = sorted({row["delta"] for row in rows})
    text = f"{len(pairs)} of 820 pairs at Delta = {', '.join(f'{delta:g}' for delta in deltas)}: worse at {len(worse)}"
    if worse:
        text += f", as at tau_fwd = {worse[0]['forward']}, tau_bkwd = {worse[0]['backward']}"
    return exact(False if worse else len(pairs) == 820 or None, text, EIGENVALUES)


@drawing(PAPER, "figure_5b")
def figure_5b(context: Context) -> Drawn:
    """Final losses over step size and delay, grey where it diverged, with the bound."""
    log = context.log()
    if log is None:
        return not_logged("no run is logged")
    taus = sorted({row["tau"] for row in log.rows if row["tau"]})
    alphas = sorted({row["alpha"] for row in log.rows})
    loss_at = {(row["tau"], row["alpha"]): row["loss"] for row in log.rows}
    cells = [
        [float("nan") if loss_at[tau, alpha] is None else log10(loss_at[tau, alpha]) for alpha in alphas]
        for tau in taus
    ]
    bounds = {row["tau"]: row["bound"] for row in log.rows if row["tau"]}
    curve = [(bounds[tau], tau) for tau in taus]
    labels = ("step size", "delay (steps)", r"$\log_{10}$ of the loss")
    figure = heat(cells, alphas, taus, labels, curve, "Lemma 1, largest curvature")
    figure.axes[0].set_title(regression_on(context))
    return Drawn(figure=figure, data=pd.DataFrame(log.rows))


def regression_on(context: Context) -> str:
    """The data and the length of the regression that is logged."""
    for item in context.items:
        if item.log is not None:
            data = item.log.summary.get("data") or {}
            return f"{data.get('title', 'generated regression')}, {item.arm.spec.options['steps']:,} steps"
    return ""


def boundary(log: RunLog) -> list[tuple[int, float, float]]:
    """(tau, largest step size that stays finite as all below it do, lemma 1's bound)."""
    largest: dict[int, tuple[int, float, float]] = {}
    failed = set()
    for row in sorted(log.rows, key=lambda row: (row["tau"], row["alpha"])):
        tau = row["tau"]
        if row["loss"] is None:
            failed.add(tau)
        elif tau not in failed:
            largest[tau] = (tau, row["alpha"], lemma_1(tau, row["curvature"]))
    return list(largest.values())


def grid_step(log: RunLog) -> float:
    """The factor between two step sizes of the grid."""
    alphas = sorted({row["alpha"] for row in log.rows})
    return float(alphas[1] / alphas[0])


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """Least squares."""
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


@judge(PAPER, "figure_5b", "slope_minus_one")
def slope(context: Context) -> Finding:
    """Least squares through the boundary from tau = 4 on."""
    log = log_of(context)
    points = [(log10(tau), log10(alpha)) for tau, alpha, _ in boundary(log) if tau >= 4]
    if len(points) < 3:
        raise NotLogged("fewer than three delays from 4 on are logged")
    off = log10(grid_step(log)) / (max(x for x, _ in points) - min(x for x, _ in points))
    value, most = slope_of(points), off + 0.03
    text = f"slope {value:.2f} over {len(points)} delays ({regression_on(context)})"
    why = f"{most:.2f}: a step of the grid over the range of delays, and 0.03 for Lemma 1's own curve"
    return exact(abs(value + 1) <= most, text, why)


@judge(PAPER, "figure_5b", "on_lemma_1")
def on_lemma_1(context: Context) -> Finding:
    """The last finite step size of the grid over the bound."""
    log = log_of(context)
    step = grid_step(log)
    ratios = [alpha / bound for _, alpha, bound in boundary(log)]
    text = f"boundary over bound from {min(ratios):.2f} to {max(ratios):.2f} ({regression_on(context)})"
    why = f"on: not below by more than the grid's step of {step:.2f}; just above: by less than two of them"
    return exact(min(ratios) >= 1 / step - 1e-9 and max(ratios) < step**2, text, why)


def lemma_rows(log: RunLog | None, number: int) -> list[dict[str, Any]]:
    """The rows of a lemma."""
    return [row for row in log.rows if row["lemma"] == number] if log else []


def lemma_table(number: int, *settings: Col) -> None:
    """Register the table of a lemma: its bound beside the eigenvalues' limit."""

    def draw(context: Context) -> Drawn:
        cols = [
            Col("tau_fwd" if number == 2 else "tau", "tau"),
            *settings,
            Col("largest stable step size, by eigenvalues", "stable", "{:.5f}"),
            Col("the lemma's bound", "bound", "{:.5f}"),
        ]
        return Drawn(table=table(lemma_rows(context.log(), number), cols, context.result.caption))

    drawing(PAPER, f"text_lemma_{number}")(draw)


lemma_table(1, Col("largest eigenvalue below the bound", "below", "{:.6f}"), Col("and above it", "above", "{:.6f}"))
lemma_table(2, Col("tau_bkwd", "backward"), Col("Delta", "delta", "{:g}"))
lemma_table(3, Col("beta", "beta", "{:g}"))


def needed_rows(context: Context, number: int) -> list[dict[str, Any]]:
    """For a judge."""
    rows = lemma_rows(context.log(), number)
    if not rows:
        raise NotLogged(f"lemma {number} has no logged values")
    return rows


def lemma_1(tau: int, curvature: float = 1.0) -> float:
    """(2 / lambda) sin(pi / (4 tau + 2))."""
    return 2 / curvature * sin(pi / (4 * tau + 2))


@judge(PAPER, "text_lemma_1", "threshold")
def threshold(context: Context) -> Finding:
    """Equal to 1e-9; and eigenvalues inside and outside the circle at step sizes on either side of the bound."""
    rows = needed_rows(context, 1)
    worst = max(abs(row["stable"] - lemma_1(row["tau"])) for row in rows)
    inside, outside = max(row["below"] for row in rows), min(row["above"] for row in rows)
    text = (
        f"over {len(rows)} delays the bound and the eigenvalues' limit differ by at most {worst:.1e}; the largest "
        f"eigenvalue is at most {inside:.6f} at step sizes below the bound and at least {outside:.6f} above it"
    )
    return exact(worst < 1e-9 and inside < 1 < outside, text, "exact, the limit to 1e-9")


def under_bound(context: Context, number: int, bound: Callable[[dict[str, Any]], float]) -> Finding:
    """Whether no limit found is above the bound, as the paper prints it."""
    rows = needed_rows(context, number)
    above = [row for row in rows if row["stable"] > bound(row) + 1e-9]
    tightest = max(row["stable"] / bound(row) for row in rows)
    text = f"in {len(rows) - len(above)} of {len(rows)} cases; at most {tightest:.3f} of the bound"
    return exact(not above, text, "exact, the limit to 1e-9")


@judge(PAPER, "text_lemma_2", "unstable_below_bound")
def unstable_below_bound(context: Context) -> Finding:
    """Every Delta, tau_fwd and tau_bkwd that is logged."""

    def bound(row: dict[str, Any]) -> float:
        return min(2 / (row["delta"] * (row["tau"] - row["backward"])), lemma_1(row["tau"]))

    return under_bound(context, 2, bound)


@judge(PAPER, "text_lemma_3", "no_escape")
def no_escape(context: Context) -> Finding:
    """Every momentum."""
    return under_bound(context, 3, lambda row: 2 * lemma_1(row["tau"]))


@drawing(PAPER, "text_lemma_4")
def lemma_4(context: Context) -> Drawn:
    """Where the first root crosses."""
    cols = [
        Col("tau", "tau"),
        Col("threshold step size", "stable", "{:.5f}"),
        Col("argument of the crossing root", "omega", "{:.5f}"),
        Col("pi/(2 tau + 1)", lambda row: pi / (2 * row["tau"] + 1), "{:.5f}"),
    ]
    return Drawn(table=table(lemma_rows(context.log(), 1), cols, context.result.caption))


@judge(PAPER, "text_lemma_4", "towards_one")
def towards_one(context: Context) -> Finding:
    """Falling with tau, and equal to pi / (2 tau + 1), which tends to 0."""
    rows = sorted(needed_rows(context, 1), key=lambda row: row["tau"])
    angles = [row["omega"] for row in rows]
    falling = all(a > b for a, b in zip(angles[:-1], angles[1:], strict=True))
    worst = max(abs(row["omega"] - pi / (2 * row["tau"] + 1)) for row in rows)
    text = f"from {angles[0]:.3f} down to {angles[-1]:.4f}; off pi/(2 tau + 1) by at most {worst:.1e}"
    return exact(falling and worst < 1e-6, text, "exact, to 1e-6")
