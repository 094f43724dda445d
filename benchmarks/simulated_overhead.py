"""Compare a simulated step with a plain PyTorch training step, method by method. Prints one ratio per row.

ResNet-20 has 20 layers, so 100 stages are those of ResNet-110. The Transformer has 4 small blocks (50 for 100 stages),
each of an attention layer and a feed-forward layer. `resnet50` is PipeMare's, with 107 stages.

Small minibatches first fill the pipeline, because stages hold fewer weight versions while it fills. Then pairs of steps
are timed until the median of their ratios is known to `--precise` either way, or for `--seconds`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.ledger import interval, note
from pipelag import methods, models
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

METHODS = ("stale_weights", "pipedream", "pipedream_vertical_sync", "spectrain", "pipeoptim", "xpipe", "pipemare")
PREDICTING = ("spectrain", "pipeoptim", "xpipe")
WARM = 3  # pairs of the warm-up, which do not count
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-4, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-4),
}


class Attention(nn.Module):
    """x + attention(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


class FeedForward(nn.Module):
    """x + mlp(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.net(x)


def transformer(blocks: int, width: int = 128) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(blocks) for layer in (Attention(width), FeedForward(width))])


def case(name: str, stages: int, batch: int) -> tuple[Callable[[], nn.Sequential], tuple[int, ...], Any, Any, Any]:
    """(model factory, cuts, inputs, targets, loss)."""
    torch.manual_seed(1)
    if name == "resnet50":
        images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
        build = lambda: models.build("resnet50", seed=0).to(memory_format=torch.channels_last)  # noqa: E731
        return build, tuple(range(1, 107)), images, torch.randint(0, 10, (batch,)), F.cross_entropy
    if name == "resnet":
        depth = 20 if stages <= 20 else 110
        images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
        targets = torch.randint(0, 10, (batch,))
        cuts = tuple(range(depth // stages, depth, depth // stages))[: stages - 1]
        build = lambda: models.build(f"resnet{depth}", seed=0).to(memory_format=torch.channels_last)  # noqa: E731
        return build, cuts, images, targets, F.cross_entropy
    blocks = 4 if stages <= 8 else stages // 2
    layers = 2 * blocks
    cuts = tuple(range(layers // stages, layers, layers // stages))[: stages - 1]
    words = torch.randn(batch, 32, 128)
    return lambda: transformer(blocks), cuts, words, torch.randn(batch, 32, 128), F.mse_loss


def until_full(method: methods.Method, stages: int, microbatches: int) -> int:
    """The number of minibatches before the first one whose passes all read updated weights."""
    delays = method.delays(stages, microbatches)
    return 1 + max(*delays.forward, *delays.backward)


def precise(ratios: Sequence[float], wanted: float) -> bool:
    """Whether the interval of the ratios' median is at most `wanted` wide either way."""
    between = interval(ratios)
    return between is not None and between[1] - between[0] <= 2 * wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("resnet", "transformer", "resnet50"), default="resnet")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="sgd")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31, help="pairs of steps of a method, at least")
    parser.add_argument("--most", type=int, default=1000, help="pairs of steps of a method, at most")
    parser.add_argument("--precise", type=float, default=0.01, help="how well the median is to be known, either way")
    parser.add_argument("--seconds", type=float, help="of a method, after which no pair begins (60; 20 without a goal)")
    parser.add_argument("--no-goal", action="store_true", help="for minibatches smaller than any paper's")
    parser.add_argument("--grouped", action="store_true", help="microbatches that read the same weights share passes")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="cpu: not disturbed by other programs")
    args = parser.parse_args()
    without = args.no_goal or args.grouped
    longest = args.seconds if args.seconds is not None else 20 if without else 60
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    build, cuts, inputs, targets, loss = case(args.model, args.stages, args.batch)
    make = OPTIMIZERS[args.optimizer]
    plain = build()
    optimizer = make(plain.parameters())

    def plain_step() -> None:
        parts = args.microbatches
        for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            (loss(plain(x), y) / parts).backward()
        optimizer.step()
        optimizer.zero_grad()

    title = f"{args.model}, {len(cuts) + 1} stages, {args.optimizer}, minibatch {args.batch} in {args.microbatches}"
    print(title)
    what = "simulated step / plain PyTorch step, by CPU time" + (", microbatches grouped" if args.grouped else "")
    for name in args.methods:  # one at a time: the weight versions of seven methods would fill the memory
        method, parts = methods.get(name), args.microbatches
        fill, small = until_full(method, len(cuts) + 1, parts), 2 * parts
        most = max(args.most, args.rounds)
        phase = Phase(method, fill + WARM + most, cuts, microbatches=parts)
        training = SimulatedTraining(build(), [phase], make, loss, grouped=args.grouped)
        for _ in range(fill):
            training.step(inputs[:small], targets[:small])
        pairs: list[tuple[float, float]] = []
        ratios: list[float] = []
        started = time.monotonic()
        for number in range(WARM + most):
            late = time.monotonic() - started > longest
            if len(pairs) >= args.rounds and (late or (len(pairs) % 5 == 0 and precise(ratios, args.precise))):
                break
            begin = clock()
            plain_step()
            middle = clock()
            training.step(inputs, targets)
            if number >= WARM:
                pairs.append((middle - begin, clock() - middle))
                ratios.append(pairs[-1][1] / pairs[-1][0])
        few = len(cuts) < 8 and name not in PREDICTING
        goal = None if without else 1.03 if few else 1.05
        note(what, f"{title}: {name}", ratios, most=goal)
        base, mine = (1000 * median(each) for each in zip(*pairs, strict=True))
        ratio = f"ratio {median(ratios):.3f}   (of medians {mine / base:.3f}; {len(pairs)} pairs)"
        print(f"{name:24s} {mine:7.1f} ms, plain PyTorch {base:7.1f} ms   {ratio}", flush=True)


if __name__ == "__main__":
    main()
