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

from pipelag.policy import StageWeights
from pipelag.weights import Versions

Entry = dict[str, list[torch.Tensor]]


class History:
    """Notes the versions that restarts from `marks` need of one stage.

    Args:
        weights: the stage's. marks: versions, counted from the phase's start, after which a checkpoint is written.
        back: how many updates older than a mark the oldest version is that is read after it.
        entries: versions noted before this worker began, from the checkpoint that it goes on from.
    """

    def __init__(
        self, weights: StageWeights | Versions, marks: Sequence[int], back: int, entries: dict[int, Entry] | None = None
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


def entry_of(weights: StageWeights | Versions) -> Entry:
    """The live version, and what a forward reads of it where that is something else."""
    entry = {"live": copies(weights.live)}
    if isinstance(weights, StageWeights) and weights.forward is not None:
        entry["seen"] = copies(weights.seen[weights.version % len(weights.seen)])
    if isinstance(weights, StageWeights) and weights.again:
        entry["again"] = copies(weights.again[weights.version % len(weights.again)])
    return entry


def state_of(weights: StageWeights, history: History) -> dict[str, Any]:
    """What a restart from the live version needs of the policy."""
    return {
        "version": weights.version,
        "steps": weights.steps,
        "state": {name: copies(buffers) for name, buffers in weights.state.items()},
        "entries": history.entries,
    }


def restore(weights: StageWeights, state: dict[str, Any]) -> None:
    """Continue a policy whose rings reach back as far as the entries.

    Weights, the optimizer's state and the rate of its last update must be there.
    """
    version, rings = state["version"], {"live": weights.plain, "seen": weights.seen, "again": weights.again}
    for old, entry in state["entries"].items():
        for kind, buffers in entry.items():
            if len(rings[kind]) > 1 and version - len(rings[kind]) < old:
                torch._foreach_copy_(rings[kind][old % len(rings[kind])], buffers)
    for name, mine in weights.state.items():
        torch._foreach_copy_(mine, state["state"][name])
    weights.steps = state["steps"]
    weights.begin_at(version)
    weights.first = 0
    weights.saved = version if len(weights.plain) > 1 else -1


def copies(buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Apart from what they were copied from, on the CPU."""
    return [buffer.detach().cpu().clone() for buffer in buffers]
