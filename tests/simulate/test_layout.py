"""The memory layout of gradients at a cut: sums are rounded alike in every executor, and under recomputation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.simulate.layouts import Layouts
from tests.toy import equal


class LastState(nn.Module):
    """A recurrent layer with batches first, from which a transposed gradient comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0][:, -1]


def trained(method: str = "gpipe", **how: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(7), LastState(), nn.Linear(4, 2))
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(12, 7, 6, generator=generator), torch.arange(12) % 2) for _ in range(6)]
    pipelag.train(model, batches, method=method, cuts=(2,), microbatches=2, **how)
    return model.state_dict()


def test_recomputation_does_not_change_a_bit_behind_a_recurrent_layer() -> None:
    assert equal(trained(), trained(recompute=True))


@pytest.mark.real
def test_real_workers_sum_the_gradient_of_a_recurrent_layer_alike() -> None:
    assert equal(trained("zb_h1"), trained("zb_h1", executor="real"))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_gradient_comes_back_laid_out_as_the_output(layout: torch.memory_format) -> None:
    weight = torch.ones(2, 3, 4, 5, requires_grad=True)
    output = (2 * weight).contiguous(memory_format=layout)
    seen: list[torch.Tensor] = []
    layouts = Layouts()
    assert layouts.answered_alike((output, weight), 1)[1] is weight  # a leaf keeps no hook
    assert not weight._backward_hooks
    output.register_hook(seen.append)
    output.backward(torch.ones(5, 4, 3, 2).permute(3, 2, 1, 0))
    assert seen[0].stride() == output.stride() and layouts.otherwise == {1}
    layouts.examining = False
    assert layouts.answered_alike(2 * weight, 2)._backward_hooks is None  # no gradient has come otherwise there
