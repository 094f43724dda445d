"""The old versions that a pipeline reads while it fills again after a restart.

Suppose that a run restarts after update t. The forwards of the next minibatches read versions older than that, which
the running pipeline had dropped, or never kept if its forwards read live weights. Before a checkpoint, a stage
therefore records its last versions, each when it becomes live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from pipelag.stage.policy import StageWeights

Buffers = list[torch.Tensor]
Entry = dict[tuple[str, float], Buffers]  # what passes read at one version, by (kind of content, amount)


class History:
    """Records the versions of one stage that a restart from one of `marks` needs.

    Args:
        weights: the stage's weights.
        marks: the versions, counted from the phase's start, at which a checkpoint is written.
        back: how many updates older than a mark the oldest version is that is read after a restart from it.
        entries: versions recorded before this worker started, from the checkpoint that it resumes from.
    """

    def __init__(
        self, weights: StageWeights, marks: Sequence[int], back: int, entries: dict[int, Entry] | None = None
    ) -> None:
        self.weights, self.marks, self.back = weights, deque(sorted(marks)), back
        self.entries = dict(entries or {})
        self.note()

    def note(self) -> None:
        """Call when a version has become live: record it if a restart from the next mark needs it."""
        version = self.weights.version
        while self.marks and self.marks[0] < version:
            self.marks.popleft()
        if not self.marks or version < self.marks[0] - self.back:
            self.entries.clear()
            return
        self.entries = {old: entry for old, entry in self.entries.items() if old >= self.marks[0] - self.back}
        self.entries[version] = entry_of(self.weights)


def rings_of(weights: StageWeights) -> dict[tuple[str, float], list[Buffers]]:
    """A stage's rings of older versions and of what passes read in their place, by (kind of content, amount)."""
    rings = {("seen", amount): ring for amount, ring in weights.seen.items()}
    return {
        ("live", 0.0): weights.plain,
        **rings,
        **{("again", amount): ring for amount, ring in weights.recomputed.items()},
    }


def entry_of(weights: StageWeights) -> Entry:
    """The live version, and what passes read in its place if that differs."""
    entry = {("live", 0.0): copies(weights.live)}
    for key, ring in rings_of(weights).items():
        if key[0] != "live":
            entry[key] = copies(ring[weights.version % len(ring)])
    return entry


def state_of(weights: StageWeights, history: History) -> dict[str, Any]:
    """The part of the policy's state that a restart from the live version needs."""
    return {
        "version": weights.version,
        "steps": weights.steps,
        "memories": {name: copies(memory.buffers) for name, memory in weights.memories.items()},
        "entries": history.entries,
    }


def restore(weights: StageWeights, state: dict[str, Any]) -> None:
    """Continue a policy from what `state_of` returned, filling its rings from the recorded entries.

    The weights, the optimizer's state and the rate of the coming update must be in place before.
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
    """Copies of tensors on the CPU, which share no memory with them."""
    return [buffer.detach().cpu().clone() for buffer in buffers]
