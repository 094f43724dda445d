"""Figures 5, 6, 10 and 16 and the lemmas: the quadratic model, its eigenvalues against the papers' bounds."""

from __future__ import annotations

from math import log10

import pandas as pd

from pipelag.report.charts import heat, lines
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context, RunLog
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipemare"
HUGE = 1e12  # losses beyond are drawn no further


def loss_curves(context: Context, **labels: str) -> dict[str, list[tuple[float, float]]]:
    """(step, loss) per arm, up to where the loss leaves the figure."""
    series = {}
    for arm in context.values("arm"):
        log = context.log(arm=arm, **labels)
        points = []
        for row in log.rows if log else []:
            if row["loss"] is None or row["loss"] > HUGE:
                break
            points.append((row["step"], max(row["loss"], 1e-6)))
        if points:
            series[arm] = points
    return series


def losses_figure(context: Context, **options: object) -> Drawn:
    """Loss against steps, logarithmic; a panel per label `panel` where there are several."""
    titles = context.values("panel") or [""]
    panels = {title: loss_curves(context, **({"panel": title} if title else {})) for title in titles}
    data = [(t, arm, step, loss) for t, s in panels.items() for arm, points in s.items() for step, loss in points]
    if not data:
        return not_logged("no run is logged")
    figure = lines(panels, "step", "loss", log_y=True, marker="", y_range=(1e-3, 1e6))
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["panel", "arm", "step", "loss"]))


@drawing(PAPER, "figure_5a")
def figure_5a(context: Context) -> Drawn:
    """A line per delay."""
    return losses_figure(context)


@drawing(PAPER, "figure_6a")
def figure_6a(context: Context) -> Drawn:
    """A panel per step size, a line per Delta."""
    return losses_figure(context)


def diverges(log: RunLog) -> bool:
    """Whether the last tenth of the losses is a thousand times the first tenth, or no number at all."""
    losses = [row["loss"] for row in log.rows]
    if any(loss is None for loss in losses):
        return True
    part = max(1, len(losses) // 10)
    return sum(losses[-part:]) > 1e3 * sum(losses[:part])


@judge(PAPER, "figure_5a", "tau_10_diverges")
def tau_10_diverges(context: Context) -> Finding:
    """The arm named so."""
    log = log_of(context, arm="tau = 10")
    return diverges(log), f"last loss {log.rows[-1]['loss'] or float('inf'):.3g}"


@judge(PAPER, "figure_5a", "small_tau_bounded")
def small_tau_bounded(context: Context) -> Finding:
    """Every arm up to 7."""
    arms = [arm for arm in context.values("arm") if int(arm.split("=")[1]) <= 7]
    found = {arm: diverges(log_of(context, arm=arm)) for arm in arms}
    return not any(found.values()), f"{', '.join(arms)}: " + ("bounded" if not any(found.values()) else f"{found}")


@judge(PAPER, "figure_6a", "larger_delta_diverges")
def larger_delta_diverges(context: Context) -> Finding:
    """Per step size, which Deltas diverge."""
    texts, holds = [], True
    for panel in context.values("panel"):
        found = {arm: diverges(log_of(context, arm=arm, panel=panel)) for arm in context.values("arm")}
        holds &= not found["Delta = 0"] and any(found.values())
        texts.append(f"{panel}: {', '.join(arm for arm, bad in found.items() if bad) or 'none'} diverges")
    return holds, "; ".join(texts)


def radii(context: Context) -> Drawn:
    """The largest eigenvalue over alpha, a line per variant, marked where each leaves the unit circle."""
    series = {
        arm: [(row["alpha"], row["radius"]) for row in log.rows]
        for arm in context.values("arm")
        for log in context.logs(arm=arm)
    }
    if not series:
        return not_logged("no run is logged")
    figure = lines({"": series}, "step size", "largest |eigenvalue|", marker="", level=1.0, y_range=(0.85, 1.3))
    data = [(arm, alpha, radius) for arm, points in series.items() for alpha, radius in points]
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["arm", "alpha", "radius"]))


drawing(PAPER, "figure_6b", "figure_16")(radii)


def stable(context: Context, arm: str) -> float:
    """A variant's largest stable step size."""
    return float(log_of(context, arm=arm).rows[0]["largest_stable"])


def compare(context: Context, worse: str, mended: str, best: str) -> Finding:
    """Eigenvalues in order from where the worst becomes unstable, and stable ranges in order."""
    ranges = [stable(context, arm) for arm in (worse, mended, best)]
    logs = [log_of(context, arm=arm).rows for arm in (worse, mended, best)]
    rows = [
        [row["radius"] for row in trio]
        for trio in zip(*logs, strict=True)
        if ranges[0] <= trio[0]["alpha"] <= ranges[2]
    ]
    lower = sum(a >= b - 1e-9 for a, b, _ in rows)
    nearer = sum(abs(b - c) <= abs(a - c) + 1e-9 for a, b, c in rows)
    text = (
        f"largest stable step size {ranges[0]:.4f} ({worse}), {ranges[1]:.4f} ({mended}), {ranges[2]:.4f} ({best}); "
        f"in between T2 lowers the eigenvalue at {lower} and brings it nearer at {nearer} of {len(rows)} steps"
    )
    return ranges[0] < ranges[1] < ranges[2] and lower == nearer == len(rows), text


@judge(PAPER, "figure_6b", "t2_lowers")
def t2_lowers(context: Context) -> Finding:
    """Over the range in which the uncorrected model is unstable and the one without discrepancy is not."""
    return compare(context, "discrepancy", "T2, D = 0.1", "no discrepancy")


@judge(PAPER, "figure_16", "correction_widens")
def correction_widens(context: Context) -> Finding:
    """The same with recomputation."""
    return compare(context, "discrepancy and recompute", "corrected", "no discrepancy")


@drawing(PAPER, "figure_10")
def figure_10(context: Context) -> Drawn:
    """Largest stable step size over Delta, a panel per pair of delays."""
    panels, data = {}, []
    for panel in context.values("panel"):
        series = {
            arm: [(row["delta"], row["largest_stable"]) for row in log.rows if row["largest_stable"]]
            for arm in context.values("arm")
            for log in context.logs(arm=arm, panel=panel)
        }
        panels[panel] = series
        data += [(panel, arm, *point) for arm, points in series.items() for point in points]
    if not data:
        return not_logged("no run is logged")
    figure = lines(panels, "Delta", "largest stable step size", log_y=True, marker="")
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["panel", "arm", "delta", "alpha"]))


def over_delta(context: Context) -> list[tuple[str, float, float, float]]:
    """(panel, Delta, original, T2)."""
    found = []
    for panel in context.values("panel"):
        first, second = (log_of(context, arm=arm, panel=panel).rows for arm in ("original", "T2"))
        for a, b in zip(first, second, strict=True):
            found.append((panel, a["delta"], a["largest_stable"], b["largest_stable"]))
    return found


@judge(PAPER, "figure_10", "t2_wider")
def t2_wider(context: Context) -> Finding:
    """Every Delta from 0 on."""
    rows = [row for row in over_delta(context) if row[1] >= 0]
    wider = sum(b >= a - 1e-9 for _, _, a, b in rows)
    most = max(rows, key=lambda row: row[3] / row[2])
    return wider == len(
        rows
    ), f"at {wider} of {len(rows)} points; up to {most[3] / most[2]:.1f}x, at Delta = {most[1]:g}"


@judge(PAPER, "figure_10", "sometimes_worse")
def sometimes_worse(context: Context) -> Finding:
    """Some Delta below 0."""
    worse = [row for row in over_delta(context) if row[1] < 0 and row[3] < row[2] - 1e-9]
    if not worse:
        return False, "T2 is nowhere worse"
    return (
        True,
        f"at {len(worse)} points, as at Delta = {worse[-1][1]:g}: {worse[-1][3]:.4f} against {worse[-1][2]:.4f}",
    )


@drawing(PAPER, "figure_5b")
def figure_5b(context: Context) -> Drawn:
    """Final losses over step size and delay, grey where it diverged, with the bound."""
    log = context.log()
    if log is None:
        return not_logged("no run is logged")
    taus = sorted({row["tau"] for row in log.rows if row["tau"]})
    alphas = sorted({row["alpha"] for row in log.rows})
    losses = {(row["tau"], row["alpha"]): row["loss"] for row in log.rows}
    cells = [
        [float("nan") if losses[tau, alpha] is None else log10(losses[tau, alpha]) for alpha in alphas] for tau in taus
    ]
    bounds = {row["tau"]: row["bound"] for row in log.rows if row["tau"]}
    curve = [(bounds[tau], tau) for tau in taus]
    figure = heat(cells, alphas, taus, ("step size", "delay (steps)", "log10 of the loss"), curve, "Lemma 1")
    return Drawn(figure=figure, data=pd.DataFrame(log.rows))


def boundary(log: RunLog) -> list[tuple[int, float, float]]:
    """(tau, largest step size that stays finite as all below it do, lemma 1's bound)."""
    found: dict[int, tuple[int, float, float]] = {}
    failed = set()
    for row in sorted(log.rows, key=lambda row: (row["tau"], row["alpha"])):
        tau = row["tau"]
        if row["loss"] is None:
            failed.add(tau)
        elif tau not in failed:
            found[tau] = (tau, row["alpha"], row["bound"])
    return list(found.values())


@judge(PAPER, "figure_5b", "slope_minus_one")
def slope(context: Context) -> Finding:
    """Least squares through the boundary from tau = 4 on."""
    points = [(log10(tau), log10(alpha)) for tau, alpha, _ in boundary(log_of(context)) if tau >= 4]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    value = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return abs(value + 1) < 0.1, f"slope {value:.2f} over {len(points)} delays"


@judge(PAPER, "figure_5b", "on_lemma_1")
def on_lemma_1(context: Context) -> Finding:
    """The last finite step size of the grid over the bound; a step of the grid is its resolution."""
    log = log_of(context)
    alphas = sorted({row["alpha"] for row in log.rows})
    step = alphas[1] / alphas[0]
    ratios = [alpha / bound for _, alpha, bound in boundary(log)]
    text = f"boundary over bound from {min(ratios):.2f} to {max(ratios):.2f}; the grid's steps are of {step:.2f}"
    return min(ratios) >= 1 / step**1.5 and max(ratios) < 2, text


def lemma_table(number: int) -> None:
    """Register the table of a lemma: its bound beside the eigenvalues' limit."""

    def draw(context: Context) -> Drawn:
        keys = {1: (), 2: ("backward", "delta"), 3: ("beta",)}[number]
        titles = {"backward": "tau_bkwd", "delta": "Delta", "beta": "beta"}
        rows: list[dict[str, Cell]] = lemma_rows(context.log(), number)  # type: ignore[assignment]
        columns = [Column("tau", "tau"), *(Column(key, titles[key], "", "{:g}") for key in keys)]
        columns += [
            Column("stable", "largest stable step, by eigenvalues", "", "{:.5f}"),
            Column("bound", "the lemma's bound", "", "{:.5f}"),
        ]
        return Drawn(table=Table(columns, rows, context.result.caption))

    drawing(PAPER, f"text_lemma_{number}")(draw)


for _number in (1, 2, 3):
    lemma_table(_number)


def lemma_rows(log: RunLog | None, number: int) -> list[dict[str, float]]:
    """The rows of a lemma."""
    return [row for row in log.rows if row["lemma"] == number] if log else []


def needed_rows(context: Context, number: int) -> list[dict[str, float]]:
    """For a judge."""
    rows = lemma_rows(context.log(), number)
    if not rows:
        raise NotLogged(f"lemma {number} has no logged values")
    return rows


@judge(PAPER, "text_lemma_1", "threshold")
def threshold(context: Context) -> Finding:
    """Equal to 1e-9."""
    rows = needed_rows(context, 1)
    worst = max(abs(row["stable"] - row["bound"]) for row in rows)
    return worst < 1e-9, f"over {len(rows)} delays the bound and the eigenvalues' limit differ by at most {worst:.1e}"


@judge(PAPER, "text_lemma_2", "unstable_below_bound")
def unstable_below_bound(context: Context) -> Finding:
    """The limit found is not above the bound."""
    rows = needed_rows(context, 2)
    above = [row for row in rows if row["stable"] > row["bound"] + 1e-9]
    tightest = max(row["stable"] / row["bound"] for row in rows)
    return not above, f"in {len(rows) - len(above)} of {len(rows)} cases; at most {tightest:.3f} of the bound"


@judge(PAPER, "text_lemma_3", "no_escape")
def no_escape(context: Context) -> Finding:
    """Every momentum."""
    rows = needed_rows(context, 3)
    above = [row for row in rows if row["stable"] > row["bound"] + 1e-9]
    tightest = max(row["stable"] / row["bound"] for row in rows)
    return not above, f"in {len(rows) - len(above)} of {len(rows)} cases; at most {tightest:.3f} of the bound"


@drawing(PAPER, "text_lemma_4")
def lemma_4(context: Context) -> Drawn:
    """Where the first root crosses."""
    rows: list[dict[str, Cell]] = [
        {"tau": row["tau"], "omega": row["omega"], "stable": row["stable"]} for row in lemma_rows(context.log(), 1)
    ]
    columns = [
        Column("tau", "tau"),
        Column("stable", "threshold step size", "", "{:.5f}"),
        Column("omega", "argument of the crossing root", "", "{:.5f}"),
    ]
    return Drawn(table=Table(columns, rows, context.result.caption))


@judge(PAPER, "text_lemma_4", "towards_one")
def towards_one(context: Context) -> Finding:
    """Falling with tau, and equal to pi / (2 tau + 1)."""
    from math import pi

    rows = needed_rows(context, 1)
    angles = [row["omega"] for row in rows]
    falling = all(a > b for a, b in zip(angles[:-1], angles[1:], strict=True))
    worst = max(abs(row["omega"] - pi / (2 * row["tau"] + 1)) for row in rows)
    return (
        falling and worst < 1e-6,
        f"from {angles[0]:.3f} down to {angles[-1]:.4f}; off pi/(2 tau + 1) by at most {worst:.1e}",
    )
