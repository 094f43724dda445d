"""Which phases real workers can perform, and with how many workers; others are refused before any is started."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import lcm

from pipelag.distributed.routes import routes_of
from pipelag.distributed.workers.torch_pipelining import SCHEDULES
from pipelag.errors import PipelagError
from pipelag.methods import random_for_real
from pipelag.schedules import Schedule
from pipelag.stage.phase import Phase


def check_precision(phase: Phase, bf16: bool) -> None:
    """Refuse bfloat16 for methods whose workers are a library's, which have no master weights."""
    if bf16 and phase.method.workers != "stages":
        raise PipelagError(
            f"real workers of method '{phase.method.name}' compute in fp32 only; leave out options.precision, or set "
            "executor: simulated"
        )


def workers_of(phase: Phase) -> int:
    """The number of workers that a phase uses if none is given."""
    method = phase.method
    if method.workers != "stages" or method.random is not None:
        return phase.stages
    return len(_round_of(phase).workers)


def _round_of(phase: Phase) -> Schedule:
    """The phase's schedule of as many minibatches as give every replica its turns."""
    return phase.schedule(lcm(*(phase.replicas or (1,))))


def check_workers(phase: Phase, workers: int) -> None:
    """Refuse a phase that real workers cannot perform, or that needs another number of workers."""
    method = phase.method
    if method.random is not None:
        raise random_for_real(method.name)
    if method.data_parallel and phase.cuts:
        raise PipelagError(
            f"method '{method.name}' replicates the whole model, so it takes no cuts, not {list(phase.cuts)}; "
            "leave the cuts out"
        )
    if method.data_parallel and phase.recompute:
        raise PipelagError(
            f"method '{method.name}' cannot recompute on real workers; recompute in the simulated executor, or "
            "with a method that takes cuts"
        )
    if method.workers == "ddp" and phase.microbatches > 1:
        raise PipelagError(
            f"real workers of '{method.name}' do not split their share of a minibatch; use microbatches=1"
        )
    if method.data_parallel:
        return
    if method.workers == "torch" and method.build not in SCHEDULES:
        known = " and ".join(build.__name__ for build in SCHEDULES)
        raise PipelagError(
            f"method '{method.name}' leaves its schedule to torch, which has only those of {known}; build it with one "
            "of these, or set its workers to 'stages'"
        )
    if method.workers == "torch" and phase.stages != workers:
        raise PipelagError(
            f"method '{method.name}' needs a stage for each of the {workers} workers, not {phase.stages}; use gpipe or "
            "1f1b_flush"
        )
    if method.workers == "torch" and phase.recompute:
        raise PipelagError(f"method '{method.name}' cannot recompute; use gpipe or 1f1b_flush")
    plan = _round_of(phase)
    routes_of(plan)
    needed = len(plan.workers)
    if needed == workers or phase.stages == 1 == needed:
        return
    if phase.replicas:
        raise PipelagError(
            f"the replicas {list(phase.replicas)} need {needed} workers, not {workers}; a phase of replicated stages "
            "uses all workers"
        )
    if workers > needed:
        raise PipelagError(
            f"{workers} workers are more than the {needed} that the {phase.stages} stages of the cuts "
            f"{list(phase.cuts)} use; take {needed} workers, or add cuts"
        )
    raise PipelagError(
        f"{phase.stages} stages need {needed} workers in the real executor, not {workers}; take {needed} workers, or "
        f"{workers - 1} cuts"
    )


def check_parts(phase: Phase, samples: int, workers: int) -> None:
    """Refuse minibatches of so many samples if they cannot be split into equal parts."""
    parts, what = phase.parts(workers)
    if samples % parts:
        raise PipelagError(
            f"a minibatch of {samples} cannot be split into {parts} equal {what}; choose a batch size that is a "
            f"multiple of {parts}"
        )


def check_messages(phase: Phase, uneven: bool, shared: bool) -> None:
    """Refuse what torch's own schedules cannot send. uneven, shared: see `RealTraining` and `Job`."""
    if phase.method.workers != "torch":
        return
    if shared:
        raise PipelagError("torch's schedules send from GPU to GPU: give each worker a GPU, or use --device cpu")
    if uneven:
        raise PipelagError(
            "torch.distributed.pipelining needs minibatches of one shape, but these differ; use gpipe or 1f1b_flush"
        )


def check_marks(phases: Sequence[Phase], marks: Collection[int]) -> None:
    """Refuse a checkpoint within a round of a phase's replicas, when they have no common weights.

    marks: the numbers of minibatches of the run after which a checkpoint is written.
    """
    begun = 0
    for number, phase in enumerate(phases, start=1):
        rounds, ends = lcm(*(phase.replicas or (1,))), range(begun + 1, begun + phase.steps + 1)
        late = min((mark - begun for mark in marks if mark in ends and (mark - begun) % rounds), default=None)
        if late is not None:
            which = f"phase {number}" if len(phases) > 1 else "the phase"
            before = f", and give the phases before it a multiple of {rounds} steps" if begun % rounds else ""
            raise PipelagError(
                f"an evaluation or checkpoint after {late} steps of {which} falls inside a round of the replicas "
                f"{list(phase.replicas)}; evaluate every {rounds} steps or a multiple of that{before}"
            )
        begun += phase.steps
