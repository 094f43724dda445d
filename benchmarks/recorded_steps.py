"""Time a whole training loop on a GPU, minibatches included: simulated steps as CUDA graphs against plain PyTorch.

ResNet-20 on images of CIFAR's size, in minibatches of 128, shifted and mirrored; 8 stages. Blocks alternate in one run.
Prints for every method the time of its recorded step over that of the eager plain PyTorch step, and over that of the
recorded step without a pipeline; and how long the 30,000 iterations of StaleWeights' figure 7 would take. On a CPU
nothing is recorded: the loop is the same, without goals. With `--bf16`, passes are in bfloat16 over float32 masters,
and the plain step uses autocast.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional as F

from benchmarks.ledger import note
from pipelag import data, methods, models, precision
from pipelag.data.images.batches import Batches
from pipelag.data.minibatches import Ahead
from pipelag.errors import PipelagError
from pipelag.runs.carry_out import resolve_device
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

CUTS = (3, 5, 8, 10, 13, 15, 18)
METHODS = ("stale_weights", "pipedream", "spectrain", "pipemare")
ALONE, EAGER = "sequential", "plain PyTorch"
ITERATIONS, SECONDS = 30_000, 60.0


def sgd(params: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01, momentum=0.9, weight_decay=1e-4)  # type: ignore[arg-type]


def loops(
    device: torch.device, batch: int, steps: int, width: float, bf16: bool = False
) -> dict[str, Callable[[int], object]]:
    """By name, a function that takes a step with the minibatch of the given number."""
    batches = Batches(
        data.load("shapes", train=10 * batch, test=10), batch, 0, augment=True, device=device, channels_last=True
    )

    def network() -> torch.nn.Sequential:
        return models.build("resnet20", seed=0, width=width).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    plain = network()
    optimizer = sgd(plain.parameters())

    def eager(images: torch.Tensor, targets: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(plain(images), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def simulated(name: str) -> Callable[..., object]:
        phase, graphs = Phase(methods.get(name), steps, CUTS), device.type == "cuda"
        training = SimulatedTraining(network(), [phase], sgd, F.cross_entropy, device=device, graphs=graphs, bf16=bf16)

        def step(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss = training.step(images, targets)
            if graphs and training.done == steps and training.without_graphs(0):
                raise PipelagError(f"{name} was not recorded: {training.without_graphs(0)}")
            return loss

        return step

    def by_number(step: Callable[..., object]) -> Callable[[int], object]:
        """The step by minibatch number; each minibatch is made during the step before, as in a run."""
        ahead = Ahead(batches, steps, device)

        def of(t: int) -> None:
            step(*ahead.take(t))
            ahead.make(t + 1)

        return of

    step_of = {EAGER: eager} | {name: simulated(name) for name in (ALONE, *METHODS)}
    return {name: by_number(step) for name, step in step_of.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200, help="of a block")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each, after one that warms up")
    parser.add_argument("--width", type=float, default=1.0, help="of the network, as a share of the paper's channels")
    parser.add_argument("--bf16", action="store_true", help="passes of bfloat16")
    args = parser.parse_args()
    device = torch.device(resolve_device(args.device))
    torch.set_num_threads(1)
    precision.prepare(alone=True)  # as a run does
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    taken: dict[str, list[float]] = {}
    step_of = loops(device, args.batch, args.steps * (args.rounds + 1), args.width, args.bf16)
    for name, step in step_of.items():
        for t in range(args.steps):
            step(t)
        taken[name] = []
    for number in range(1, args.rounds + 1):
        for name, step in step_of.items():
            wait()
            began = time.perf_counter()
            for t in range(number * args.steps, (number + 1) * args.steps):
                step(t)
            wait()
            taken[name].append((time.perf_counter() - began) / args.steps)
    goals = device.type == "cuda"
    title = f"ResNet-20, 8 stages, minibatch {args.batch}" + (", bfloat16" if args.bf16 else "")
    for name, seconds in taken.items():
        whole = [ITERATIONS * each for each in seconds]
        note(
            f"{ITERATIONS:,} iterations",
            f"{title}: {name}",
            whole,
            "s",
            most=SECONDS if goals and name != EAGER else None,
        )
        print(f"{name:15s} {1e3 * median(seconds):8.3f} ms a step, {median(whole):8.0f} s for {ITERATIONS:,}", end="")
        for base, most in ((EAGER, 1.0), (ALONE, 1.1)):
            if name in (EAGER, base):
                continue
            ratios = [mine / its for mine, its in zip(seconds, taken[base], strict=True)]
            what = f"recorded step / {'eager plain PyTorch' if base == EAGER else 'recorded step without a pipeline'}"
            note(what, f"{title}: {name}", ratios, most=most if goals else None)
            print(f", {median(ratios):.3f} of {base}", end="")
        print()


if __name__ == "__main__":
    main()
