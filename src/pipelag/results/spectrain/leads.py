"""Claims about each of several networks or arms, of which some may not be logged: one may decide all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, all_of, trend
from pipelag.results.verdict import TESTS, Finding, NotLogged

Leads = Mapping[str, Callable[[], Difference]]  # by name


def told(leads: Leads) -> tuple[dict[str, Difference], dict[str, None]]:
    """Those that are logged, by name, and why others are not; raises `NotLogged` where none is."""
    known: dict[str, Difference] = {}
    reasons: dict[str, None] = {}
    for name, lead in leads.items():
        try:
            known[name] = lead()
        except NotLogged as why:
            reasons[str(why)] = None
    if not known:
        raise NotLogged("; ".join(reasons))
    return known, reasons


def decided(context: Context, holds: bool | None, why: str, reasons: Iterable[str], tolerance: str = SEEDS) -> Finding:
    """A finding about several, some of which are not logged, which it says."""
    reasons = list(dict.fromkeys(reasons))
    if reasons and holds is None:
        (TESTS.get() or []).clear()  # what they tell is not what decides
    return trend(context, holds, "; ".join([why, *reasons]), tolerance, what="training")


def every(outcomes: Iterable[bool | None], reasons: Iterable[str]) -> bool | None:
    """Whether all are so: one that is not logged leaves that untold, but where another is told against it."""
    return all_of([*outcomes, *(None for _ in reasons)])
