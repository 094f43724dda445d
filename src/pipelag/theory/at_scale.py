"""What each method would cost on 64 to 4,096 GPUs: the study behind docs/scale.md.

Of every method and number of GPUs, the layout with the highest throughput on paper among those that fit into memory,
its time by the timed executor, and the staleness that its schedule brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from pipelag.methods import Method, get
from pipelag.models.gpt import GPT
from pipelag.partitioner.large import Fleet, Machine, Numbers, Work
from pipelag.partitioner.options import InputOptions
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import data_sheet

METHODS = {
    "data parallelism": None,
    "GPipe": "gpipe",
    "1F1B with flush": "1f1b_flush",
    "PipeDream": "pipedream",
    "PipeDream-2BW": "pipedream_2bw",
    "PipeMare T2": "pipemare_t2",
    "PipeOptim": "pipeoptim",
    "SpecTrain": "spectrain",
}
MOMENTS, GRADIENT, MASTER = 8, 4, 4  # bytes of a parameter: Adam's two, and what stays in float32 beside
REHEARSED = (1, 4, 4)  # stage, stages, microbatches at which a method's traffic is counted, per byte of weights
SMALL, LARGE = 1, 16  # samples of the two profiles between and beyond which times and bytes go in a straight line


def study(options: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Rows {method, gpus, ...}; options: `pipelag.runs.kinds.options.AtScale`.

    A row: `stages`, `replicas`, `microbatches`, `samples` (of a microbatch), `recompute`; `on_paper`, `timed` (seconds
    of an update), `ideal` (of it with all GPUs always computing, nothing sent and nothing updated), `memory` (bytes of
    the fullest GPU), `late` (updates that the first stage's forwards miss), `gap` (of these, those that its backward
    does not miss), `copies` (of the first stage's weights), `leaving` (bytes out of the busiest server per update).
    Where nothing fits: `why`.
    """
    sheet = data_sheet(options["sheet"])
    machine = Machine(sheet, **options["machine"])
    mixed = options["model"].get("gpt") is not None
    profile = gpt_profiles(options, sheet.flops) if mixed else network_profiles(options)
    work = Work(profile, options["batch"], 2 if mixed else 4)
    layers = profile(1).layers
    yield {
        "what": "model",
        "parameters": sum(layer.weight_bytes for layer in layers) // work.element,
        "layers": len(layers),
        "seconds": sum(layer.total_ms for layer in layers) / 1e3,
    }
    for gpus in options["gpus"]:
        for title, name in METHODS.items():
            method = get(name) if name else None
            fleet = Fleet(machine, work, method, numbers_of(name, mixed), gpus)
            yield {"what": "method", "method": title, "gpus": gpus} | row_of(fleet)


def row_of(fleet: Fleet) -> dict[str, Any]:
    """What the best layout costs."""
    chosen = fleet.best()
    if chosen is None:
        return {"why": why_none(fleet)}
    layout, cost = chosen.layout, chosen.paper
    late = gap = 0
    copies = 1
    if fleet.method is not None:
        delays = fleet.method.delays(layout.stages, layout.microbatches)
        late = delays.forward[0]
        gap = late - delays.backward[0]
        copies = fleet.method.weight_copies(layout.stages, layout.microbatches)[0]
    once = sum(layer.total_ms for layer in fleet.work.profile(fleet.work.batch).layers) / 1e3  # one after the other
    return {
        "stages": layout.stages,
        "replicas": layout.replicas,
        "microbatches": layout.microbatches,
        "samples": layout.samples,
        "recompute": layout.recompute,
        "on_paper": cost.seconds,
        "timed": chosen.seconds,
        "ideal": once / fleet.gpus,
        "memory": cost.memory,
        "late": late,
        "gap": gap,
        "copies": copies,
        "leaving": fleet.leaving(layout, cost.costs),
    }


def why_none(fleet: Fleet) -> str:
    """In words."""
    tried = [fleet.memory(layout) for layout in fleet.layouts()]
    if not tried:
        return why_no_layout(fleet)
    held = [memory for memory in tried if memory is not None]
    if not held:
        return "two versions do not suffice, for a minibatch has fewer microbatches than the pipeline stages"
    return f"does not fit: {min(held) / 2**30:.0f} GiB of a GPU's {fleet.machine.sheet.memory / 2**30:.0f}"


def why_no_layout(fleet: Fleet) -> str:
    """In words, where GPUs or samples cannot be divided."""
    depths, batch = fleet.depths(), fleet.work.batch
    if not depths:
        layers = len(fleet.work.profile(1).layers)
        gpus = "one GPU" if fleet.gpus == 1 else f"{fleet.gpus} GPUs"
        return f"{gpus} cannot be divided into pipelines of 2 to {layers} stages, a layer each at least"
    if fleet.gpus // max(depths) > batch:
        return "a minibatch has too few samples for so many replicas"
    return f"a minibatch of {batch} samples cannot be divided equally over the replicas of any pipeline"


@lru_cache(maxsize=64)
def numbers_of(name: str | None, mixed: bool) -> Numbers:
    """What a method with Adam holds and moves of a parameter, by rehearsing it; moved: each step as one kernel."""
    import torch

    from pipelag.timing.rehearsal import rehearse

    method: Method = get(name or "gpipe")
    rehearsed = rehearse(method, partial(torch.optim.Adam, lr=1e-3), *REHEARSED)
    held = GRADIENT + MOMENTS + (MASTER if mixed else 0)
    moved = rehearsed.moved["step"].fused + rehearsed.moved["U"].fused
    return Numbers(held, 4 * rehearsed.remembered, 4 * moved)


def gpt_profiles(options: Mapping[str, Any], flops: float) -> Callable[[int], Profile]:
    """By the formulas, its matrix products at `efficiency` of the peak rate."""
    gpt, rate = GPT.model_validate(options["model"]["gpt"]), flops * options["efficiency"]

    @lru_cache(maxsize=256)
    def profile(samples: int) -> Profile:
        rows = (
            LayerTime(
                number,
                layer.name,
                1e3 * layer.forward / rate,
                1e3 * layer.backward / rate,
                layer.output_bytes,
                layer.kept_bytes,
                2 * layer.parameters,
            )
            for number, layer in enumerate(gpt.layers(samples), start=1)
        )
        return Profile(tuple(rows))

    return profile


def network_profiles(options: Mapping[str, Any]) -> Callable[[int], Profile]:
    """By the roofline, for `SMALL` and `LARGE` samples; for others on the line through these."""
    import torch

    from pipelag.models import build
    from pipelag.timing.loss import with_loss
    from pipelag.timing.roofline import roofline

    network = options["model"]
    inputs = [InputOptions.model_validate(one) for one in network["inputs"]]
    with torch.device("meta"):
        model = with_loss(build(network["name"], **network.get("options", {})))

    def made(samples: int) -> Profile:
        with torch.device("meta"):
            values = tuple(
                torch.empty(samples, *one.shape, dtype=torch.long if one.of == "words" else torch.float)
                for one in inputs
            )
            return roofline(model, values if len(values) > 1 else values[0], options["sheet"])

    few, many = made(SMALL).layers, made(LARGE).layers

    @lru_cache(maxsize=256)
    def profile(samples: int) -> Profile:
        share = (samples - SMALL) / (LARGE - SMALL)
        return Profile(tuple(between(a, b, share) for a, b in zip(few, many, strict=True)))

    return profile


def between(a: LayerTime, b: LayerTime, share: float) -> LayerTime:
    """On the straight line from one to the other, 0 and 1 being these."""

    def line(name: str) -> float:
        first, last = float(getattr(a, name)), float(getattr(b, name))
        return max(0.0, first + (last - first) * share)

    return LayerTime(
        a.layer,
        a.name,
        line("forward_ms"),
        line("backward_ms"),
        round(line("output_bytes")),
        round(line("kept_bytes")),
        a.weight_bytes,
    )
