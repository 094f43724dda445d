"""A simulated step against a plain PyTorch training step: ResNet-20, 8 and 20 stages. Prints one ratio per row."""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from torch.nn import functional as F

from pipelag import methods, models
from pipelag.simulate.training import Phase, SimulatedTraining


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    inputs = torch.randn(args.batch, 3, 32, 32).to(memory_format=torch.channels_last)
    targets = torch.randint(0, 10, (args.batch,))
    plain = models.build("resnet20", seed=0).to(memory_format=torch.channels_last)
    optimizer = sgd(plain.parameters())

    def plain_step() -> None:
        F.cross_entropy(plain(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    steps = {"plain PyTorch": plain_step}
    for cuts in ((3, 5, 7), (3, 5, 7, 9, 11, 13, 15, 17, 19)):
        model = models.build("resnet20", seed=0).to(memory_format=torch.channels_last)
        phase = Phase(methods.get("stale_weights"), args.rounds + 3, cuts)
        training = SimulatedTraining(model, [phase], sgd, F.cross_entropy)
        steps[f"simulated, {2 * len(cuts) + 2} stages"] = lambda training=training: training.step(inputs, targets)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(args.rounds + 3):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number >= 3:
                seconds[name].append(time.perf_counter() - start)
    base = median(seconds["plain PyTorch"])
    for name, values in seconds.items():
        ratios = [value / plain for value, plain in zip(values, seconds["plain PyTorch"], strict=True)]
        whole = median(values) / base
        print(f"{name:24s} {1000 * median(values):7.1f} ms   ratio {median(ratios):.3f}   (of medians {whole:.3f})")


if __name__ == "__main__":
    main()
