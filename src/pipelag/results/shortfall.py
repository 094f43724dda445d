"""How our runs fall short of the paper's, in a few words for the line under a figure and for verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pipelag.methods import METHODS
from pipelag.results import titles
from pipelag.runs.spec import PhaseSpec, RunSpec

Pair = tuple[RunSpec, RunSpec]  # a run, here and in the paper
Values = tuple[object, ...]  # what fills a reason's blanks
SIZES = ("width", "layers", "blocks", "size", "hidden")  # options of networks
MOST = 4  # reasons that are named under a figure and in a verdict
SIZE, DATA, LENGTH, RATE, REMEDY, REST, DETAIL, TESTED = range(8)  # what matters most comes first


class Reason(NamedTuple):
    """One way in which runs differ from the paper's. The words may have blanks, for our value and the paper's."""

    rank: int
    words: str
    plural: str = ""  # the words for several of our values, if they differ
    network: str = ""  # the network that the reason is about, if it is stated per network


def shortfall_of(pairs: Iterable[Pair], most: int | None = MOST, shown: bool = False) -> str:
    """How runs fall short of the paper's, in words; or empty.

    Reasons are smaller models, fewer steps, other learning rates and schedules of them, lower precision, other or fewer
    data, minibatches, numbers of microbatches, regularisation. A reason that several runs share is named once, with the
    values of all of them.

    Timing runs are compared by model and minibatch size, because their times do not depend on the contents of the data;
    plans are compared by the source of their profiles.

    pairs: our spec and the paper's, for each run. most: how many reasons are named; None for all. shown: also name the
    method's own settings and the test samples, however many reasons there are, because the scores that a figure or
    table shows depend on them.
    """
    pairs = list(pairs)
    values_of: dict[Reason, dict[Values, None]] = {}
    for pair in pairs:
        for reason, values in _reasons(*pair):
            values_of.setdefault(reason, {})[values] = None
    networks_of: dict[tuple[int, str], list[str]] = {}
    for reason, several in values_of.items():
        networks_of.setdefault((reason.rank, _in_words(reason, list(several))), []).append(reason.network)
    ranked = [(rank, f"{_listed(names)} {words}".strip()) for (rank, words), names in networks_of.items()]
    ranked += [(REST, words) for words in _timed(pairs)]
    ranked.sort(key=lambda reason: reason[0])
    named = ranked if most is None else ranked[:most]
    if shown and most is not None:
        named = named + [(rank, words) for rank, words in ranked[most:] if rank in (REMEDY, TESTED)]
        named.sort(key=lambda reason: LENGTH + 0.5 if reason[0] == TESTED else reason[0])
    return "; ".join(words for _, words in named) + ("; and other differences" if len(named) < len(ranked) else "")


def _in_words(reason: Reason, values: list[Values]) -> str:
    """A reason with its values in all runs filled in.

    Values stand side by side if each of ours belongs to one of the paper's. Otherwise many numbers become ranges, and
    names are grouped by ours.
    """
    sides = [list(dict.fromkeys(side)) for side in zip(*values, strict=True)]
    lengths = [len(side) for side in sides]
    numbers = all(isinstance(value, int | float) for side in sides for value in side)
    if len(sides) == 2 and min(lengths) > 1 and set(lengths) != {len(values)} and not numbers:
        by_ours = [[pair for pair in values if pair[0] == here] for here in sides[0]]
        return "; ".join(_in_words(reason, pairs) for pairs in by_ours)
    ranged = numbers and (max(lengths, default=0) > 2 or (min(lengths, default=1) > 1 and len(values) > 2))
    words = reason.plural if reason.plural and lengths[0] > 1 else reason.words
    return words.format(*(_listed(side, ranged) for side in sides))


def _listed(values: Sequence[object], ranged: bool = False) -> str:
    """Numbers or names in words: each of them, or with `ranged` only the least and the greatest number."""
    if ranged and len(values) > 1:
        ends = sorted(value for value in values if isinstance(value, int | float))
        return f"{_shown(ends[0])} to {_shown(ends[-1])}"
    words = [_shown(value) for value in values]
    return ", ".join(words[:-1]) + (" and " if words[1:] else "") + words[-1]


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def smaller(spec: RunSpec, theirs: RunSpec) -> bool:
    """Whether a run's network is narrower or shallower than the paper's.

    Networks have the paper's size unless one of the options in `SIZES` is set.
    """
    if spec.model is None or theirs.model is None:
        return False
    return any(spec.model.options.get(size) != theirs.model.options.get(size) for size in SIZES)


def _differing(rank: int, words: str, sides: Iterable[object], plural: str = "") -> Iterator[tuple[Reason, Values]]:
    """Yield a reason if our value and the paper's differ; the values fill the blanks of its words, if it has any."""
    here, there = sides
    if here != there:
        yield Reason(rank, words, plural), (here, there) if "{}" in words else ()


def _reasons(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """All ways in which one run differs from the paper's: each `Reason` with the values for its blanks."""
    if spec.kind == "partition" and theirs.published and not spec.published:
        yield Reason(REST, "profiles from data sheets instead of the authors'"), ()
    if spec.kind not in ("train", "speed", "profile"):
        return
    assert spec.data and theirs.data and spec.model and theirs.model
    training = spec.kind == "train"
    if smaller(spec, theirs):
        yield Reason(SIZE, "smaller models"), ()
    if training and spec.steps < theirs.steps:
        name, (here, there) = titles.network(spec.model.name), _samples(spec, theirs)
        if here == there:
            yield Reason(LENGTH, "for {} of {} steps", network=name), (spec.steps, theirs.steps)
        else:  # with minibatches of another size, the numbers of steps alone would not compare
            steps = f"{spec.steps:,} steps of {here}", f"{theirs.steps:,} of {there}"
            yield Reason(LENGTH, "for {} instead of {}", network=name), steps
    if spec.options.get("precision") == "bf16" != theirs.options.get("precision"):
        yield Reason(REST, "passes in bfloat16"), ()
    if training:
        yield from _differing(DATA, "{} instead of {}", map(titles.data_set, (spec.data.name, theirs.data.name)))
    network, networks = "network {} instead of {}", "networks {} instead of {}"
    yield from _differing(REST, network, _networks(spec.model.name, theirs.model.name), networks)
    if not (training and all(map(in_time, spec.phases))):
        stages = (max((phase.stages for phase in run.phases), default=1) for run in (spec, theirs))
        yield from _differing(REST, "{} stages instead of {}", stages)
    scaled = [run.options.get("standardise", True) for run in (spec, theirs)]
    yield from _differing(REST, "inputs standardised" if scaled[0] else "inputs scaled to 0 to 1", scaled)
    if training:
        yield from _trained(spec, theirs)
        yield from _remedied(spec, theirs)
        yield from _regularised(spec, theirs)
        yield from _tested(spec, theirs)
    pieces = [sorted({phase.microbatches for phase in run.phases}) for run in (spec, theirs)]
    yield from _differing(REST, "{} microbatches instead of {}", (" and ".join(map(str, counts)) for counts in pieces))


def _networks(here: str, there: str) -> list[str]:
    """The titles of our network and the paper's; ours is marked "our own" if the paper's is another's form of it."""
    ours, printed = titles.network(here), titles.network(there)
    return [f"{ours} (our own)" if printed.startswith(f"{ours} (") else ours, printed]


def _trained(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """Further differences of training runs: minibatches, the optimizer and its learning rates."""
    if spec.steps >= theirs.steps:  # otherwise the reason about steps already names the sizes
        yield from _differing(REST, "minibatches of {} instead of {}", _samples(spec, theirs))
    if (ours := spec.optimizer) and (printed := theirs.optimizer):
        yield from _differing(REST, "the optimizer {} instead of {}", (ours.name, printed.name))
        words = "a learning rate of {} instead of {}", "learning rates of {} instead of {}"
        yield from _differing(RATE, words[0], (ours.lr, printed.lr), words[1])
        yield from _differing(DETAIL, "a weight decay of {} instead of {}", (ours.weight_decay, printed.weight_decay))
        if ours.name == printed.name:
            settings = [optimizer.model_dump(exclude={"name", "lr", "weight_decay"}) for optimizer in (ours, printed)]
            yield from _differing(DETAIL, "other settings of the optimizer", settings)
    yield from _scheduled(spec, theirs)


def _samples(spec: RunSpec, theirs: RunSpec) -> list[str]:
    """The minibatch sizes of two runs; with units (tokens, sentences) if either is counted in tokens."""
    tokens = [run.options.get("tokens") for run in (spec, theirs)]
    kinds = [" tokens" if count else " sentences" if any(tokens) else "" for count in tokens]
    return [f"{count or run.batch:,}{kind}" for count, run, kind in zip(tokens, (spec, theirs), kinds, strict=True)]


def _remedied(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """Differences in the method's own remedies: annealing of learning rates by their delays, a synchronous start."""
    for what, steps in (("annealing", annealed), ("a synchronous start", started)):
        shares = [steps(run) / run.steps for run in (spec, theirs)]
        if abs(shares[0] - shares[1]) > 0.005:
            words = f"{what} over {{}} of the steps instead of {{}}"
            yield Reason(REMEDY, words), tuple(f"{share:.0%}" for share in shares)


def annealed(spec: RunSpec) -> int:
    """The steps over which a run's last phase anneals the learning rates of its stages (PipeMare's T1)."""
    return int(spec.phases[-1].options.get("annealing", 0)) if spec.phases else 0


def started(spec: RunSpec) -> int:
    """The steps of the phases before the last that read no late weights (PipeMare's synchronous warm-up)."""
    return sum(phase.steps for phase in spec.phases[:-1] if in_time(phase))


def _regularised(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """Differences in dropout, label smoothing, the length of sequences and the augmentation of images."""
    dropouts = [run.model.options.get("dropout") if run.model else None for run in (spec, theirs)]
    yield from _differing(DETAIL, "no dropout" if dropouts[0] == 0 else "another dropout", dropouts)
    smoothing = (run.options.get("label_smoothing", 0.0) for run in (spec, theirs))
    yield from _differing(DETAIL, "a label smoothing of {} instead of {}", smoothing)
    lengths = [run.options.get("length", run.data and run.data.options.get("length")) for run in (spec, theirs)]
    words = "sequences of {} instead of {}" if all(lengths) else "sequences of another length"
    yield from _differing(DETAIL, words, lengths)
    augmented = (run.data and run.data.augment for run in (spec, theirs))
    yield from _differing(DETAIL, "other image augmentation", augmented)


def _tested(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """Differences in testing: other samples, or a beam of another width."""
    here, there = (run.data.options.get("test") if run.data else None for run in (spec, theirs))
    if here != there:
        name = titles.network(spec.model.name) if spec.model else "run"
        yield Reason(TESTED, "tested with {} samples", network=name), (here or "all",)
    beams = (run.options.get("beam", 1) for run in (spec, theirs))
    yield from _differing(TESTED, "beams of {} instead of {}", beams)


def _scheduled(spec: RunSpec, theirs: RunSpec) -> Iterator[tuple[Reason, Values]]:
    """Differences in the schedule of learning rates: its shape, its rates by stage, or the length of its warm-up."""
    here, there = spec.lr_schedule, theirs.lr_schedule
    apart = {"horizon", "warmup"}
    ends = [(schedule.horizon or run.steps) / run.steps for schedule, run in ((here, spec), (there, theirs))]
    if here.model_dump(exclude=apart) != there.model_dump(exclude=apart) or abs(ends[0] - ends[1]) > 0.05:
        yield Reason(DETAIL, "another learning-rate schedule"), ()
    by_stage = ([phase.stage_lr for phase in run.phases] for run in (spec, theirs))
    yield from _differing(DETAIL, "other learning rates by stage", by_stage)
    shares = [min(1.0, run.lr_schedule.warmup / run.steps) for run in (spec, theirs)]
    if abs(shares[0] - shares[1]) > 0.005:
        yield Reason(DETAIL, "a warm-up over {} of the steps instead of {}"), tuple(f"{share:.1%}" for share in shares)


def in_time(phase: PhaseSpec) -> bool:
    """Whether a phase's method reads no stale weights, so that training does not depend on the number of stages."""
    method = METHODS.get(phase.method)
    if method is None or method.random is not None:
        return False
    return not any(method.delays(min(phase.stages, 32), phase.microbatches).forward)


def _timed(pairs: Iterable[Pair]) -> Iterator[str]:
    """Differences in the minibatch sizes of timed runs, by model."""
    models: dict[tuple[int, int], set[str]] = {}
    for spec, theirs in pairs:
        if spec.kind in ("speed", "profile") and spec.model is not None:
            models.setdefault((spec.batch, theirs.batch), set()).add(titles.network(spec.model.name))
    for (batch, printed), names in models.items():
        if batch != printed:
            some = f"{', '.join(sorted(names))} " if len(models) > 1 else ""
            yield f"{some}timed with minibatches of {batch} instead of {printed}"
