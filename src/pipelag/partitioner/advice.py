"""Time every method over the plans that suit it, with its memory and staleness, for `pipelag advise` to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import Any, Generic, TypeVar

from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, Method
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.chunks import CHUNKS
from pipelag.partitioner.cluster import Cluster, flat
from pipelag.partitioner.formulas import chunks_of, with_chunks
from pipelag.partitioner.laid import Form, Laid, recomputed
from pipelag.partitioner.plan import Plan, PlanStage, predict
from pipelag.partitioner.replicated import Replicated
from pipelag.partitioner.search import check_times, partition
from pipelag.partitioner.stacked import Stacked, stacked, stages_of_a_worker
from pipelag.timing.memory import StageMemory
from pipelag.timing.rehearsal import rehearse

PASSES = 1_000_000  # with all the numbers of stages per worker that are timed; they take some two seconds

Clock = dict[tuple[Any, ...], float]
AForm = TypeVar("AForm", bound=Form)


@dataclass(frozen=True)
class Choice:
    """A method over a plan, with its time, memory and staleness.

    plan: the stages; for data parallelism one stage on all GPUs.
    batch: samples of a minibatch.
    microbatches: the equal parts of a minibatch.
    recompute: whether backwards run the forwards again.
    seconds: time per minibatch.
    memory: per stage, what one of its GPUs holds; per GPU where a GPU holds several stages.
    fits, fits_recomputing: whether that fits into a GPU's memory, without and with recomputation.
    staleness, stale_backward: per stage, the minibatches whose updates its forwards (backwards) miss.
    updates: per stage, the minibatches whose mean gradient makes an update.
    holders: per stage, its GPU (from 0), where a GPU holds several stages; otherwise empty.
    splits: whether backwards are computed in two parts.
    """

    method: Method
    plan: Plan
    batch: int
    microbatches: int
    recompute: bool
    seconds: float
    memory: tuple[StageMemory, ...]
    fits: bool
    fits_recomputing: bool
    staleness: tuple[int, ...]
    stale_backward: tuple[int, ...]
    updates: tuple[int, ...]
    holders: tuple[int, ...] = ()
    splits: bool = False

    @property
    def workers(self) -> int:
        """The number of GPUs."""
        return len(set(self.holders)) or self.plan.workers

    @property
    def chunks(self) -> int:
        """The number of stages that a GPU holds."""
        return len(self.holders) // self.workers or 1

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.batch / self.seconds

    @property
    def fullest(self) -> StageMemory:
        """The memory of the GPU that holds the most."""
        return max(self.memory, key=StageMemory.total)

    @property
    def usable(self) -> bool:
        """Whether the choice fits into memory in the form in which it is timed, with or without recomputation."""
        return self.fits_recomputing if self.recompute else self.fits

    @property
    def stale(self) -> bool:
        """Whether any pass reads weights that miss an update."""
        return any((*self.staleness, *self.stale_backward))

    @property
    def config(self) -> str:
        """The plan as PipeDream writes it, but "1 GPU", "divided over N" for a minibatch divided over N GPUs, and
        "N GPUs, M stages each".
        """
        if self.holders:
            return f"{self.workers} GPUs, {self.chunks} stages each"
        if self.method.data_parallel and max(self.updates) == 1:
            return f"divided over {self.plan.workers}"
        return "1 GPU" if self.plan.workers == 1 else self.plan.config


def choices(
    ground: Ground, microbatches: int | None = None, one_minibatch: bool = False
) -> tuple[list[Choice], dict[str, str]]:
    """Time every registered method that follows a schedule, over those of the partitioner's plans that may suit it.

    A method recomputes activations if it fits into memory only with recomputation.

    Args:
        microbatches: of a minibatch, for methods that split it; None: as few as fill the pipeline (`parts_of`).
        one_minibatch: only plans in which every update is of one minibatch, so without replicas that take turns.

    Returns:
        The choices, and for each method without a choice the reason, by the method's name.

    Raises:
        PipelagError: a profile whose layers take no time.
    """
    check_times(ground.profiles.at(ground.batch))
    plans = [
        plan for plan in plans_of(ground) if not one_minibatch or max(stage.replicas for stage in plan.stages) == 1
    ]
    clock: Clock = {}
    timed_choices: list[Choice] = []
    without: dict[str, str] = {}
    for name, method in METHODS.items():
        if method.workers == "torch":
            without[name] = "torch's own form of another method's schedule"
            continue
        try:
            of_method = list(_choices(method, ground, plans, microbatches, clock))
        except PipelagError as error:
            without[name] = str(error)
            continue
        of_method = [choice for choice in of_method if not one_minibatch or max(choice.updates) == 1]
        timed_choices += of_method
        if not of_method:
            without[name] = f"a minibatch of {ground.batch} cannot be divided over {ground.cluster.workers} GPUs"
    return timed_choices, without


def best(among: Iterable[Choice]) -> list[Choice]:
    """For each method the fastest choice that fits into memory or, where none does, the one that holds the least."""
    by_method: dict[str, list[Choice]] = {}
    for choice in among:
        by_method.setdefault(choice.method.name, []).append(choice)
    return [min(of_method, key=preference) for of_method in by_method.values()]


def preference(choice: Choice) -> tuple[bool, float, float]:
    """A sort key: choices that fit come first, by time and then memory; the others follow, by memory."""
    held = choice.fullest.total()
    return not choice.usable, float(f"{choice.seconds:.6g}") if choice.usable else held, held


def plans_of(ground: Ground) -> Iterator[Plan]:
    """The partitioner's plans of two or more stages, each once.

    First come the plans for the profile's times: the best with replicas, over several levels also the best for the
    collapsed cluster, and the best straight plan. Then come the same for times with recomputation, and last the best
    plans whose memory under PipeDream's weight stashing fits a GPU.
    """
    profile, cluster = ground.profiles.at(ground.batch), ground.cluster
    seen: set[tuple[PlanStage, ...]] = set()
    straight = min(cluster.workers, len(profile.layers))
    if straight < 2:
        return
    unlimited, limited = Cluster(cluster.levels), Cluster(cluster.levels, ground.memory)
    line = cluster.line(straight)
    profiles = profile, recomputed(profile)
    levels = (None, False) if len(cluster.levels) > 1 else (None,)
    ways = [*((unlimited, way) for way in levels), (line, None)]
    asked = [(times, where, way) for times in profiles for where, way in ways]
    state = 0.0
    if ground.memory < float("inf"):
        asked += [(profile, limited, way) for way in levels]
        state = rehearse(methods.get("pipedream"), ground.optimizer, 1, 2).state
    for times, where, way in asked:
        try:
            plan = partition(times, where, straight=where is line, hierarchical=way, data_parallel=False, state=state)
        except PipelagError:
            if where is not limited:
                raise
            continue  # nothing fits under weight stashing; other methods hold less
        if plan.stages not in seen:
            seen.add(plan.stages)
            yield plan


def _choices(
    method: Method, ground: Ground, plans: list[Plan], microbatches: int | None, clock: Clock
) -> Iterator[Choice]:
    if method.data_parallel:
        yield from replicated(Arm.of(method.name, {"method": method.name, "overlap": True}), ground)
        return
    if (each := stages_of_a_worker(method)) > 1:
        yield from stacked_choices(method, ground, microbatches, clock, each)
        return
    layers = len(ground.profiles.at(ground.batch).layers)
    alone = [] if method.pipelined else [Plan((PlanStage(1, layers),))]
    refused = PipelagError("a pipeline needs at least two GPUs and two layers")
    any_timed, quickest = False, inf
    for plan in [*alone, *plans]:
        parts = parts_of(method, len(plan.stages), ground.batch, microbatches)
        if max(stage.replicas for stage in plan.stages) > 1 and (parts > 1 or not method.pipelined):
            continue  # replicas take turns with whole minibatches
        try:
            arm = Arm.of(method.name, {"method": method.name, "microbatches": parts})
            arm.check(len(plan.stages), ground.batch)
            if computing(ground, plan, parts) >= quickest:
                continue
            choice = timed(Laid(arm, ground, plan), clock)
        except PipelagError as error:
            refused = error
            continue
        any_timed = True
        yield choice
        if choice.usable:  # a later plan may be quicker still: the partitioner does not count all that takes time
            quickest = min(quickest, choice.seconds)
    if not any_timed:
        raise refused


def computing(ground: Ground, plan: Plan, parts: int) -> float:
    """A lower bound on a minibatch's seconds under any schedule: how long the plan's slowest stage computes."""
    return parts * predict(ground.profiles.at(ground.batch // parts), flat(plan.workers), plan)


def stacked_choices(
    method: Method, ground: Ground, microbatches: int | None, clock: Clock, each: int
) -> Iterator[Choice]:
    """The choices of a method that gives a worker several stages, with a straight plan of its own.

    They are over all GPUs or, if there are too few layers, over as many as get `each` stages. Interleaving may have
    any number of `CHUNKS` per worker that the layers allow.
    """
    layers = len(ground.profiles.at(ground.batch).layers)
    workers = min(ground.cluster.workers, layers // each)
    if workers < 2:
        raise PipelagError(f"a pipeline with {each} stages per worker needs at least two GPUs and {2 * each} layers")
    parts = filling(workers, ground.batch, microbatches)
    arm = Arm.of(method.name, {"method": method.name, "microbatches": parts})
    arm.check(each * workers, ground.batch)
    numbers = sorted({*CHUNKS, each}) if chunks_of(method) > 1 and method.options is not None else [each]
    forms: list[Stacked] = []
    refused = PipelagError("")
    for chunks in numbers:
        try:
            if chunks * workers <= layers:
                forms += stacked(replace(arm, method=with_chunks(method, chunks)), ground, workers, chunks)
        except PipelagError as error:
            refused = error
    any_timed, quickest, samples = False, inf, ground.batch // parts
    for form in promising(forms, samples) if forms else ():
        if form.least(samples) >= quickest:
            continue
        try:
            choice = timed(form, clock)
        except PipelagError as error:
            refused = error
            continue
        any_timed = True
        yield choice
        quickest = min(quickest, choice.seconds) if choice.usable else quickest
    if not any_timed:
        raise refused


def promising(forms: Sequence[Stacked], samples: int) -> list[Stacked]:
    """Of these forms those to be timed, the quickest on paper first and, of equally quick ones, that with fewer stages.

    They are all that fit into memory as long as timing them takes at most `PASSES` together, and at least one. Where
    none fits, it is the one that holds the least.
    """
    settled = [settle(form, samples) for form in forms]
    fitting = [(form, one.form.on_paper(samples)) for form, one in zip(forms, settled, strict=True) if one.usable]
    if not fitting:
        held = [max(map(StageMemory.total, one.memory)) for one in settled]
        return [forms[held.index(min(held))]]
    fitting.sort(key=lambda pair: (float(f"{pair[1]:.3g}"), pair[0].stages))
    passes = accumulate(form.passes for form, _ in fitting)
    return [form for (form, _), until in zip(fitting, passes, strict=True) if until <= PASSES] or [fitting[0][0]]


def parts_of(method: Method, stages: int, batch: int, microbatches: int | None) -> int:
    """The number of microbatches into which a method splits a minibatch.

    It is 1 for a method that does not pipeline, or that pipelines whole minibatches. A method that cannot do so, or
    whose updates wait for all microbatches (no staleness), splits a minibatch into `microbatches` or, by default, into
    the smallest number of equal parts that is at least the number of stages.
    """
    if not method.pipelined:
        return 1
    asked = filling(stages, batch, microbatches)
    try:
        method.delays(stages, 1)
    except PipelagError:
        return asked
    try:
        split = method.delays(stages, asked)
    except PipelagError:
        return 1
    return 1 if any((*split.forward, *split.backward)) else asked


def filling(workers: int, batch: int, microbatches: int | None) -> int:
    """The microbatches asked for or, by default, as few equal parts of a minibatch as are at least the workers."""
    return microbatches or next((n for n in range(workers, batch + 1) if not batch % n), batch)


@dataclass(frozen=True)
class Settled(Generic[AForm]):
    """A method over a plan in the form in which it is timed, with the memory of that form (see `Choice`)."""

    form: AForm
    memory: tuple[StageMemory, ...]
    fits: bool
    fits_recomputing: bool

    @property
    def usable(self) -> bool:
        """Whether the form fits into memory."""
        return self.fits or self.fits_recomputing


def settle(laid: AForm, samples: int) -> Settled[AForm]:
    """Whether it has to recompute activations: if it fits into memory only with recomputation."""
    recomputing = laid.recomputing()
    memory, memory_recomputing = (tuple(form.memory(samples)) for form in (laid, recomputing))
    fits, fits_recomputing = (fit(held, laid.ground) for held in (memory, memory_recomputing))
    form, held = (recomputing, memory_recomputing) if fits_recomputing and not fits else (laid, memory)
    return Settled(form, held, fits, fits_recomputing)


def timed(laid: Form, clock: Clock) -> Choice:
    """Time a method over one plan; it recomputes activations if it fits into memory only with recomputation.

    Args:
        clock: the seconds found before. Where moving weights is free, methods of one schedule take equally long.
    """
    samples = laid.ground.batch // laid.parts
    settled = settle(laid, samples)
    form = settled.form
    key = (laid.method.build, laid.plan.stages, laid.parts, form.options.recompute)
    seconds = clock.get(key) if laid.ground.moving == "free" else None
    if seconds is None:
        seconds = clock[key] = form.period(samples)
    return Choice(
        laid.method,
        laid.plan,
        laid.ground.batch,
        laid.parts,
        form.options.recompute,
        seconds,
        settled.memory,
        settled.fits,
        settled.fits_recomputing,
        laid.staleness("F"),
        laid.staleness("B"),
        tuple(per // laid.parts for per in laid.delays.periods),
        laid.holders,
        laid.splits,
    )


def replicated(arm: Arm, ground: Ground) -> Iterator[Choice]:
    """Two choices of data parallelism: a minibatch divided over all GPUs, if it can be, and one minibatch on each.

    Gradients are summed in a ring while the backward runs. Recomputation would save no memory, because a GPU has one
    pass under way and would keep all its activations.
    """
    count = ground.cluster.workers
    replicas = Replicated(arm, ground, count)
    plan = Plan((PlanStage(1, replicas.stages[0].last, count),))
    for samples in dict.fromkeys(
        (ground.batch, ground.batch // count) if not ground.batch % count else (ground.batch,)
    ):
        held = tuple(replicas.memory(samples))
        fits = fit(held, ground)
        together = samples * count // ground.batch  # minibatches of an update
        seconds = float(replicas.timed(samples)["seconds"]) / together
        how = (ground.batch, 1, False)
        yield Choice(arm.method, plan, *how, seconds, held, fits, fits, (0,), (0,), (together,))


def fit(held: Iterable[StageMemory], ground: Ground) -> bool:
    """Whether every stage fits into a GPU's memory."""
    return max(stage.total() for stage in held) <= ground.memory
