"""A method is three small choices: a schedule, which weights a pass reads, and a learning-rate policy.

Methods know schedules and nothing else: no torch here, so that listing them is cheap. The executors ask a method
for its schedule and for what a pass reads; every staleness follows from the schedule (`pipelag.schedules.delays`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from math import lcm
from typing import Literal, get_args

from pipelag.errors import PipelagError, kind_of, unknown
from pipelag.methods.random_delays import RandomDelays
from pipelag.methods.reads import Amounts, BackwardReads, ForwardReads, Passes, Update
from pipelag.schedules import Delays, Schedule, lagged, steady_delays
from pipelag.schedules.library import check_counts
from pipelag.schedules.replicated import Replicated, check_replicas
from pipelag.typed import check_keywords

METHODS: dict[str, Method] = {}
Workers = Literal["stages", "ddp", "server", "torch"]


@dataclass(frozen=True)
class Method:
    """A training method: a schedule, the weights that its passes read, and its learning-rate policy.

    name: a single word, by which commands, config files and `get` know it.
    summary: what it does, in one line.
    source: the paper and section that it is from.
    build: a function (stages, minibatches) -> `Schedule` with one worker per stage. It has a keyword `microbatches` if
        the method can split a minibatch.
    forward_reads: the weights that a forward reads: "live", those present when it runs, or weights derived from these
        (`Predict`, `LookAhead`).
    held: for methods whose forwards read versions older than the live ones (vertical sync, double buffering): a
        function (stage, `Delays` of the schedule) -> the lags of these versions, one per microbatch of an update.
    backward_reads: the weights that a backward reads: "live", those present when it runs; "stashed", those that the
        forward of the same microbatch read, kept until then (PipeDream's weight stashing); or weights derived from the
        live ones (`Predict`, `Correct`).
    update: what an update does besides the optimizer's step. If it needs the weights that its forward read, its
        attribute `stale` is true, so that real workers keep them.
    pipelined: False if stages never work at the same time, so that cuts only change who computes.
    workers: what real workers are. "stages": the stages of the pipeline. "ddp": replicas of the whole model under
        DistributedDataParallel. "server": replicas of the whole model that do not wait for each other; a server applies
        their gradients as they arrive. "torch": stages under torch.distributed.pipelining's schedule of the same
        `build`.
    learning_rate: a function (stage, stages, step of the phase, tau) -> the factor on the stage's base rate. tau is the
        delay of the stage in updates (PipeMare's tau_fwd; the mean of random delays), at least 1.
    random: delays that are drawn at random instead of the schedule's; simulated executor only.
    options: a function from keyword options to the method with these settings (`get(name, **options)`).
    revision: raise it when what the method computes changes, so that older logs are not taken for the new method's. It
        is part of a run's id from 2 on.
    """

    name: str
    summary: str
    source: str
    build: Callable[..., Schedule]
    backward_reads: BackwardReads = "live"
    learning_rate: Callable[[int, int, int, float], float] | None = None
    pipelined: bool = True
    workers: Workers = "stages"
    forward_reads: ForwardReads = "live"
    held: Callable[[int, Delays], tuple[int, ...]] | None = None
    update: Update | None = None
    random: RandomDelays | None = None
    options: Callable[..., Method] | None = None
    revision: int = 1

    def __post_init__(self) -> None:
        """Refuse what would be found far from here, or be taken for something else."""
        if not isinstance(self.name, str) or not re.fullmatch(r"\w[\w.+-]*", self.name):
            raise PipelagError(
                f"the name of a method is {self.name!r}; it should be a single word of letters, digits, '_', '.', '+' "
                "and '-'"
            )
        for part in ("build", "learning_rate", "held", "options"):
            value = getattr(self, part)
            if not callable(value) and (value is not None or part == "build"):
                raise PipelagError(f"{part} of method '{self.name}' is {kind_of(value)}; it should be a function")
        if self.workers not in get_args(Workers):
            raise unknown(f"workers of method '{self.name}'", str(self.workers), get_args(Workers))
        self._check_reads("forward_reads", ("live",))
        self._check_reads("backward_reads", ("live", "stashed"))
        if self.update is not None and not callable(getattr(self.update, "change", None)):
            raise PipelagError(
                f"update of method '{self.name}' is {kind_of(self.update)}; it should have a method change, like "
                "pipelag.methods.reads.SpikeCompensation"
            )

    def _check_reads(self, part: str, words: Sequence[str]) -> None:
        reads = getattr(self, part)
        if isinstance(reads, str) and reads not in words:
            raise unknown(f"{part} of method '{self.name}'", reads, words)
        parts = ("amounts", "carry")
        if not isinstance(reads, str) and not all(callable(getattr(reads, each, None)) for each in parts):
            raise PipelagError(
                f"{part} of method '{self.name}' is {kind_of(reads)}; it should be {' or '.join(map(repr, words))}, or "
                "have the methods amounts and carry, like pipelag.methods.reads.Predict"
            )

    @property
    def data_parallel(self) -> bool:
        """Whether real workers are replicas of the whole model, not stages."""
        return self.workers in ("ddp", "server")

    def schedule(self, stages: int, minibatches: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> Schedule:
        """The schedule over `stages` stages, with so many workers of each; raises `PipelagError` for counts below 1."""
        check_counts(stages, minibatches, microbatches)
        build, _ = self._builder(replicas, stages)
        if microbatches == 1:
            return build(stages, minibatches)
        self._splits()
        return build(stages, minibatches, microbatches=microbatches)

    def _builder(self, replicas: Sequence[int], stages: int) -> tuple[Callable[..., Schedule], int]:
        """What builds the schedule, and of how many minibatches at a time."""
        if not replicas or max(replicas) == 1:
            return self.build, 1
        if self.workers != "stages" or self.random is not None:
            raise PipelagError(f"method '{self.name}' has no stages of its own to replicate; leave out the replicas")
        check_replicas(replicas, stages, lcm(*map(int, replicas)))
        replicated = Replicated(self.build, tuple(replicas))
        return replicated, replicated.rounds

    def _splits(self) -> None:
        if self.update is not None and "microbatches" in signature(self.build).parameters:
            raise PipelagError(
                f"method '{self.name}' changes the gradient of a whole minibatch (its `update`), but microbatches may "
                "each have read different weights; use microbatches=1"
            )
        if "microbatches" not in signature(self.build).parameters or self.random or self.update:
            raise PipelagError(
                f"method '{self.name}' cannot split a minibatch; use microbatches=1, or a method that splits "
                "minibatches, such as gpipe or pipedream"
            )

    def versions_back(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> tuple[int, ...]:
        """Per stage: how many updates older than the live weights a version is that a real pipeline still reads there.

        A backward that reads its forward's version needs it `lag` updates later, as does an update that goes by it; a
        forward that is held back to a version older than the live one needs that much.
        """
        lags = self.delays(stages, microbatches, replicas).forward_lags
        if self.backward_reads == "stashed" or getattr(self.update, "stale", False):
            return tuple(map(max, lags))
        build, rounds = self._builder(replicas, stages)
        live = steady_delays(build, stages, microbatches, rounds).forward_lags
        return tuple(max(a - b for a, b in zip(held, now, strict=True)) for held, now in zip(lags, live, strict=True))

    def weight_copies(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> tuple[int, ...]:
        """Per stage: the copies of its weights in a real pipeline, the live ones included (PipeOptim, table II).

        A stage that predicts or corrects keeps two: the live weights and the ones a pass reads.
        """
        derived = self.delays(stages, microbatches, replicas)
        copies = []
        for stage, back in enumerate(self.versions_back(stages, microbatches, replicas), start=1):
            made = any(any(self.amounts(kind, stage, stages, derived)) for kind in ("F", "B"))
            copies.append(max(back + 1, 2 if made else 1))
        return tuple(copies)

    def passes(self, kind: str, stage: int, stages: int, delays: Delays) -> Passes:
        """The forwards ("F") or backwards ("B") of a stage; `delays`: this method's."""
        lags = (delays.forward_lags if kind == "F" else delays.backward_lags)[stage - 1]
        beyond = delays.beyond[stage - 1] if delays.beyond else (0,) * len(lags)
        return Passes(stage, stages, lags, delays.forward_lags[stage - 1], beyond)

    def amounts(self, kind: str, stage: int, stages: int, delays: Delays) -> Amounts:
        """By how much what a pass reads differs from a version as it is, per microbatch: updates foreseen, say."""
        reads = self.forward_reads if kind == "F" else self.backward_reads
        passes = self.passes(kind, stage, stages, delays)
        return (0.0,) * len(passes.lags) if isinstance(reads, str) else reads.amounts(passes)

    def delays(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> Delays:
        """Steady-state staleness per stage, as the weight policy leaves it. Random delays: their upper bound."""
        check_counts(stages, 1, microbatches)
        if microbatches > 1:
            self._splits()
        build, rounds = self._builder(replicas, stages)
        derived = steady_delays(build, stages, microbatches, rounds)
        forward, backward = derived.forward_lags, derived.backward_lags
        if self.random is not None:
            forward = ((self.random.bound(self.taus(stages)),),) * stages
        if self.held is not None:
            forward = tuple(self.held(stage, derived) for stage in range(1, stages + 1))
            for stage, (held, live) in enumerate(zip(forward, derived.forward_lags, strict=True), start=1):
                if any(a < b for a, b in zip(held, live, strict=True)):
                    raise PipelagError(
                        f"method '{self.name}' keeps {max(held) + 1} versions, but with {microbatches} microbatches "
                        f"over {stages} stages the weights of stage {stage} are already {max(live)} updates old; use "
                        "more microbatches (as many as stages are always enough)"
                    )
        if self.backward_reads == "stashed" or self.random is not None:
            backward = forward
        total = len(derived.forward_versions[0])
        return replace(
            derived,
            forward_lags=forward,
            backward_lags=backward,
            forward_versions=lagged(forward, total),
            backward_versions=lagged(backward, total),
        )

    def taus(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> tuple[int, ...]:
        """The delays by which random ones go: of the schedule with the law's own number of microbatches."""
        if self.random is not None:
            return steady_delays(self.build, stages, self.random.microbatches).forward
        return self.delays(stages, microbatches, replicas).forward

    def rate_taus(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> tuple[float, ...]:
        """Per stage the tau of `learning_rate`."""
        taus: tuple[float, ...] = self.taus(stages, microbatches, replicas)
        if self.random is not None:
            taus = self.random.means(self.taus(stages))
        return tuple(max(1, tau) for tau in taus)


def random_for_real(name: str) -> PipelagError:
    """The refusal of random delays in the real executor."""
    return PipelagError(
        f"method '{name}' draws its delays at random, which a real pipeline cannot reproduce; run it in the simulated "
        "executor"
    )


def register(method: Method) -> Method:
    """Register a method under its name, for every executor, the config files and the command line; returns it.

    Raises:
        PipelagError: another method is registered under this name.
    """
    if METHODS.get(method.name, method) != method:
        raise PipelagError(f"a method named '{method.name}' is already registered; choose another name")
    METHODS[method.name] = method
    return method


def get(name: str | Method, /, **options: object) -> Method:
    """The method that is registered under a name, with its settings: `get("pipemare", annealing=400, decay=0.5)`.

    Args:
        name: a registered name; a `Method` is returned as it is, or with the given settings.
        options: the method's settings.

    Raises:
        PipelagError: an unknown method or setting; the sentence names the nearest known one.
    """
    if not isinstance(name, Method) and (not isinstance(name, str) or name not in METHODS):
        raise unknown("method", str(name), METHODS)
    method = name if isinstance(name, Method) else METHODS[name]
    if not options:
        return method
    if method.options is None:
        raise PipelagError(f"method '{method.name}' has no options, so '{next(iter(options))}' cannot be set")
    check_keywords(method.options, 0, options, f"option of method '{method.name}'")
    return method.options(**options)
