"""`pipelag.train` on real workers, which this process follows by the checkpoints that the stages write.

Each stage's part of a checkpoint holds its weights, and the last stage's part holds the losses since the checkpoint
before. From these the launching process reports steps and measures the model while the workers continue; the workers
take no part in that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipelag.data.split import split
from pipelag.distributed.checkpoints import (
    Checkpoints,
    Tensors,
    described,
    fits,
    grouped,
    groups_of,
    on_cpu,
    told_of,
    training_of,
)
from pipelag.distributed.feasible import check_marks, check_precision, check_workers, workers_of
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.launch.processes import workers_folder
from pipelag.distributed.launch.travel import cannot_travel
from pipelag.distributed.training import RealTraining
from pipelag.errors import Stop
from pipelag.files import alone
from pipelag.library.likeness import data_told, loss_told, rates_told, warn_of_others
from pipelag.library.simulated_checkpoint import refuse_simulated
from pipelag.library.supply import Supply, noted, to
from pipelag.library.telling import Telling, Wishes
from pipelag.methods.prediction import prediction_rule, rules_of_users
from pipelag.stage.optimizers import OptimizerFactory, group_by_stage
from pipelag.stage.phase import Phase
from pipelag.stage.rehearsal import check_optimizer
from pipelag.stage.rounded import in_full, masters_of
from pipelag.stage.weights import load_whole, marked


def train_real(
    model: nn.Sequential,
    supply: Supply,
    phases: Sequence[Phase],
    wishes: Wishes,
    *,
    workers: int | None,
    device: str,
    checkpoints: str | Path | None,
    every: int,
    threads: int,
    patience: float | None,
    **how: Any,
) -> tuple[list[float], list[dict[str, float]]]:
    """Train on real workers; returns the losses and the evaluations, and leaves the trained weights in the model.

    Args:
        how: further arguments of `RealTraining`, besides job, model and phases.
    """
    ends = list(accumulate(phase.steps for phase in phases))
    total, workers = ends[-1], workers or max(map(workers_of, phases))
    for phase in phases:
        check_workers(phase, workers)
        check_precision(phase, how["bf16"])
    marks = wishes.kept_at(every, ends, total)
    check_marks(phases, marks if checkpoints is not None or wishes.follows or wishes.progress else ())
    check_optimizer(phases, how["optimizer"])
    if device == "auto":
        device = "cuda" if torch.cuda.device_count() >= workers else "cpu"
    epoch = supply.length
    if not supply.numbered:
        supply = Supply(list(noted(supply.first(total))))
    elif isinstance(supply.batches, (list, tuple)):
        supply = replace(supply, batches=supply.batches[:total])  # the others need not be sent to the workers
    first = next(noted(supply.first(total)))  # so that wrong data are refused here and not by every worker
    for phase in phases:  # now, too, and not when a later phase begins
        split(first, *phase.parts(workers))
    if checkpoints is not None:
        refuse_simulated(Path(checkpoints))
    if wishes.validation is not None:  # finds mistakes now and not at the first evaluation
        wishes.validation.measure(model, next(model.parameters()).device, most=1)
    model.train()
    with _store_in(checkpoints, marks, wishes) as store:
        resume, like = 0, dict[str, str]()
        if store is not None:
            resume = store.rewind(wishes.marks(total) if wishes.validation is not None else ())
            if resume == total and fits(store.model(total), model):  # otherwise the workers refuse the checkpoint
                asked = told_of(phases[-1], how["seed"], how["bf16"])
                store.check_over(total, asked | optimizer_of(model, how["optimizer"]))
        if checkpoints is not None and store is not None:
            like = rates_told(how["rate"], total) | loss_told(how["loss"].function) | data_told(epoch, first)
            if resume:
                warn_of_others(checkpoints, training_of(store.parts(resume, "resume")), like, resume)
        with Telling(wishes, total, epoch, store is not None, bool(resume)) as telling:
            follower = None
            if store is not None:
                follower = Follower(store, telling, copied(model), checkpoints is not None)
                if how["bf16"]:
                    masters_of(follower.model.parameters())  # it is measured with rounded weights, as passes read them
            given: dict[str, Any] = {
                "model": copied(model).cpu(),
                "batches": supply,
                "phases": list(phases),
                "kept": Path(checkpoints) if checkpoints is not None else None,
                "checkpoints": store,
                "resume": resume,
                "meanwhile": follower,
                "patience": patience,
                "likeness": like,
                "rules": rules_of_users(),
            }
            try:
                state, losses = launch(_task, workers, device, threads, **given, **how)
                if follower is not None:
                    follower()
            except Stop:
                assert follower is not None
                state, losses = follower.stopped, telling.losses()
            load_whole(model, state)
            model.zero_grad()  # gradients from before belong to other weights
            return losses, telling.evaluations


def copied(model: nn.Sequential) -> nn.Sequential:
    """A copy of the model. Raises the error for what cannot be sent to workers if the model cannot be copied."""
    try:
        twin = copy.deepcopy(model)
    except Exception as error:
        raise cannot_travel({"model": model}, error, copy.deepcopy) from error
    for copy_, original in zip(twin.parameters(), model.parameters(), strict=True):
        marked(copy_, original)
    return twin


def optimizer_of(model: nn.Sequential, make: OptimizerFactory) -> dict[str, str]:
    """The optimizer's description as in checkpoints; empty if its function fails on the parameters of a whole model."""
    with suppress(Exception):
        optimizer = group_by_stage(make, [list(model.parameters())], {}, [1])
        return {"optimizer": described(optimizer)} | grouped(groups_of(optimizer)) if optimizer is not None else {}
    return {}


@contextmanager
def _store_in(folder: str | Path | None, marks: set[int], wishes: Wishes) -> Iterator[Checkpoints | None]:
    """A context with the checkpoints: in the user's folder, else in a temporary one if reports need them, else None."""
    if folder is not None:
        with alone(Path(folder)):
            yield Checkpoints(Path(folder), frozenset(marks))
    elif wishes.follows or wishes.progress:
        with workers_folder() as aside:  # if this process is killed, the next launcher removes the folder
            yield Checkpoints(aside, frozenset(marks))
    else:
        yield None


class Follower:
    """Looks for checkpoints that have become complete, and reports the steps up to them.

    Args:
        model: a copy of the model, to be measured on the device where it is.
        stay: True: keep the checkpoints, as they are the user's. False: remove each once its steps have been reported.
    """

    def __init__(self, store: Checkpoints, telling: Telling, model: nn.Sequential, stay: bool) -> None:
        self.store, self.telling, self.model, self.stay = store, telling, model, stay
        self.place = next(model.parameters()).device
        self.stopped: Tensors = {}  # the model's state if a callback has ended the training
        done = store.steps()
        self.left = [*done, *(mark for mark in sorted(store.marks) if mark > max(done, default=0))]

    def __call__(self) -> None:
        """Report up to every mark whose checkpoint is complete, in order."""
        while self.left and self.store.complete(self.left[0]):
            step = self.left.pop(0)
            losses = [loss for part in self.store.parts(step, "losses") for loss in part["losses"]]
            try:
                self._tell(step, losses)
            except Stop:
                self.stopped = self.store.model(step)
                self.telling.losses().extend(losses[len(losses) - (step - self.telling.done) :])  # not reported yet
                raise
            if not self.stay:  # remove the files but not the folder, which stages look through
                for path in self.store.at(step).iterdir():
                    path.unlink(missing_ok=True)

    def _tell(self, step: int, losses: list[float]) -> None:
        """Report the steps since the mark before, and the checkpoint and evaluation at `step`."""
        for loss in losses:
            self.telling.step(torch.tensor(loss, dtype=torch.float64))
        wishes = self.telling.wishes
        if wishes.on_checkpoint is not None:
            wishes.on_checkpoint(step, self.store.at(step))
        if self.telling.due:
            if wishes.validation is not None:
                load_whole(self.model, self.store.model(step))
            self.telling.evaluate(self.model, self.place)


def _task(
    job: Any, model: nn.Sequential, batches: Supply, resume: int, rules: Sequence[Any], **how: Any
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """What every worker runs. `rules`: prediction rules that the caller has registered."""
    for kind, rule, velocity in rules:
        prediction_rule(kind, velocity)(rule)
    training = RealTraining(job, model.train(), **how)
    if resume:
        training.resume(resume)
    look_up = lru_cache(1)(batches.__getitem__)  # look up once for inputs and targets: data may count look-ups
    training.run(
        lambda step: to(look_up(step)[0], job.device),
        lambda step: to(look_up(step)[1], job.device),
    )
    return on_cpu(in_full(model, training.masters)), training.losses
