"""Zero-bubble schedules (Qi et al. 2024): gradients of weights (W) fill the time in which a stage would wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipelag.errors import PipelagError
from pipelag.schedules.actions import Kind, Schedule

if TYPE_CHECKING:
    from pipelag.schedules.table import Group


def zero_bubble(lead: int, stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
    """1F1B with flush whose backwards leave the gradients of the weights (W) for later (Qi et al. 2024, section 2).

        lead 1, P = 3, N = 4
        cycle       0   1   2   3   4   5   6   7   8   9   10  11  12  13
        worker 0    1F0 1F1 1F2 .   .   1B0 1W0 1F3 1B1 1W1 1B2 1W2 1B3 1W3
        worker 1    .   2F0 2F1 .   2B0 2F2 2B1 2W0 2F3 2B2 2W1 2B3 2W2 2W3
        worker 2    .   .   3F0 3B0 3F1 3B1 3F2 3B2 3W0 3F3 3B3 3W1 3W2 3W3

    A gradient travels on as soon as the short B is done, and W fills the time in which a stage would wait. Stage i of P
    begins with lead (P-i) forwards more than 1F1B's alternation, and its W is lead (i-1) backwards late, so that all
    stages keep the activations of up to lead (P-1) + 1 microbatches.

    `lead` 1 is the paper's ZB-H1, 2 its ZB-H2. For passes that take F, B and W, of which W is not the longest, their
    bubbles are (P-1) (F+B-W) and (P-1) (F+B-2W), with at least lead (P-1) + 1 microbatches; 1F1B's is (P-1) (F+B+W). In
    ZB-H2 a stage begins the next minibatch when it has made its own update, while stages behind it still work on the
    one before; no pass reads stale weights.
    """
    from pipelag.schedules.table import ordered, repeated

    n, rows = microbatches, []
    for stage in range(1, stages + 1):
        warmup, late = min(lead * (stages - stage), n), min(lead * (stage - 1), n)
        passes: list[Group] = [
            ("F", stage, range(n), range(-3 * warmup, 3 * (n - warmup), 3)),
            ("B", stage, range(n), range(1, 3 * n + 1, 3)),
            ("W", stage, range(n), range(3 * late + 2, 3 * (n + late) + 2, 3)),
        ]
        once, _ = ordered([*passes, ("U", stage, range(1), range(3 * (n + late), 3 * (n + late) + 1))])
        rows.append(repeated(once, minibatches, n))
    return Schedule(f"zb_h{lead}", stages, minibatches, tuple(rows), microbatches=microbatches)


def zb_h1(stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
    """ZB-H1: a third of 1F1B's bubble where F, B and W take equally long, with 1F1B's memory. See `zero_bubble`."""
    return zero_bubble(1, stages, minibatches, microbatches)


def zb_h2(stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
    """ZB-H2: no bubble where F, B and W take equally long, with nearly twice 1F1B's memory. See `zero_bubble`."""
    return zero_bubble(2, stages, minibatches, microbatches)


def zb_v(stages: int, minibatches: int, microbatches: int = 1) -> Schedule:
    """ZB-V: no bubble where F, B and W take equally long, with 1F1B's memory, over two stages per worker in a V.

        P = 2, N = 3
        cycle       0   1   2   3   4   5   6   7   8   9   10  11  12  13  14  15  16  17  18
        worker 0    1F0 1F1 1F2 4F0 4B0 4W0 4F1 4B1 4W1 1B0 1W0 4F2 4B2 4W2 1B1 1W1 1B2 1W2
        worker 1    .   2F0 3F0 2F1 3F1 3B0 3W0 2F2 2B0 2W0 3F2 3B1 3W1 2B1 3B2 2B2 2W1 3W2 2W2

    Of 2P stages, worker w = 0 .. P-1 holds stage w+1, on the way down, and stage 2P-w, on the way up (Qi et al. 2024,
    arXiv 2401.10241, section 6; in arXiv 2405.15362 it is V-ZB). So the last stage is on worker 0, and the first
    gradient is made there. A worker keeps the activations of at most 2P passes, each of half the size of 1F1B's.

    If F, B and W take equally long, a minibatch takes 6N cycles with N >= 2P-1 microbatches: no worker waits between
    its first action and its last. It takes 2 (2P-1-N) more with P < N < 2P-1, and with N <= P the greater of 4P+2N-1
    and 3P+4N-1 in all. The order is the same for other times; they leave bubbles, and another order may suit them
    better. One stage takes F, B and W in turn.

    Raises:
        PipelagError: an odd number of stages above 1.
    """
    from pipelag.schedules.table import ordered, repeated

    if stages == 1:
        return replace(zb_h1(1, minibatches, microbatches), name="zb_v")
    if stages % 2:
        raise PipelagError(f"zb_v gives each worker two stages, so their number must be even, not {stages}")
    workers, n, rows = stages // 2, microbatches, []
    for rank in range(workers):
        passes = (_few if n <= workers else _many)(workers, rank, n)
        end = 1 + max(places[-1] for *_, places in passes if places)
        updates: list[Group] = [
            ("U", stage, range(1), range(end + at, end + at + 1)) for at, stage in enumerate((rank + 1, stages - rank))
        ]
        rows.append(repeated(ordered([*passes, *updates])[0], minibatches, n))
    return Schedule("zb_v", stages, minibatches, tuple(rows), microbatches=n)


def _few(workers: int, rank: int, n: int) -> list[Group]:
    """ZB-V's row with at most as many microbatches as workers, whose activations all fit: gradients of weights wait.

    All places are those of cycles if F, B and W take equally long, but for those of W, which runs as early as it can.
    """
    down, up, whole = rank + 1, 2 * workers - rank, 2 * workers

    def every_second(first: int) -> range:
        return range(first, first + 2 * n, 2)

    return [
        ("F", down, range(n), every_second(3 * rank + 2 - whole)),
        ("F", up, range(n), every_second(whole - 1 - rank)),
        ("B", up, range(n), every_second(whole + rank)),
        ("B", down, range(n), every_second(2 * whole - 1 - rank)),
        ("W", up, range(n), every_second(whole + rank + 2 * n)),
        ("W", down, range(n), every_second(max(whole + rank + 4 * n, 2 * whole - rank))),
    ]


def _many(workers: int, rank: int, n: int) -> list[Group]:
    """ZB-V's row with more microbatches than workers, in rounds of F, B and W on the way down, then on the way up.

    The first microbatch of each kind has its round; the others follow, one per round. Forwards on the way down come
    `rank` - P rounds early while the pipeline fills, and W late while it drains. With fewer than 2P-1 microbatches, the
    others' turns are left out.
    """
    down, up, full = rank + 1, 2 * workers - rank, max(n, 2 * workers - 1)
    warm = 2 * workers - 1 - rank  # forwards on the way down before the first backward there

    def turns(kind: Kind, stage: int, numbers: range, late: int, slot: int) -> Group:
        """Microbatch m's turn is in round m + late, where a round has six slots."""
        numbers = numbers[: max(0, n - numbers.start)]
        places = range(6 * (numbers.start + late) + slot, 6 * (numbers.start + len(numbers) + late) + slot, 6)
        return (kind, stage, numbers, places)

    return [
        turns("F", down, range(warm), rank - workers - warm, 4),
        turns("F", down, range(warm, n), -warm, 0),
        turns("B", down, range(n), 0, 1),
        turns("W", down, range(full - workers), 0, 2),
        turns("W", down, range(full - workers, n), rank, 2),
        turns("F", up, range(n), -workers, 3),
        turns("B", up, range(n), rank - workers, 4),
        turns("W", up, range(full - rank), rank - workers, 5),
        turns("W", up, range(full - rank, n), rank, 0),
    ]
