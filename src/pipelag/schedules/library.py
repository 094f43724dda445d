"""The schedules, one short function each. `schedule(name, ...)` builds one by its name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from pipelag.errors import PipelagError, shown, unknown
from pipelag.schedules.actions import Action, Kind, Schedule
from pipelag.schedules.zero_bubble import zb_h1, zb_h2, zb_v
from pipelag.typed import signature_of

if TYPE_CHECKING:
    from pipelag.schedules.table import Group, Row

SCHEDULES: dict[str, Callable[..., Schedule]] = {}
MOST_PASSES = 10_000_000  # of one schedule; more might not fit into memory


def register_schedule(function: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Make a schedule available to `schedule()` under its function's name."""
    SCHEDULES[function.__name__] = function
    return function


def check_counts(stages: Any, minibatches: Any, microbatches: Any) -> None:
    """Refuse counts that are not whole numbers from 1 on, or that make more passes than fit into memory."""
    counts = (stages, minibatches, microbatches)
    if not all(map(_from_one, counts)):
        raise PipelagError(
            "a schedule needs at least 1 stage, 1 minibatch and 1 microbatch, in whole numbers, not "
            f"{stages!r:.40}, {minibatches!r:.40} and {microbatches!r:.40}"
        )
    if prod(counts) > MOST_PASSES:
        raise PipelagError(
            f"{stages} stages x {minibatches} minibatches x {microbatches} microbatches are more than {MOST_PASSES:,} "
            "passes, too many for a schedule; take fewer minibatches"
        )


def as_python(value: Any) -> Any:
    """NumPy's numbers as Python's, also within sequences, which become tuples; any other value as it is."""
    value = value.tolist() if type(value).__module__ == "numpy" else value
    return tuple(map(as_python, value)) if isinstance(value, (list, tuple)) else value


def _from_one(count: Any) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count >= 1


def schedule(name: str, /, *, stages: int, minibatches: int, **options: object) -> Schedule:
    """Build a schedule by name.

    Raises:
        PipelagError: unknown name or option, or fewer than one stage, minibatch or microbatch.
    """
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    check_counts(stages, minibatches, options.get("microbatches", 1))
    build = SCHEDULES[name]
    wrong = next((key for key in options if key not in signature_of(build).parameters), None)
    if wrong is not None:
        raise unknown(f"option of schedule '{name}'", wrong, list(signature_of(build).parameters)[2:])
    return build(stages=stages, minibatches=minibatches, **options)


Turn = tuple[Kind, int, int]  # (kind, stage, offset): microbatch m's turn comes in cycle offset + m * period


def clocked(
    name: str,
    stages: int,
    minibatches: int,
    turns: Mapping[int, Sequence[Turn]],
    period: int = 1,
    microbatches: int = 1,
) -> Schedule:
    """The schedule in which worker w performs the actions `turns[w]` for every microbatch, `period` cycles apart.

    Within a cycle, a worker acts in the order of its list. An update comes with the last microbatch of each minibatch.
    """
    from pipelag.schedules.table import Cycles, ordered

    rows, clocks = [], []
    for worker in sorted(turns):
        slots = len(turns[worker])  # a cycle has room for so many actions
        groups: list[Group] = []
        for at, (kind, stage, offset) in enumerate(turns[worker]):
            per = microbatches if kind == "U" else 1
            count = minibatches * microbatches // per
            first, step = (offset + (per - 1) * period) * slots + at, per * period * slots
            groups.append((kind, stage, range(count), range(first, first + count * step, step)))
        row, places = ordered(groups)
        rows.append(row)
        clocks.append(Cycles((places // slots).astype("int32")))
    return Schedule(name, stages, minibatches, tuple(rows), tuple(clocks), microbatches)


@register_schedule
def cycle(stages: int, minibatches: int, colocated: bool = True, microbatches: int = 1) -> Schedule:
    """The stale-weights paper's pipeline (section 3): every stage does one forward and one backward per cycle.

        colocated, K = 1          0    1    2        3        4
        worker 0 (FS1, BKS2)      1F0  1F1  1F2+1B0  1F3+1B1  1F4+1B2
        worker 1 (FS2, BKS1)           2F0  2F1      2F2      2F3      (2F and 2B in one cycle)

    `colocated`: the forward and the backward of a stage share a worker, as in the paper's 2-GPU set-up (section 6.5),
    so that there are K+1 workers. A worker runs its forward first, which gives the staleness of 2K+1 accelerators.
    Otherwise the workers are the paper's 2K+1 accelerators: FS_1 .. FS_K, then FS_{K+1} with BKS_1, then BKS_2 ..
    BKS_{K+1}.

    DualPipe (the spectrain paper, section 3.1) is the colocated form.
    """
    if not isinstance(colocated, bool):
        raise PipelagError(f"colocated is {colocated!r:.40}; it should be True or False")
    turns: dict[int, list[Turn]] = defaultdict(list)
    for stage in range(1, stages + 1):
        forward_worker = stage - 1
        backward_worker = forward_worker if colocated else 2 * stages - stage - 1
        back = 2 * stages - 1 - stage  # the last stage's backward shares the forward's cycle, then a stage per cycle
        turns[forward_worker] += [("F", stage, stage - 1)]
        turns[backward_worker] += [("B", stage, back), ("U", stage, back)]
    return clocked("cycle", stages, minibatches, turns, microbatches=microbatches)


@register_schedule
def pipemare(stages: int, minibatches: int, microbatches: int = 1, segment: int = 0) -> Schedule:
    """PipeMare's pipeline (section 2, appendix A.1): 2(P-i)+1 cycles lie between the two passes of stage i.

        P = 2      0    1    2        3        4
        worker 0   1F0  1F1  1F2      1B0+1F3  1B1+1F4
        worker 1        2F0  2B0+2F1  2B1+2F2  2B2+2F3

    The last stage's backward comes one cycle after its forward, so that this stage too is one update late (N = 1).
    Every pass reads the weights that are there when its cycle starts; the update comes at the cycle's end.

    `segment`: recomputation in segments of so many stages (appendix A.3); the last segment may be shorter. The j-th of
    a segment's S stages, from 1, runs its forward again 2(S-j) cycles before its backward, so that the last stage's
    activation "arrives right at the time" when its backward needs it.
    """
    if segment != 0 and not _from_one(segment):
        raise PipelagError(
            f"segment, a number of stages, should be a whole number from 0 on (0: no segments), not {segment!r:.40}"
        )
    turns: dict[int, list[Turn]] = defaultdict(list)
    for stage in range(1, stages + 1):
        back = 2 * stages - stage
        if segment:
            before = (stage - 1) // segment * segment  # stages in front of this one's segment
            size = min(segment, stages - before)
            turns[stage - 1] += [("R", stage, back - 2 * (size - (stage - before)))]
        turns[stage - 1] += [("B", stage, back), ("F", stage, stage - 1), ("U", stage, back)]
    return replace(clocked("pipemare", stages, minibatches, turns, microbatches=microbatches), segment=segment)


@register_schedule
def sequential(stages: int, minibatches: int, workers: int | None = None, microbatches: int = 1) -> Schedule:
    """One microbatch at a time: all forwards, all backwards, then the next (stale-weights paper, Figure 2).

    `workers` = `stages` (the default) is model parallelism without pipelining; 1 is ordinary training.
    """
    workers = stages if workers is None else workers
    if workers not in (1, stages):
        raise PipelagError(f"sequential training uses 1 worker or one per stage ({stages}), not {workers!r:.40}")
    turns: dict[int, list[Turn]] = defaultdict(list)
    for stage in range(1, stages + 1):
        turns[(stage - 1) % workers] += [("F", stage, stage - 1)]
    for stage in range(stages, 0, -1):
        turns[(stage - 1) % workers] += [("B", stage, 2 * stages - stage), ("U", stage, 2 * stages - stage)]
    return clocked("sequential", stages, minibatches, turns, period=2 * stages, microbatches=microbatches)


def one_forward_one_backward(stage: int, warmup: int, count: int, microbatches: int) -> Row:
    """1F1B's row for `count` microbatches: `warmup` forwards, then forward and backward in turn, then backwards."""
    from pipelag.schedules.table import ordered

    warmup, updates = min(warmup, count), count // microbatches
    turns = range(3 * updates * microbatches)  # backward m takes place 3m + 1
    return ordered(
        [
            ("F", stage, range(count), range(-3 * warmup, 3 * (count - warmup), 3)),
            ("B", stage, range(count), range(1, 3 * count + 1, 3)),
            ("U", stage, range(updates), turns[3 * microbatches - 1 :: 3 * microbatches]),
        ]
    )[0]


def one_f_one_b(stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
    """PipeDream's 1F1B without flush (PipeDream section 3.2): stage l begins with n-l forwards, then alternates.

    A stage updates after the backward of each minibatch's last microbatch and never waits for the pipeline to drain.
    """
    total = minibatches * microbatches
    rows = [one_forward_one_backward(stage, stages - stage, total, microbatches) for stage in range(1, stages + 1)]
    return Schedule("1f1b", stages, minibatches, tuple(rows), microbatches=microbatches)


def one_f_one_b_flush(stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
    """1F1B within a minibatch, and a flush at its end (DAPPLE): synchronous, with 1F1B's low activation memory."""
    from pipelag.schedules.table import repeated

    n = microbatches
    once = [one_forward_one_backward(stage, stages - stage, n, n) for stage in range(1, stages + 1)]
    rows = tuple(repeated(row, minibatches, n) for row in once)
    return Schedule("1f1b_flush", stages, minibatches, rows, microbatches=microbatches)


def minibatches_held(replicas: Sequence[int], depth: int | None = None) -> tuple[int, ...]:
    """How many minibatches a replica of each stage holds between their two passes in 1F1B-RR (PipeDream section 3.2).

    By default, as many as keep all workers busy: NOAM = ceil(workers / replicas) for stage 1, and for a later stage
    ceil(workers of this stage and all later ones / replicas of this stage).

    Args:
        depth: minibatches in the pipeline per replica of stage 1, in place of NOAM (Figure 18); 1 means no pipelining.
            Below NOAM, every stage holds the same share of its default: minibatches follow one another at equal
            distances, and a stage that started with more forwards would only wait for them to arrive. As long as a
            stage alternates forwards and backwards, no other numbers are faster: over 4 equal stages, depth 3 is no
            faster than 2 (a worker that ran whatever is ready would gain a third). Above NOAM, the extra minibatches
            wait in front of the later stages, except for the last, which runs each backward right after its forward.
    """
    if depth is not None and not _from_one(depth):
        raise PipelagError(
            f"depth, the minibatches in the pipeline, should be a whole number from 1 on, not {depth!r:.40}"
        )
    noam, held = -(-sum(replicas) // replicas[0]), []
    depth = noam if depth is None else depth
    for stage, count in enumerate(replicas):
        full = -(-sum(replicas[stage:]) // count)
        share = -(-full * min(depth, noam) // noam)
        waiting = max(0, depth - noam) * replicas[0] // count if stage < len(replicas) - 1 else 0
        held.append(min(share + waiting, -(-depth * replicas[0] // count)))  # at most all those in the pipeline
    return tuple(held)


def one_f_one_b_rr(stages: int, minibatches: int, replicas: Sequence[int] = (), depth: int | None = None) -> Schedule:
    """1F1B with replicated stages (1F1B-RR, PipeDream section 3.2): minibatch m of a stage runs on replica m mod r.

    `replicas[l-1]`: the workers of stage l; 1 each by default. `depth`: minibatches in the pipeline per replica of
    stage 1; NOAM by default (`minibatches_held`).
    """
    listed = isinstance(replicas, Sequence) and all(map(_from_one, replicas))
    if not listed or len(replicas) not in (0, stages):
        raise PipelagError(
            f"replicas is {shown(replicas)}; it should give each of the {stages} stages 1 or more workers"
        )
    replicas = tuple(replicas) or (1,) * stages
    rows = []
    for stage, (count, held) in enumerate(zip(replicas, minibatches_held(replicas, depth), strict=True), start=1):
        for replica in range(count):
            local = one_forward_one_backward(stage, held - 1, len(range(replica, minibatches, count)), 1)
            rows.append(local.renumbered(replica + local.numbers * count))
    return Schedule("1f1b_rr", stages, minibatches, tuple(rows))


@register_schedule
def gpipe(stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
    """GPipe: all forwards of a minibatch's microbatches, then all backwards, then the update (PipeDream Figure 3)."""
    from pipelag.schedules.table import ordered, repeated

    n, rows = microbatches, []
    for stage in range(1, stages + 1):
        passes: list[Group] = [("F", stage, range(n), range(n)), ("B", stage, range(n), range(n, 2 * n))]
        once, _ = ordered([*passes, ("U", stage, range(1), range(2 * n, 2 * n + 1))])
        rows.append(repeated(once, minibatches, n))
    return Schedule("gpipe", stages, minibatches, tuple(rows), microbatches=microbatches)


def parameter_server(stages: int, minibatches: int, workers: int | None = None) -> Schedule:
    """Asynchronous data parallelism (ASP): each of n workers runs the whole model on every n-th minibatch.

    The last worker of the list is the server, which applies the gradients as they arrive, one minibatch's per cycle. A
    worker therefore reads weights that lack the updates of the n-1 minibatches that the other workers have in progress.
    `workers` = `stages` by default.
    """
    workers = stages if workers is None else workers
    if not _from_one(workers):
        raise PipelagError(f"workers is {workers!r:.40}; a parameter server needs a whole number of workers from 1 on")
    rows: list[list[Action]] = [[] for _ in range(workers + 1)]
    clocks: list[list[int]] = [[] for _ in range(workers + 1)]
    for m in range(minibatches):
        worker = m % workers
        for stage in range(1, stages + 1):
            rows[worker].append(Action("F", stage, m))
            clocks[worker].append(m)
        for stage in range(stages, 0, -1):
            rows[worker].append(Action("B", stage, m))
            clocks[worker].append(m + workers - 1)
            rows[workers].append(Action("U", stage, m))
            clocks[workers].append(m + workers - 1)
    return Schedule("asp", stages, minibatches, tuple(map(tuple, rows)), tuple(map(tuple, clocks)))


SCHEDULES |= {
    "1f1b": one_f_one_b,
    "1f1b_flush": one_f_one_b_flush,
    "1f1b_rr": one_f_one_b_rr,
    "dualpipe": cycle,
    "asp": parameter_server,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "zb_v": zb_v,
}
