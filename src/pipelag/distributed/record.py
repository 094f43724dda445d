"""What a real worker measures in a phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import torch
import torch.distributed as dist

from pipelag.schedules import Action
from pipelag.schedules.actions import Kind

KINDS = get_args(Kind)


@dataclass
class Record:
    """What a worker measured in a phase.

    losses: on the last stage, by the number of the minibatch since the worker began; replicas have a part each.
    updated: the second at which each update of the worker's first stage was done.
    seconds: the whole phase. waited: waiting for messages. sending: sending messages and summing gradients over
        replicas. The rest is `busy`.
    sent_bytes: bytes that the worker sent, those of sums included.
    spans: (action, start, end) of every action by the machine's monotonic clock, without the wait for its inputs. An
        update or synchronisation has the number of the worker's own minibatch.
    memory: bytes by kind at the peak: `weights`, `weight_copies`, `optimizer` state, kept `activations` and, if
        gradients of weights are computed apart (W), the `gradients` of outputs kept for that. These two are of each
        stage's own peak, added up over the worker's stages. `joint` is the most that all its stages keep at the same
        time of both, with their inputs and outputs (older logs are without it). On a GPU also the `peak` of its
        allocator, which includes all of these and the passes' temporary tensors.
    ages: on a parameter server, how many updates older than the newest weights each gradient's weights were.
    carriers: what the messages from other stages went through: shared memory, or a backend of torch.
    opaque: a library sends and waits within its own steps (DDP, torch's schedules), so that only `seconds` is known.

    On a GPU the spans tell when work was handed to the GPU, and `updated` is read from its events at the end of the
    phase, so that timing makes no worker wait.
    """

    losses: dict[int, torch.Tensor] = field(default_factory=dict)
    updated: list[float] = field(default_factory=list)
    waited: float = 0.0
    sending: float = 0.0
    seconds: float = 0.0
    sent_bytes: int = 0
    spans: list[tuple[Action, float, float]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    ages: list[int] = field(default_factory=list)
    carriers: list[str] = field(default_factory=list)
    opaque: bool = False

    @property
    def busy(self) -> float:
        """The seconds of the phase in which the worker computed."""
        return self.seconds - self.waited - self.sending

    def packed(self) -> dict[str, Any]:
        """The record as plain values and few tensors, which other ranks accept (`pipelag.distributed.gather`)."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        actions = [(KINDS.index(action.kind), action.stage, action.number) for action, _, _ in self.spans]
        times = [(start, end) for _, start, end in self.spans]
        spans = torch.tensor(actions, dtype=torch.int64), torch.tensor(times, dtype=torch.float64)
        return plain | {"losses": packed(self.losses), "spans": spans}

    @classmethod
    def unpacked(cls, plain: Mapping[str, Any]) -> Record:
        """The record that `packed` has packed."""
        actions, times = (part.tolist() for part in plain["spans"])
        spans = [
            (Action(KINDS[kind], stage, number), start, end)
            for (kind, stage, number), (start, end) in zip(actions, times, strict=True)
        ]
        return cls(**(dict(plain) | {"losses": unpacked(plain["losses"]), "spans": spans}))

    def shares(self) -> dict[str, float]:
        """The shares of the phase's time (the breakdown of SpecTrain section 4.2); empty if they are unknown."""
        if self.opaque:
            return {}
        whole = self.seconds or 1.0
        return {"busy": self.busy / whole, "communication": self.sending / whole, "idle": self.waited / whole}


def carried_by(carriers: Iterable[str]) -> str:
    """What the messages between stages went through, in words."""
    return ", ".join(sorted({*carriers})) or str(dist.get_backend())


def packed(losses: Mapping[int, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Losses by minibatch as two tensors, the minibatches' numbers and the losses; None: there are no losses."""
    if not losses:
        return None
    return torch.tensor(list(losses), dtype=torch.int64), torch.stack(
        [value.detach() for value in losses.values()]
    ).cpu()


def unpacked(losses: tuple[torch.Tensor, torch.Tensor] | None) -> dict[int, torch.Tensor]:
    """The losses that `packed` has packed."""
    return {} if losses is None else dict(zip(losses[0].tolist(), losses[1].unbind(), strict=True))
