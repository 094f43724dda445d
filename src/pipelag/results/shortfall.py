"""How runs that were made fall short of the paper's, in a few words for under a figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pipelag.methods import METHODS
from pipelag.runs.spec import PhaseSpec, RunSpec

Pair = tuple[RunSpec, RunSpec]  # a run, here and in the paper
SIZES = ("width", "layers", "blocks", "size", "hidden")  # options of networks
MOST = 4  # reasons that are named
SIZE, LENGTH, RATE, REST = range(4)  # what matters most comes first


def shortfall_of(pairs: Iterable[Pair]) -> str:
    """How runs fall short of the paper's: smaller models, fewer steps, other rates, a coarser precision, other data,
    minibatches or numbers of microbatches; or empty.

    Timing runs are compared by model and minibatch: their time does not depend on what is in the data; plans by where
    their profiles are from.
    """
    pairs = list(pairs)
    found = [reason for pair in pairs for reason in _reasons(*pair)]
    found += [(RATE, reason) for reason in _rates(pairs)] + [(REST, reason) for reason in _timed(pairs)]
    shown = [reason for _, reason in sorted(dict.fromkeys(found), key=lambda each: each[0])]
    return "; ".join(shown[:MOST]) + (" and more" if len(shown) > MOST else "")


def smaller(spec: RunSpec, theirs: RunSpec) -> bool:
    """Whether a run is of a narrower or shallower network than the paper's.

    One of another name is where it has a size of its own (`SIZES`): networks are of the paper's unless asked to be of
    others.
    """
    if spec.model is None or theirs.model is None or spec.model == theirs.model:
        return False
    own = [spec.model.options.get(size) != theirs.model.options.get(size) for size in SIZES]
    return spec.model.name == theirs.model.name or any(own)


def _reasons(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[int, str]]:
    """(rank, reason) of one run."""
    if spec.kind == "plan" and theirs.published and not spec.published:
        yield REST, "profiles from data sheets instead of the authors'"
    if spec.kind not in ("train", "speed", "profile"):
        return
    assert spec.data and theirs.data and spec.model and theirs.model
    training = spec.kind == "train"
    if training and spec.steps < theirs.steps:
        yield LENGTH, f"{spec.model.name} for {spec.steps:,} of {theirs.steps:,} steps"
    if smaller(spec, theirs):
        yield SIZE, "smaller models"
    if spec.options.get("precision") == "bf16" != theirs.options.get("precision"):
        yield REST, "passes in bfloat16"
    if spec.data.name != theirs.data.name and training:
        yield REST, f"{spec.data.name} instead of {theirs.data.name}"
    if spec.model.name != theirs.model.name:
        yield REST, f"{spec.model.name} instead of {theirs.model.name}"
    if training and spec.optimizer and theirs.optimizer and spec.optimizer.name != theirs.optimizer.name:
        yield REST, f"the optimizer {spec.optimizer.name} instead of {theirs.optimizer.name}"
    stages, printed = (max((phase.stages for phase in each.phases), default=1) for each in (spec, theirs))
    if stages != printed and not (training and all(map(in_time, spec.phases))):
        yield REST, f"{stages} stages instead of {printed}"
    scaled = [each.options.get("standardise", True) for each in (spec, theirs)]
    if scaled[0] != scaled[1]:
        yield REST, "inputs standardised" if scaled[0] else "inputs from 0 to 1"
    if training and spec.batch != theirs.batch:
        yield REST, f"minibatches of {spec.batch} instead of {theirs.batch}"
    pieces = [sorted({phase.microbatches for phase in each.phases}) for each in (spec, theirs)]
    if pieces[0] != pieces[1]:
        words = [" and ".join(map(str, each)) for each in pieces]
        yield REST, f"{words[0]} microbatches instead of {words[1]}"


def in_time(phase: PhaseSpec) -> bool:
    """Whether a phase's method reads no late weights, so that it learns the same over however many stages."""
    method = METHODS.get(phase.method)
    if method is None or method.random is not None:
        return False
    return not any(method.delays(min(phase.stages, 32), phase.microbatches).forward)


def _rates(pairs: Sequence[Pair]) -> Iterator[str]:
    """The rates that are not the paper's, in one reason."""
    trained = [(a.optimizer.lr, b.optimizer.lr) for a, b in pairs if a.kind == "train" and a.optimizer and b.optimizer]
    other = dict.fromkeys(each for each in trained if each[0] != each[1])
    if len(other) == 1:
        yield "a rate of {:g} instead of {:g}".format(*next(iter(other)))
    elif len(other) == 2:
        here, printed = (" and ".join(f"{rate:g}" for rate in rates) for rates in zip(*other, strict=True))
        yield f"rates of {here} instead of {printed}"
    elif other:
        yield "other rates"


def _timed(pairs: Sequence[Pair]) -> Iterator[str]:
    """The minibatches that are timed for the paper's, with their models."""
    models: dict[tuple[int, int], set[str]] = {}
    for spec, theirs in pairs:
        if spec.kind in ("speed", "profile") and spec.model is not None:
            models.setdefault((spec.batch, theirs.batch), set()).add(spec.model.name)
    for (batch, printed), names in models.items():
        if batch != printed:
            some = f"{', '.join(sorted(names))} " if len(models) > 1 else ""
            yield f"{some}timed with minibatches of {batch} instead of {printed}"
