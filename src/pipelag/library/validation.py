"""Measures a model on validation data without any effect on the training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn

from pipelag.asked import check_batches
from pipelag.errors import PipelagError, noting, shown, unknown
from pipelag.library.supply import Supply, to
from pipelag.randomness import TURN, others_preserved, preserved_randomness, seed_stage
from pipelag.runs.objectives import METRICS
from pipelag.stage.rounded import computing
from pipelag.stage.where import layer_of, shape_of
from pipelag.tensors import unchanged_buffers, unchanged_modes

Metric = Callable[[Any, Any], Any]
LOSS = "validation_loss"
TAKEN = ("step", "epoch", "loss", LOSS)


def accuracy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """For each target: 100 if the class with the largest output, along dimension 1, is the right one, else 0."""
    chosen = output.argmax(1)
    if chosen.shape != targets.shape:
        raise PipelagError(
            f"accuracy needs targets of shape {list(chosen.shape)} for this output, but they have shape "
            f"{list(targets.shape)}; give a metric of your own"
        )
    return 100.0 * (chosen == targets)


def metrics_of(given: Any) -> dict[str, Metric]:
    """Metrics by name, from a mapping, or from a list of functions and names ("accuracy" or a registered metric's).

    Raises:
        PipelagError: a name is unknown or taken, or a metric is not a function.
    """
    known: dict[str, Metric] = {"accuracy": accuracy, **METRICS}
    if isinstance(given, Mapping):
        metrics = dict(given)
    elif isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        metrics = {}
        for metric in given:
            name = getattr(metric, "__name__", "") if callable(metric) else str(metric)
            if not callable(metric) and name not in known:
                raise unknown("metric", name, known)
            if not name.isidentifier() or name in metrics:
                raise PipelagError(f"the metric {shown(metric)} has no name of its own; give {{'its name': function}}")
            metrics[name] = metric if callable(metric) else known[name]
    else:
        raise PipelagError(
            f"metrics is {shown(given)}; it should map names to functions, or be a list of names and functions"
        )
    for name, function in metrics.items():
        if not isinstance(name, str) or name in TAKEN:
            raise PipelagError(f"a metric cannot be named {shown(name)}; choose another string than {', '.join(TAKEN)}")
        if not callable(function):
            named = isinstance(function, str) and function in known
            listed = f" (names go into a list, metrics=[{function!r}])" if named else ""
            raise PipelagError(
                f"the metric '{name}' is {shown(function)}; it should be a function (output, targets){listed}"
            )
    return metrics


@contextmanager
def undisturbed(place: torch.device, seed: int) -> Iterator[None]:
    """A context in which torch's random numbers are the same each time, by `seed`.

    Python's and numpy's generators continue from their present states. Afterwards all generators are as before.
    """
    with TURN, preserved_randomness(place), others_preserved():
        for device in {torch.device("cpu"), place}:
            seed_stage(seed, 0, 0, device)
        yield


@dataclass(frozen=True)
class Validation:
    """Validation data and what is measured on them.

    Args:
        supply: the minibatches, which every measurement goes through from the start.
        loss: (output, targets) -> the mean over a minibatch.
        metrics: name -> function: (output, targets) -> a number for each target, or the minibatch's mean.
        seed: for random numbers that the data or the model draw during a measurement.
        bf16: compute in bfloat16, as the training does.
    """

    supply: Supply
    loss: Metric
    metrics: Mapping[str, Metric]
    seed: int
    bf16: bool = False

    def check(self) -> None:
        """Refuse data without an end, and data that can be used only once."""
        batches = self.supply.batches
        check_batches(batches, "validation")
        if hasattr(batches, "__next__"):
            raise PipelagError("validation is an iterator, which can be read only once; give a list or a DataLoader")
        if self.supply.length is None and not hasattr(batches, "__iter__"):
            raise PipelagError("validation has no length, so its end is unknown; give a list or a DataLoader")

    def measure(self, model: nn.Sequential, place: torch.device, most: int | None = None) -> dict[str, float]:
        """The means of the loss and the metrics over all data, or over the first `most` minibatches.

        Minibatches are weighted by their numbers of targets. Modes, statistics and random generators are left as they
        were. An exception from the data, a layer, the loss or a metric gets a note that says where it came from.
        """
        means = {name: Mean() for name in (LOSS, *self.metrics)}
        precision = computing(place, self.bf16)
        alone = undisturbed(place, self.seed)
        with alone, torch.no_grad(), unchanged_buffers(model), unchanged_modes(model), precision:
            model.eval()
            for where, inputs, targets in self._first(most):
                inputs, targets = to(inputs, place), to(targets, place)
                output, shape = _output(model, inputs, where), _shape(targets)
                shapes = f"output {shape_of(output)}, targets {shape_of(targets)}"
                for name, function in {LOSS: self.loss, **self.metrics}.items():
                    called = "the loss" if name == LOSS else f"metric '{name}'"
                    with noting(f"{where}: in {called}, {shapes}"):
                        value = function(output, targets)
                    means[name].add(name, value, shape[0], shape)
        if not means[LOSS].weight:
            raise PipelagError("there are no minibatches to validate on")
        return {name: mean.total / mean.weight for name, mean in means.items()}

    def _first(self, most: int | None) -> Iterator[tuple[str, Any, Any]]:
        """(a text for error notes, inputs, targets) of the first `most` minibatches, or of all."""
        batches = self.supply.once()
        for number in count() if most is None else range(most):
            where = f"while validating, minibatch {number}"
            with noting(f"{where}: in the data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield where, *batch


@dataclass
class Mean:
    """A weighted mean over minibatches."""

    total: float = 0.0
    weight: int = 0

    def add(self, name: str, value: Any, count: int, shape: torch.Size) -> None:
        """Add a minibatch's value: its mean, or one number for each target.

        Args:
            count: the minibatch's number of samples, and the weight of a mean.
            shape: the shape of the targets, which numbers for each target may have instead of (count,).
        """
        each = isinstance(value, torch.Tensor) and value.shape in ((count,), shape)
        if each and not value.is_complex():
            self.total += float(value.double().sum())
            self.weight += value.numel()
            return
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            what = f"numbers of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else shown(value)
            raise PipelagError(
                f"the metric '{name}' returns {what}; it should return one number, or one for each of the {count} "
                "targets"
            ) from error
        self.total += number * count
        self.weight += count


def _output(model: nn.Sequential, inputs: Any, where: str) -> Any:
    """The model's output; an exception gets a note that names the layer."""
    try:
        return model(inputs)
    except PipelagError:
        raise
    except Exception as error:
        error.add_note(f"{where}: {layer_of(error, model)}")
        raise


def _shape(targets: Any) -> torch.Size:
    """The shape of a minibatch's targets (of the first, if there are several); it starts with their number."""
    parts = targets if isinstance(targets, tuple) else targets.values() if isinstance(targets, Mapping) else (targets,)
    return next(part.shape for part in parts if isinstance(part, torch.Tensor) and part.dim())
