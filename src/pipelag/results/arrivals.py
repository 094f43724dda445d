"""When runs reach a target. Evaluations bound that moment: after the last one below the target, by the first at it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelag.results.judging import Difference, all_of, over_models
from pipelag.results.verdict import SeedTest, resting_on


def after_a_fall(rows: Sequence[Mapping[str, Any]], at: int) -> bool:
    """Whether an evaluation is the first after a fall of the learning rate to less than half."""
    return at > 0 and rows[at].get("lr", 0) < rows[at - 1].get("lr", 0) / 2


@dataclass(frozen=True)
class Arrival:
    """The interval in which a run reaches a target, in epochs or another unit.

    after: the last evaluation below the target, or the start; for a run that never arrives, its whole length.
    by: the first evaluation that has reached the target; infinite for a run that never arrives.
    by_rate: whether the run arrives at the first evaluation after a fall of the learning rate.
    """

    after: float
    by: float
    by_rate: bool

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, Any]], reaches: Callable[[Mapping[str, Any]], bool], unit: str = "epoch"
    ) -> Arrival:
        """The arrival of a run, from its evaluations. A run that diverges before its first evaluation never arrives.

        reaches: whether an evaluation has reached the target. unit: the column that measures time.
        """
        at = next((number for number, row in enumerate(rows) if reaches(row)), None)
        if at is None:
            return cls(rows[-1][unit] if rows else 0.0, math.inf, False)
        return cls(rows[at - 1][unit] if at else 0.0, rows[at][unit], after_a_fall(rows, at))

    @property
    def never(self) -> bool:
        """Whether the run does not reach the target during its training."""
        return math.isinf(self.by)

    def times(self, unit: float) -> Arrival:
        """The same arrival in another unit, by multiplication."""
        return Arrival(unit * self.after, unit * self.by, self.by_rate)


BETWEEN = "whenever between two evaluations each run reaches the target"
Arrivals = dict[int, Arrival]  # by seed
ANY = Difference(math.inf, 0.0, 0)  # above any bound


def by_rate(*arms: Arrivals) -> bool:
    """Whether every run arrives right after a fall of the learning rate.

    Then the fall decides when they arrive, and a comparison of their arrivals says nothing about the arms.
    """
    return all(one.by_rate for arrivals in arms for one in arrivals.values())


def later(a: Arrivals, b: Arrivals) -> bool | None:
    """Whether arm a reaches the target later than arm b, by a test paired over seeds.

    The answer must be the same wherever between its two evaluations each run arrives. None if it is not, if a fall of
    the learning rate decides the arrivals (`by_rate`), or with one seed, because times have no error of their own.
    """
    if by_rate(a, b):
        return None
    ends = [{seed: one.by for seed, one in each.items()} for each in (a, b)]
    begins = [{seed: one.after for seed, one in each.items()} for each in (a, b)]
    if all(map(math.isfinite, ends[1].values())) and Difference.of(begins[0], ends[1]).above():
        return True
    if all(map(math.isfinite, ends[0].values())) and Difference.of(ends[0], begins[1]).above() is False:
        return False
    return None


def in_words(arrivals: Arrivals) -> str:
    """By which epoch each seed arrives, in words."""
    if not arrivals:
        return "not logged"
    return ", ".join("never" if one.never else f"{one.by:.2f}" for one in arrivals.values())


@dataclass(frozen=True)
class Gain:
    """The ratio of the second arm's time to a target over the first arm's, over the seeds that both have.

    evaluated: the ratio if each run arrives at the evaluation that finds it there. For a second arm that never arrives
    its whole length counts; if the first never arrives the ratio is 0.
    least, most: the bounds of the ratio, given that each run arrives somewhere between two evaluations. `most` is
    infinite if nothing bounds it.
    """

    evaluated: Difference
    least: Difference
    most: Difference

    @classmethod
    def of(cls, first: Arrivals, second: Arrivals, factor: float = 1.0) -> Gain:
        """The second arm's time over the first's, multiplied by a factor. Raises `NotLogged` if they share no seed."""
        return cls.over_models([(first, second)], factor)

    @classmethod
    def over_models(cls, models: Iterable[tuple[Arrivals, Arrivals]], factor: float = 1.0) -> Gain:
        """The geometric mean of these ratios over models, seed by seed."""
        by_model = [_ratios(first, second) for first, second in models]
        sides = (over_models(side, _geometric) for side in zip(*by_model, strict=True))
        evaluated, least, most = ({seed: factor * value for seed, value in side.items()} for side in sides)
        bounded = all(map(math.isfinite, most.values()))
        highest = Difference.from_zero(most) if bounded else replace(ANY, seeds=len(most))
        return cls(Difference.from_zero(evaluated), Difference.from_zero(least), highest)

    def above(self, bound: float) -> bool | None:
        """Whether the ratio is above a bound wherever in their intervals the runs arrive; None if that is open."""
        with resting_on(_either):
            surely, possibly = self.least.above(bound), self.most.above(bound)
        return True if surely else False if possibly is False else None

    def below(self, bound: float) -> bool | None:
        """Whether the ratio is at most a bound wherever in their intervals the runs arrive; None if that is open."""
        with resting_on(_either):
            surely, possibly = self.most.below(bound), self.least.below(bound)
        return True if surely else False if possibly is False else None

    def within(self, low: float, high: float) -> bool | None:
        """Whether the ratio is between two bounds wherever in their intervals the runs arrive; None if that is open."""
        return all_of((self.above(low), self.below(high)))

    def text(self) -> str:
        """The evaluated ratio in words."""
        return self.evaluated.text().lstrip("+")


def _ratios(first: Arrivals, second: Arrivals) -> tuple[dict[int, float], ...]:
    """The second arm's times over the first's, by seed: as evaluated, at least, at most."""
    evaluated, least, most = dict[int, float](), dict[int, float](), dict[int, float]()
    for seed in first.keys() & second.keys():
        one, other = first[seed], second[seed]
        evaluated[seed] = (other.after if other.never else other.by) / one.by
        least[seed] = other.after / one.by
        most[seed] = other.by / one.after if one.after else math.inf
    return evaluated, least, most


def _geometric(values: Sequence[float]) -> float:
    """The geometric mean; unlike `statistics.geometric_mean` it takes zeros and infinities."""
    return math.prod(values) ** (1 / len(values))


def _either(tests: list[SeedTest]) -> list[SeedTest]:
    """Combine the tests of a range's two ends: the larger p-value counts, because both ends have to agree."""
    return [SeedTest(max(test.favour for test in tests), max(test.against for test in tests))] if tests else []
