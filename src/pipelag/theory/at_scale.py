"""What each method would cost on 64 to 4,096 GPUs: the study behind docs/scale.md.

For every method and number of GPUs, the study takes the layout with the highest throughput on paper among those that
fit into memory, times it in the timed executor, and derives the staleness of its schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from math import ceil, log2
from typing import Any

from pydantic import Field

from pipelag.errors import PipelagError
from pipelag.methods import Method, get
from pipelag.models.gpt import GPT
from pipelag.partitioner.large import Fleet
from pipelag.partitioner.layouts import Machine, Numbers, Work
from pipelag.partitioner.options import InputOptions
from pipelag.timing.costs import ring_seconds
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import data_sheet
from pipelag.typed import Options, Typed, checked

METHODS = {
    "data parallelism": None,
    "GPipe": "gpipe",
    "1F1B with flush": "1f1b_flush",
    "interleaved 1F1B": "1f1b_interleaved",
    "ZB-H1": "zb_h1",
    "ZB-H2": "zb_h2",
    "ZB-V": "zb_v",
    "PipeDream": "pipedream",
    "PipeDream-2BW": "pipedream_2bw",
    "PipeMare T2": "pipemare_t2",
    "PipeOptim": "pipeoptim",
    "SpecTrain": "spectrain",
}
MOMENTS, GRADIENT, MASTER = 8, 4, 4  # bytes per parameter, all in float32: Adam's two moments, gradient, master
# (stage, stages, microbatches) for which a method's traffic per byte of weights is counted: first, inner and last stage
REHEARSED = ((1, 4, 4), (2, 4, 4), (4, 4, 4))
SMALL, LARGE = 1, 16  # samples of the two profiles from which times and bytes are interpolated and extrapolated


class OfGPT(Typed):
    """The option `model` for a GPT."""

    gpt: GPT


class Network(Typed):
    """The option `model` for a registered model."""

    name: str
    options: Options = {}
    inputs: list[InputOptions] = Field(min_length=1)


def subject_of(model: Mapping[str, Any]) -> GPT | Network:
    """What the option `model` names.

    Raises:
        PipelagError: it names neither a GPT nor a model with its inputs, or has a key or a value that is wrong.
    """
    kind = "setting of the model"
    return checked(OfGPT, model, kind).gpt if "gpt" in model else checked(Network, model, kind)


def study(options: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """A row per method and number of GPUs, after one for the model; options: `pipelag.runs.kinds.options.AtScale`.

    A row has `method` and `gpus`; the layout: `stages`, `workers` (of a pipeline), `tensor` (GPUs of a worker),
    `replicas`, `microbatches`, `samples` (per microbatch), `recompute`, `sharded` (the optimizer's state, over the
    replicas); seconds per update: `on_paper`, `timed`, and `ideal` (if all GPUs always computed, and sending and
    updating took no time); `memory` (bytes on the fullest GPU); for the first stage: `late`
    (tau_fwd in updates), `gap` (tau_fwd - tau_bkwd), `copies` (of its weights); and `leaving` (bytes that leave the
    busiest server per update). If no layout fits, it has `why` in place of all but the first two.
    """
    sheet = data_sheet(options["sheet"])
    machine = Machine(sheet, **options["machine"])
    model = subject_of(options["model"])
    mixed = isinstance(model, GPT)
    if isinstance(model, GPT):
        profile = gpt_profiles(model, machine, options.get("efficiency", 1.0))
    else:
        profile = network_profiles(model, options["sheet"])
    sharded = options.get("sharded", False)
    work = Work(profile, options["batch"], 2 if mixed else 4, options.get("summed"), sharing(options), sharded)
    layers = profile(1, 1).layers
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
    """The row of the best layout (see `study`)."""
    chosen = fleet.best()
    if chosen is None:
        return {"why": why_none(fleet)}
    layout, cost = chosen.layout, chosen.paper
    late = gap = 0
    copies = 1
    method = fleet.method_of(layout)
    if method is not None:
        delays = method.delays(layout.stages, layout.microbatches)
        late = delays.forward[0]
        gap = late - delays.backward[0]
        copies = method.weight_copies(layout.stages, layout.microbatches)[0]
    once = sum(layer.total_ms for layer in fleet.work.profile(fleet.work.batch, 1).layers) / 1e3  # seconds on one GPU
    return {
        "stages": layout.stages,
        "workers": layout.workers,
        "tensor": layout.tensor,
        "replicas": layout.replicas,
        "microbatches": layout.microbatches,
        "samples": layout.samples,
        "recompute": layout.recompute,
        "sharded": layout.sharded,
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
    """Why no layout fits, in words."""
    tried = [fleet.memory(layout) for layout in fleet.layouts()]
    if not tried:
        return why_no_layout(fleet)
    held = [memory for memory in tried if memory is not None]
    if not held:
        return "two versions do not suffice, for a minibatch has fewer microbatches than the pipeline stages"
    fit = "does not fit without recomputation" if fleet.splits else "does not fit"
    return f"{fit}: {min(held) / 2**30:.0f} GiB of a GPU's {fleet.machine.sheet.memory / 2**30:.0f}"


def why_no_layout(fleet: Fleet) -> str:
    """Why there is no layout at all, in words: the GPUs or the samples cannot be divided."""
    pipelines, batch = [tensor * workers for tensor, workers in fleet.pipelines()], fleet.work.batch
    if not pipelines:
        most = len(fleet.work.profile(1, 1).layers) // min(fleet.chunks)
        gpus = "one GPU" if fleet.gpus == 1 else f"{fleet.gpus} GPUs"
        return f"{gpus} cannot be divided into pipelines of 2 to {most} stages, a layer each at least"
    if fleet.gpus // max(pipelines) > batch:
        return "a minibatch has too few samples for so many replicas"
    if fleet.interleaved and any(batch % (fleet.gpus // gpus) == 0 for gpus in pipelines):
        return "a replica has too few samples to give each GPU of its pipeline a microbatch, as interleaving needs"
    return f"a minibatch of {batch} samples cannot be divided equally over the replicas of any pipeline"


def sharing(options: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of GPUs that may share every layer.

    Raises:
        PipelagError: a network that is not a GPT, whose layers no formulas divide; or a server whose GPUs cannot be
            divided so.
    """
    tensor = tuple(options.get("tensor") or [1])
    if tensor != (1,) and options["model"].get("gpt") is None:
        raise PipelagError(f"tensor is {list(tensor)}, but only a GPT's layers can be shared; leave tensor out")
    server = options["machine"]["server"]
    for gpus in tensor:
        if server % gpus:
            raise PipelagError(f"tensor has {gpus}, which does not divide the {server} GPUs of a server equally")
    return tensor


@lru_cache(maxsize=64)
def numbers_of(name: str | None, mixed: bool) -> Numbers:
    """The bytes that a method with Adam holds and moves per parameter, found by rehearsing it with fused kernels."""
    import torch

    from pipelag.timing.rehearsal import rehearse

    method: Method = get(name or "gpipe")
    stages = [rehearse(method, partial(torch.optim.Adam, lr=1e-3), *place) for place in REHEARSED]
    state = MOMENTS + (MASTER if mixed else 0) + 4 * stages[0].remembered
    computes = not {method.forward_reads, method.backward_reads} <= {"live", "stashed"}  # versions change by pointers
    moved = [one.moved["step"].fused + computes * one.moved["U"].fused for one in stages]
    first, inner, last = (4 * each for each in moved)
    return Numbers(GRADIENT, state, (first, inner, last))


def gpt_profiles(gpt: GPT, machine: Machine, efficiency: float) -> Callable[[int, int], Profile]:
    """(Samples, GPUs that share every layer) -> a GPU's profile of a GPT, from its formulas.

    Matrix products run at `efficiency` of the peak rate. GPUs that share a layer wait for its collectives, rings over
    the links inside a server: of G GPUs each sends (G-1)/G of the activations, with the latency log2(G) times.
    """
    rate = machine.sheet.flops * efficiency

    @lru_cache(maxsize=256)
    def profile(samples: int, tensor: int) -> Profile:
        rows = []
        for number, layer in enumerate(gpt.layers(samples, tensor=tensor), start=1):
            each = ring_seconds(layer.gathered_bytes, tensor, machine.inside) / 2 + ceil(log2(tensor)) * machine.latency
            waiting = layer.collectives * each
            row = LayerTime(
                number,
                layer.name,
                1e3 * (layer.forward / rate + waiting),
                1e3 * (layer.backward / rate + waiting),
                layer.output_bytes,
                layer.kept_bytes,
                2 * layer.parameters,
                1e3 * layer.weight_gradient / rate,
            )
            rows.append(row)
        return Profile(tuple(rows))

    return profile


def network_profiles(network: Network, sheet: str) -> Callable[[int, int], Profile]:
    """(Samples, 1) -> profile of a network, on the straight line through its rooflines for `SMALL`, `LARGE` samples.

    Raises:
        PipelagError: an unknown model or option, or inputs that the model cannot take.
    """
    import torch

    from pipelag.models import build
    from pipelag.models.taking import taking
    from pipelag.timing.loss import with_loss
    from pipelag.timing.roofline import roofline

    with torch.device("meta"):
        model = with_loss(build(network.name, **network.options))
    shapes = f"inputs of the shapes {[list(one.shape) for one in network.inputs]}"

    def made(samples: int) -> Profile:
        with torch.device("meta"), taking(network.name, shapes):
            values = tuple(
                torch.empty(samples, *one.shape, dtype=torch.long if one.of == "words" else torch.float)
                for one in network.inputs
            )
            return roofline(model, values if len(values) > 1 else values[0], sheet)

    few, many = made(SMALL).layers, made(LARGE).layers

    @lru_cache(maxsize=256)
    def profile(samples: int, tensor: int = 1) -> Profile:
        assert tensor == 1
        share = (samples - SMALL) / (LARGE - SMALL)
        return Profile(tuple(between(a, b, share) for a, b in zip(few, many, strict=True)))

    return profile


def between(a: LayerTime, b: LayerTime, share: float) -> LayerTime:
    """A layer's times and bytes on the straight line through `a` (at share 0) and `b` (at share 1)."""

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
        line("weight_ms"),
    )
