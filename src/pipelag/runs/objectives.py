"""A user's own losses and metrics, by name, for a run's `options: {loss: ..., metrics: [...]}`. No torch.

    @loss("focal")
    def focal(output, target):
        return ((1 - chance) ** 2 * -chance.log()).mean()

    @metric("confidence")
    def confidence(output, target):
        return output.softmax(-1).amax(-1)

A loss takes the model's output and the targets of a microbatch and returns a scalar. A metric takes the output and the
targets of test examples and returns one number per target: per image or text, or per word if the task is to write
words. The mean over the test set is logged under the metric's name at every evaluation, and is in the run's summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pipelag.errors import PipelagError
from pipelag.registry import entered

Function = Callable[[Any, Any], Any]
LOSSES: dict[str, Function] = {}
METRICS: dict[str, Function] = {}
MEASURED = ("bleu", "bleu_error", "perplexity", "accuracy", "top5", "loss", "test_loss")  # what evaluations log anyway
TAKEN = ("step", "epoch", "phase", "lr", "seconds", *MEASURED)


def loss(name: str) -> Callable[[Function], Function]:
    """Register the decorated loss by name: (output, target) -> scalar."""
    return entered("loss", name, LOSSES)


def metric(name: str) -> Callable[[Function], Function]:
    """Register the decorated metric by name: (output, target) -> one number for each target."""
    if name in TAKEN:
        raise PipelagError(f"a metric cannot be named '{name}', which evaluations use already; choose another name")
    return entered("metric", name, METRICS)


class Means:
    """The means of metrics over a test set, accumulated batch by batch."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.totals, self.counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)

    def add(self, output: Any, targets: Any, counted: Any = None) -> None:
        """Add a batch. `counted`: bool, of the shape of `targets`: which targets count; None: all.

        Raises:
            PipelagError: a metric does not return one number for each target.
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
        """Each metric's mean so far."""
        return {name: total / max(1, self.counts[name]) for name, total in self.totals.items()}
