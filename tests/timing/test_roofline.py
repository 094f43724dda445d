"""Profiles from data sheets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipelag.errors import PipelagError
from pipelag.timing.layers import Profile
from pipelag.timing.loss import with_loss
from pipelag.timing.profile import profile
from pipelag.timing.roofline import Roofline, roofline
from pipelag.timing.sheets import DEVICES, Device, data_sheet


def test_an_operator_takes_the_longer_of_computing_and_moving() -> None:
    a, b = torch.empty(64, 32, device="meta"), torch.empty(32, 16, device="meta")
    with Roofline(Device(flops=1.0, bandwidth=1e30)) as computing:
        a @ b
    assert computing.seconds == 2 * 64 * 32 * 16
    with Roofline(Device(flops=1e30, bandwidth=1.0)) as moving:
        a @ b
    assert moving.seconds == 4 * (64 * 32 + 32 * 16 + 64 * 16)


def test_views_take_no_time() -> None:
    with Roofline(Device(1.0, 1.0)) as clock:
        torch.empty(8, 8, device="meta").view(64).unsqueeze(0)
    assert clock.seconds == 0
    a, b = torch.empty(2, 3, 4, device="meta"), torch.empty(4, 5, device="meta")
    assert bytes_moved(lambda: a @ b) == 4 * (2 * 3 * 4 + 4 * 5 + 2 * 3 * 5)  # the product's shape is a view, too


def bytes_moved(run: Callable[[], object]) -> float:
    with Roofline(Device(flops=1e30, bandwidth=1.0)) as clock:
        run()
    return clock.seconds


def test_what_picks_elements_reads_those() -> None:
    """Rows of a table, classes of targets: not the table, not all logarithms."""
    table, words = torch.empty(5000, 8, device="meta"), torch.empty(3, 7, dtype=torch.long, device="meta")
    rows = 2 * 3 * 7 * 8 * 4 + 3 * 7 * 8  # read, written, and by which numbers
    assert bytes_moved(lambda: functional.embedding(words, table)) == rows
    assert bytes_moved(lambda: table[words]) == rows
    assert bytes_moved(lambda: table.index_select(0, words[0])) == rows / 3
    numbers = torch.empty(3, 8, dtype=torch.long, device="meta")
    assert bytes_moved(lambda: table.gather(0, numbers)) == 2 * 3 * 8 * 4 + 3 * 8 * 8
    logarithms, targets = torch.empty(6, 1000, device="meta"), torch.empty(6, dtype=torch.long, device="meta")
    loss, weight = 4, 4  # the mean, and by what it was divided
    assert bytes_moved(lambda: functional.nll_loss(logarithms, targets)) == 6 * 4 + 6 * 8 + loss + weight
    few = torch.empty(2, 8, device="meta")  # where rows are taken more than once the table may be the smaller part
    assert bytes_moved(lambda: functional.embedding(words, few)) == rows - 3 * 7 * 8 * 4 + 2 * 8 * 4


def test_what_is_overwritten_is_not_read_and_what_is_broadcast_is_read_once() -> None:
    one, other = torch.empty(4, 8, device="meta"), torch.empty(1, 8, device="meta").expand(4, 8)
    assert bytes_moved(one.zero_) == bytes_moved(lambda: one.fill_(2.0)) == 4 * 8 * 4
    assert bytes_moved(lambda: one.copy_(other)) == 4 * 8 * 4 + 8 * 4
    assert bytes_moved(lambda: one.add_(other)) == 2 * 4 * 8 * 4 + 8 * 4


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


@pytest.mark.parametrize("before", [Frozen, nn.Identity])
def test_no_gradient_goes_to_layers_without_any(before: Callable[[], nn.Module]) -> None:
    """The first layer with weights to train has the backward of a first layer, whatever stands before it."""
    with torch.device("meta"):
        batch = torch.empty(8, 64)
        behind, alone = (
            roofline(nn.Sequential(*more, nn.Linear(64, 64), nn.Linear(64, 64)), batch, "v100").layers
            for more in ([before()], [])
        )
    assert [layer.backward_ms for layer in behind] == [0.0, *(layer.backward_ms for layer in alone)]
    assert alone[0].backward_ms < alone[1].backward_ms


def test_sizes_are_those_of_a_measured_profile() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(144, 5)),
        )

    measured = profile(build(), torch.randn(2, 3, 8, 8), repeats=1, warmup=0)
    with torch.device("meta"):
        counted = roofline(build(), torch.empty(2, 3, 8, 8), "v100")
    for ours, theirs in zip(counted.layers, measured.layers, strict=True):
        assert (ours.output_bytes, ours.weight_bytes) == (theirs.output_bytes, theirs.weight_bytes)
        assert ours.kept_bytes == theirs.kept_bytes
        assert ours.forward_ms > 0 and ours.backward_ms > 0


def test_a_model_can_be_asked_again() -> None:
    with torch.device("meta"):
        model, batch = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), torch.empty(2, 64)
        assert roofline(model, batch, "v100") == roofline(model, batch, "v100")


def test_the_last_layer_can_compute_the_loss() -> None:
    """The cross-entropy keeps the logarithms of all probabilities, the targets and the sum of their weights."""
    with torch.device("meta"):
        words = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
        batch = torch.empty(3, 7, dtype=torch.long)
        plain, lossy = (roofline(model, batch, "v100").layers for model in (words, with_loss(words)))
    assert lossy[0] == plain[0]
    assert lossy[1].name == plain[1].name and lossy[1].weight_bytes == plain[1].weight_bytes
    assert lossy[1].kept_bytes - plain[1].kept_bytes == 3 * 7 * (50 * 4 + 8) + 4
    assert lossy[1].forward_ms > plain[1].forward_ms and lossy[1].backward_ms > plain[1].backward_ms
    assert lossy[1].output_bytes == 4


def test_the_losses_of_several_outputs_add_up() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.one(x), self.two(x)

    with torch.device("meta"):
        (layer,) = roofline(with_loss(nn.Sequential(Heads())), torch.empty(6, 4), "v100").layers
    assert layer.kept_bytes == 6 * (3 + 2) * 4 + 2 * (6 * 8 + 4)
    assert layer.output_bytes == 4


@pytest.mark.parametrize(
    ("name", "cores", "gigahertz", "memory"),
    [("p100", 3584, 1.303, 16), ("p100_sxm2", 3584, 1.48, 16), ("p40", 3840, 1.531, 24)],
)
def test_data_sheets_agree_with_cores_and_clocks(name: str, cores: int, gigahertz: float, memory: int) -> None:
    """A core's fused multiply-add is two operations a cycle; boost clocks of NVIDIA's product briefs."""
    assert DEVICES[name].flops == pytest.approx(2 * cores * gigahertz * 1e9, rel=0.005)
    assert DEVICES[name].memory == memory * 2**30


class Past(nn.Module):
    """A linear layer that another tensor travels past."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)

    def forward(self, value: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(value[0]), value[1]


def test_what_passes_through_takes_no_time() -> None:
    with torch.device("meta"):
        start, skips = nn.Identity(), []
        for width in (8, 8000):
            batch = (torch.empty(4, 8), torch.empty(4, width))
            skips.append(roofline(nn.Sequential(start, Past(8), Past(8)), batch, "v100").layers[1])
    assert skips[0].backward_ms == skips[1].backward_ms > 0
    assert skips[0].output_bytes < skips[1].output_bytes


def test_shared_weights_count_once() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared), nn.Linear(4, 2))
    layers = roofline(model.to("meta"), torch.empty(1, 4, device="meta"), "v100").layers
    assert [layer.weight_bytes for layer in layers] == [80, 0, 40]
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[1] = model[0]
    assert [layer.weight_bytes for layer in profile(model, torch.randn(1, 4), repeats=1).layers] == [80, 0, 40]


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(PipelagError, match="did you mean 'v100'"):
        roofline(nn.Sequential(nn.Linear(2, 2)), torch.empty(1, 2, device="meta"), "v10")


def test_the_part_of_the_weights_is_what_a_backward_of_the_inputs_saves() -> None:
    n, width = 4096, 4096  # products are bound by operations, sums by bytes
    with torch.device("meta"):
        linears = [nn.Linear(width, width, bias=False) for _ in range(2)]
        layers = roofline([*linears, nn.ReLU()], torch.empty(n, width), "v100").layers
    product = 1e3 * 2 * n * width**2 / data_sheet("v100").flops
    first, second, relu = layers
    assert first.weight_ms == first.backward_ms == pytest.approx(product)  # nobody needs the gradient of the data
    assert (second.backward_ms, second.weight_ms) == (pytest.approx(2 * product), pytest.approx(product))
    assert relu.backward_ms > 0 and relu.weight_ms == 0
    stage = Profile(layers).cut((1,), microbatches=2)[1]
    assert stage.weight_gradient == pytest.approx(product / 2e3)
    assert Profile(layers).scaled(3.0).layers[1].weight_ms == pytest.approx(3 * product)
    assert Profile(layers).faster(2.0).layers[1].weight_ms == pytest.approx(product / 2)
