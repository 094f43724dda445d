"""Recurrent layers that a GPU computes without cuDNN, by fused cells, may read other weights in the backward.

Autograd keeps a cell's gates and biases, but for a second derivative only: the first reads what the cell has left for
it. The cells are given to the CPU here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import pipelag
from pipelag.stage.guard import CELLS
from tests.toy import sgd

ATEN = torch.ops.aten
X = [(x, (x.sum((1, 2)) > 0).long()) for x in torch.randn(9, 8, 5, 6, generator=torch.Generator().manual_seed(0))]
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def lstm_cell(ig: torch.Tensor, hg: torch.Tensor, cx: torch.Tensor, bi: torch.Tensor, bh: torch.Tensor) -> Three:
    i, f, g, o = (ig + hg + bi + bh).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def lstm_back(hy: Any, cy_: Any, cx: torch.Tensor, cy: torch.Tensor, space: torch.Tensor, bias: bool) -> Three:
    (i, f, g, o), t = space.chunk(4, 1), cy.tanh()
    hy = torch.zeros_like(cx) if hy is None else hy
    c = hy * o * (1 - t * t) + (0 if cy_ is None else cy_)
    gates = torch.cat((c * g * i * (1 - i), c * cx * f * (1 - f), c * i * (1 - g * g), hy * t * o * (1 - o)), 1)
    return gates, c * f, gates.sum(0)


def gru_cell(
    ig: torch.Tensor, hg: torch.Tensor, hx: torch.Tensor, bi: torch.Tensor, bh: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    (ir, iz, i), (hr, hz, h) = (ig + bi).chunk(3, 1), (hg + bh).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (i + r * h).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, h), 1)


def gru_back(hy: torch.Tensor, space: torch.Tensor, bias: bool) -> tuple[torch.Tensor, ...]:
    r, z, n, hx, h = space.chunk(5, 1)
    back_z, back_n = hy * (hx - n) * z * (1 - z), hy * (1 - z) * (1 - n * n)
    back_r = back_n * h * r * (1 - r)
    ig, hg = torch.cat((back_r, back_z, back_n), 1), torch.cat((back_r, back_z, back_n * r), 1)
    return ig, hg, hy * z, ig.sum(0), hg.sum(0)


@pytest.fixture(autouse=True)
def cells() -> Iterator[None]:
    """Give the CPU a GPU's fused cells."""
    library = torch.library.Library("aten", "IMPL")
    for name, function in {
        "_thnn_fused_lstm_cell": lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": lstm_back,
        "_thnn_fused_gru_cell": gru_cell,
        "_thnn_fused_gru_cell_backward": gru_back,
    }.items():
        library.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
    yield
    library._destroy()  # type: ignore[no-untyped-call]


class Last(nn.Module):
    """The last state of a recurrent layer, computed by the layer or by fused cells."""

    def __init__(self, kind: type[nn.RNNBase], fused: bool) -> None:
        super().__init__()
        self.layer, self.fused = kind(6, 6, batch_first=True), fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.fused:
            return self.layer(x)[0][:, -1]  # type: ignore[no-any-return]
        into, again, bi, bh = self.layer.parameters()
        h = c = torch.zeros(len(x), 6)
        for step in x.unbind(1):
            gates = nn.functional.linear(step, into), nn.functional.linear(h, again)
            if isinstance(self.layer, nn.LSTM):
                h, c, _ = ATEN._thnn_fused_lstm_cell(*gates, c, bi, bh)
            else:
                h, _ = ATEN._thnn_fused_gru_cell(*gates, h, bi, bh)
        return h


def trained(kind: type[nn.RNNBase], method: str, fused: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(Last(kind, fused), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    pipelag.train(model, X, method=method, cuts=(1, 3), optimizer=sgd)
    return model.state_dict()


@pytest.mark.parametrize("method", ["stale_weights", "pipemare", "spectrain"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_methods_whose_backward_reads_other_weights_take_them(kind: type[nn.RNNBase], method: str) -> None:
    torch.testing.assert_close(trained(kind, method, True), trained(kind, method, False), rtol=1e-4, atol=1e-5)


def test_a_first_derivative_reads_no_gates() -> None:
    for cell in CELLS:
        backward = getattr(ATEN, str(cell).removeprefix("aten.") + "_backward").default._schema
        assert not {"input_gates", "hidden_gates", "input_bias", "hidden_bias"} & {a.name for a in backward.arguments}
