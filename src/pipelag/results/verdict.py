"""A claim's verdict over the logs. A judge returns True, False or None with the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipelag.results.logs import Context, RunLog

Finding = tuple[bool | None, str]  # (holds, fails or cannot be judged; why)
Judge = Callable[[Context], Finding]
JUDGES: dict[tuple[str, str, str], Judge] = {}
WORDS = {True: "holds", False: "fails", None: "cannot be judged"}


@dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: str
    text: str
    verdict: str
    why: str


def judge(paper: str, result: str, claim: str) -> Callable[[Judge], Judge]:
    """Register the predicate of a claim."""

    def add(function: Judge) -> Judge:
        JUDGES[paper, result, claim] = function
        return function

    return add


class NotLogged(Exception):
    """A number that a judge asks for has no log."""


def need(value: float | None, what: str) -> float:
    """The value, or the end of the judgement: the claim cannot be judged without it."""
    if value is None:
        raise NotLogged(f"{what} has no logged value")
    return value


def log_of(context: Context, **labels: str) -> RunLog:
    """The one run with these labels, for a judge; raises `NotLogged` where it has no log."""
    log = context.log(**labels)
    if log is None:
        raise NotLogged(f"the run{''.join(f' {value}' for value in labels.values())} has no log")
    return log


def verdicts(context: Context) -> list[Verdict]:
    """Every claim of a result, judged."""
    found = []
    for claim in context.result.claims:
        try:
            outcome, why = JUDGES[context.paper.id, context.name, claim.id](context)
        except NotLogged as missing:
            outcome, why = None, str(missing)
        found.append(Verdict(claim.id, claim.text, WORDS[outcome], why))
    return found
