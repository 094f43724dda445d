"""What Python does in a simulated step whose passes a GPU replays: calls, counted without a GPU and without a clock.

Where passes are CUDA graphs and small, a step lasts as long as what Python does around them: gives the minibatch, lets
the weights hold what each pass reads, updates, predicts. Here the replays do nothing, so that what is left is that.
Prints, method by method, calls of functions and of torch's operations in a step, and / those without a pipeline.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.nn import functional as F

from benchmarks.ledger import note
from benchmarks.recorded_steps import ALONE, CUTS, METHODS
from pipelag import methods, models
from pipelag.simulate import graphs
from pipelag.simulate.recordable import Results
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

WARM = 12  # steps until the pipeline is full and the optimizer's state lies flat


class Silent:
    """A recorder whose replays compute nothing."""

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def record(self, passes: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        results = passes()
        return lambda: None, results


@contextmanager
def silent() -> Iterator[None]:
    """Inside, every device has such a recorder, whose replays nobody compares with the passes."""
    real = graphs.recorder_of, graphs.alike
    graphs.recorder_of, graphs.alike = lambda device: Silent(), lambda first, second: True
    try:
        yield
    finally:
        graphs.recorder_of, graphs.alike = real


def sgd(params: object) -> torch.optim.Optimizer:
    """With `foreach`, as torch takes it on a GPU by itself."""
    return torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=1e-4, foreach=True)  # type: ignore[arg-type]


def calls(name: str, steps: int) -> tuple[int, int]:
    """(calls of any function, calls of torch's operations) in a step of a method, on average over so many."""
    torch.manual_seed(0)
    phase = Phase(methods.get(name), 10 * (WARM + steps), CUTS)
    network = models.build("resnet20", seed=0, width=0.125)
    images, targets = torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))
    with silent():
        training = SimulatedTraining(network, [phase], sgd, F.cross_entropy, graphs=True)
        for _ in range(WARM):
            training.step(images, targets)
        assert not training.without_graphs(0), training.without_graphs(0)
        with cProfile.Profile() as profile:
            for _ in range(steps):
                training.step(images, targets)
    stats: dict[tuple[str, int, str], tuple[int, ...]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    built_in = [(where[2], one[1]) for where, one in stats.items() if where[0] == "~"]
    of_torch = sum(count for what, count in built_in if "torch" in what)
    return sum(one[1] for one in stats.values()) // steps, of_torch // steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    alone = calls(ALONE, args.steps)
    for name in (ALONE, *METHODS):
        each = calls(name, args.steps)
        for kind, count, base in zip(("calls of any function", "calls of torch"), each, alone, strict=True):
            note(f"{kind} in a step whose passes are replayed, ResNet-20, 8 stages", name, [count], "calls")
            print(f"{name:15s} {kind:22s} {count:5d}, {count / base:.2f} of {ALONE}'s")


if __name__ == "__main__":
    main()
