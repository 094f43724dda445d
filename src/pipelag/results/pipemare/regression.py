"""Figure 5b: the step sizes and delays at which a regression diverges, compared with Lemma 1."""

from __future__ import annotations

from math import isfinite, log10
from statistics import linear_regression

import pandas as pd

from pipelag.report.charts import heat
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import exact
from pipelag.results.logs import RunLog
from pipelag.results.pipemare.lemmas import lemma_1
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipemare"


@drawing(PAPER, "figure_5b")
def figure_5b(context: Context) -> Drawn:
    """Final losses over step size and delay, with Lemma 1's bound; grey where training diverged."""
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
    finite = sorted(cell for row in cells for cell in row if isfinite(cell))
    # A few losses beside the boundary are far larger. A scale that reached them would give all others one colour.
    most = finite[int(0.98 * (len(finite) - 1))] if finite else None
    figure = heat(cells, alphas, taus, labels, curve, "Lemma 1, largest curvature", most, "diverged")
    figure.axes[0].set_title(regression_on(context))
    generated = not any(log.data.get("title") for log in context.logs())
    note = "The data are generated, in place of the paper's cpusmall." if generated else ""
    return Drawn(figure=figure, data=pd.DataFrame(log.rows), note=note)


def regression_on(context: Context) -> str:
    """The data and the length of the logged regression, in words."""
    for item in context.items:
        if item.log is not None:
            return f"{item.log.data.get('title', 'generated regression')}, {item.arm.spec.options['steps']:,} steps"
    return ""


def boundary(log: RunLog) -> list[tuple[int, float, float]]:
    """(tau, largest stable step size, Lemma 1's bound) for every delay tau.

    A step size is stable if training stays finite at this one and at all smaller ones of the grid.
    """
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
    """The factor between two neighbouring step sizes of the grid."""
    alphas = sorted({row["alpha"] for row in log.rows})
    return float(alphas[1] / alphas[0])


@judge(PAPER, "figure_5b", "slope_minus_one")
def slope(context: Context) -> Finding:
    """Holds if the boundary falls as 1/tau: slope -1 in log-log coordinates, by least squares from tau = 4 on.

    From there on Lemma 1's own curve is all but straight. The tolerance has one step of the grid over the range of
    delays, and 0.03 for what this curve still bends.
    """
    log = log_of(context)
    points = [(tau, alpha) for tau, alpha, _ in boundary(log) if tau >= 4]
    if len(points) < 3:
        raise NotLogged("fewer than three delays from 4 on are logged")
    taus, alphas = ([log10(value) for value in values] for values in zip(*points, strict=True))
    off = log10(grid_step(log)) / (max(taus) - min(taus))
    value, most = linear_regression(taus, alphas).slope, off + 0.03
    delays = f"the {len(points)} delays from {min(tau for tau, _ in points)} on"
    text = f"slope {value:.2f} over {delays}, where Lemma 1's curve is all but straight ({regression_on(context)})"
    why = f"{most:.2f}: a step of the grid over the range of delays, and 0.03 for Lemma 1's own curve"
    return exact(abs(value + 1) <= most, text, why)


@judge(PAPER, "figure_5b", "on_lemma_1")
def on_lemma_1(context: Context) -> Finding:
    """Holds if the boundary of every delay is on Lemma 1's bound or just above it.

    The boundary lies between the last step size of the grid that stays finite and the next one, which diverges. So the
    one that diverges must not be below the bound, and the last finite one less than two steps of the grid above it.
    """
    log = log_of(context)
    step = grid_step(log)
    ratios = [alpha / bound for _, alpha, bound in boundary(log)]
    finite, diverging = ([factor * ratio for ratio in (min(ratios), max(ratios))] for factor in (1, step))
    text = (
        f"over the bound, the last step size that stays finite is {finite[0]:.2f} to {finite[1]:.2f}, the next of the "
        f"grid, which diverges, {diverging[0]:.2f} to {diverging[1]:.2f} ({regression_on(context)})"
    )
    why = (
        f"the boundary lies between the two, a factor of {step:.2f} apart; on: the one that diverges is not below the "
        "bound; just above: the last finite one by less than two steps of the grid"
    )
    return exact(min(ratios) >= 1 / step - 1e-9 and max(ratios) < step**2, text, why)
