"""When runs come to a target, as far as evaluations tell: after the last one below it, by the first that has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelag.results.judging import Difference, after_a_fall, all_of, over_models
from pipelag.results.verdict import SeedTest, resting_on


@dataclass(frozen=True)
class Arrival:
    """When a run comes to a target: after its last evaluation below it (or the start), by its first that has it.

    In epochs, or in another unit. Of one that never comes, `by` is infinite and `after` its whole length. by_rate: it
    comes at the first evaluation after a fall of the rate.
    """

    after: float
    by: float
    by_rate: bool

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, Any]], reaches: Callable[[Mapping[str, Any]], bool], unit: str = "epoch"
    ) -> Arrival:
        """From a run's evaluations and whether one of them reaches the target; one lost before any never comes.

        unit: the column that is counted.
        """
        at = next((number for number, row in enumerate(rows) if reaches(row)), None)
        if at is None:
            return cls(rows[-1][unit] if rows else 0.0, math.inf, False)
        return cls(rows[at - 1][unit] if at else 0.0, rows[at][unit], after_a_fall(rows, at))

    @property
    def never(self) -> bool:
        """Whether it does not come while it is trained."""
        return math.isinf(self.by)

    def times(self, unit: float) -> Arrival:
        """In another unit."""
        return Arrival(unit * self.after, unit * self.by, self.by_rate)


BETWEEN = "whenever between two evaluations each run reaches the target"
Arrivals = dict[int, Arrival]  # by seed
ANY = Difference(math.inf, 0.0, 0)  # above any bound


def by_rate(*arms: Arrivals) -> bool:
    """Whether every run comes at a fall of the rate: then the fall decides when, and it says nothing of the arms."""
    return all(one.by_rate for arrivals in arms for one in arrivals.values())


def later(a: Arrivals, b: Arrivals) -> bool | None:
    """Whether a comes later than b, over seeds: whenever between two evaluations each of them comes.

    Nothing is told where a fall of the rate decides, and with one seed, as times know no error.
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
    """The epochs of the evaluations that arrive, by seed, in words."""
    if not arrivals:
        return "not logged"
    return ", ".join("never" if one.never else f"{one.by:.2f}" for one in arrivals.values())


@dataclass(frozen=True)
class Gain:
    """How many times as long as one arm another takes to a target, over the seeds that both have.

    evaluated: as if each came at its evaluation; of one that never comes as long as it is trained over the other's, and
    0 where the first never does. least, most: whenever between two evaluations each of them comes; most is infinite
    where that may be any number.
    """

    evaluated: Difference
    least: Difference
    most: Difference

    @classmethod
    def of(cls, first: Arrivals, second: Arrivals, factor: float = 1.0) -> Gain:
        """The second's over the first's, times a factor. Raises `NotLogged` where they share no seed."""
        return cls.over_models([(first, second)], factor)

    @classmethod
    def over_models(cls, models: Iterable[tuple[Arrivals, Arrivals]], factor: float = 1.0) -> Gain:
        """The geometric mean over models, seed by seed, of the same."""
        by_model = [_ratios(first, second) for first, second in models]
        sides = (over_models(side, _geometric) for side in zip(*by_model, strict=True))
        evaluated, least, most = ({seed: factor * value for seed, value in side.items()} for side in sides)
        bounded = all(map(math.isfinite, most.values()))
        return cls(as_value(evaluated), as_value(least), as_value(most) if bounded else replace(ANY, seeds=len(most)))

    def above(self, bound: float) -> bool | None:
        """Whether it is above a bound, whenever they come; None where that is not told."""
        with resting_on(_either):
            surely, possibly = self.least.above(bound), self.most.above(bound)
        return True if surely else False if possibly is False else None

    def below(self, bound: float) -> bool | None:
        """Whether it is at most a bound, whenever they come; None where that is not told."""
        with resting_on(_either):
            surely, possibly = self.most.below(bound), self.least.below(bound)
        return True if surely else False if possibly is False else None

    def within(self, low: float, high: float) -> bool | None:
        """Whether it is between two bounds, whenever they come; None where that is not told."""
        return all_of((self.above(low), self.below(high)))

    def text(self) -> str:
        """In words, as evaluated."""
        return self.evaluated.text().lstrip("+")


def _ratios(first: Arrivals, second: Arrivals) -> tuple[dict[int, float], ...]:
    """The second's over the first's by seed: as evaluated, at least, at most."""
    evaluated, least, most = dict[int, float](), dict[int, float](), dict[int, float]()
    for seed in first.keys() & second.keys():
        one, other = first[seed], second[seed]
        evaluated[seed] = (other.after if other.never else other.by) / one.by
        least[seed] = other.after / one.by
        most[seed] = other.by / one.after if one.after else math.inf
    return evaluated, least, most


def _geometric(values: Sequence[float]) -> float:
    """The geometric mean, of zeros and infinities too."""
    return math.prod(values) ** (1 / len(values))


def as_value(by_seed: Mapping[int, float]) -> Difference:
    """Values over seeds as one that is compared with bounds."""
    return Difference.of(by_seed, dict.fromkeys(by_seed, 0.0))


def _either(tests: list[SeedTest]) -> list[SeedTest]:
    """Of the two ends of a range: for the claim speaks the worse, against it the better."""
    return [SeedTest(max(test.favour for test in tests), max(test.against for test in tests))] if tests else []
