"""A claim's verdict over the logs: holds, fails or cannot be judged; with the numbers it rests on and its tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipelag.experiments.schema import Claim
from pipelag.results.context import Context
from pipelag.results.logs import RunLog

# How many seeds a comparison of arms needs to tell anything, of the scale and paper that is judged.
LEAST_SEEDS: ContextVar[int] = ContextVar("least_seeds", default=1)
LEVEL = 0.05  # of a test
WORDS = {True: "holds", False: "fails", None: "cannot be judged"}


@dataclass(frozen=True)
class Finding:
    """What a judge finds. Made by `exact`, `measured`, `trend` and `sized` (`pipelag.results.judging`).

    holds: True, False, or None where it cannot be told. why: the numbers that it rests on, in words.
    tolerance: how far off the claim may be and where that comes from; "exact" where nothing may be off.
    learnt: whether it is about what networks learn, and not a count or a time alone.
    conditions: the part of `why` that says how the runs differ from the paper's.
    """

    holds: bool | None
    why: str
    tolerance: str
    learnt: bool = False
    conditions: str = ""


class SeedTest(NamedTuple):
    """A test over seeds: the p-values (two-sided) at which it speaks for what is asked, and against it.

    One of them is 1: the difference lies on one side of the bound.
    """

    favour: float
    against: float


# The tests of the claim that is judged, so far.
TESTS: ContextVar[list[SeedTest] | None] = ContextVar("tests", default=None)


@contextmanager
def resting_on(combine: Callable[[list[SeedTest]], list[SeedTest]]) -> Iterator[None]:
    """Of the tests over seeds that are made here, what the claim rests on: `nothing`, or `any_one` of them."""
    here: list[SeedTest] = []
    token = TESTS.set(here)
    try:
        yield
    finally:
        TESTS.reset(token)
    tests = TESTS.get()
    if tests is not None:
        tests += combine(here)


def nothing(tests: list[SeedTest]) -> list[SeedTest]:
    """Of tests that may leave a claim open, and neither support it nor fail it."""
    return []


def any_one(tests: list[SeedTest]) -> list[SeedTest]:
    """Of tests one of which is enough: the surest, at their number; against it speaks what all of them do."""
    return (
        [SeedTest(min(1.0, len(tests) * min(test.favour for test in tests)), max(test.against for test in tests))]
        if tests
        else []
    )


Judge = Callable[[Context], Finding]
JUDGES: dict[tuple[str, str, str], Judge] = {}


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    p: the greatest p-value (two-sided) with which the tests over seeds that it rests on speak for it; None where it
    rests on none, or cannot be judged for another reason than what they tell. learnt, conditions: as of a `Finding`.
    own: as of a `Claim`.
    """

    claim: str
    text: str
    verdict: str
    why: str
    tolerance: str = ""
    p: float | None = None
    learnt: bool = False
    own: bool = False
    conditions: str = ""


def judge(paper: str, result: str, claim: str) -> Callable[[Judge], Judge]:
    """Register the predicate of a claim."""

    def add(function: Judge) -> Judge:
        JUDGES[paper, result, claim] = function
        return function

    return add


class NotLogged(Exception):
    """A number that a judge asks for has no log, or no log of the right kind; the message says which."""


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
    """Every claim of a result, judged; one without a judge cannot be, and its text in the config says why."""
    asked = LEAST_SEEDS.set(context.scale.least_seeds.get(context.paper.id, 1))
    try:
        return [judged(context, claim) for claim in context.result.claims]
    finally:
        LEAST_SEEDS.reset(asked)


def judged(context: Context, claim: Claim) -> Verdict:
    """What became of one of a result's claims.

    One of several parts holds where each is told. It fails where one is told against it; of many, one in twenty is by
    chance, so that this takes a p-value of a twentieth over their number (Bonferroni).
    """
    if claim.because:
        return Verdict(claim.id, claim.text, WORDS[None], claim.because, own=claim.ours)
    tests: list[SeedTest] = []
    recording = TESTS.set(tests)
    try:
        finding = JUDGES[context.paper.id, context.name, claim.id](context)
    except NotLogged as missing:
        finding = Finding(None, str(missing), "")
        tests.clear()
    finally:
        TESTS.reset(recording)
    least = min((test.against for test in tests), default=1.0)
    if finding.holds is False and least < 1 and len(tests) * least > LEVEL and len(tests) > 1:
        against = f"the strongest against the claim has p = {least:.3f}, too weak among so many"
        why = f"{finding.why}; of {len(tests)} comparisons, {against}"
        finding = replace(finding, holds=None, why=why)
    p = max((test.favour for test in tests), default=None)
    what = (WORDS[finding.holds], finding.why, finding.tolerance, p, finding.learnt)
    return Verdict(claim.id, claim.text, *what, claim.ours, finding.conditions)
