"""Lemmas 1 to 4: their bounds against the eigenvalues of the quadratic model; the decay of T2 (B.4)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import exp, pi, sin
from typing import Any

from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact
from pipelag.results.logs import RunLog
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipemare"


def lemma_1(tau: int, curvature: float = 1.0) -> float:
    """Lemma 1's bound on stable step sizes, (2 / lambda) sin(pi / (4 tau + 2))."""
    return 2 / curvature * sin(pi / (4 * tau + 2))


def lemma_rows(log: RunLog | None, number: int) -> list[dict[str, Any]]:
    """The logged rows of a lemma; empty without a log."""
    return [row for row in log.rows if row["lemma"] == number] if log else []


def lemma_table(number: int, *settings: Col) -> None:
    """Register the table of a lemma: its bound beside the largest stable step size by eigenvalues."""

    def draw(context: Context) -> Drawn:
        cols = [
            Col("tau_fwd" if number == 2 else "tau", "tau"),
            *settings,
            Col("largest stable step size, by eigenvalues", "stable", "{:.5f}"),
            Col("the lemma's bound", "bound", "{:.5f}"),
        ]
        return Drawn.tabled(context, lemma_rows(context.log(), number), cols)

    drawing(PAPER, f"text_lemma_{number}")(draw)


lemma_table(1, Col("largest eigenvalue below the bound", "below", "{:.6f}"), Col("and above it", "above", "{:.6f}"))
lemma_table(2, Col("tau_bkwd", "backward"), Col("Delta", "delta", "{:g}"))
lemma_table(3, Col("beta", "beta", "{:g}"))


def needed_rows(context: Context, number: int) -> list[dict[str, Any]]:
    """`lemma_rows` for a judge. Raises `NotLogged` if there are none."""
    rows = lemma_rows(context.log(), number)
    if not rows:
        raise NotLogged(f"lemma {number} has no logged values")
    return rows


@judge(PAPER, "text_lemma_1", "threshold")
def threshold(context: Context) -> Finding:
    """Holds if the bound is the largest stable step size to 1e-9, for every delay.

    Also, the largest eigenvalue must be inside the unit circle at step sizes below the bound, and outside above it.
    """
    rows = needed_rows(context, 1)
    worst = max(abs(row["stable"] - lemma_1(row["tau"])) for row in rows)
    inside, outside = max(row["below"] for row in rows), min(row["above"] for row in rows)
    text = (
        f"over {len(rows)} delays the bound and the eigenvalues' limit differ by at most {worst:.1e}; the largest "
        f"eigenvalue is at most {inside:.6f} at step sizes below the bound and at least {outside:.6f} above it"
    )
    return exact(worst < 1e-9 and inside < 1 < outside, text, "exact, the limit to 1e-9")


def under_bound(context: Context, number: int, bound: Callable[[dict[str, Any]], float]) -> Finding:
    """Whether in no logged case the largest stable step size is above the bound that the paper prints."""
    rows = needed_rows(context, number)
    above = [row for row in rows if row["stable"] > bound(row) + 1e-9]
    tightest = max(row["stable"] / bound(row) for row in rows)
    text = f"in {len(rows) - len(above)} of {len(rows)} cases; at most {tightest:.3f} of the bound"
    return exact(not above, text, "exact, the limit to 1e-9")


@judge(PAPER, "text_lemma_2", "unstable_below_bound")
def unstable_below_bound(context: Context) -> Finding:
    """Holds if Lemma 2's bound is kept for every logged Delta, tau_fwd and tau_bkwd (`under_bound`)."""

    def bound(row: dict[str, Any]) -> float:
        return min(2 / (row["delta"] * (row["tau"] - row["backward"])), lemma_1(row["tau"]))

    return under_bound(context, 2, bound)


@judge(PAPER, "text_lemma_3", "no_escape")
def no_escape(context: Context) -> Finding:
    """Holds if Lemma 3's bound is kept for every momentum (`under_bound`)."""
    return under_bound(context, 3, lambda row: 2 * lemma_1(row["tau"]))


@drawing(PAPER, "text_lemma_4")
def lemma_4(context: Context) -> Drawn:
    """The argument of the root that first crosses the unit circle, by delay."""
    cols = [
        Col("tau", "tau"),
        Col("threshold step size", "stable", "{:.5f}"),
        Col("argument of the crossing root", "omega", "{:.5f}"),
        Col("pi/(2 tau + 1)", lambda row: pi / (2 * row["tau"] + 1), "{:.5f}"),
    ]
    return Drawn.tabled(context, lemma_rows(context.log(), 1), cols)


@judge(PAPER, "text_lemma_4", "towards_one")
def towards_one(context: Context) -> Finding:
    """Holds if the argument of the crossing root falls with tau and equals pi / (2 tau + 1), which tends to 0."""
    rows = sorted(needed_rows(context, 1), key=lambda row: row["tau"])
    angles = [row["omega"] for row in rows]
    falling = all(a > b for a, b in pairwise(angles))
    worst = max(abs(row["omega"] - pi / (2 * row["tau"] + 1)) for row in rows)
    text = f"from {angles[0]:.3f} down to {angles[-1]:.4f}; off pi/(2 tau + 1) by at most {worst:.1e}"
    return exact(falling and worst < 1e-6, text, "exact, to 1e-6")


def theory(gap: int) -> float:
    """B.4's gamma, 1 - 2 / (tau_fwd - tau_bkwd + 1)."""
    return 1 - 2 / (gap + 1)


@drawing(PAPER, "text_decay")
def text_decay(context: Context) -> Drawn:
    """A row per pair of delays; the paper's gamma beside the one found."""
    log = context.log()
    cols = [
        Col("tau_fwd - tau_bkwd", "gap"),
        Col("tau_bkwd", "backward"),
        Col("gamma free of Delta", "gamma", "{:.5f}"),
        Col("1 - 2/(tau_fwd - tau_bkwd + 1)", lambda row: theory(row["gap"]), "{:.5f}"),
        Col("D", "D", "{:.5f}"),
        Col("exp(-2)", lambda row: exp(-2), "{:.5f}"),
    ]
    return Drawn.tabled(context, log.rows if log else [], cols)


@judge(PAPER, "text_decay", "free_of_delta")
def free_of_delta(context: Context) -> Finding:
    """The value and both derivatives at omega = 1, so that nothing of the second order is left."""
    rows = log_of(context).rows
    off = max(abs(row["gamma"] - theory(row["gap"])) for row in rows)
    left = max(abs(row[key]) for row in rows for key in ("value", "first"))
    text = (
        f"over {len(rows)} pairs of delays the gamma at which the second derivative is free of Delta differs from the "
        f"formula by at most {off:.1e}; in the value and the first derivative Delta's factor is at most {left:.1e}"
    )
    return exact(off < 1e-9 and left < 1e-9, text, "exact, to 1e-9")


@judge(PAPER, "text_decay", "near_exp_minus_2")
def near_exp_minus_2(context: Context) -> Finding:
    """Ever nearer with growing delays, and in the end the number that the paper prints."""
    by_gap = {row["gap"]: row["D"] for row in sorted(log_of(context).rows, key=lambda row: row["gap"])}
    off = [abs(value - exp(-2)) for value in by_gap.values()]
    longest = max(by_gap)
    text = (
        f"D is {', '.join(f'{value:.4f} at {gap}' for gap, value in by_gap.items())} updates between the delays; "
        f"exp(-2) = {exp(-2):.4f}"
    )
    nearer = all(a > b for a, b in pairwise(off))
    holds = nearer and abs(by_gap[longest] - context.result.reported["D"]) <= 5e-4
    return exact(holds, text, "ever nearer to exp(-2); the longest within half a unit of the printed digits")
