"""The formulas of a GPT whose layers several GPUs share, against torch's tensor and sequence parallelism.

One process is the first of `SHARED` GPUs; its process group is a fake one, which sends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from pipelag.errors import PipelagError
from pipelag.models.gpt import GPT

SHARED, SEQUENCES = 2, 3
SIZES = GPT(blocks=1, width=32, heads=4, vocabulary=212, context=24)
COLLECTIVES = ("all_gather_into_tensor", "reduce_scatter_tensor")


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=SHARED)
    yield init_device_mesh("cpu", (SHARED,))
    dist.destroy_process_group()


class Attention(nn.Module):
    """Queries, keys and values apart, as their heads are divided."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        w = gpt.width
        self.size, self.norm, self.out = w // gpt.heads, nn.LayerNorm(w), nn.Linear(w, w)
        self.q, self.k, self.v = nn.Linear(w, w), nn.Linear(w, w), nn.Linear(w, w)

    def forward(self, x: DTensor) -> torch.Tensor:
        normed = self.norm(x).redistribute(placements=[Replicate()])  # gathered once for all three
        q, k, v = (each(normed).unflatten(-1, (-1, self.size)).transpose(1, 2) for each in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.out(y)


class Hidden(nn.Module):
    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(gpt.width)
        self.wide, self.narrow = nn.Linear(gpt.width, 4 * gpt.width), nn.Linear(4 * gpt.width, gpt.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Head(nn.Module):
    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(gpt.width), nn.Linear(gpt.width, gpt.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(self.norm(x))


COLUMNS = ColwiseParallel(input_layouts=Shard(1))
ROWS = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
PLANS = {
    "attention": (
        Attention,
        {"norm": SequenceParallel(), "out": ROWS} | dict.fromkeys("qkv", ColwiseParallel(input_layouts=Replicate())),
    ),
    "hidden": (Hidden, {"norm": SequenceParallel(), "wide": COLUMNS, "narrow": ROWS}),
    "output": (
        Head,
        {"norm": SequenceParallel(), "words": ColwiseParallel(input_layouts=Shard(1), use_local_output=False)},
    ),
}


def exchanged(comm: CommDebugMode) -> list[str]:
    """The collectives of activations, sorted; sums of a word's few numbers and of the norms' gradients are left out."""
    calls = Counter({str(name).split(".")[-1]: count for name, count in comm.get_comm_counts().items()})
    return sorted(name for name in calls.elements() if name in COLLECTIVES)


def local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


@pytest.mark.parametrize("name", PLANS)
def test_a_shared_layer_has_its_part_of_weights_and_products_and_the_collectives_that_torch_has(
    mesh: DeviceMesh, name: str
) -> None:
    layers = {layer.name: layer for layer in SIZES.layers(SEQUENCES, element=4, tensor=SHARED)}
    kind, plan = PLANS[name]
    module, counted = kind(SIZES), layers[name]
    parallelize_module(module, mesh, plan)
    mine = torch.randn(SEQUENCES, SIZES.context // SHARED, SIZES.width, requires_grad=True)
    value = DTensor.from_local(mine, mesh, [Shard(1)])
    assert mine.numel() * 4 * SHARED == counted.gathered_bytes
    with CommDebugMode() as ahead, FlopCounterMode(display=False) as forward:
        out = module(value)
    with loss_parallel(), CommDebugMode() as back, FlopCounterMode(display=False) as backward:
        if name == "output":
            targets = torch.zeros(SEQUENCES * SIZES.context, dtype=torch.long)
            F.cross_entropy(out.flatten(0, 1), targets).backward()
        else:
            out.backward(torch.ones_like(out))
            assert local(out).numel() * 4 == counted.output_bytes
    assert sum(local(p).numel() for p in module.parameters()) == counted.parameters
    assert len(exchanged(ahead)) == len(exchanged(back)) == counted.collectives
    # torch counts the products of all GPUs, but attention's scores, which it does not divide itself, of this one
    scores = 4 * SIZES.context * SIZES.width * SEQUENCES * SIZES.context // SHARED if name == "attention" else 0
    assert forward.get_total_flops() == SHARED * (counted.forward - scores) + scores
    assert backward.get_total_flops() == SHARED * (counted.backward - scores * 5 // 2) + scores * 5 // 2


def test_the_embedding_scatters_its_sums_once(mesh: DeviceMesh) -> None:
    counted = SIZES.layers(SEQUENCES, element=4, tensor=SHARED)[0]
    words = nn.Embedding(SIZES.vocabulary, SIZES.width)
    parallelize_module(words, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)))
    with CommDebugMode() as ahead:
        out = words(torch.zeros(SEQUENCES, SIZES.context, dtype=torch.long))
    with CommDebugMode() as back:
        out.sum().backward()
    assert exchanged(ahead) == ["reduce_scatter_tensor"] and exchanged(back) == ["all_gather_into_tensor"]
    assert counted.collectives == 1 and out.numel() * 4 == counted.output_bytes
    places = SIZES.context * SIZES.width  # the positions' embeddings, on every GPU
    assert sum(local(p).numel() for p in words.parameters()) + places == counted.parameters


def test_what_is_kept_is_divided_and_the_vocabulary_is_filled_up() -> None:
    alone, shared = (GPT(blocks=1, width=32, heads=4, vocabulary=211, context=24).layers(1, 2, n) for n in (1, 2))
    for one, part in zip(alone[:3], shared[:3], strict=True):
        assert part.kept_bytes * 2 == one.kept_bytes
    words, most = 24, 106  # of 211, one GPU has 106
    assert shared[3].kept_bytes == words // 2 * (32 * 2 + 2 * 4) + (words * most + 1) * 4
    assert shared[3].parameters == 2 * 32 + most * 32


@pytest.mark.parametrize(("gpus", "what"), [(3, "4 heads"), (16, "4 heads")])
def test_what_cannot_be_divided_is_refused(gpus: int, what: str) -> None:
    with pytest.raises(PipelagError, match=f"{gpus} GPUs cannot share {what} equally"):
        SIZES.layers(1, tensor=gpus)


def test_words_of_a_sequence_must_be_divided_too() -> None:
    with pytest.raises(PipelagError, match="2 GPUs cannot share 25 words of a sequence equally"):
        GPT(blocks=1, width=32, heads=4, context=25).layers(1, tensor=2)
