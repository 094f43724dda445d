"""The verdict on a claim: holds, fails or cannot be judged, with the numbers that it rests on and its tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from pipelag.errors import noting
from pipelag.experiments.schema import Claim
from pipelag.results.context import Context
from pipelag.results.logs import RunLog

T = TypeVar("T")
# The least number of seeds for a comparison of arms, at the scale and for the paper being judged.
LEAST_SEEDS: ContextVar[int] = ContextVar("least_seeds", default=1)
LEVEL = 0.05  # of significance
WORDS = {True: "holds", False: "fails", None: "cannot be judged"}


@dataclass(frozen=True)
class Finding:
    """What a judge finds. Made by `exact`, `measured`, `trend` and `sized` (`pipelag.results.judging`).

    holds: True, False, or None if the logs cannot decide. why: the numbers that the finding rests on, in words.
    tolerance: how far off the claim may be, and why so; "exact" if nothing may be off.
    learnt: whether the claim is about what networks learn, and not only about a count or a time.
    conditions: the part of `why` that says how the runs differ from the paper's.
    """

    holds: bool | None
    why: str
    tolerance: str
    learnt: bool = False
    conditions: str = ""


class SeedTest(NamedTuple):
    """A test over seeds: its two-sided p-values for what is asked and against it.

    One of them is 1, since the difference lies on only one side of the bound.
    """

    favour: float
    against: float


# The tests made so far for the claim being judged.
TESTS: ContextVar[list[SeedTest] | None] = ContextVar("tests", default=None)


@contextmanager
def resting_on(combine: Callable[[list[SeedTest]], list[SeedTest]]) -> Iterator[None]:
    """Combine the tests over seeds made inside this context into those that the claim rests on.

    combine: `nothing`, `any_one`, or another function from tests to tests.
    """
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
    """Drop tests that can only leave a claim open, neither support it nor make it fail."""
    return []


def any_one(tests: list[SeedTest]) -> list[SeedTest]:
    """Combine tests of which one is enough for the claim.

    For it counts the smallest p-value, multiplied by the number of tests (Bonferroni); against it the largest one,
    because all tests have to speak against it.
    """
    return (
        [SeedTest(min(1.0, len(tests) * min(test.favour for test in tests)), max(test.against for test in tests))]
        if tests
        else []
    )


Judge = Callable[[Context], Finding]
JUDGES: dict[tuple[str, str, str], Judge] = {}


@dataclass(frozen=True)
class Verdict:
    """A claim with its verdict.

    p: the greatest two-sided p-value in favour of the claim among the tests over seeds that it rests on; None if it
    rests on none, or cannot be judged for a reason other than these tests.
    learnt, conditions: as in `Finding`. own: whether the claim is ours and not the paper's.
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
    """Register the function that judges a claim."""

    def add(function: Judge) -> Judge:
        JUDGES[paper, result, claim] = function
        return function

    return add


class NotLogged(Exception):
    """A number that a judge needs has no log, or no usable one, so the claim cannot be judged; the message says why."""


def need(value: float | None, what: str) -> float:
    """The value. Raises `NotLogged` if it is None, since the claim cannot be judged without it."""
    if value is None:
        raise NotLogged(f"{what} has no logged value")
    return value


def if_logged(value: Callable[[], T]) -> T | None:
    """What a drawing shows where a judge would raise `NotLogged`: the value, or None where a log for it is missing."""
    try:
        return value()
    except NotLogged:
        return None


def log_of(context: Context, **labels: str) -> RunLog:
    """The log of the one run with these labels. Raises `NotLogged` if it has none."""
    log = context.log(**labels)
    if log is None:
        raise NotLogged(f"the run{''.join(f' {value}' for value in labels.values())} has no log")
    return log


def verdicts(context: Context) -> list[Verdict]:
    """Judge every claim of a result. A claim without a judge cannot be judged; its config says why (`because`)."""
    asked = LEAST_SEEDS.set(context.scale.least_seeds.get(context.paper.id, 1))
    try:
        return [judged(context, claim) for claim in context.result.claims]
    finally:
        LEAST_SEEDS.reset(asked)


def judged(context: Context, claim: Claim) -> Verdict:
    """Judge one of a result's claims.

    A claim of several comparisons holds if each one is decided in its favour, and fails if one is decided against it.
    By chance, one comparison in twenty would be; so failing takes a p-value below 0.05 divided by the number of
    comparisons (Bonferroni).
    """
    if claim.because:
        return Verdict(claim.id, claim.text, WORDS[None], claim.because, own=claim.ours)
    tests: list[SeedTest] = []
    recording = TESTS.set(tests)
    try:
        with noting(f"in the judge of {context.paper.id} {context.name}: {claim.id}"):
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
