"""Microbatches that share passes train like those that go through one by one, up to rounding."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.data.text.parallel import PAD
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, get
from pipelag.models import build
from pipelag.models.gnmt import gnmt
from pipelag.simulate.discrepancy import Discrepancy
from pipelag.simulate.grouped import near
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from tests.toy import Counted, Noise, adamw, convolutional, equal, sgd, simulated

CUTS, PARTS, STEPS = (1, 2, 4), 4, 9
loss_of = nn.functional.cross_entropy


GROUPABLE = [name for name in METHODS if simulated(name, STEPS, CUTS, PARTS)]


class Precise(Noise):
    """Minibatches in double precision."""

    def __getitem__(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().__getitem__(t)
        return inputs.double(), targets


def training_of(
    model: nn.Sequential, phases: list[Phase], grouped: bool, make: Any = sgd, bf16: bool = False
) -> SimulatedTraining:
    return SimulatedTraining(
        model.train(), phases, make, loss_of, lambda t: 1 / (1 + t / 4), 5, bf16=bf16, grouped=grouped
    )


def trained(model: nn.Sequential, phases: list[Phase], grouped: bool, batches: Noise, **how: Any) -> Any:
    training = training_of(model, phases, grouped, **how)
    losses = [float(training.step(*batches[t])) for t in range(sum(phase.steps for phase in phases))]
    return training, losses


@pytest.mark.parametrize("method", GROUPABLE)
def test_every_method_in_double_precision(method: str, device: str) -> None:
    """Losses and weights agree to 1e-9, for every method whose microbatches can share passes.

    The model has batch norm, dropout and a residual block that a cut divides; delays differ between the microbatches of
    a minibatch.
    """
    make = adamw if method in ("pipeoptim", "xpipe") else sgd
    phases = [Phase(get(method), STEPS, CUTS, microbatches=PARTS)]
    ends = {}
    for grouped in (True, False):
        model = convolutional().double().to(device)
        training, losses = trained(model, phases, grouped, Precise(device=device), make=make)
        ends[grouped] = losses, training.model.state_dict()
        assert training.pipeline.phase.replicated or bool(training.without_groups(0)) is not grouped
    assert ends[True][0] == pytest.approx(ends[False][0], rel=1e-9)
    for name, value in ends[False][1].items():
        torch.testing.assert_close(ends[True][1][name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(
    ("method", "most"), [("gpipe", 1), ("pipemare_naive", 2), ("pipemare", 3), ("pipedream_cycle", 2)]
)
def test_a_stage_is_passed_once_per_run_of_equal_reads(method: str, most: int) -> None:
    model, counts = convolutional(), Counter[int]()
    for number, layer in enumerate(model):
        layer.register_forward_pre_hook(lambda *_, number=number: counts.update([number]))
    training = training_of(model, [Phase(get(method), STEPS, CUTS, microbatches=PARTS)], grouped=True)
    for t in range(STEPS):
        counts.clear()
        training.step(*Noise()[t])
        if t:  # the first minibatch is computed both ways, to compare them
            assert max(counts.values()) <= most, (t, counts)
    assert min(counts.values()) >= 1


class Centred(nn.Module):
    """Mixes samples, which its type does not show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Functional(nn.Module):
    """Draws random numbers, which its type does not show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.2, self.training)


class Turned(nn.Module):
    """Its output has the samples in the second dimension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1)


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([Centred()], "mixes the samples"),
        ([Functional()], "draws random numbers"),
        ([Turned(), Turned()], "does not take several microbatches"),
        ([Turned(), nn.Identity(), Turned()], "layer"),
        ([Counted()], "mixes the samples"),
        ([nn.Dropout(0.2, inplace=True)], "does not take several microbatches"),
    ],
    ids=["centred", "functional dropout", "turned", "turned, of equal length", "counted", "in place"],
)
def test_a_layer_that_goes_by_the_microbatch_unseen_is_found_and_left_alone(layers: list[nn.Module], why: str) -> None:
    ends = []
    for grouped in (True, False):
        model = convolutional()
        model = nn.Sequential(*model[:5], *layers, *model[5:])
        phases = [Phase(get("pipemare"), STEPS, (1, 2, 4, 6), microbatches=PARTS)]
        training, losses = trained(model, phases, grouped, Noise())
        ends.append((losses, training.model.state_dict()))
        assert not grouped or why in str(training.without_groups(0))
    assert ends[0][0] == ends[1][0] and equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2)])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("layer", [Centred, Counted, Functional])
def test_it_is_found_in_every_stage_and_with_two_microbatches(
    cuts: tuple[int, ...], parts: int, layer: type[nn.Module]
) -> None:
    """A layer that mixes samples or draws is found in whatever stage it is, also where there are only two microbatches.

    With two, a trial that separates them has no run of several microbatches left to examine.
    """
    for at in range(len(cuts) + 1):
        torch.manual_seed(0)
        stages = [nn.Sequential(*[layer()][: at == n], nn.Linear(4, 4)) for n in range(len(cuts) + 1)]
        training = training_of(nn.Sequential(*stages), [Phase(get("gpipe"), 2, cuts, microbatches=parts)], True)
        training.step(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 4)
        assert training.without_groups(0), (at, layer)


class Transposed(nn.Module):
    """Applies a layer to (places, samples, ...), as torch's transformers are laid out by default."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x.transpose(0, 1)).transpose(0, 1)
        return y


def test_a_dropout_that_drops_nothing_need_not_have_a_row_per_sample() -> None:
    """Also where the first minibatch has as many places as would divide over the microbatches."""
    ends, phases = [], [Phase(get("pipemare_naive"), 3, (1, 2, 3), microbatches=4)]
    for grouped in (True, False):
        torch.manual_seed(0)
        layers = [Transposed(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)) for _ in range(2)]
        evaluated = Transposed(nn.Dropout(0.5))
        model = nn.Sequential(nn.Linear(4, 8), *layers, evaluated, nn.Linear(8, 4)).double()
        training = training_of(model, phases, grouped)
        evaluated.eval()
        for places in (8, 8, 7):
            training.step(torch.randn(8, places, 4).double(), torch.zeros(8, 4).long())
        assert bool(training.without_groups(0)) is not grouped
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-10)


def test_a_later_minibatch_that_cannot_be_shared_is_refused_in_a_sentence() -> None:
    drop = nn.Dropout(0.0)
    model = nn.Sequential(nn.Linear(4, 4), Transposed(drop), nn.Linear(4, 4))
    training = training_of(model, [Phase(get("gpipe"), 3, (1,), microbatches=4)], True)
    training.step(torch.randn(8, 6, 4), torch.zeros(8, 4).long())
    drop.p = 0.5
    with pytest.raises(
        PipelagError, match="cannot share passes, as those of the phase's first could: .* grouped=False"
    ):
        training.step(torch.randn(8, 6, 4), torch.zeros(8, 4).long())


class Leaking(nn.Module):
    """Mixes samples slightly."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.005 * x.mean(0)


class Remembering(nn.Module):
    """Subtracts a running mean of its own, which hardly moves: the output depends on how often the layer was called."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.detach().mean(0).to(self.mean), 0.001)
        return x - self.mean


@pytest.mark.parametrize("layer", [Leaking, Remembering])
@pytest.mark.parametrize("how", ["float32", "float64", "bf16"])
@pytest.mark.parametrize("cuts", [(), (1,)])
@pytest.mark.parametrize("at", [0, 1])
def test_a_little_mixing_is_found(layer: type[nn.Module], how: str, cuts: tuple[int, ...], at: int) -> None:
    """Mixing that changes no gradient by a hundredth is found, too: over a training it would add up."""
    torch.manual_seed(0)
    stages = [nn.Sequential(*[layer()][: n == at], nn.Linear(4, 4), nn.Tanh()) for n in range(2)]
    model = nn.Sequential(*stages).to(torch.float64 if how == "float64" else torch.float32)
    phases = [Phase(get("gpipe"), 2, cuts, microbatches=4)]
    training = training_of(model, phases, True, bf16=how == "bf16")
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    training.step(inputs.to(next(model.parameters()).dtype if how != "bf16" else torch.float32), torch.arange(32) % 4)
    assert "mixes the samples" in str(training.without_groups(0))


class Attending(nn.Module):
    """Causal attention within each sequence after a layer norm; its mask has zeros and -inf."""

    mask: torch.Tensor

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.register_buffer("mask", torch.full((length, length), -torch.inf).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, attn_mask=self.mask, need_weights=False)[0]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("cuts", [(), (1, 3)])
def test_attention_within_samples_is_shared(cuts: tuple[int, ...], bf16: bool) -> None:
    torch.manual_seed(0)
    layers = [Attending(16, 6), nn.Sequential(nn.Linear(16, 16), nn.GELU()), Attending(16, 6)]
    model = nn.Sequential(nn.Embedding(9, 16), *layers, nn.Flatten(), nn.Linear(96, 4))
    training = training_of(model, [Phase(get("gpipe"), 2, cuts, microbatches=4)], True, bf16=bf16)
    training.step(torch.randint(9, (16, 6)), torch.arange(16) % 4)
    assert training.without_groups(0) == ""


class Named(nn.Module):
    """Returns its output in a dictionary."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": x}


def test_outputs_by_name_are_shared() -> None:
    model, phases = nn.Sequential(nn.Linear(4, 4), Named()), [Phase(get("gpipe"), 2, (1,), microbatches=2)]
    loss = lambda output, targets: loss_of(output["logits"], targets)  # noqa: E731
    training = SimulatedTraining(model.train(), phases, sgd, loss, lambda t: 1.0, 5, grouped=True)
    training.step(torch.randn(8, 4), torch.arange(8) % 4)
    assert training.without_groups(0) == ""


@pytest.mark.parametrize("method", ["pipemare_naive", "stale_weights", "pipedream"])
@pytest.mark.parametrize("at", range(4))
def test_a_stage_that_changes_its_input_in_place_is_shared(method: str, at: int) -> None:
    """Microbatches that share passes lie in one tensor, and an in-place change in one leaves the others alone."""
    ends = []
    for grouped in (True, False):
        torch.manual_seed(0)
        rows = [nn.Sequential(*[nn.ReLU(inplace=True)] * (number == at), nn.Linear(6, 6)) for number in range(4)]
        phases = [Phase(get(method), 10, (1, 2, 3, 4), microbatches=4)]
        training = training_of(nn.Sequential(*rows, nn.Linear(6, 4)).double(), phases, grouped)
        draw = torch.Generator().manual_seed(0)
        for _ in range(10):
            loss = training.step(torch.randn(8, 6, generator=draw).double(), torch.arange(8) % 4)
        assert not grouped or training.without_groups(0) == ""
        ends.append(torch.cat([loss.view(1), *(p.detach().flatten() for p in training.model.parameters())]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-10)


def test_an_infinite_difference_is_one() -> None:
    assert not near([torch.tensor([torch.inf])], [torch.tensor([1.0])], 0.01)
    assert near([torch.tensor([torch.inf, torch.nan, 1])], [torch.tensor([torch.inf, torch.nan, 1.001])], 0.01)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ["resnet20", "lenet5"])
def test_networks_of_convolutions_are_shared(name: str, bf16: bool) -> None:
    torch.manual_seed(0)
    model = build(name)
    size = (32, 1, 28, 28) if name == "lenet5" else (32, 3, 32, 32)
    training = training_of(model, [Phase(get("gpipe"), 2, (2, 4), microbatches=4)], True, bf16=bf16)
    training.step(torch.randn(size, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 10)
    assert training.without_groups(0) == ""


@pytest.mark.parametrize("bf16", [False, True])
def test_packed_sentences_are_shared(bf16: bool) -> None:
    """An LSTM over packed sentences shares passes, although sharing changes its rounding.

    How many sentences it takes at once depends on the lengths of all of them.
    """
    torch.manual_seed(0)
    model = gnmt(layers=4, size=64, source_words=50, target_words=50)
    source, target = torch.randint(4, 50, (2, 32, 13))
    lengths = torch.randint(2, 14, (32,))
    source = source.masked_fill(torch.arange(13) >= lengths[:, None], PAD)
    phases = [Phase(get("gpipe"), 2, (2, 4), microbatches=4)]
    loss = lambda output, words: loss_of(output.flatten(0, 1).float(), words.flatten())  # noqa: E731
    training = SimulatedTraining(model.train(), phases, sgd, loss, lambda t: 1.0, 5, bf16=bf16, grouped=True)
    training.step((source, target), target)
    assert training.without_groups(0) == ""


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_training_that_goes_on_ends_bit_for_bit_as_an_unbroken_one(stop: int) -> None:
    phases = [
        Phase(get("pipemare"), 6, CUTS, microbatches=PARTS),
        Phase(get("pipedream_2bw"), STEPS - 6, (3,), microbatches=PARTS),
    ]
    whole, losses = trained(convolutional(), phases, True, Noise())
    broken = training_of(convolutional(), phases, True)
    for t in range(stop):
        broken.step(*Noise()[t])
    saved = broken.state_dict()
    resumed = training_of(convolutional(1), phases, True)
    resumed.load_state_dict(saved)
    remaining = [float(resumed.step(*Noise()[t])) for t in range(stop, STEPS)]
    assert remaining == losses[stop:]
    assert equal(resumed.model.state_dict(), whole.model.state_dict())


def test_in_bfloat16_too() -> None:
    phases = [Phase(get("pipemare"), STEPS, CUTS, microbatches=PARTS)]
    (training, losses), (_, expected) = (
        trained(convolutional(), phases, each, Noise(), bf16=True) for each in (True, False)
    )
    assert training.without_groups(0) == ""
    assert losses == pytest.approx(expected, rel=0.05)


def test_layers_are_as_they_were_after_a_step_and_after_an_error() -> None:
    model = convolutional()
    training = training_of(model, [Phase(get("pipemare"), STEPS, CUTS, microbatches=PARTS)], grouped=True)
    training.step(*Noise()[0])
    with pytest.raises(IndexError):
        training.step(Noise()[1][0], torch.full((8,), 9))
    assert not any("forward" in vars(part) for part in model.modules())


@pytest.mark.parametrize(
    ("phase", "why"),
    [
        (Phase(get("pipemare"), 4, CUTS), "one piece"),
        (Phase(get("pipemare"), 4, CUTS, microbatches=2, recompute=True), "run again"),
        (Phase(get("pipedream"), 4, (3,), microbatches=2, replicas=(2, 1)), "replicas"),
    ],
)
def test_what_has_nothing_to_share_says_so(phase: Phase, why: str) -> None:
    training, _ = trained(convolutional(), [phase], True, Noise())
    assert why in str(training.without_groups(0))


def test_distances_are_measured_microbatch_by_microbatch() -> None:
    rows = []
    for grouped in (True, False):
        training = training_of(convolutional(), [Phase(get("pipemare"), 4, CUTS, microbatches=PARTS)], grouped)
        measuring = Discrepancy(training.pipeline, (), 1)
        for t in range(4):
            training.step(*Noise()[t])
        rows.append(measuring.row())
        assert not grouped or training.without_groups(0) == "somebody looks at what each microbatch reads"
    assert rows[0] == rows[1] and any(rows[0]["forward_distance"])


def test_a_forward_that_another_library_has_put_into_a_layer_stays_there() -> None:
    model, calls = convolutional(), list[torch.Size]()
    norm = next(part for part in model.modules() if isinstance(part, nn.BatchNorm2d))
    usual = norm.forward

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return usual(x)

    norm.forward = counted  # type: ignore[method-assign]
    training, _ = trained(model, [Phase(get("gpipe"), STEPS, CUTS, microbatches=PARTS)], True, Noise())
    assert training.without_groups(0) == "" and norm.forward is counted
    assert len(calls) > STEPS * PARTS
