"""The models' numbering, sizes and cuts: the papers' placement vectors must mean here what they mean there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock

from pipelag import models
from pipelag.errors import PipelagError
from pipelag.models.count import count, rows
from pipelag.models.cut import layer_count, name_of, stages, stale_percent
from pipelag.models.layers import Shortcut
from pipelag.models.linearise import linearise
from pipelag.results.memory import increase

SMALL = {
    "lenet5": ({"width": 1.0}, (1, 28, 28)),
    "alexnet": ({"width": 0.1, "dropout": 0.0}, (3, 32, 32)),
    "vgg16": ({"width": 0.1, "dropout": 0.0}, (3, 32, 32)),
    "resnet20": ({"width": 0.25}, (3, 32, 32)),
}
DEPTHS = {20: (7, 1.03, 67), 56: (19, 3.25, 58), 110: (37, 6.59, 57), 224: (75, 13.64, 57), 362: (121, 22.17, 57)}


@pytest.mark.parametrize(("name", "layers"), [("lenet5", 5), ("alexnet", 8), ("vgg16", 16), ("resnet20", 20)])
def test_layers_are_numbered_as_in_table_1(name: str, layers: int) -> None:
    assert layer_count(models.build(name, **SMALL[name][0])) == layers


@pytest.mark.parametrize("name", SMALL)
def test_stages_compose_to_the_whole_model_at_every_cut(name: str) -> None:
    options, shape = SMALL[name]
    model = models.build(name, seed=0, **options)
    images = torch.randn(4, *shape).to(memory_format=torch.channels_last)
    model(images).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    output = model(images)
    for cut in range(1, layer_count(model)):
        model.zero_grad()
        first, second = stages(model, (cut,))
        assert torch.equal(second(first(images)), output)
        second(first(images)).sum().backward()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_stages_follow_the_mode_and_the_dropout_draws_of_the_model(training: bool) -> None:
    model = models.build("vgg16", seed=0, width=0.1).train(training)
    images = torch.randn(4, 3, 32, 32)
    torch.manual_seed(7)
    expected = model(images)
    first, second = stages(model, (7,))
    torch.manual_seed(7)
    assert torch.equal(second(first(images)), expected)
    assert torch.equal(model(images), expected) is not training  # a further draw changes the output in training only


def test_a_cut_inside_a_block_carries_branch_and_skip() -> None:
    first, _ = stages(models.build("resnet20", width=0.25), (12,))
    branch, skip = first(torch.randn(2, 3, 32, 32))
    assert branch.shape == skip.shape == (2, 8, 16, 16)


@pytest.mark.parametrize("depth", DEPTHS)
def test_table_6_weights_and_percentages(depth: int) -> None:
    cut, megabytes, printed = DEPTHS[depth]
    counted = increase(rows(f"resnet{depth}", {}, (3, 32, 32)), [cut], 128)
    assert round(counted["weight_mb"], 2) == megabytes
    activations = {20: 3.84, 56: 10.87, 110: 21.43, 224: 43.70, 362: 70.67}[depth]
    assert abs(counted["activations_mb_per_sample"] / activations - 1) < 0.08
    # ResNet-20's 67 cannot come from any count of so many tensors per block (see results/memory.py and table 6's note).
    assert round(counted["increase_percent"]) == (58 if depth == 20 else printed)


def test_resnet20_parameters_and_stale_percentages() -> None:
    model = models.build("resnet20", seed=0)
    assert sum(p.numel() for p in model.parameters()) == 269_722
    expected = {3: 1.88, 5: 3.60, 7: 5.31, 9: 10.46, 11: 17.33, 12: 20.77, 13: 24.20, 15: 44.81, 17: 72.28, 19: 99.76}
    for last, percent in expected.items():
        assert stale_percent(model, (last,)) == pytest.approx(percent, abs=0.011)


def test_vgg16_with_its_original_head_has_138_million_parameters() -> None:
    options = {"hidden": 4096, "size": 224, "classes": 1000}
    assert sum(r["parameters"] for r in rows("vgg16", options, (3, 224, 224))) == pytest.approx(138.4e6, rel=1e-3)


@pytest.mark.parametrize("training", [True, False])
def test_counting_leaves_the_model_as_it_was(training: bool) -> None:
    model = models.build("resnet20", seed=0, width=0.25).train(training)
    before, numbers = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    assert [vars(c) for c in count(model, (3, 32, 32))] == rows("resnet20", {"width": 0.25}, (3, 32, 32))
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())  # batch-norm statistics included
    assert model.training is training and torch.equal(torch.get_rng_state(), numbers)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_a_users_layers_are_counted() -> None:
    counted = count([nn.Conv2d(1, 2, 3), nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(72, 5))], (1, 8, 8))
    assert [c.parameters for c in counted] == [20, 365]
    assert [c.activations for c in counted] == [72, 77]
    assert [c.output for c in counted] == [72, 5]


class Block(nn.Module):
    """A user's block of two layers that cannot be cut inside."""

    pipeline_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(self.one(x))


@pytest.mark.parametrize("layers", ["weights", "operators"])
def test_a_linearised_model_writes_as_much_as_its_modules(layers: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    row = linearise(model, layers=layers)
    assert sum(each.activations for each in count(row, (4,))) == sum(each.activations for each in count(model, (4,)))


class Attended(nn.Module):
    """Attention without its weights: its module returns a tensor and a None."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return x + attended


def test_attention_without_its_weights_is_counted() -> None:
    (layer,) = count(nn.Sequential(Attended()), (3, 4))
    assert (layer.activations, layer.output) == (24, 12)  # the attention and the sum
    assert len(rows("torchvision", {"network": "vit_b_32"}, (3, 224, 224))) == 40


def test_a_users_model_is_cut_by_its_own_layer_numbers() -> None:
    model = [nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 2)]
    assert layer_count(model) == 6
    assert [len(piece) for piece in stages(model, (1, 5))] == [1, 2, 1]


def test_a_torchvision_block_is_cut_around_not_inside() -> None:
    block = BasicBlock(4, 4)
    block.pipeline_layers = 2  # type: ignore[assignment]
    model = [nn.Conv2d(3, 4, 3), block, nn.Sequential(nn.Flatten(), nn.LazyLinear(2))]
    assert layer_count(model) == 4
    assert [len(piece) for piece in stages(model, (1, 3))] == [1, 1, 1]
    with pytest.raises(PipelagError, match=r"cut 2 lies inside 'BasicBlock' \(layers 2-3\)"):
        stages(model, (2,))


class Miscounted(nn.Identity):
    """A user's module that claims to hold no layer."""

    pipeline_layers = 0


TIED = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("model", "cuts", "sentence"),
    [
        ([nn.ReLU()] * 4, (2, 2), r"the cuts \[2, 2\] must increase strictly, but 2 follows 2"),
        (
            [nn.ReLU()] * 4,
            (4,),
            "a cut after layer 4 leaves an empty stage: the model has 4 layers, so cuts lie between 1 and 3",
        ),
        ([nn.ReLU()] * 4, (0,), "a cut after layer 0 leaves an empty stage"),
        (
            [nn.ReLU(), Block(), nn.ReLU()],
            (2,),
            r"cut 2 lies inside 'Block' \(layers 2-3\), which cannot be cut; the nearest places are 1 and 3",
        ),
        ([nn.ReLU(), Block()], (2,), "the nearest places are 1$"),  # a cut after layer 3 would leave an empty stage
        ([Block()], (1,), "the nearest places are none$"),
        ([nn.ReLU(), Miscounted()], (1,), "'Miscounted' has pipeline_layers 0; it should be a whole number from 1 on"),
        (
            [TIED, nn.ReLU(), TIED],
            (1,),
            r"stages 1 and 2 share a parameter of shape \[4, 4\] \(layers 'Linear' and 'Linear'\)",
        ),
        (Block(), (1,), "a Block cannot be cut: give the model as an nn.Sequential, or a list of layers"),
    ],
)
def test_bad_cuts_are_refused(model: object, cuts: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        stages(model, cuts)  # type: ignore[arg-type]


def test_unknown_models_and_depths_are_refused_with_the_nearest() -> None:
    with pytest.raises(PipelagError, match="unknown model 'lenet'; did you mean 'lenet5'"):
        models.build("lenet")
    with pytest.raises(PipelagError, match="has depth 6n \\+ 2, not 21; the nearest are 20 and 26"):
        models.build("resnet21")
    with pytest.raises(PipelagError, match="unknown option 'widht' of model 'lenet5'; did you mean 'width'"):
        models.build("lenet5", widht=2)
    with pytest.raises(PipelagError, match="the option 'dropout' of model 'alexnet' is 2.0; it should be 1.0 or less"):
        models.build("alexnet", dropout=2.0)


@pytest.mark.parametrize(("name", "least"), [("lenet5", 12), ("alexnet", 8), ("vgg16", 32)])
def test_images_too_small_for_the_poolings_are_refused(name: str, least: int) -> None:
    width = {"width": 0.1}
    shape = (1 if name == "lenet5" else 3, least, least)
    assert models.build(name, size=least, **width).eval()(torch.randn(2, *shape)).shape == (2, 10)
    with pytest.raises(PipelagError, match=f"needs images of at least {least}x{least} pixels, not {least - 1}x"):
        models.build(name, size=least - 1, **width)


def test_a_seed_fixes_the_weights_and_leaves_the_callers_numbers_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two = models.build("resnet20", seed=1, width=0.25), models.build("resnet20", seed=1, width=0.25)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "options", "layers", "parameters"),
    [
        ("resnet50", {}, 107, 23_520_842),  # PipeMare section 4.1 and its memory of 270 MB for three copies
        ("resnet50", {"form": "imagenet", "classes": 1000}, 107, 25_557_032),
        ("vgg16_imagenet", {}, 16, 138_357_544),
        ("alexnet_imagenet", {}, 8, 61_100_840),
        ("gnmt", {"layers": 8}, 10, 193_775_168),  # the published profile's 775.1 MB
        ("gnmt", {"layers": 16}, 18, 277_727_808),  # and 1110.9 MB
        ("s2vt", {}, 4, None),
        ("awd_lm", {}, 8, None),
    ],
)
def test_sizes_of_the_papers_models(name: str, options: dict[str, Any], layers: int, parameters: int | None) -> None:
    with torch.device("meta"):
        model = models.build(name, **options)
    assert len(model) == layers
    if parameters is not None:
        assert abs(sum(p.numel() for p in model.parameters()) - parameters) <= 2e-4 * parameters


def test_split_weights_compute_the_same() -> None:
    whole = models.build("resnet50", seed=0, width=0.0625, blocks=(1, 1)).eval()
    split = models.build("resnet50", seed=1, width=0.0625, blocks=(1, 1), split=2).eval()
    assert len(split) == 2 * len(whole)
    with torch.no_grad():
        for place, layer in enumerate(whole):
            for weight, first, second in zip(
                layer.parameters(), split[2 * place].parameters(), split[2 * place + 1].parameters(), strict=True
            ):
                parts = weight.chunk(2, 0)
                if name_of(layer) == "mean, linear":  # the classes are dealt out
                    first.copy_(weight[: len(first)])
                    second.copy_(weight[len(first) :])
                    continue
                first.copy_(parts[0])
                second.copy_(parts[1])
        images = torch.randn(2, 3, 8, 8)
        torch.testing.assert_close(split(images), whole(images))


@pytest.mark.parametrize("split", [2, 16])
def test_split_weights_begin_as_whole_ones_do(split: int) -> None:
    """As many layers as the paper's stages (Figures 4 and 8), the classifier's parts too; weights of one spread."""
    with torch.device("meta"):
        assert len(models.build("resnet50", split=split)) == {2: 214, 16: 1712}[split]
    whole, parts = (models.build("resnet50", seed=0, width=0.5, blocks=(1, 1), split=n) for n in (1, split))
    spread = {}
    for model in (whole, parts):
        for layer in model:
            place = name_of(layer).split(",")[0]
            spread.setdefault((place, model is whole), []).extend(p.flatten() for p in layer.parameters())
    for place in {name_of(layer).split(",")[0] for layer in whole}:
        one, several = (torch.cat(spread[place, kind]) for kind in (True, False))
        assert one.numel() == several.numel()
        torch.testing.assert_close(one.std(), several.std(), rtol=0.15, atol=0)


def test_a_classifier_in_more_parts_than_classes_is_shared_out_by_its_features() -> None:
    whole = models.build("resnet50", seed=0, width=0.25, blocks=(1,))[-1]
    parts = models.build("resnet50", seed=0, width=0.25, blocks=(1,), split=16)[-16:]
    (linear,) = [m for m in whole.modules() if isinstance(m, torch.nn.Linear)]
    with torch.no_grad():
        for part in parts:
            part.linear.weight.copy_(linear.weight[:, slice(*part.features)])
        parts[-1].linear.bias.copy_(linear.bias)
        features = torch.randn(3, linear.in_features, 4, 4)
        torch.testing.assert_close(parts(features), whole(features))


def test_bottleneck_networks_refuse_what_they_are_not() -> None:
    with pytest.raises(PipelagError, match="unknown form"):
        models.build("resnet50", form="large")


@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(("into", "out", "size"), [(4, 8, 6), (3, 6, 5), (4, 7, 8), (8, 4, 6)])
def test_a_shortcut_pools_single_pixels(form: torch.memory_format, into: int, out: int, size: int) -> None:
    x, more = torch.randn(2, into, size, size).contiguous(memory_format=form).requires_grad_(), (out - into) // 2
    plain = nn.functional.pad(nn.functional.avg_pool2d(x, 1, 2), (0, 0, 0, 0, more, out - into - more))
    ours = Shortcut(into, out, 2)(x)
    gradient = torch.randn_like(plain)
    expected, computed = torch.autograd.grad(plain, x, gradient), torch.autograd.grad(ours, x, gradient)
    assert torch.equal(ours, plain) and torch.equal(computed[0], expected[0])
    assert ours.is_contiguous(memory_format=form) and computed[0].is_contiguous(memory_format=form)
    assert torch.autograd.gradcheck(Shortcut(into, out, 2).double(), (x.detach().double().requires_grad_(),))


def test_sizes_that_papers_give_in_words() -> None:
    """PipeDream section 5.2: a language model of six LSTMs and 0.41 GB; SpecTrain 4.1: 32 layers of 2048 units."""
    with torch.device("meta"):
        language, snn = models.build("awd_lm"), models.build("snn")
    assert len(language) - 2 == 6 and round(4 * sum(p.numel() for p in language.parameters()) / 1e9, 2) == 0.41
    inner = 2048 * 2048 + 2048
    assert len(snn) == 32
    assert sum(p.numel() for p in snn.parameters()) == 3072 * 2048 + 2048 + 30 * inner + 2048 * 10 + 10
