"""What the judges of all papers share: whether a scale can decide a claim, and comparisons over seeds.

There are four kinds of claims, each with its own rule:

    exact     schedules, counts, theory: judged wherever they are logged
    measured  times on this machine or from the timed executor: judged within a stated factor
    trend     an order among trained arms: judged on whatever data and length the scale has, which the verdict names
    sized     how large an accuracy or a difference is, or what happens on a named data set: judged only with the
              paper's data, model and length; elsewhere the verdict gives the numbers and says what is missing
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from pipelag.errors import PipelagError, unknown
from pipelag.results.context import Context
from pipelag.results.logs import Item, RunLog, Share
from pipelag.results.multiplicity import two_sided
from pipelag.results.verdict import LEAST_SEEDS, TESTS, Finding, NotLogged, SeedTest, any_one, if_logged, resting_on

# Student's t, two-sided 95 %, by degrees of freedom.
T95 = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.306, 2.26216)


def quantile(seeds: int) -> float:
    """The two-sided 95 % quantile of Student's t for a mean over this many seeds."""
    freedom = seeds - 1
    if freedom <= len(T95):
        return T95[freedom - 1]
    low, high = 1.9, T95[-1]  # of any more degrees of freedom it lies between them
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 0.05 else (low, middle)
    return high


def listing(values: Iterable[object]) -> str:
    """Values as text, separated by commas."""
    return ", ".join(map(str, values))


def extent(low: float, high: float, form: str = "g") -> str:
    """A range as text, or one number if both ends look the same in this format."""
    ends = [f"{end:{form}}" for end in (low, high)]
    return " to ".join(dict.fromkeys(ends))


def with_spread(values: Sequence[float], form: str = "{:.1f}") -> str:
    """The mean of at least one value, with the standard deviation if there are several."""
    return form.format(fmean(values)) + (f" ± {form.format(stdev(values))}" if len(values) > 1 else "")


def spread_over(what: str, seeds: str) -> str:
    """A table's note on what ± beside its means is. seeds: what they are over (`Context.over_seeds`)."""
    return f"{what}: {seeds}." if seeds == "one seed" else f"{what}: mean ± one standard deviation over {seeds}."


def exact(holds: bool | None, why: str, tolerance: str = "exact") -> Finding:
    """The finding on a claim about schedules, counts or theory."""
    return Finding(holds, why, tolerance)


def measured(context: Context, holds: bool | None, why: str, tolerance: str, **labels: str) -> Finding:
    """The finding on a claim about times; it names how the timed runs fall short of the paper's.

    labels: select the runs that the claim rests on.
    """
    short = context.shortfall(**labels)
    return Finding(holds, why + (f" (here: {short})" if short else ""), tolerance, conditions=short)


def on_gpus(context: Context, holds: bool | None, why: str, tolerance: str, **labels: str) -> Finding:
    """The finding on a claim about times or speedups of GPUs, which times of processor cores cannot decide."""
    devices = {log.environment.get("device", "") for log in context.logs(**labels)}
    cores = sorted(device for device in devices if device.endswith("cores)"))
    if cores:
        here = f"only GPUs can decide this, and here the workers are cores of {' and '.join(cores)}"
        return Finding(None, f"{why}; {here}", tolerance)
    return measured(context, holds, why, tolerance, **labels)


def trend(context: Context, holds: bool | None, why: str, tolerance: str, **labels: str) -> Finding:
    """The finding on a claim about an order among trained arms: judged at any scale; the sentence names the scale."""
    short = "; ".join(text for text in (context.shortfall(**labels), context.releases(**labels)) if text)
    why += f" (at this scale: {short})" if short else ""
    return Finding(holds, why, tolerance, learnt=True, conditions=short)


def sized(context: Context, holds: bool | None, why: str, tolerance: str, **labels: str) -> Finding:
    """The finding on a claim about a size or about a named data set: it can be judged only from the paper's runs."""
    short = context.shortfall(**labels)
    if short:
        (TESTS.get() or []).clear()  # the tests do not decide the claim
        why += f"; only runs like the paper's can decide this (here: {short})"
        return Finding(None, why, tolerance, learnt=True, conditions=short)
    release = context.releases(**labels)
    why += f" ({release})" if release else ""
    return Finding(holds, why, tolerance, learnt=True, conditions=release)


def by_seed(context: Context, **labels: str) -> dict[int, float]:
    """The final accuracy of every seed of an arm, in percent.

    Raises:
        NotLogged: a seed that the scale asks for has no final accuracy.
        PipelagError: the labels fit several arms.
    """
    check_labels(context, labels)
    accuracy = context.accuracy(**labels)
    what = ", ".join(value for key, value in labels.items() if key not in ("what", "kind"))
    if accuracy.values and not accuracy.complete:
        raise NotLogged(f"{what}: only {accuracy.text()}")
    if not accuracy.values:
        raise NotLogged(f"{what} has no logged value" + (f" ({accuracy.note})" if accuracy.note else ""))
    return {
        item.arm.seed: item.log.accuracy
        for item in context.select(**labels)
        if item.log is not None and item.log.accuracy is not None
    }


def check_labels(context: Context, labels: Mapping[str, str]) -> None:
    """Refuse labels that fit several runs of one seed, since a judge would silently use one of them.

    Raises:
        NotLogged: no run has these labels.
        PipelagError: they fit several runs of a seed.
    """
    asked = ", ".join(f"{key}='{value}'" for key, value in labels.items())
    items = context.select(**labels)
    if context.items and not items:
        for key, value in labels.items():
            if (values := context.values(key)) and value not in values:
                raise NotLogged(str(unknown(f"{key} of {context.name}", value, values)))
        known = listing(sorted({key for item in context.items for key in item.arm.labels}))
        raise NotLogged(f"no run of {context.name} has {asked}; its labels are {known}")
    first: dict[int, Item] = {}
    for item in items:
        other = first.setdefault(item.arm.seed, item).arm
        if other.spec.id != item.arm.spec.id:
            theirs = {key: (other.labels.get(key), value) for key, value in item.arm.labels.items()}
            apart = [f"{key} ('{a}', '{b}')" for key, (a, b) in theirs.items() if a != b]
            raise PipelagError(
                f"a judge of {context.name}: {asked} fits several runs of seed {item.arm.seed}, which differ in "
                f"{listing(apart)}; name it as well"
            )


def asked_for(items: Sequence[Item]) -> list[Item]:
    """The runs without the seeds that the scale leaves out; all of them if it leaves out every seed."""
    return [item for item in items if item.log is not None or not item.arm.left_out] or list(items)


def every_run(context: Context, named: str, **labels: str) -> dict[int, Item]:
    """The runs with these labels by seed, if every seed has a log.

    Seeds that the scale leaves out are not missed if the arm has others.

    Args:
        named: what the verdict's sentence calls the runs.

    Raises:
        NotLogged: a seed has no log; the message gives the reason.
        PipelagError: the labels fit several arms.
    """
    check_labels(context, labels)
    items = context.select(**labels)
    logged = {item.arm.seed: item for item in items if item.log is not None}
    items = asked_for(items)
    if logged and len(logged) == len({item.arm.seed for item in items}):
        return logged
    if logged:
        raise NotLogged(f"only {len(logged)} of {len(items)} seeds of {named} have a log")
    why = next((item.why for item in items if item.why), "")
    raise NotLogged(f"{named} has no log" + (f" ({why})" if why else ""))


def logs_by_seed(context: Context, named: str, **labels: str) -> dict[int, RunLog]:
    """The logs of `every_run`, by seed."""
    return {seed: item.log for seed, item in every_run(context, named, **labels).items() if item.log is not None}


def whole_runs(context: Context, named: str, **labels: str) -> dict[int, RunLog]:
    """`logs_by_seed` of runs that must not have diverged, because their evaluations before that say nothing.

    Raises:
        NotLogged: a seed has no log, or diverged.
    """
    logs = logs_by_seed(context, named, **labels)
    for seed, log in logs.items():
        if log.diverged_at is not None:
            raise NotLogged(f"{named} diverged with seed {seed}, at step {log.diverged_at:,}")
    return logs


def together(values: Sequence[float]) -> float | None:
    """The standard error of a sum or difference of shares; None unless every share has one."""
    errors = [value.error for value in values if isinstance(value, Share) and value.error is not None]
    return math.hypot(*errors) if len(errors) == len(values) else None


def minus(a: float, b: float) -> Share:
    """The difference of two values; of two shares, with its standard error."""
    return Share.with_error(a - b, together((a, b)))


def gaps(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    """The differences a - b (`minus`) by seed, for the seeds that both have."""
    return {seed: minus(a[seed], b[seed]) for seed in a if seed in b}


def average(values: Sequence[float]) -> Share:
    """The mean of values; of shares, with its standard error."""
    error = together(values)
    return Share.with_error(fmean(values), None if error is None else error / len(values))


def over_models(
    models: Iterable[Mapping[int, float]], mean: Callable[[Sequence[float]], float] = average
) -> dict[int, float]:
    """The mean over models, seed by seed, for the seeds that all models have.

    Args:
        models: values by seed, one per model.

    Raises:
        NotLogged: the models have no seed in common.
    """
    by_model = list(models)
    seeds = set.intersection(*map(set, by_model))
    if not seeds:
        raise NotLogged("the runs that are averaged have no seed in common")
    return {seed: mean([values[seed] for values in by_model]) for seed in sorted(seeds)}


@dataclass(frozen=True)
class Difference:
    """The mean of the differences a - b, paired over seeds, and half its 95 % interval (Student's t).

    With one seed the interval is that of the test set's samples. It is too narrow, since another seed would change
    more. Values without an error of their own (losses, means over a curve, BLEU in older logs) have no interval with
    one seed, and then no test gives an answer. `text` says which case it is.
    """

    mean: float
    error: float | None
    seeds: int

    @classmethod
    def of(cls, a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
        """The difference of two arms, from their values by seed. Raises `NotLogged` if they have no seed in common."""
        pairs = [(a[seed], b[seed]) for seed in a if seed in b]
        if not pairs:
            raise NotLogged("the two arms have no seed in common")
        gaps = [x - y for x, y in pairs]
        if len(gaps) < 2:
            error = together(pairs[0])
            return cls(gaps[0], None if error is None else 1.96 * error, 1)
        return cls(fmean(gaps), quantile(len(gaps)) * stdev(gaps) / math.sqrt(len(gaps)), len(gaps))

    @classmethod
    def from_zero(cls, values: Mapping[int, float]) -> Difference:
        """Values by seed as a difference from zero, which can be tested against bounds."""
        return cls.of(values, dict.fromkeys(values, 0.0))

    def above(self, bound: float = 0.0) -> bool | None:
        """Whether a - b is above a bound; None if the bound lies in the interval, or seeds are too few for a test."""
        return self._told(bound, upwards=True)

    def below(self, bound: float = 0.0) -> bool | None:
        """Whether a - b is at most a bound; None if the bound lies in the interval, or seeds are too few for a test."""
        return self._told(bound, upwards=False)

    def _told(self, bound: float, upwards: bool) -> bool | None:
        """Whether a - b is above a bound (upwards) or at most the bound."""
        if self.error is None or self.seeds < LEAST_SEEDS.get():
            return None
        self._note_test(bound, upwards)
        if self.mean - self.error > bound:
            return upwards
        return not upwards if self.mean + self.error <= bound else None

    def _note_test(self, bound: float, upwards: bool) -> None:
        """Record the p-value of this test for the claim being judged; with one seed there is none."""
        tests = TESTS.get()
        if tests is None or self.error is None or self.seeds < 2:
            return
        away = self.mean - bound
        t = abs(away) / self.error * quantile(self.seeds) if self.error else math.inf if away else 0.0
        p = two_sided(t, self.seeds - 1)
        tests.append(SeedTest(p, 1.0) if (away > 0) == upwards else SeedTest(1.0, p))

    def within(self, low: float, high: float) -> bool | None:
        """Whether a - b lies between two bounds; None if the seeds cannot tell."""
        return all_of((self.above(low), self.below(high)))

    def matches(self, value: float, slack: float = 0.0) -> bool | None:
        """Whether one more pair of runs like these could give `value`, the difference that a paper measured once.

        True if the 95 % interval for a further pair, widened by `slack`, contains the value, and the interval does not
        contain 0. False if the value lies outside. None if the interval contains both, and with one seed.
        """
        if self.error is None or self.seeds < 2:
            return None
        reach = self.error * math.sqrt(self.seeds + 1) + 1e-9
        if abs(self.mean - value) > reach + slack:
            return False
        return True if abs(self.mean) > reach else None

    def text(self, digits: int = 2) -> str:
        """The difference in words. digits: after the decimal point."""
        seeds = f"{self.seeds} seeds" if self.seeds > 1 else "one seed"
        seeds += ", error unknown" if self.error is None else ""
        seeds += ", too few to tell" if self.seeds < LEAST_SEEDS.get() else ""
        error = "" if self.error is None else f" ± {self.error:.{digits}f}"
        return f"{self.mean:+.{digits}f}{error} ({seeds})"


def ahead(context: Context, arm: str, other: str, **labels: str) -> Difference:
    """By how many points an arm ends above another, paired over seeds: the difference of their `by_seed`."""
    return Difference.of(*(by_seed(context, **labels, arm=each) for each in (arm, other)))


def text_of(difference: Callable[[], Difference]) -> str | None:
    """A difference in words for a table; None where a log for it is missing."""
    return if_logged(lambda: difference().text())


def paired_means(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[float, float]:
    """The means of two arms over the seeds that both have, which are those that are compared."""
    shared = [seed for seed in a if seed in b]
    return fmean(a[seed] for seed in shared), fmean(b[seed] for seed in shared)


def agreed(*readings: bool | None) -> bool | None:
    """The common outcome of all readings of an ambiguous sentence; None if they disagree."""
    return readings[0] if len(set(readings)) == 1 else None


def all_of(outcomes: Iterable[bool | None]) -> bool | None:
    """True if all outcomes (at least one) are True; False if any is False; else None."""
    answers = list(outcomes)
    if any(outcome is False for outcome in answers):
        return False
    return None if not answers or any(outcome is None for outcome in answers) else True


def all_above(a: Sequence[float], b: Sequence[float]) -> bool | None:
    """True if every value of a is above every value of b; False if none is; None if the two overlap."""
    return True if min(a) > max(b) else False if max(a) <= min(b) else None


def any_of(outcomes: Iterable[bool | None]) -> bool | None:
    """True if any outcome is True; False if all (at least one) are False; else None.

    Pass a generator, so that the tests run inside this call: any one of them may decide, which their p-values take
    into account (`any_one`).
    """
    with resting_on(any_one):
        answers = list(outcomes)
    if any(answers):
        return True
    return None if not answers or any(outcome is None for outcome in answers) else False


def ordered(values: Sequence[Mapping[int, float]]) -> tuple[bool | None, str]:
    """Whether each arm's values (by seed) are above the next arm's, and the differences in words."""
    steps = [Difference.of(a, b) for a, b in pairwise(values)]
    return all_of(step.above() for step in steps), ", ".join(step.text() for step in steps)


SEEDS = (
    "differences paired over seeds, with their 95 % interval (Student's t); with one seed, the interval of the test "
    "set's sampling error, and where none is known nothing can be told"
)
ONE_MORE = "the 95 % prediction interval for one more pair of runs (Student's t over seeds); one seed cannot tell"


def half_a_unit(half: float) -> str:
    """In words, the tolerance for rounding that a printed value gets in addition to `ONE_MORE`. half: in points."""
    return f"plus half a unit of the last printed digit, {half:g} points"
