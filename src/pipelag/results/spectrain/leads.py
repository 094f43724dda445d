"""Claims about each of several networks or arms, some of which may not be logged.

One that is told against such a claim decides it even if others are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, all_of, trend
from pipelag.results.verdict import TESTS, Finding, NotLogged

Leads = Mapping[str, Callable[[], Difference]]  # by name


def told(leads: Leads) -> tuple[dict[str, Difference], dict[str, None]]:
    """The leads that are logged, by name, and the reasons why others are not; raises `NotLogged` if none is."""
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
    """A finding about several networks or arms, with the reasons why some are not logged."""
    reasons = list(dict.fromkeys(reasons))
    if reasons and holds is None:
        (TESTS.get() or []).clear()  # the missing logs decide, not the tests
    return trend(context, holds, "; ".join([why, *reasons]), tolerance, what="training")


def every(outcomes: Iterable[bool | None], reasons: Iterable[str]) -> bool | None:
    """Whether all outcomes are True, False if one is False; else None if one is open or not logged.

    reasons: why some are not logged, one each.
    """
    return all_of([*outcomes, *(None for _ in reasons)])
