"""The inception networks: torchvision's own weights and outputs, sizes as published, small forms, narrow ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision.models as tv
from torch import nn

from pipelag import models
from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.tensors import as_tuple

PUBLISHED = {  # at 1000 classes without auxiliary outputs: torchvision's, torchvision's, timm's
    "googlenet": (58, 6_624_904),
    "inception_v3": (95, 23_834_568),
    "inception_v4": (150, 42_679_816),
}
NARROW: dict[str, dict[str, Any]] = {
    "googlenet": {"width": 0.125},
    "inception_v3": {"width": 0.0625},
    "inception_v4": {"width": 0.03125, "blocks": (1, 1, 1)},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_and_parameters_are_as_published(name: str) -> None:
    with torch.device("meta"):
        model = models.build(name)
    assert (len(model), sum(p.numel() for p in model.parameters())) == PUBLISHED[name]


@pytest.mark.parametrize(("name", "size"), [("googlenet", 64), ("inception_v3", 96)])
def test_the_imagenet_form_is_torchvisions(name: str, size: int) -> None:
    ours = models.build(name, seed=3, classes=7, dropout=0.0)
    torch.manual_seed(3)
    theirs = tv.get_model(name, weights=None, num_classes=7, aux_logits=False, init_weights=True, dropout=0.0)
    x = torch.randn(2, 3, size, size)
    assert torch.equal(ours.train()(x), theirs.train()(x))
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize(("form", "size"), [("cifar", 32), ("tiny", 64)])
@pytest.mark.parametrize("name", NARROW)
def test_small_forms_keep_the_size_of_small_images(name: str, form: str, size: int) -> None:
    model = models.build(name, seed=0, form=form, classes=5, in_channels=1, **NARROW[name])
    x: Any = torch.randn(2, 1, size, size)
    seen = []
    for layer in model:
        x = layer(x)
        seen += [t.shape[-1] for t in as_tuple(x) if t.ndim == 4]
    assert x.shape == (2, 5)
    assert max(seen) == 32 and min(seen) >= 7  # the stem leaves 32x32, not the 1x1 of the ImageNet form
    x.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", NARROW)
def test_stages_compose_inside_blocks_and_between_them(name: str) -> None:
    model = models.build(name, seed=0, form="cifar", classes=5, dropout=0.0, **NARROW[name]).eval()
    x = torch.randn(2, 3, 32, 32)
    for cut in (1, len(model) // 2, len(model) - 1):
        first, second = stages(model, (cut,))
        assert torch.equal(second(first(x)), model(x))
    whole = models.build(name, seed=0, form="cifar", classes=5, dropout=0.0, crossing=1, **NARROW[name]).eval()
    assert len(whole) < len(model) and torch.equal(whole(x), model(x))


@pytest.mark.parametrize(
    ("name", "blocks", "layers", "gives"),
    [
        ("googlenet", [1, 1, 1], 3 + 3 * 6 + 1, 1024),
        ("googlenet", [1, 2, 1], 3 + 4 * 6 + 1, 1024),
        ("googlenet", [2, 0, 0], 3 + 2 * 6 + 1, 480),
        ("inception_v3", [1, 1, 1], 5 + 7 + 4 + 10 + 6 + 9 + 1, 2048),
        ("inception_v3", [1, 0, 0], 5 + 7 + 4 + 6 + 1, 768 + 512),
        ("inception_v3", [0, 0, 1], 5 + 4 + 6 + 9 + 1, 2048),
    ],
)
def test_fewer_blocks_make_shorter_rows(name: str, blocks: list[int], layers: int, gives: int) -> None:
    with torch.device("meta"):
        whole = models.build(name, blocks=blocks)
    assert len(whole) == layers and list(whole.parameters())[-2].shape == (1000, gives)
    small = models.build(name, seed=0, form="tiny", classes=5, blocks=blocks, width=NARROW[name]["width"])
    scores = small(torch.randn(2, 3, 16, 16))
    scores.sum().backward()
    assert scores.shape == (2, 5) and all(p.grad is not None for p in small.parameters())


def test_the_last_blocks_of_a_group_stay() -> None:
    inner = {}
    for blocks in ([3, 4, 2], [3, 2, 2]):
        model = models.build("inception_v3", seed=0, width=0.0625, blocks=blocks)
        inner[blocks[1]] = [m.in_channels for m in model.modules() if getattr(m, "kernel_size", 0) == (1, 7)]
    # a sixteenth of 128, 160, 160 and 192 channels, three such convolutions in each; one more as images are halved
    assert inner == {4: [8] * 3 + [10] * 6 + [12] * 4, 2: [10] * 3 + [12] * 4}


def test_images_can_be_enlarged_first() -> None:
    x = torch.randn(2, 3, 16, 16)
    larger = nn.functional.interpolate(x, (64, 64), mode="bilinear", align_corners=False)
    for name, options in (("googlenet", NARROW["googlenet"]), ("resnet50", {"width": 0.1, "form": "imagenet"})):
        plain, scaled = (models.build(name, seed=0, classes=5, **options, scale=scale).eval() for scale in (None, 64))
        assert len(plain) == len(scaled)
        assert torch.equal(scaled(x), plain(larger))
    model = models.build("alexnet_imagenet", seed=0, classes=5, scale=64).eval()
    assert torch.equal(model(x), models.build("alexnet_imagenet", seed=0, classes=5).eval()(larger))


def test_resnet_101_for_64x64_goes_on_as_for_32x32() -> None:
    options: dict[str, Any] = {"seed": 0, "width": 0.1, "classes": 5, "blocks": (1, 1, 1, 1)}
    tiny, cifar = models.build("resnet101", form="tiny", **options), models.build("resnet101", form="cifar", **options)
    first, _ = stages(tiny, (2,))
    assert first(torch.randn(2, 3, 64, 64)).shape == stages(cifar, (2,))[0](torch.randn(2, 3, 32, 32)).shape
    assert sum(p.numel() for p in tiny.parameters()) == sum(p.numel() for p in cifar.parameters())
    with torch.device("meta"):
        whole = models.build("resnet101", form="tiny", classes=200)
        theirs = tv.resnet101(num_classes=200)
    stem = 64 * 3 * (49 - 9)  # a 3x3 kernel for a 7x7 one
    assert sum(p.numel() for p in whole.parameters()) == sum(p.numel() for p in theirs.parameters()) - stem


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("googlenet", {"form": "cifa"}, "unknown form 'cifa'; did you mean 'cifar'?"),
        ("inception_v3", {"width": 0.1}, "32 channels times a width of 0.1 is not a whole number"),
        ("googlenet", {"blocks": [3, 1, 1]}, "GoogLeNet has up to [2, 5, 2] blocks in its groups, not [3, 1, 1]"),
        ("inception_v3", {"blocks": [1, 1]}, "Inception v3 has up to [3, 4, 2] blocks in its groups, not [1, 1]"),
        ("inception_v4", {"blocks": [1, 1]}, "Inception v4 has three groups of blocks, not 2: [1, 1]"),
        ("resnet101", {"blocks": []}, "a bottleneck ResNet needs at least one group of blocks"),
        ("resnet101", {"form": "tinny"}, "unknown form 'tinny'; did you mean 'tiny'?"),
        ("resnet101", {"split": 2, "scale": 64}, "cannot be enlarged before a stem that is split"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PipelagError) as caught:
        models.build(name, **options)
    assert complaint in str(caught.value)
