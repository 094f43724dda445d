"""The pieces of several stages in as few groups of an optimizer as their settings allow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from pipelag.stage import by_foreach, by_piece
from pipelag.tensors import copy_each

if TYPE_CHECKING:
    from pipelag.stage.flat_step import FlatState

PLAIN = {bool, int, float, str, type(None)}
State = dict[str, Any]


class Joined:
    """An optimizer over stages' pieces. Stages whose settings are equal, with their rates, are one group.

    Args:
        over_pieces: a copy of the optimizer, which is given the groups and the state of the pieces.
        optimizer: the optimizer over the stages' parameters.
        stages: the stages that step.
    """

    def __init__(self, over_pieces: Optimizer, optimizer: Optimizer, stages: Sequence[FlatState]) -> None:
        self.over_pieces, self.stages = over_pieces, list(stages)
        self.numbers: list[int] = []  # of the optimizer's groups that have pieces, in the order of the pieces
        self.leaders: list[int] = []  # per joined group: the first of the optimizer's groups in it
        self.settled = True  # whether all settings are plain values, so that a change of theirs is noticed
        groups: dict[Any, State] = {}
        for stage in stages:
            for which, pieces in stage.by_buffer:
                number = stage.weights.group_numbers[which]
                group = optimizer.param_groups[number]
                settings = _settings(group)
                self.settled &= settings != ()
                key = settings or (id(stage), which)
                if key not in groups:
                    groups[key] = group | {"params": []}
                    self.leaders.append(number)
                groups[key]["params"] += pieces
                self.numbers.append(number)
        over_pieces.param_groups = list(groups.values())
        pairs = [pair for stage in stages for pair in zip(stage.pieces, stage.states, strict=True)]
        over_pieces.state = defaultdict(dict, pairs)
        self.sets = by_foreach.sets_of(over_pieces) if self.settled else []
        self.pieces = by_piece.pieces_of(over_pieces, self.stages) if self.settled else []
        self.seen, self.alike = self._settings_of(optimizer)

    def serves(self, optimizer: Optimizer, stages: Sequence[FlatState]) -> bool:
        """Whether these stages still form these groups: only rates have changed, and equal ones to equal ones."""
        if not self.settled or self.stages != stages:
            return False
        seen, alike = self._settings_of(optimizer)
        return alike == self.alike and len(seen) == len(self.seen) and all(map(is_, seen, self.seen))

    def _settings_of(self, optimizer: Optimizer) -> tuple[list[Any], list[Any]]:
        """(every setting but the rates, for each group the type of its rate and the first group that has the same)."""
        groups = [optimizer.param_groups[number] for number in self.numbers]
        first: dict[Any, int] = {}
        alike = [(type(rate), first.setdefault(rate, at)) for at, rate in enumerate([group["lr"] for group in groups])]
        return [value for group in groups for key, value in group.items() if key != "lr"], alike

    def step(self, optimizer: Optimizer, gradients: Sequence[Sequence[torch.Tensor]]) -> None:
        """One update at the optimizer's present rates, given the gradients of each stage's parameters."""
        for group, number in zip(self.over_pieces.param_groups, self.leaders, strict=True):
            group["lr"] = optimizer.param_groups[number]["lr"]
        elsewhere = [pair for pair in zip(self.stages, gradients, strict=True) if not pair[0].placed]
        if self.pieces and elsewhere:
            by_piece.step(self.pieces, gradients)
            return
        copy_each(chain.from_iterable(zip(stage.places, given, strict=True) for stage, given in elsewhere))
        if self.sets:
            by_foreach.step(self.sets)
        else:
            self.over_pieces.step()


def _settings(group: State) -> tuple[Any, ...]:
    """A group's settings as a value to compare with other groups'; () if some setting is not a plain value."""
    items = [(key, type(value), value) for key, value in group.items() if key not in ("params", "stage")]
    return tuple(items) if all(kind in PLAIN or _value(value) for _, kind, value in items) else ()


def _value(setting: Any) -> bool:
    return type(setting) in PLAIN or (isinstance(setting, tuple) and all(map(_value, setting)))
