"""What depends on a schedule, by formula: staleness, copies of weights, activations, and seconds of a minibatch.

They hold for thousands of layouts at once, for which schedules would be too many to build. Tests compare them with the
schedules themselves (tests/partitioner/test_large.py).

Stages count from 1. A worker has one stage or, interleaved, several (chunks): stage s of P workers is on worker
(s-1) mod P. In a V it has two (`pipelag.partitioner.in_v`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from pipelag.methods import Method
from pipelag.partitioner import in_v
from pipelag.schedules import library
from pipelag.schedules.virtual import Interleaved
from pipelag.schedules.zero_bubble import zb_h1, zb_h2
from pipelag.timing.costs import StageCost

AMethod = TypeVar("AMethod", bound=Method | None)
LEADS = {zb_h1: 1, zb_h2: 2}  # of schedules that compute gradients of weights apart


def lead_of(method: Method | None) -> int:
    """`zero_bubble.zero_bubble`'s `lead`; 0: the method's backward is in one part."""
    return LEADS.get(method.build, 0) if method is not None else 0


def chunks_of(method: Method | None) -> int:
    """The number of stages of a worker."""
    return method.build.chunks if method is not None and isinstance(method.build, Interleaved) else 1


def with_chunks(method: AMethod, chunks: int) -> AMethod:
    """An interleaved method with so many stages per worker; any other as it is."""
    if method is None or not isinstance(method.build, Interleaved):
        return method
    return replace(method, build=replace(method.build, chunks=chunks))


def splits(method: Method | None) -> bool:
    """Whether gradients of weights are computed apart."""
    return lead_of(method) > 0 or in_v.in_v(method)


def stages_of(method: Method | None, worker: int, workers: int, stages: int) -> tuple[int, ...]:
    """The stages of a worker, which counts from 0, in the order of the pipeline."""
    if in_v.in_v(method):
        return worker + 1, stages - worker
    return tuple(range(worker + 1, stages + 1, workers))


def flushes(method: Method) -> bool:
    """Whether a method's pipeline drains at every update."""
    plain = method.build in (library.gpipe, library.one_f_one_b_flush)
    return plain or splits(method) or (isinstance(method.build, Interleaved) and method.build.flush)


def updates_late(method: Method, stage: int, stages: int, microbatches: int) -> int:
    """The number of updates that the live weights miss when a forward reads them."""
    if flushes(method):
        return 0
    behind = stages - stage
    between = {library.one_f_one_b: behind, library.cycle: 2 * behind, library.pipemare: 2 * behind + 1}
    return -(-between[method.build] // microbatches)


def copies(method: Method, stage: int, stages: int, microbatches: int) -> int | None:
    """The copies of the weights, including the live ones (`Method.weight_copies`).

    None: double buffering's two copies do not suffice.
    """
    late = updates_late(method, stage, stages, microbatches)
    if method.held is not None:  # double buffering
        return 2 if late <= 1 else None
    if method.backward_reads == "stashed":
        return late + 1
    return 2 if any(computed(method, stage, stages, microbatches)) else 1


def computed(method: Method, stage: int, stages: int, microbatches: int) -> list[bool]:
    """Per kind of pass, forward and backward, whether it reads weights that are computed from the live ones.

    On the last stage nothing is late, and a prediction of the live weights is these themselves, unless it goes further.
    """
    late = updates_late(method, stage, stages, microbatches)
    reads = (method.forward_reads, method.backward_reads)
    further = any(getattr(each, "horizon", "") == "round trip" for each in reads)  # predicts beyond its own update
    return [each not in ("live", "stashed") and (late > 0 or further) for each in reads]


def gathered_again(method: Method | None, stage: int, stages: int, microbatches: int) -> bool:
    """Whether GPUs that have each computed a part of the weights gather, besides what forwards read, other weights for
    backwards: unless these are stashed, or the forwards'.
    """
    if method is None or method.backward_reads == "stashed":
        return False
    return any(computed(method, stage, stages, microbatches))


def between_passes(method: Method, stage: int, stages: int, microbatches: int) -> int:
    """The number of microbatches between their forward and their backward, of a method with a stage per worker."""
    behind = stages - stage
    if method.build is library.gpipe:
        return microbatches
    if method.build is library.one_f_one_b_flush:
        return min(microbatches, behind + 1)
    if lead := lead_of(method):
        return min(microbatches, lead * behind + 1)
    return behind + 1 if method.build is library.one_f_one_b else 2 * behind + 1


def kept(method: Method | None, worker: int, stages: int, microbatches: int) -> list[tuple[int, ...]]:
    """The microbatches whose activations a worker keeps, one number per stage of it: all that may make its peak.

    Without a method (data parallelism) it is one. A zero-bubble schedule keeps them until the gradients of the weights,
    on every stage as long as on the first.

    Args:
        worker: from 0.
    """
    if method is None:
        return [(1,)]
    if in_v.in_v(method):
        return in_v.kept(stages // 2, worker, microbatches)
    if isinstance(method.build, Interleaved):
        return interleaved(stages // method.build.chunks, method.build.chunks, worker, microbatches)
    return [(between_passes(method, 1 if lead_of(method) else worker + 1, stages, microbatches),)]


def interleaved(workers: int, chunks: int, worker: int, microbatches: int) -> list[tuple[int, ...]]:
    """`kept` of interleaved 1F1B: after each forward of its steady state, which repeats with every group.

    A worker's k-th forward, from 0, is of its chunk k // P mod chunks; backwards take the chunks in the opposite order.
    """
    group, total = workers * chunks, microbatches * chunks
    warmup = workers - worker - 1 if chunks == 1 else 2 * (workers - worker - 1) + (chunks - 1) * workers

    def passed(passes: int, place: int) -> int:
        """Of so many passes, those of the chunk that is so many places from the group's first."""
        whole, rest = divmod(passes, group)
        return whole * workers + min(max(rest - place * workers, 0), workers)

    states = {
        tuple(passed(min(warmup + k + 1, total), c) - passed(k, chunks - 1 - c) for c in range(chunks))
        for k in range(max(1, min(group, total - warmup)))
    }
    return sorted(states)


# Seconds of a minibatch -----------------------------------------------------------------------------------------------


def seconds(method: Method | None, costs: Sequence[StageCost], microbatches: int, message: float) -> float:
    """The seconds per minibatch. Microbatches follow one another at the pace of the slowest stage, link or round trip.

    Args:
        costs: of the stages.
        message: the seconds of the longest message; 0 without a method.
    """
    n = microbatches
    if method is None:
        return n * max(_both(cost) for cost in costs) + max(cost.update for cost in costs)
    if in_v.in_v(method):
        return in_v.seconds(costs, n, message)
    if chunks_of(method) > 1:
        return _interleaved(costs, chunks_of(method), n, message)
    if lead := lead_of(method):
        return _zero_bubble(method, lead, costs, n, message)
    one, update = [_both(cost) for cost in costs], max(cost.update for cost in costs)
    pace = max(message, *one)
    if method.build is not library.gpipe:
        pace = max(pace, _round_trip(method, one, message))
    if not flushes(method):  # a stage updates while others compute
        return max(n * pace, *(n * each + cost.update for each, cost in zip(one, costs, strict=True)))
    if method.build is library.gpipe:  # forwards and backwards each have their own pace
        pace = sum(max(message, *(getattr(cost, way) for cost in costs)) for way in ("forward", "backward"))
    return sum(one) + 2 * (len(costs) - 1) * message + (n - 1) * pace + update


def _both(cost: StageCost) -> float:
    return cost.forward + cost.backward


def _round_trip(method: Method, one: Sequence[float], message: float) -> float:
    """The pace at which microbatches go to the end and back: a stage takes in only as many as it has under way.

    one: the seconds of each stage's passes on that way.
    """
    stages = len(one)
    return max(
        (sum(one[stage - 1 :]) + 2 * (stages - stage) * message) / between_passes(method, stage, stages, 2 * stages)
        for stage in range(1, stages + 1)
    )


def left_for_the_end(lead: int, stage: int, microbatches: int) -> int:
    """The number of microbatches of which a stage computes the gradients of weights (W) after its last backward."""
    return min(lead * (stage - 1) + 1, microbatches)


def _zero_bubble(method: Method, lead: int, costs: Sequence[StageCost], microbatches: int, message: float) -> float:
    """Of a schedule that computes the gradients of weights apart (W), lead (i-1) backwards late on stage i of P.

    The first microbatch goes to the end and back without any W. So do the next lead (P-1), since stages that would wait
    have W's to do only afterwards: the pace is that of F and B alone. All further ones, and the last, whose W follows
    at once on the first stage, take their W. For equal stages whose W takes no longer than F, this is

        N (F+B+W) + (P-1) (F+B) - min(N-1, lead (P-1)) W,

    which is Qi et al.'s bubble (arXiv 2401.10241, table 2) from lead (P-1) + 1 microbatches on. A stage behind the
    first begins later and has its last B earlier, by the passes in front of it; its own last W's and its update follow.
    """
    n, stages = microbatches, len(costs)
    apart = [cost.weight_gradient or 0.0 for cost in costs]
    costs = [replace(cost, backward=cost.in_two_parts, splitting=0.0) for cost in costs]
    passes = [_both(cost) - w for cost, w in zip(costs, apart, strict=True)]
    trip = _round_trip(method, passes, message)
    quick = max(message, trip, *passes)
    slow = max(message, trip, *map(_both, costs))
    early = min(n - 1, lead * (stages - 1))
    until = (
        sum(passes) + 2 * (stages - 1) * message + early * quick + (n - 1 - early) * slow
    )  # the first stage's last B
    longest = 0.0
    for stage, (cost, w) in enumerate(zip(costs, apart, strict=True), start=1):
        before = sum(passes[: stage - 1]) + 2 * (stage - 1) * message
        mine = until - before + left_for_the_end(lead, stage, n) * w
        longest = max(longest, max(mine, n * _both(cost)) + cost.update)
    return longest


def _interleaved(costs: Sequence[StageCost], chunks: int, microbatches: int, message: float) -> float:
    """Interleaved 1F1B with a flush: a worker's passes, and a bubble of the passes of one chunk per worker behind it.

    Before and after them one microbatch's messages cross all boundaries; those of others travel meanwhile.
    """
    workers = len(costs) // chunks
    of_worker = [costs[worker::workers] for worker in range(workers)]
    busy = max(sum(map(_both, mine)) for mine in of_worker)
    bubble = (workers - 1) * sum(map(_both, costs)) / len(costs) + 2 * (len(costs) - 1) * message
    return microbatches * busy + bubble + max(sum(cost.update for cost in mine) for mine in of_worker)
