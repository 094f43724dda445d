"""A method is three small choices: a schedule, which weights a pass reads, and a learning-rate policy.

This module imports schedules but not torch, so that listing the methods is cheap. Executors ask a method for its
schedule and for what each pass reads; every staleness is derived from the schedule (`pipelag.schedules.delays`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Literal, get_args

from pipelag.errors import PipelagError, kind_of, unknown
from pipelag.methods.random_delays import RandomDelays
from pipelag.methods.reads import Amounts, BackwardReads, ForwardReads, Passes, Update
from pipelag.schedules import Delays, Schedule, lagged, steady_delays
from pipelag.schedules.library import check_counts
from pipelag.schedules.replicated import Replicated, check_replicas
from pipelag.typed import check_keywords, signature_of

METHODS: dict[str, Method] = {}
Workers = Literal["stages", "ddp", "server", "torch"]


@dataclass(frozen=True)
class Method:
    """A training method: a schedule, the weights that its passes read, and its learning-rate policy.

    name: the word by which commands, config files and `get` know the method.
    summary: what the method does, in one line.
    source: the paper and section that define it.
    build: `(stages, minibatches)` -> `Schedule`. It takes a keyword `microbatches` if the method can split a minibatch.
        Replicas that a user asks for are added to the schedule afterwards.
    forward_reads: "live", the weights present when the forward runs; or an object that computes other weights from
        them (`Predict`, `LookAhead`).
    held: (stage, `Delays` of the schedule) -> the lags of the versions that the stage's forwards read, one per
        microbatch of an update. Given only where forwards read versions older than the live one (vertical sync, double
        buffering).
    backward_reads: "live", the weights present when the backward runs; "stashed", the weights that the same
        microbatch's forward read, kept until the backward (PipeDream's weight stashing); or an object that computes
        other weights from the live ones (`Predict`, `Correct`).
    update: what an update does beyond the optimizer's step. If its attribute `stale` is true, it needs the weights that
        the forward read, and real workers keep them.
    pipelined: False if no two stages ever work at the same time; cuts then change only who computes what.
    workers: what a real worker is. "stages": it runs stages. "ddp": a replica of the whole model under
        DistributedDataParallel. "server": a replica of the whole model that never waits for the others; a parameter
        server applies its gradients as they arrive. "torch": it runs stages under torch.distributed.pipelining's
        schedule that corresponds to `build`.
    learning_rate: (stage, stages, step of the phase, tau) -> the factor on the stage's base rate. tau is the stage's
        delay in updates, at least 1 (PipeMare's tau_fwd; for random delays their mean).
    random: the law of delays drawn at random in place of the schedule's; simulated executor only.
    options: makes the method with other settings, given as keywords (`get(name, **options)`).
    revision: raised when the method computes something else than before, so that older logs are not taken for its own.
        From 2 on it is part of a run's id.
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
        """Refuse wrong fields now, before they fail far from here or silently mean something else."""
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
        """Whether a real worker holds a replica of the whole model instead of stages."""
        return self.workers in ("ddp", "server")

    def schedule(self, stages: int, minibatches: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> Schedule:
        """The schedule over `stages` stages; `replicas`: the workers of each stage (none: one each).

        Raises:
            PipelagError: a count below 1, or microbatches or replicas that the method cannot have.
        """
        check_counts(stages, minibatches, microbatches)
        build, _ = self._builder(replicas, stages)
        if microbatches == 1:
            return build(stages, minibatches)
        self._splits()
        return build(stages, minibatches, microbatches=microbatches)

    def _builder(self, replicas: Sequence[int], stages: int) -> tuple[Callable[..., Schedule], int]:
        """(the function that builds the schedule, the number that its minibatches must be a multiple of)."""
        if not replicas or max(replicas) == 1:
            return self.build, 1
        if self.workers != "stages" or self.random is not None:
            raise PipelagError(f"method '{self.name}' has no stages of its own to replicate; leave out the replicas")
        check_replicas(replicas, stages, lcm(*map(int, replicas)))
        replicated = Replicated(self.build, tuple(replicas))
        return replicated, replicated.rounds

    def _splits(self) -> None:
        if self.update is not None and "microbatches" in signature_of(self.build).parameters:
            raise PipelagError(
                f"method '{self.name}' changes the gradient of a whole minibatch (its `update`), but microbatches may "
                "each have read different weights; use microbatches=1"
            )
        if "microbatches" not in signature_of(self.build).parameters or self.random is not None:
            raise PipelagError(
                f"method '{self.name}' cannot split a minibatch; use microbatches=1, or a method that splits "
                "minibatches, such as gpipe or pipedream"
            )

    def versions_back(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> tuple[int, ...]:
        """Per stage: by how many updates the oldest version that a real pipeline still reads is behind the live one.

        A backward that reads its forward's version needs that version `lag` updates later, and so does an update that
        uses it (`stale`). A forward held to an older version needs versions as far back as the one it is held to.
        """
        lags = self.delays(stages, microbatches, replicas).forward_lags
        if self.backward_reads == "stashed" or getattr(self.update, "stale", False):
            return tuple(map(max, lags))
        build, rounds = self._builder(replicas, stages)
        live = steady_delays(build, stages, microbatches, rounds).forward_lags
        return tuple(max(a - b for a, b in zip(held, now, strict=True)) for held, now in zip(lags, live, strict=True))

    def weight_copies(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> tuple[int, ...]:
        """Per stage: how many copies of its weights a real pipeline keeps, with the live ones (PipeOptim, table II).

        A stage that predicts or corrects keeps at least two: the live weights and those that a pass reads.
        """
        derived = self.delays(stages, microbatches, replicas)
        copies = []
        for stage, back in enumerate(self.versions_back(stages, microbatches, replicas), start=1):
            made = any(any(self.amounts(kind, stage, stages, derived)) for kind in ("F", "B"))
            copies.append(max(back + 1, 2 if made else 1))
        return tuple(copies)

    def passes(self, kind: str, stage: int, stages: int, delays: Delays) -> Passes:
        """A stage's forwards ("F") or backwards ("B") as `Predict` and its like take them; `delays`: this method's."""
        lags = (delays.forward_lags if kind == "F" else delays.backward_lags)[stage - 1]
        beyond = delays.beyond[stage - 1] if delays.beyond else (0,) * len(lags)
        return Passes(stage, stages, lags, delays.forward_lags[stage - 1], beyond)

    def amounts(self, kind: str, stage: int, stages: int, delays: Delays) -> Amounts:
        """Per microbatch: how far the weights that a pass reads are from a plain version (updates predicted, say)."""
        reads = self.forward_reads if kind == "F" else self.backward_reads
        passes = self.passes(kind, stage, stages, delays)
        return (0.0,) * len(passes.lags) if isinstance(reads, str) else reads.amounts(passes)

    def delays(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> Delays:
        """Steady-state staleness per stage under this method's weight policy; of random delays, the upper bound.

        Raises:
            PipelagError: `held` asks for versions newer than those that the schedule makes live (double buffering with
                too few microbatches), or the counts do not fit the method.
        """
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
        """Per stage, tau in updates: the largest lag of its forwards.

        With random delays it is the schedule's delay with the law's own number of microbatches, from which the law's
        means and bound are computed.
        """
        if self.random is not None:
            return steady_delays(self.build, stages, self.random.microbatches).forward
        return self.delays(stages, microbatches, replicas).forward

    def rate_taus(self, stages: int, microbatches: int = 1, replicas: Sequence[int] = ()) -> tuple[float, ...]:
        """Per stage, the tau that `learning_rate` is given: at least 1; of random delays, the mean."""
        taus: tuple[float, ...] = self.taus(stages, microbatches, replicas)
        if self.random is not None:
            taus = self.random.means(self.taus(stages))
        return tuple(max(1, tau) for tau in taus)


def random_for_real(name: str) -> PipelagError:
    """The error with which the real executor refuses random delays."""
    return PipelagError(
        f"method '{name}' draws its delays at random, which a real pipeline cannot reproduce; run it in the simulated "
        "executor"
    )


def register(method: Method) -> Method:
    """Make a method available by its name to every executor, to config files and to the command line.

    Raises:
        PipelagError: another method is registered under this name.
    """
    if METHODS.get(method.name, method) != method:
        raise PipelagError(f"a method named '{method.name}' is already registered; choose another name")
    METHODS[method.name] = method
    return method


def get(name: str | Method, /, **options: object) -> Method:
    """The method of that name; a `Method` is returned as it is.

    Args:
        name: a registered name; a `Method` is returned as it is, or with the given settings.
        options: the method's settings.

    Raises:
        PipelagError: unknown method or option; the message names the nearest known one.
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
