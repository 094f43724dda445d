"""Losses and metrics of one's own, by name, for `options: {loss: ..., metrics: [...]}` of a run. No torch.

    @loss("focal")
    def focal(output, target):
        return ((1 - chance) ** 2 * -chance.log()).mean()

    @metric("confidence")
    def confidence(output, target):
        return output.softmax(-1).amax(-1)

A loss takes the model's output and the targets of a microbatch and gives a scalar. A metric takes those of test
examples and gives a number for each target (one per image or text; one per word where the task is to write words);
their mean over the test set is logged under the metric's name, with every evaluation, and stands in the run's summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pipelag.errors import PipelagError
from pipelag.registry import entered

Function = Callable[[Any, Any], Any]
LOSSES: dict[str, Function] = {}
METRICS: dict[str, Function] = {}
MEASURED = ("bleu", "bleu_error", "perplexity", "accuracy", "top5", "loss", "test_loss")  # by evaluations, anyway
TAKEN = ("step", "epoch", "phase", "lr", "seconds", *MEASURED)


def loss(name: str) -> Callable[[Function], Function]:
    """Make a loss known by name: (output, target) -> scalar."""
    return entered("loss", name, LOSSES)


def metric(name: str) -> Callable[[Function], Function]:
    """Make a metric known by name: (output, target) -> a number for each target."""
    if name in TAKEN:
        raise PipelagError(f"a metric cannot be named '{name}', which evaluations use already; choose another name")
    return entered("metric", name, METRICS)


class Means:
    """The means of some metrics over a test set, batch by batch."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.totals, self.counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)

    def add(self, output: Any, targets: Any, counted: Any = None) -> None:
        """Add a batch; `counted`: bool like `targets`, which of them count (all).

        Raises:
            PipelagError: a metric whose value is not a number for each target.
        """
        for name in self.totals:
            values = METRICS[name](output, targets)
            if getattr(values, "shape", None) != targets.shape:
                raise PipelagError(
                    f"the metric '{name}' returns shape {tuple(getattr(values, 'shape', ()))} for targets of shape "
                    f"{tuple(targets.shape)}; it should return one number for each target"
                )
            values = values if counted is None else values[counted]
            self.totals[name] += float(values.double().sum())
            self.counts[name] += values.numel()

    def by_name(self) -> dict[str, float]:
        """The means."""
        return {name: total / max(1, self.counts[name]) for name, total in self.totals.items()}
