"""Count Python's calls in a simulated step whose passes a GPU replays, without a GPU and without a clock.

If passes are small and replayed as CUDA graphs, a step takes as long as Python's work around them: to hand over the
minibatch, to set the weights that each pass reads, to update, to predict. Here the replays do nothing, so that only
this work is left. Prints for each method the function calls and torch operations in a step, and their ratio to those
without a pipeline. An operation over several tensors counts once. Then the same for the minibatch of a step, made alone
and together with others, as on a GPU.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import gcd
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.ledger import note
from benchmarks.recorded_steps import ALONE, CUTS, METHODS
from pipelag import data, methods, models
from pipelag.data.images.batches import MOST, Batches
from pipelag.methods import carriers
from pipelag.simulate import graphs
from pipelag.simulate.recordable import Results
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

KINDS = ("calls of any function", "operations of torch")
WARM = 12  # steps until the pipeline is full and the optimizer's state is in flat buffers


class Silent:
    """A recorder whose replays compute nothing."""

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def record(self, passes: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        results = passes()
        return lambda: None, results


@contextmanager
def silent() -> Iterator[None]:
    """In the body, every device counts as a GPU with a `Silent` recorder; replays are not compared with passes."""
    real = graphs.recorder_of, graphs.alike, carriers.launched
    graphs.recorder_of, graphs.alike = lambda device: Silent(), lambda first, second: True
    carriers.launched = carriers.few
    try:
        yield
    finally:
        graphs.recorder_of, graphs.alike, carriers.launched = real


class Operations(TorchDispatchMode):
    """Counts torch's operations; one over a list of tensors counts once."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


# With `foreach`, which is torch's default on a GPU
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=1e-4, foreach=True),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.001, foreach=True),
}


def calls(name: str, optimizer: str, steps: int) -> tuple[int, int]:
    """(function calls, torch operations) in a step of a method, averaged over `steps` steps."""
    torch.manual_seed(0)
    phase = Phase(methods.get(name), 10 * (WARM + steps), CUTS)
    network = models.build("resnet20", seed=0, width=0.125)
    images, targets = torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))
    with silent():
        training = SimulatedTraining(network, [phase], OPTIMIZERS[optimizer], F.cross_entropy, graphs=True)
        for _ in range(WARM):
            training.step(images, targets)
        assert not training.without_graphs(0), training.without_graphs(0)
        return counted(lambda _: training.step(images, targets), steps)


def counted(does: Callable[[int], object], times: int) -> tuple[int, int]:
    """(function calls, torch operations) when `does` is called with 0, 1, ..., averaged over these times."""
    with cProfile.Profile() as profile:
        for number in range(times):
            does(number)
    with Operations() as operations:
        for number in range(times, 2 * times):
            does(number)
    stats: dict[tuple[str, int, str], tuple[int, ...]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return sum(one[1] for one in stats.values()) // times, operations.count // times


def of_minibatches(together: int) -> tuple[int, int]:
    """As `calls`, to make one of the minibatches of `recorded_steps`, of which so many are made together."""
    batches = Batches(data.load("shapes", train=1280, test=10), 128, 0, augment=True, channels_last=True)
    batches.together = together
    batches.indices(0)  # draws the epoch's order
    return counted(lambda t: batches[t % len(batches)], len(batches) * together // gcd(len(batches), together))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    for optimizer in OPTIMIZERS:
        alone = calls(ALONE, optimizer, args.steps)
        for name in (ALONE, *METHODS):
            each = calls(name, optimizer, args.steps)
            for kind, count, base in zip(KINDS, each, alone, strict=True):
                what = f"{kind} in a step whose passes are replayed, ResNet-20, 8 stages, {optimizer}"
                note(what, name, [count], kind.split()[0])
                print(f"{optimizer:6s} {name:15s} {kind:22s} {count:5d}, {count / base:.2f} of {ALONE}'s")
    for together in (1, MOST):
        for kind, count in zip(KINDS, of_minibatches(together), strict=True):
            case = "alone" if together == 1 else f"{together} together"
            note(f"{kind} to make a minibatch of 128 images, cropped and mirrored", case, [count], kind.split()[0])
            print(f"a minibatch, made {case:12s} {kind:22s} {count:5d}")


if __name__ == "__main__":
    main()
