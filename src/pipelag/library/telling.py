"""What a training reports while it runs: callbacks, evaluations and their log, a progress bar, TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipelag.asked import check_folder, whole
from pipelag.compat.bars import Bar
from pipelag.errors import PipelagError, noting, shown
from pipelag.files import folder_for, is_watched
from pipelag.library.validation import LOSS, Validation
from pipelag.runs.folder import finite
from pipelag.typed import MOST_STEPS

CALLBACKS = ("on_step", "on_evaluation", "on_checkpoint")


@dataclass(frozen=True)
class Wishes:
    """What a caller wants to have reported; the arguments of `pipelag.train` of the same names."""

    validation: Validation | None = None
    evaluate_every: int = 0
    folder: str | Path | None = None
    on_step: Callable[[int, float], Any] | None = None
    on_evaluation: Callable[[int, dict[str, float]], Any] | None = None
    on_checkpoint: Callable[[int, Path], Any] | None = None
    progress: bool | None = None
    tensorboard: str | Path | None = None

    def check(self, checkpointed: bool) -> None:
        """Refuse arguments that are wrong or do not fit together. `checkpointed`: whether checkpoints are written."""
        whole("evaluate_every", self.evaluate_every, 0, MOST_STEPS)
        for name in CALLBACKS:
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise PipelagError(f"{name} is {shown(function)}; it should be a function")
        for name in ("folder", "tensorboard"):
            check_folder(name, getattr(self, name))
        if self.progress not in (None, True, False):
            raise PipelagError(f"progress is {shown(self.progress)}; it should be True, False or None")
        if self.on_checkpoint is not None and not checkpointed:
            raise PipelagError("on_checkpoint is given, but no checkpoints are written; give checkpoints=... too")
        if self.validation is not None:
            self.validation.check()

    def noting(self) -> Wishes:
        """The same, with callbacks that add their own name to what they raise (also if their arguments are wrong)."""
        given = {name: getattr(self, name) for name in CALLBACKS}
        return replace(self, **{name: noting(f"in {name}")(each) for name, each in given.items() if each is not None})

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations, if only of the training loss."""
        asked = (self.validation, self.folder, self.on_evaluation, self.tensorboard)
        return self.evaluate_every > 0 or any(one is not None for one in asked)

    @property
    def follows(self) -> bool:
        """Whether anything but the progress bar has to follow the training while it runs."""
        return self.evaluates or self.on_step is not None or self.on_checkpoint is not None

    def marks(self, total: int) -> set[int]:
        """The numbers of steps after which there is an evaluation."""
        every = self.evaluate_every or total
        return {*range(every, total, every), total} if self.evaluates else set()

    def kept_at(self, every: int, ends: Iterable[int], total: int) -> set[int]:
        """The numbers of steps after which a checkpoint is written: multiples of `every`, phases' ends, evaluations."""
        return {*(range(every, total, every) if every else ()), *ends, *self.marks(total)}


class Telling:
    """Reports on one training, step by step; a context manager, which closes what it has opened.

    Args:
        total: the training's steps.
        epoch: the minibatches in an epoch, if known.
        bar: whether a progress bar may be shown.
        resumed: the training resumes from a checkpoint, so the log may be overwritten and is written from its start.
    """

    def __init__(self, wishes: Wishes, total: int, epoch: int | None, bar: bool, resumed: bool = False) -> None:
        self.wishes, self.total, self.epoch, self.resumed = wishes.noting(), total, epoch, resumed
        self.shows = bar and (is_watched() if wishes.progress is None else wishes.progress)
        self.values: list[float] = []  # losses of finished steps
        self.pending: list[torch.Tensor] = []  # losses of the latest steps, still on the device
        self.evaluations: list[dict[str, float]] = []
        self.reported = 0  # steps before the last evaluation
        self.marks = wishes.marks(total)
        self.log: Path | None = None
        self.writer: Any = None
        self.closing = ExitStack()

    def __enter__(self) -> Telling:
        if self.wishes.folder is not None:
            self.log = log_in(Path(self.wishes.folder), self.resumed)
        if self.wishes.tensorboard is not None:
            self.writer = self.closing.enter_context(board(Path(self.wishes.tensorboard)))
        self.bar = self.closing.enter_context(Bar(total=self.total, unit="step", disable=not self.shows))
        return self

    def __exit__(self, *exception: object) -> None:
        self.closing.close()

    @property
    def done(self) -> int:
        """The number of steps reported."""
        return len(self.values) + len(self.pending)

    def step(self, loss: torch.Tensor) -> None:
        """Report that a step is done, with this loss."""
        self.pending.append(loss)
        self.bar.update()
        if self.wishes.on_step is None and self.writer is None:
            return  # do not wait for the device if nobody needs the loss yet
        step, value = self.done - 1, self.losses()[-1]
        if self.writer is not None:
            self.writer.add_scalar("loss", value, step)
        if self.wishes.on_step is not None:
            self.wishes.on_step(step, value)

    def losses(self) -> list[float]:
        """The losses of all steps done."""
        if self.pending:
            self.values += torch.stack(self.pending).double().tolist()
            self.pending.clear()
        return self.values

    @property
    def due(self) -> bool:
        """Whether an evaluation is due after the last step."""
        return self.done in self.marks

    def evaluate(self, model: nn.Sequential, place: torch.device) -> None:
        """Measure the model as it is after the last step, and report the result."""
        done, losses = self.done, self.losses()[self.reported :]
        self.reported = done
        row: dict[str, float] = {"step": done}
        row |= {"epoch": round(done / self.epoch, 4)} if self.epoch else {}
        row |= {"loss": sum(losses) / len(losses)}
        row |= self.wishes.validation.measure(model, place) if self.wishes.validation is not None else {}
        self._report(row)

    def repeat(self, loss: float, row: dict[str, float] | None) -> None:
        """Report again a step from before a restart, with its loss, and the evaluation after it if there was one."""
        self.step(torch.tensor(loss, dtype=torch.float64))
        if row is not None:
            self.reported = self.done
            self._report(row)

    def _report(self, row: dict[str, float]) -> None:
        """Report an evaluation."""
        done = int(row["step"])
        self.evaluations.append(row)
        self.bar.set_postfix({key: f"{row[key]:.3f}" for key in row if key not in ("step", "epoch")})
        if self.log is not None:
            append(self.log, json.dumps(finite(row)))
        if self.writer is not None:
            for name in row.keys() - {"step", "epoch", "loss"}:
                self.writer.add_scalar(name if name == LOSS else f"validation_{name}", row[name], done)
        if self.wishes.on_evaluation is not None:
            self.wishes.on_evaluation(done, dict(row))


def log_in(folder: Path, resumed: bool) -> Path:
    """Make an empty log in a folder, and the folder if it is not there; returns the log's path.

    Raises:
        PipelagError: the folder holds the log of another training.
    """
    log = folder_for(folder) / "metrics.jsonl"
    if not resumed and log.exists() and log.stat().st_size:
        raise PipelagError(f"'{log}' holds the metrics of another training; name another folder, or move it away")
    log.write_text("")
    return log


def append(log: Path, line: str) -> None:
    """Add a line to a log. Raises `PipelagError` if it cannot be written."""
    try:
        with open(log, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise PipelagError(
            f"'{log}' cannot be written ({error.strerror}), so training has stopped; choose a folder=... with free "
            "space"
        ) from error


def board(folder: Path) -> Any:
    """A writer of TensorBoard's event files. Raises `PipelagError` if the package tensorboard is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise PipelagError(
            "tensorboard=... needs the package tensorboard, which is not installed; pip install tensorboard"
        ) from error
    return SummaryWriter(str(folder_for(folder)))  # type: ignore[no-untyped-call]
