"""A schedule's actions as arrays of nine bytes per action, so that millions of actions can be handled.

Other modules import this one inside functions, since importing numpy takes longer than most commands do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import eq
from typing import Any, cast, overload

import numpy as np

from pipelag.errors import PipelagError
from pipelag.schedules.actions import Action, Kind

KINDS: tuple[Kind, ...] = ("F", "B", "R", "W", "U", "S")  # the code of a kind is its index here; passes come first
F, B, R, W, U, S = range(6)
Group = tuple[Kind, int, range, range]  # actions of one kind and stage: their numbers and their places in the row


class Row(Sequence[Action]):
    """A worker's actions; behaves as a tuple of them, but makes each `Action` only when it is asked for.

    Args:
        kinds, stages, numbers: [actions], the code, stage and number of each action.
    """

    __slots__ = ("kinds", "numbers", "stages")

    def __init__(self, kinds: np.ndarray, stages: np.ndarray, numbers: np.ndarray) -> None:
        self.kinds, self.stages, self.numbers = kinds, stages, numbers

    @classmethod
    def of(cls, actions: Sequence[Action]) -> Row:
        """The same actions as a row."""
        if isinstance(actions, Row):
            return actions
        unknown = next((action for action in actions if action.kind not in KINDS), None)
        if unknown is not None:
            raise PipelagError(f"the action {unknown} has an unknown kind; the kinds are F, B, R, W, S and U")
        kinds = np.fromiter((KINDS.index(action.kind) for action in actions), np.uint8, len(actions))
        stages = np.fromiter((action.stage for action in actions), np.int32, len(actions))
        return cls(kinds, stages, np.fromiter((action.number for action in actions), np.int32, len(actions)))

    def renumbered(self, numbers: np.ndarray) -> Row:
        """The same actions with other numbers, [actions]."""
        return Row(self.kinds, self.stages, numbers.astype(np.int32))

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[Action]:
        kinds = map(KINDS.__getitem__, self.kinds.tolist())
        return map(Action._make, zip(kinds, self.stages.tolist(), self.numbers.tolist(), strict=True))

    @overload
    def __getitem__(self, at: int) -> Action: ...
    @overload
    def __getitem__(self, at: slice) -> Row: ...
    def __getitem__(self, at: int | slice) -> Action | Row:
        kinds, stages, numbers = self.kinds[at], self.stages[at], self.numbers[at]
        if isinstance(at, slice):
            return Row(kinds, stages, numbers)
        return Action(KINDS[int(kinds)], int(stages), int(numbers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Row, tuple)) and len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Cycles(Sequence[int]):
    """The clock cycles of a worker's actions; behaves as a tuple of integers, but takes four bytes for each."""

    __slots__ = ("values",)

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[int]:
        return iter(self.values.tolist())

    def __getitem__(self, at: Any) -> Any:
        return int(self.values[at]) if isinstance(at, int) else Cycles(self.values[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Cycles, tuple)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def ordered(groups: Sequence[Group]) -> tuple[Row, np.ndarray]:
    """The actions of several groups, in the order of their places, and these places. No two may share a place."""
    places = np.concatenate([np.arange(p.start, p.stop, p.step, dtype=np.int64) for *_, p in groups])
    order = places.argsort(kind="stable")
    sizes = [len(numbers) for _, _, numbers, _ in groups]
    kinds = np.repeat(np.array([KINDS.index(kind) for kind, *_ in groups], np.uint8), sizes)
    stages = np.repeat(np.array([stage for _, stage, *_ in groups], np.int32), sizes)
    numbers = np.concatenate([np.arange(n.start, n.stop, n.step, dtype=np.int32) for _, _, n, _ in groups])
    return Row(kinds[order], stages[order], numbers[order]), places[order]


def repeated(row: Row, times: int, passes: int) -> Row:
    """The row of one minibatch repeated for `times` minibatches.

    Args:
        passes: what is added to the number of a pass (F, B, R, W) from one minibatch to the next; S and U get 1 more.
    """
    step = np.where(row.kinds >= U, 1, passes).astype(np.int32)
    numbers = (row.numbers + np.arange(times, dtype=np.int32)[:, None] * step).reshape(-1)
    return Row(np.tile(row.kinds, times), np.tile(row.stages, times), numbers)


class Table:
    """All actions of a schedule, worker by worker.

    kinds, stages, numbers: [actions]. bounds: [workers + 1], the index at which each worker's actions begin, and the
    number of all actions.
    """

    def __init__(self, workers: Sequence[Sequence[Action]], stages: int) -> None:
        rows = [Row.of(row) for row in workers]
        self.count, self.stage_count = len(rows), stages
        self.bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        self.kinds = _joined([row.kinds for row in rows], np.uint8)
        self.stages = _joined([row.stages for row in rows], np.int32)
        self.numbers = _joined([row.numbers for row in rows], np.int32)
        outside = np.flatnonzero((self.stages < 1) | (self.stages > stages) | (self.numbers < 0))
        if len(outside):
            raise PipelagError(
                f"the action {self.action(outside[0])} has a stage outside the schedule's 1 to {stages}, or a "
                "number below 0"
            )

    def __len__(self) -> int:
        return len(self.kinds)

    @cached_property
    def workers(self) -> np.ndarray:
        """[actions]: the worker that performs each action."""
        return np.repeat(np.arange(self.count, dtype=np.int32), np.diff(self.bounds))

    def action(self, at: int) -> Action:
        """The action at an index of the table."""
        return Action(KINDS[int(self.kinds[at])], int(self.stages[at]), int(self.numbers[at]))

    @cached_property
    def tally(self) -> np.ndarray:
        """[workers, kinds, stages + 1]: how often each worker performs a kind of action for a stage."""
        of_worker = len(KINDS) * (self.stage_count + 1)
        rows = zip(self.bounds, self.bounds[1:], strict=False)
        codes = self.kinds.astype(np.int32) * (self.stage_count + 1) + self.stages
        counts = [np.bincount(codes[a:b], minlength=of_worker) for a, b in rows]
        return np.array(counts, np.int32).reshape(self.count, len(KINDS), self.stage_count + 1)

    def owners(self) -> dict[tuple[Kind, int], int]:
        """See `Schedule.owners`."""
        return {(KINDS[kind], int(stage)): int(worker) for worker, kind, stage in np.argwhere(self.tally)}

    def updaters(self) -> tuple[tuple[int, ...], ...]:
        """See `Schedule.replicas`."""
        return tuple(tuple(np.flatnonzero(updates).tolist()) for updates in self.tally[:, U, 1:].T)

    def updates(self) -> list[tuple[int, int]]:
        """Per stage, how many distinct updates it has and the highest number of one (-1: it has none)."""
        length = int(self.numbers[self.kinds == U].max(initial=-1)) + 1
        made = self.places(U, length) >= 0
        highest = length - 1 - made[:, ::-1].argmax(axis=1) if length else np.zeros(len(made))
        counts = made.sum(axis=1)
        return list(zip(counts.tolist(), np.where(counts, highest, -1).tolist(), strict=True))

    def places(self, kind: int, length: int, values: np.ndarray | None = None) -> np.ndarray:
        """[stages, length]: the index in the table of the action of a kind, by stage and number.

        -1 where there is no such action; the last index where there are several.

        Args:
            values: [actions]; the action's entry of this array instead of its index.
        """
        places = np.full((self.stage_count, length), -1, np.int32)
        here = np.flatnonzero(self.kinds == kind)
        here = here[self.numbers[here] < length]
        places[self.stages[here] - 1, self.numbers[here]] = here if values is None else values[here]
        return places


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else cast(np.ndarray, np.zeros(0, kind))
