"""A CPU steps piece by piece, with gradients that are gathered into one small tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pipelag import methods
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage import by_piece, flat_step
from pipelag.stage.phase import Phase
from tests.stage.test_flat_step import FLAT, STEPS, Make, batches, ended, network, never, of, same, training

ONE_BY_ONE = ("sgd", "momentum", "nesterov", "dampened", "adam", "adam with L2", "adamw", "caffe", "caffe, nesterov")


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of pieces of each step that was made piece by piece."""
    counts: list[int] = []

    def counted(pieces: Sequence[by_piece.Piece], gradients: Any) -> None:
        counts.append(len(pieces))
        step(pieces, gradients)

    step = by_piece.step
    monkeypatch.setattr(by_piece, "step", counted)
    return counts


@pytest.mark.parametrize("name", FLAT)
def test_optimizers_whose_step_is_known_step_piece_by_piece(name: str, stepped: list[int]) -> None:
    trained = training("pipedream", FLAT[name])
    for x, y in batches():
        trained.step(x, y)
    assert stepped == ([3] * 8 if name in ONE_BY_ONE else [])  # the first step makes the state


@pytest.mark.parametrize("options", [{"foreach": True}, {"maximize": True}, {"amsgrad": True}])
def test_an_option_that_changes_the_computation_is_left_to_torch(options: dict[str, Any], stepped: list[int]) -> None:
    trained = training("pipedream", of(torch.optim.Adam, lr=0.01, **options))
    for x, y in batches():
        trained.step(x, y)
    assert stepped == []


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as the weights": lambda gradient: gradient,
    "column by column": lambda gradient: gradient.T.contiguous().T,
    "in a larger tensor": lambda gradient: torch.stack([torch.ones_like(gradient), gradient])[1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("piece", [48, 64, 1 << 16])
def test_a_gradient_may_lie_in_memory_as_it_likes(
    piece: int, layout: str, stepped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a weight of which a piece has only a part."""
    monkeypatch.setattr(flat_step, "PIECE", piece)
    monkeypatch.setattr(flat_step, "_small", lambda weights: True)
    ends = []
    for flat in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 13), nn.Linear(13, 3))
        model[1].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", LAYOUTS[layout](p.grad)))
        phases = [Phase(methods.get("stale_weights"), 6, (1,))]
        trained = SimulatedTraining(model, phases, FLAT["adamw"], F.cross_entropy)
        if not flat:
            never(trained.pipeline.flat_step)
        for step in range(6):
            generator = torch.Generator().manual_seed(step)
            trained.step(torch.randn(5, 7, generator=generator), torch.arange(5) % 3)
        ends.append(ended(trained))
    assert same(*ends)
    assert stepped == [{48: 2 + 5, 64: 2 + 4, 1 << 16: 2}[piece]] * 5


class Doubled(nn.Module):
    """A layer in another precision, or with complex weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 5, dtype=dtype)), nn.Parameter(torch.randn(5, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.to(self.weight.dtype) @ self.weight + self.bias
        return (torch.view_as_real(out).sum(-1) if out.is_complex() else out).float()


@pytest.mark.parametrize("name", ["momentum", "adam with L2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_a_stage_may_have_weights_of_several_types(name: str, dtype: torch.dtype, stepped: list[int]) -> None:
    ends = []
    for flat in (True, False):
        model = nn.Sequential(*network(), Doubled(dtype))
        phases = [Phase(methods.get("stale_weights"), STEPS, (1, 3))]
        trained = SimulatedTraining(model, phases, FLAT[name], F.cross_entropy)
        if not flat:
            never(trained.pipeline.flat_step)
        for x, y in batches():
            trained.step(x, y)
        ends.append(ended(trained))
    assert same(*ends)
    assert stepped == ([] if dtype.is_complex else [4] * 8)


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_nothing_gets_between_the_parameters(name: str) -> None:
    """The padding stays zero in weights and moments, although pieces gather gradients in the same memory."""
    trained = training("pipedream", FLAT[name])
    for x, y in batches():
        trained.step(x, y)
    for weights in trained.pipeline.weights:
        assert weights.laid is not None
        buffers = [[piece for piece in weights.laid.pieces]]
        buffers += [[state[key] for state in weights.laid.states] for key in weights.laid.states[0] if key != "step"]
        for pieces in buffers:
            gaps = torch.cat([piece.detach() for piece in pieces])
            for parameter in weights.flat.parameters:
                _, offset = weights.flat.places[parameter]
                gaps[offset : offset + parameter.numel()] = 0
            assert not gaps.any()


def test_no_stage_keeps_room_for_all_its_gradients() -> None:
    trained = training("pipedream", FLAT["momentum"])
    for x, y in batches():
        trained.step(x, y)
    assert not any("gathered" in vars(weights) for weights in trained.pipeline.weights)


def test_a_gradient_that_somebody_keeps_is_not_overwritten() -> None:
    make: Make = FLAT["nesterov"]
    trained = training("sequential", make)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for parameter in trained.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: kept.append((p.grad, p.grad.clone())))
    for x, y in batches():
        trained.step(x, y)
    assert len(kept) == 9 * len(list(network().parameters())) and all(torch.equal(a, b) for a, b in kept)
