"""The old versions that a restarted pipeline reads while it fills again.

The forwards of minibatch t, t+1, ... read versions from before update t, which a running pipeline has dropped (or never
kept, where its forwards read live weights). A stage that is about to write a checkpoint therefore notes what its last
versions were, each as it becomes live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from pipelag.stage.policy import StageWeights

Buffers = list[torch.Tensor]
Entry = dict[tuple[str, float], Buffers]  # by what a pass reads of a version, and by its amount


class History:
    """Notes the versions that restarts from `marks` need of one stage.

    Args:
        weights: the stage's. marks: versions, counted from the phase's start, after which a checkpoint is written.
        back: how many updates older than a mark the oldest version is that is read after it.
        entries: versions noted before this worker began, from the checkpoint that it goes on from.
    """

    def __init__(
        self, weights: StageWeights, marks: Sequence[int], back: int, entries: dict[int, Entry] | None = None
    ) -> None:
        self.weights, self.marks, self.back = weights, deque(sorted(marks)), back
        self.entries = dict(entries or {})
        self.note()

    def note(self) -> None:
        """A version has become the live one."""
        version = self.weights.version
        while self.marks and self.marks[0] < version:
            self.marks.popleft()
        if not self.marks or version < self.marks[0] - self.back:
            self.entries.clear()
            return
        self.entries = {old: entry for old, entry in self.entries.items() if old >= self.marks[0] - self.back}
        self.entries[version] = entry_of(self.weights)


def rings_of(weights: StageWeights) -> dict[tuple[str, float], list[Buffers]]:
    """The rings of a stage's older versions and of what passes read of them."""
    rings = {("seen", amount): ring for amount, ring in weights.seen.items()}
    return {
        ("live", 0.0): weights.plain,
        **rings,
        **{("again", amount): ring for amount, ring in weights.recomputed.items()},
    }


def entry_of(weights: StageWeights) -> Entry:
    """The live version, and what passes read of it where that is something else."""
    entry = {("live", 0.0): copies(weights.live)}
    for key, ring in rings_of(weights).items():
        if key[0] != "live":
            entry[key] = copies(ring[weights.version % len(ring)])
    return entry


def state_of(weights: StageWeights, history: History) -> dict[str, Any]:
    """What a restart from the live version needs of the policy."""
    return {
        "version": weights.version,
        "steps": weights.steps,
        "memories": {name: copies(memory.buffers) for name, memory in weights.memories.items()},
        "entries": history.entries,
    }


def restore(weights: StageWeights, state: dict[str, Any]) -> None:
    """Continue a policy whose rings reach back as far as the entries.

    Weights, the optimizer's state and the rate of the coming update must be there.
    """
    version, rings = state["version"], rings_of(weights)
    for old, entry in state["entries"].items():
        for key, buffers in entry.items():
            if len(rings[key]) > 1 and version - len(rings[key]) < old:
                torch._foreach_copy_(rings[key][old % len(rings[key])], buffers)
    for name, memory in weights.memories.items():
        torch._foreach_copy_(memory.buffers, state["memories"][name])
    weights.steps = state["steps"]
    weights.begin_at(version)
    weights.first = 0
    weights.saved = version if len(weights.plain) > 1 else -1


def copies(buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Apart from what they were copied from, on the CPU."""
    return [buffer.detach().cpu().clone() for buffer in buffers]
