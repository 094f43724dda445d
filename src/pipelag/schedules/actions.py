"""A pipeline schedule as data: for every worker an ordered list of actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

from pipelag.errors import PipelagError

if TYPE_CHECKING:
    from pipelag.schedules.table import Table

Kind = Literal["F", "B", "R", "W", "U", "S"]
SUCH_AS = "a pipelag.Schedule, such as pipelag.schedule('1f1b', stages=4, minibatches=8)"


class Action(NamedTuple):
    """One cell of a schedule, written `<stage><kind><number>`: `2B5` is stage 2's backward pass of microbatch 5.

    Once per microbatch: F (forward), B (backward), R (recomputation), W (gradients of the weights). The B of a stage
    that has W actions computes only the gradients of the stage's inputs; that of any other stage computes both. Once
    per `Schedule.periods` microbatches, which are those of a minibatch unless stages are replicated: U (weight update),
    S (synchronisation: the sum of gradients over a stage's replicas). Stages count from 1; microbatches, minibatches
    and updates from 0.
    """

    kind: Kind
    stage: int
    number: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.number}"


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule: for every worker, its actions in order.

    name: the name that error messages use.
    stages: the number of stages; actions count them from 1.
    minibatches: the number of minibatches, counted from 0.
    workers: `workers[w]` holds the actions of worker w: a tuple, or the more compact `table.Row`.
    cycles: if given, `cycles[w]` holds the clock cycle of each of these actions. Schedules that a paper draws against a
        common clock have cycles. Only such a schedule may run the forward and the backward of a stage on two workers,
        because the clock then decides which updates a forward has seen.
    microbatches: the microbatches per minibatch; minibatch t has those from t * microbatches on.
    segment: the number of stages that are recomputed together, from the kept input of the first; 0: none.
    """

    name: str
    stages: int
    minibatches: int
    workers: tuple[Sequence[Action], ...]
    cycles: tuple[Sequence[int], ...] | None = None
    microbatches: int = 1
    segment: int = 0

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        """(worker, action), worker by worker."""
        return ((worker, action) for worker, actions in enumerate(self.workers) for action in actions)

    @cached_property
    def table(self) -> Table:
        """All actions as arrays."""
        from pipelag.schedules.table import Table

        return Table(self.workers, self.stages)

    @cached_property
    def owners(self) -> dict[tuple[Kind, int], int]:
        """(kind of action, stage) -> the worker that performs it; if there are several, the last."""
        return self.table.owners()

    @cached_property
    def places(self) -> dict[Action, int]:
        """Action -> the worker that performs it; of S and U, which all replicas of a stage perform, the first."""
        places: dict[Action, int] = {}
        for worker, action in self:
            places.setdefault(action, worker)
        return places

    @cached_property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """Per stage, the workers that hold its weights: several if the stage is replicated."""
        return self.table.updaters()

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """Per stage, how many consecutive microbatches make an update: those of a minibatch, or of a replicas' round.

        Raises `PipelagError` if updates take unequal numbers of microbatches, or leave some out.
        """
        total, periods = self.minibatches * self.microbatches, []
        for stage, (distinct, highest) in enumerate(self.table.updates(), start=1):
            if not distinct or total % distinct or highest != distinct - 1:
                updates = sorted({action.number for _, action in self if (action.kind, action.stage) == ("U", stage)})
                raise PipelagError(
                    f"schedule '{self.name}' has the updates {updates} of stage {stage}, which do not divide "
                    f"the schedule's {total} microbatches equally"
                )
            periods.append(total // distinct)
        return tuple(periods)

    def heads(self, stage: int) -> bool:
        """Whether a stage is the first of its segment, which keeps its input and recomputes from it."""
        return self.segment < 2 or (stage - 1) % self.segment == 0

    @cached_property
    def split(self) -> tuple[bool, ...]:
        """Per stage, whether it computes the gradients of its weights apart from those of its inputs, in W actions."""
        return tuple(("W", stage) in self.owners for stage in range(1, self.stages + 1))

    def splits(self, stage: int) -> bool:
        """`split` of one stage."""
        return self.split[stage - 1]

    @property
    def length(self) -> int:
        """Clock cycles from the first action to the last. Raises `PipelagError` if the schedule has no clock."""
        if self.cycles is None:
            raise PipelagError(f"the schedule '{self.name}' has no common clock; time it over a profile instead")
        return 1 + max(cycle for row in self.cycles for cycle in row)

    def grid(self) -> str:
        """The schedule as text: a row per worker and a column per cycle (per action if there is no clock)."""
        rows = []
        for worker, actions in enumerate(self.workers):
            clock = self.cycles[worker] if self.cycles else accumulate(action.kind != "U" for action in actions)
            cells: dict[int, list[str]] = {}
            for cycle, action in zip(clock, actions, strict=True):
                if action.kind != "U":  # an update takes no cycle of its own
                    cells.setdefault(cycle - (not self.cycles), []).append(str(action))
            rows.append(["+".join(cells.get(cycle, ["."])) for cycle in range(1 + max(cells, default=-1))])
        width = max((len(cell) for row in rows for cell in row), default=1)
        return "\n".join(" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)


def in_flight(actions: Sequence[Action], begins: Kind = "F") -> int:
    """The largest number of microbatches under way in a worker's actions: from `begins` (F or R) to B, or to W."""
    split = {action.stage for action in actions if action.kind == "W"}
    now = most = 0
    for action in actions:
        ends: Kind = "W" if action.stage in split else "B"
        now += {begins: 1, ends: -1}.get(action.kind, 0)
        most = max(most, now)
    return most


def most_held(actions: Iterable[Action], changes: Mapping[tuple[Kind, int], tuple[int, int]]) -> int:
    """The most bytes that a worker holds at once while it performs its actions.

    Args:
        changes: by kind and stage, the bytes that an action adds, and those that it frees at its end.
    """
    now = most = 0
    for kind, stage, _ in actions:
        added, freed = changes.get((kind, stage), (0, 0))
        most = max(most, now + added, now := now + added - freed)
    return most
