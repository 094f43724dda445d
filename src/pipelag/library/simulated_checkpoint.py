"""Checkpoints of `pipelag.train` in the simulated executor: the newest file and the one before it.

A training resumes from them bit for bit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipelag import checkpoint
from pipelag.distributed.checkpoints import Checkpoints, fits, told_of
from pipelag.errors import PipelagError, Stop
from pipelag.files import alone
from pipelag.library.likeness import warn_of_others
from pipelag.library.telling import Telling
from pipelag.methods import Method
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

NAME = "simulated.pt"
OURS = "pipelag.train"  # the owner noted in the file
PLAIN = (bool, int, float, str, type(None), torch.Tensor)


class TrainingCheckpoint:
    """The checkpoint of one training.

    Args:
        marks: the numbers of steps after which it is written.
        like: descriptions of the training's rates and loss (`pipelag.library.likeness`).
    """

    def __init__(
        self, folder: Path, marks: set[int], phases: Sequence[Phase], seed: int, bf16: bool, like: Mapping[str, str]
    ) -> None:
        self.path, self.marks, self.phases, self.seed, self.bf16 = folder / NAME, marks, phases, seed, bf16
        self.like, self.past, self.done = dict(like), dict[str, str](), 0
        self.total = sum(phase.steps for phase in phases)
        self.descriptions: dict[int, dict[str, str]] = {}  # phase -> name of a property -> its description

    def save(self, training: SimulatedTraining, telling: Telling) -> None:
        """Write everything that later steps depend on, and what has been reported of the steps done."""
        state = {
            "training": training.state_dict(),
            "buffers": dict(training.model.named_buffers()),  # including those that a model's state leaves out
            "losses": list(telling.losses()),
            "evaluations": list(telling.evaluations),
            "phases": [phase.steps for phase in self.phases],
            "like": self.past | self.like,
            "told": [self._description(training, number) for number in range(training.phase + 1)],
        }
        checkpoint.save(storable(state), self.path, keep=True, of=OURS)
        if training.done and telling.wishes.on_checkpoint is not None:
            telling.wishes.on_checkpoint(training.done, self.path)

    def resume(self, training: SimulatedTraining) -> dict[str, Any] | None:
        """Resume from the newest intact checkpoint; returns its content, or None if there is no checkpoint.

        Raises:
            PipelagError: the checkpoint is of another training, or of a step beyond this training's end.
        """
        for path in (self.path, checkpoint.before(self.path)):
            saved = checkpoint.load(path, of=OURS)
            if saved is not None:
                self._check(path, saved, training)
                training.load_state_dict(saved["training"])
                for name, buffer in training.model.named_buffers():
                    buffer.copy_(saved["buffers"].get(name, buffer))  # one that a model's state leaves out may be new
                self.past, self.done = saved.get("like", {}), training.done
                warn_of_others(self.path.parent, self.past, self.like, self.done)
                if training.done == self.total:
                    sentence = f"{path} holds all {self.total} steps already; there was nothing left to train"
                    print(f"pipelag: {sentence}", file=sys.stderr)
                return saved
        return None

    def seen(self, data: Mapping[str, str]) -> None:
        """Note the description `data` of the data, which needs a first minibatch; warns if the data have changed."""
        warn_of_others(self.path.parent, self.past, data, self.done)
        self.like |= data

    def _description(self, training: SimulatedTraining, number: int) -> dict[str, str]:
        """The descriptions of a phase that must be the same for a training to resume."""
        if number not in self.descriptions:
            phase, optimizer = self.phases[number], training.optimizer_of(number)
            self.descriptions[number] = told_of(phase, self.seed, self.bf16) | {
                "the method's settings": settings_of(phase.method, phase.stages),
                "optimizer": type(optimizer).__name__,
                "groups of the optimizer": groups_told(optimizer),
            }
        return self.descriptions[number]

    def _check(self, path: Path, saved: Mapping[str, Any], training: SimulatedTraining) -> None:
        done, phase = saved["training"]["done"], saved["training"]["phase"]
        buffers = training.model.named_buffers()
        alike = all(saved["buffers"].get(name, buffer).shape == buffer.shape for name, buffer in buffers)
        if not alike or not fits(saved["training"]["model"], training.model):
            raise PipelagError(f"the checkpoint {path} is of another model; continue with that model, or delete it")
        if done > self.total:
            raise PipelagError(
                f"the checkpoint {path} is of step {done}, but this training has only {self.total} steps; train more "
                "steps, or delete it"
            )
        until = [sum(each.steps for each in self.phases[: number + 1]) for number in range(len(self.phases))]
        if phase >= len(self.phases) or done > until[phase]:
            raise PipelagError(
                f"the checkpoint {path} is of step {done}, in phase {phase + 1}, but this training is in another phase "
                "at that step; give the phases of the checkpoint (the last may be longer), or delete it"
            )
        for number in range(phase + 1):
            was, now = saved["told"][number], self._description(training, number)
            if number < phase:  # the phase of the checkpoint may be longer now, but not the finished ones
                was = was | {"steps": str(saved["phases"][number])}
                now = now | {"steps": str(self.phases[number].steps)}
            for name, value in now.items():
                if was.get(name) != value:
                    before, here = apart(str(was.get(name)), value)
                    raise PipelagError(
                        f"the checkpoint {path} is of a training with {name} {before}, but this one has {name} {here}: "
                        "the simulated executor continues only the same training; name another folder"
                    )


def apart(one: str, other: str) -> tuple[str, str]:
    """The first setting in which two descriptions of settings differ; both as a whole if their forms differ.

    >>> apart("betas=(0.9, 0.999), lr=0.01, of 2; lr=0.01, of 4", "betas=(0.9, 0.999), lr=0.02, of 2; lr=0.02, of 4")
    ('lr=0.01', 'lr=0.02')
    >>> apart("('live', Correct(decay=0.1))", "('live', Correct(decay=0.3))")
    ('decay=0.1', 'decay=0.3')
    """
    first, second = ([closed(each) for each in re.split(r"[;,] (?=[a-z])|\((?=\w+=)", told)] for told in (one, other))
    pairs = zip(first, second, strict=False)
    differing = [(a, b) for a, b in pairs if a != b and "=" in a and a.split("=")[0] == b.split("=")[0]]
    return differing[0] if differing else (one, other)


def closed(told: str) -> str:
    """A setting's text up to the first closing bracket that was opened before it."""
    depth = 0
    for place, letter in enumerate(told):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return told[:place]
    return told


def settings_of(method: Method, stages: int) -> str:
    """A method's settings as text; those inside its rate function show as the function's values."""
    settings = re.sub(r" at 0x[0-9a-f]+", "", repr((method.forward_reads, method.backward_reads, method.update)))
    if method.learning_rate is None:
        return settings
    return f"{settings}, rates {[method.learning_rate(1, stages, step, 2.0) for step in (0, 1, 10, 100, 1000)]}"


def groups_told(optimizer: torch.optim.Optimizer | None) -> str:
    """The settings of an optimizer's groups as text, each with its number of tensors."""
    groups = optimizer.param_groups if optimizer is not None else []
    settings = [
        ", ".join([*(f"{key}={group[key]}" for key in sorted(group) if key != "params"), f"of {len(group['params'])}"])
        for group in groups
    ]
    return "; ".join(settings)


def storable(value: Any, where: str = "the training's state") -> Any:
    """A value with plain Python numbers and containers in place of others.

    Raises:
        PipelagError: there is something in it that could not be read back from a checkpoint.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: storable(item, f"{where}, {key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [storable(item, where) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, PLAIN):
        return value
    raise PipelagError(
        f"{where} holds a {type(value).__name__}, which a checkpoint cannot hold; leave checkpoints out, or keep "
        "tensors and numbers there"
    )


@contextmanager
def checkpoint_in(
    folder: str | Path | None,
    marks: set[int],
    phases: Sequence[Phase],
    seed: int,
    bf16: bool,
    like: Callable[[], Mapping[str, str]],
) -> Iterator[TrainingCheckpoint | None]:
    """A context with the checkpoint in a user's folder; None if no folder is given.

    Raises:
        PipelagError: the folder holds checkpoints of real workers, or another process is using it.
    """
    if folder is None:
        yield None
        return
    if Checkpoints(Path(folder), frozenset()).steps():
        raise PipelagError(f"{folder} holds checkpoints of real workers; use executor='real', or name another folder")
    with alone(Path(folder)):
        yield TrainingCheckpoint(Path(folder), marks, phases, seed, bf16, like())


def refuse_simulated(folder: Path) -> None:
    """Raise `PipelagError` if a folder holds a simulated checkpoint, from which real workers cannot resume."""
    if (folder / NAME).exists() or checkpoint.before(folder / NAME).exists():
        raise PipelagError(
            f"{folder} holds a checkpoint of the simulated executor; use executor='simulated', or name another folder"
        )


def retell(saved: Mapping[str, Any], telling: Telling) -> None:
    """Report again the steps and evaluations in a checkpoint.

    Raises:
        Stop: a callback has raised it. All steps in the checkpoint still count as done, since the model has the weights
            after them.
    """
    rows = {row["step"]: row for row in saved["evaluations"]}
    losses = saved["losses"]
    try:
        for step, loss in enumerate(losses, start=1):
            telling.repeat(loss, rows.get(step) if step in telling.marks else None)
    except Stop:
        telling.losses().extend(losses[telling.done :])
        done = {row["step"] for row in telling.evaluations}
        telling.evaluations += [row for step, row in rows.items() if step in telling.marks and step not in done]
        raise
    finally:
        telling.losses()  # convert these now: they are float64, and later losses are not
