"""How runs that were made fall short of the paper's, in a few words for under a figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipelag.methods import METHODS
from pipelag.runs.spec import PhaseSpec, RunSpec

Pair = tuple[RunSpec, RunSpec]  # a run, here and in the paper
Values = tuple[object, ...]  # what fills a reason's blanks
SIZES = ("width", "layers", "blocks", "size", "hidden")  # options of networks
MOST = 4  # reasons that are named under a figure and in a verdict
SIZE, LENGTH, RATE, REST, DETAIL = range(5)  # what matters most comes first


class Reason(NamedTuple):
    """What runs differ in: its words with two blanks, for what it is here and in the paper, or without."""

    rank: int
    words: str
    plural: str = ""  # the same for several values here, where words change


def shortfall_of(pairs: Iterable[Pair], most: int | None = MOST) -> str:
    """How runs fall short of the paper's: smaller models, fewer steps, other rates and schedules of rates, a coarser
    precision, other or fewer data, minibatches, numbers of microbatches, regularisation; or empty.

    most: reasons that are named; None: all. What runs differ in alike is said once, with the values of all.

    Timing runs are compared by model and minibatch: their time does not depend on what is in the data; plans by where
    their profiles are from.
    """
    pairs = list(pairs)
    found: dict[Reason, dict[Values, None]] = {}
    for reason, values in (each for pair in pairs for each in _reasons(*pair)):
        found.setdefault(reason, {})[values] = None
    said = [(reason.rank, _said(reason, list(each))) for reason, each in found.items()]
    said += [(REST, words) for words in _timed(pairs)]
    shown = [words for _, words in sorted(said, key=lambda each: each[0])]
    return "; ".join(shown[:most]) + (" and more" if most is not None and len(shown) > most else "")


def _said(reason: Reason, values: list[Values]) -> str:
    """A reason with the values that it has in all runs."""
    sides = [list(dict.fromkeys(side)) for side in zip(*values, strict=True)]
    words = reason.plural if reason.plural and len(sides[0]) > 1 else reason.words
    return words.format(*(_listed(side, ranged=max(map(len, sides)) > 2) for side in sides))


def _listed(values: list[object], ranged: bool) -> str:
    """Numbers or names in words: each of them, or of numbers the least to the greatest."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if ranged and len(values) > 1 and len(numbers) == len(values):
        return f"{_shown(min(numbers))} to {_shown(max(numbers))}"
    words = [_shown(value) for value in values]
    return ", ".join(words[:-1]) + (" and " if words[1:] else "") + words[-1]


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def smaller(spec: RunSpec, theirs: RunSpec) -> bool:
    """Whether a run is of a narrower or shallower network than the paper's: networks are of the paper's size unless
    asked to be of another (`SIZES`).
    """
    if spec.model is None or theirs.model is None:
        return False
    return any(spec.model.options.get(size) != theirs.model.options.get(size) for size in SIZES)


def _reasons(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """What one run differs in: a `Reason`, and what fills its blanks."""
    if spec.kind == "plan" and theirs.published and not spec.published:
        yield Reason(REST, "profiles from data sheets instead of the authors'"), ()
    if spec.kind not in ("train", "speed", "profile"):
        return
    assert spec.data and theirs.data and spec.model and theirs.model
    training = spec.kind == "train"
    if smaller(spec, theirs):
        yield Reason(SIZE, "smaller models"), ()
    if training and spec.steps < theirs.steps:
        yield Reason(LENGTH, f"{spec.model.name} for {{}} of {{}} steps"), (spec.steps, theirs.steps)
    if spec.options.get("precision") == "bf16" != theirs.options.get("precision"):
        yield Reason(REST, "passes in bfloat16"), ()
    if spec.data.name != theirs.data.name and training:
        yield Reason(REST, "{} instead of {}"), (spec.data.name, theirs.data.name)
    if spec.model.name != theirs.model.name:
        yield (
            Reason(REST, "network {} instead of {}", "networks {} instead of {}"),
            (spec.model.name, theirs.model.name),
        )
    stages, printed = (max((phase.stages for phase in each.phases), default=1) for each in (spec, theirs))
    if stages != printed and not (training and all(map(in_time, spec.phases))):
        yield Reason(REST, "{} stages instead of {}"), (stages, printed)
    scaled = [each.options.get("standardise", True) for each in (spec, theirs)]
    if scaled[0] != scaled[1]:
        yield Reason(REST, "inputs standardised" if scaled[0] else "inputs from 0 to 1"), ()
    if training:
        yield from _trained(spec, theirs)
    pieces = [sorted({phase.microbatches for phase in each.phases}) for each in (spec, theirs)]
    if pieces[0] != pieces[1]:
        words = [" and ".join(map(str, each)) for each in pieces]
        yield Reason(REST, "{} microbatches instead of {}"), tuple(words)


def _trained(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """What a training run differs in besides: minibatches, optimizer, rates, regularisation, and how it is tested."""
    tokens = theirs.options.get("tokens")
    if tokens and tokens != spec.options.get("tokens"):
        yield Reason(REST, "minibatches of {} sentences instead of {} tokens"), (spec.batch, tokens)
    elif spec.batch != theirs.batch:
        yield Reason(REST, "minibatches of {} instead of {}"), (spec.batch, theirs.batch)
    optimizers = spec.optimizer, theirs.optimizer
    if optimizers[0] and optimizers[1]:
        names, rates, decays = (
            tuple(getattr(each, name) for each in optimizers) for name in ("name", "lr", "weight_decay")
        )
        if names[0] != names[1]:
            yield Reason(REST, "the optimizer {} instead of {}"), names
        if rates[0] != rates[1]:
            yield Reason(RATE, "a rate of {} instead of {}", "rates of {} instead of {}"), rates
        if decays[0] != decays[1]:
            yield Reason(DETAIL, "a weight decay of {} instead of {}"), decays
    yield from _scheduled(spec, theirs)
    dropout = spec.model and spec.model.options.get("dropout")
    if dropout is not None and theirs.model and dropout != theirs.model.options.get("dropout"):
        yield Reason(DETAIL, "dropout of {}" if dropout else "no dropout"), (dropout,)
    lengths = [each.options.get("length", each.data and each.data.options.get("length")) for each in (spec, theirs)]
    if lengths[0] != lengths[1]:
        yield Reason(DETAIL, "sequences of {} instead of {}"), tuple(lengths)
    if spec.data and theirs.data and spec.data.augment != theirs.data.augment:
        yield Reason(DETAIL, "images augmented otherwise"), ()
    tested = spec.data and spec.data.options.get("test")
    if tested and theirs.data and tested != theirs.data.options.get("test"):
        yield Reason(DETAIL, "tested with {} samples"), (tested,)
    beams = [each.options.get("beam", 1) for each in (spec, theirs)]
    if beams[0] != beams[1]:
        yield Reason(DETAIL, "beams of {} instead of {}"), tuple(beams)


def _scheduled(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """How rates change otherwise in the course of a run: in another shape, or warmed up for another share of it."""
    here, there = spec.lr_schedule, theirs.lr_schedule
    apart = {"horizon", "warmup"}
    if here.model_dump(exclude=apart) != there.model_dump(exclude=apart):
        yield Reason(DETAIL, "another schedule of rates"), ()
    shares = [min(1.0, each.lr_schedule.warmup / each.steps) for each in (spec, theirs)]
    if abs(shares[0] - shares[1]) > 0.005:
        yield Reason(DETAIL, "a warm-up over {} of the steps instead of {}"), tuple(f"{share:.1%}" for share in shares)


def in_time(phase: PhaseSpec) -> bool:
    """Whether a phase's method reads no late weights, so that it learns the same over however many stages."""
    method = METHODS.get(phase.method)
    if method is None or method.random is not None:
        return False
    return not any(method.delays(min(phase.stages, 32), phase.microbatches).forward)


def _timed(pairs: Iterable[Pair]) -> Iterator[str]:
    """The minibatches that are timed for the paper's, with their models."""
    models: dict[tuple[int, int], set[str]] = {}
    for spec, theirs in pairs:
        if spec.kind in ("speed", "profile") and spec.model is not None:
            models.setdefault((spec.batch, theirs.batch), set()).add(spec.model.name)
    for (batch, printed), names in models.items():
        if batch != printed:
            some = f"{', '.join(sorted(names))} " if len(models) > 1 else ""
            yield f"{some}timed with minibatches of {batch} instead of {printed}"
