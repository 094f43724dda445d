"""How far each optimizer's prediction rule (PipeOptim, table I) is off: predicted weights against the true ones.

The optimizer steps a weight vector along gradients whose mean is constant. In the last third of the steps, the rule of
`pipelag.methods.prediction` predicts the weights s updates ahead, which are compared with the true ones once these are
there. Without noise the rules are exact, except for what they leave out (a decoupled weight decay, ambiguity D4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any

from pipelag.errors import PipelagError, unknown

SIZE = 64  # of the weight vector
DAMPENING, DECAY = 0.9, 0.1  # of the optimizers named after them


def optimizers() -> Mapping[str, Callable[[Any], Any]]:
    """The optimizers of PipeOptim's table I with variants, by name: functions of parameters."""
    import torch

    return {
        "SGDM": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
        "SGDM, dampened": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=DAMPENING),
        "Adam": lambda params: torch.optim.Adam(params, lr=0.001),
        "AdamW": lambda params: torch.optim.AdamW(params, lr=0.001, weight_decay=0.0),
        "AdamW, decay": lambda params: torch.optim.AdamW(params, lr=0.001, weight_decay=DECAY),
        "NAdam": lambda params: torch.optim.NAdam(params, lr=0.001),
    }


def study(options: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """The errors of one optimizer's predictions; options: {optimizer, horizons: [1, 2, 3], steps: 600, noise: 0.0}.

    Yields:
        A row per horizon s, with root mean squares over all weights and the last third of the steps. `predicted`: of
        the predicted minus the true weights. `stale`: of the weights s updates before minus the true ones. `share`:
        `predicted` over `stale`.
    """
    import torch

    from pipelag.methods.prediction import rule_of, step_by

    known = optimizers()
    if options["optimizer"] not in known:
        raise unknown("optimizer of the study 'predictions'", options["optimizer"], known)
    horizons, steps = list(options.get("horizons", [1, 2, 3])), int(options.get("steps", 600))
    if not horizons or min(horizons) < 1 or steps < 3 * max(horizons):
        raise PipelagError(f"horizons should be from 1 update to a third of the {steps} steps, not {horizons}")
    draw = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(torch.randn(SIZE, generator=draw, dtype=torch.float64))
    mean = torch.randn(SIZE, generator=draw, dtype=torch.float64)
    optimizer = known[options["optimizer"]]([weight])
    rule, group = rule_of(optimizer), optimizer.param_groups[0]
    waiting: dict[int, list[tuple[int, Any, Any]]] = {}
    squares: dict[int, list[tuple[float, float]]] = {s: [] for s in horizons}
    for step in range(steps):
        for s, foreseen, before in waiting.pop(step, []):
            apart = [float((other - weight.detach()).square().mean()) for other in (foreseen, before)]
            squares[s].append((apart[0], apart[1]))
        repeated = step_by(rule, optimizer.state.get(weight, {}), group)
        if repeated is not None and step >= 2 * steps // 3 - max(horizons):
            before = weight.detach().clone()
            for s in horizons:
                waiting.setdefault(step + s, []).append((s, before - s * repeated.factor * repeated.direction, before))
        noise = torch.randn(SIZE, generator=draw, dtype=torch.float64)
        weight.grad = mean + options.get("noise", 0.0) * noise
        optimizer.step()
    for s, several in squares.items():
        predicted, stale = (fmean(side) ** 0.5 for side in zip(*several, strict=True))
        yield {"horizon": s, "predicted": predicted, "stale": stale, "share": predicted / stale}
