"""What travels before a message of uneven shape."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pipelag.distributed.p2p import MOST_DIMENSIONS, Sender, TensorMeta, Wire, header_of, shapes_of
from pipelag.errors import PipelagError

SHAPES = st.lists(st.lists(st.integers(0, 2**40), max_size=MOST_DIMENSIONS).map(tuple), min_size=1, max_size=4)


@given(SHAPES)
def test_a_header_tells_the_shapes_that_went_into_it(shapes: list[tuple[int, ...]]) -> None:
    metas = [TensorMeta(shape, torch.float32, False, True) for shape in shapes]
    assert shapes_of(header_of(metas)) == shapes


@given(st.integers(1, 3), st.integers(1, 5), st.integers(2, 4), st.integers(2, 4))
def test_a_channels_last_tensor_comes_back_as_it_was(n: int, c: int, h: int, w: int) -> None:
    tensor = torch.randn(n, c, h, w).to(memory_format=torch.channels_last)
    meta = TensorMeta.of(tensor)
    assert meta.channels_last is not tensor.is_contiguous()  # of one channel it is both
    sent = meta.wire(tensor)
    buffer = meta.buffer(torch.device("cpu"))
    assert sent.is_contiguous() and buffer.shape == sent.shape
    buffer.copy_(sent)
    back = meta.unwire(buffer)
    assert torch.equal(back, tensor) and (back.stride() == tensor.stride() or not meta.channels_last)


def test_a_message_of_another_number_of_tensors_is_refused() -> None:
    wire = Wire(0, None, dist.HashStore(), torch.device("cpu"), "F1:0-1")  # type: ignore[arg-type]
    sender = Sender(wire, 1, 2, [TensorMeta.of(torch.ones(2))])
    with pytest.raises(PipelagError, match="the output has 2 tensors, but earlier ones had 1; a stage"):
        sender.send((torch.ones(2), torch.ones(2)), "the output")


def test_an_uneven_message_of_more_dimensions_than_its_header_states_is_refused() -> None:
    wire = Wire(0, None, dist.HashStore(), torch.device("cpu"), "F1:0-1", uneven=True)  # type: ignore[arg-type]
    with pytest.raises(PipelagError, match=r"the output has 8 dimensions; with uneven=True .* at most 7"):
        Sender(wire, 1, 2).send((torch.ones([1] * 8),), "the output")
