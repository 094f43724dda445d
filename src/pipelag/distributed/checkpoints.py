"""Checkpoints of a real pipeline, stage by stage (PipeDream section 4, "Checkpointing").

A stage writes its part when its own update of a marked minibatch is done; nobody waits for anybody. A set is complete
when every stage's part is there, and a broken run goes on from the newest complete one. What a stage's forwards read
while the pipeline fills again are old versions: they are in its part, so that the run ends bit for bit as if it had not
been broken. Where the pipeline to go on with is another one (other cuts, another method, more minibatches in flight),
they mean nothing; it then fills from the checkpoint's weights, as PipeDream does.

Files: `step-<n>/stage-<i>-of-<count>.pt`, weights, statistics and losses, kept for the evaluations, and
`resume-<i>-of-<count>.pt`, what only a restart needs, dropped once a later set is complete.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.runs import checkpoint

Tensors = dict[str, torch.Tensor]
PART = re.compile(r"stage-(\d+)-of-(\d+)\.pt")


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run. `marks`: after how many minibatches of the run one is written."""

    folder: Path
    marks: frozenset[int]

    def steps(self) -> list[int]:
        """The complete sets, oldest first, by the minibatches done."""
        found = {int(path.name.removeprefix("step-")): path for path in self.folder.glob("step-*")}
        return [step for step in sorted(found) if _complete(found[step])]

    def rewind(self) -> int:
        """Drop what lies behind the newest complete set; returns its minibatches, 0 where there is none."""
        newest = max(self.steps(), default=0)
        for path in self.folder.glob("step-*"):
            if int(path.name.removeprefix("step-")) > newest:
                shutil.rmtree(path)
        return newest

    def at(self, step: int) -> Path:
        """The folder of a set."""
        return self.folder / f"step-{step:09d}"

    def parts(self, step: int) -> list[dict[str, Any]]:
        """All stages' weights, statistics and losses after `step` minibatches, first stage first."""
        paths = sorted(self.at(step).glob("stage-*.pt"), key=lambda path: int(path.name.split("-")[1]))
        return [_read(path) for path in paths]

    def model(self, step: int) -> Tensors:
        """The whole model's state after `step` minibatches."""
        return {name: value for part in self.parts(step) for name, value in part["model"].items()}

    def losses(self, until: int) -> list[float]:
        """The losses of the run's first `until` minibatches, as the complete sets have them."""
        parts = [part for step in self.steps() if step <= until for part in self.parts(step)]
        return [value for part in parts for value in part["losses"]]

    def restart(self, step: int) -> list[dict[str, Any]]:
        """What a restart needs beside the model, one entry per stage."""
        paths = sorted(self.at(step).glob("resume-*.pt"), key=lambda path: int(path.name.split("-")[1]))
        return [_read(path) for path in paths]


@dataclass
class Keeper:
    """One stage's part in the checkpoints of one phase.

    Args:
        about: what the phase is, to tell whether a restart goes on with the same.
        held: from the names in the stage's module to those in the model; parameters: the latter, in the order of the
            optimizer's.
        base: what the phase's clock and traffic stood at when the worker began; seconds: those of the run.
        last: the minibatches done at the mark before.
    """

    checkpoints: Checkpoints
    about: str
    stage: int
    stages: int
    held: Mapping[str, str]
    parameters: Sequence[str]
    base: dict[str, float]
    seconds: float
    last: int
    buffers: dict[int, Tensors] = field(default_factory=dict)

    def wants(self, step: int) -> bool:
        """Whether a checkpoint is written after `step` minibatches of the run."""
        return step in self.checkpoints.marks

    def note_buffers(self, step: int, module: nn.Module) -> None:
        """The statistics after the forward of minibatch `step`-1; later ones run before its update is done."""
        self.buffers[step] = {
            self.held[name]: value.detach().cpu().clone() for name, value in module.named_buffers() if name in self.held
        }

    def save(
        self,
        step: int,
        module: nn.Module,
        optimizer: Mapping[int, Mapping[str, Any]],
        losses: Callable[[int, int], list[torch.Tensor]],
        clock: Mapping[str, float],
        policy: dict[str, Any] | None,
    ) -> None:
        """Write the part after `step` minibatches. `losses(a, b)`: those of minibatches a to b-1 (last stage only)."""
        weights = {self.held[name]: value.detach().cpu().clone() for name, value in module.named_parameters()}
        resume = {
            "about": self.about,
            "optimizer": {self.parameters[i]: on_cpu(values) for i, values in optimizer.items()},
            "clock": dict(clock),
            "seconds": self.seconds + clock["seconds"] - self.base.get("seconds", 0.0),
            "policy": on_cpu(policy),
        }
        part = {
            "model": weights | self.buffers.pop(step, {}),
            "losses": [float(loss) for loss in losses(self.last, step)],
        }
        self.last, folder = step, self.checkpoints.at(step)
        own = f"{self.stage}-of-{self.stages}.pt"
        checkpoint.save(resume, folder / f"resume-{own}")
        checkpoint.save(part, folder / f"stage-{own}")
        for old in self.checkpoints.steps()[:-1]:
            (self.checkpoints.at(old) / f"resume-{own}").unlink(missing_ok=True)


def on_cpu(value: Any) -> Any:
    """Tensors within dicts, lists and tuples copied to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [on_cpu(item) for item in value]
    return value


def _complete(folder: Path) -> bool:
    """All parts of a division into stages are there; what a restart needs was written before each of them."""
    numbers = [tuple(map(int, found.groups())) for path in folder.iterdir() if (found := PART.fullmatch(path.name))]
    return any(sum(count == of for _, of in numbers) == count for _, count in numbers)


def _read(path: Path) -> dict[str, Any]:
    found = checkpoint.load(path)
    if found is None:
        raise PipelagError(f"the checkpoint {path} is gone; delete its folder's parent to start the run anew")
    return found
