"""torchvision's ImageNet networks as numbered layers, initialised as in torchvision (PipeDream section 5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from pipelag.errors import PipelagError, unknown
from pipelag.models.layers import Layer, enlarged
from pipelag.models.linearise import linearise


def from_torchvision(name: str, classes: int = 1000, in_channels: int = 3, scale: int | None = None) -> nn.Sequential:
    """torchvision's AlexNet or VGG of that name; a layer is a convolution or linear layer with what follows it.

    Args:
        in_channels: 3; torchvision's networks take nothing else.
        scale: enlarges the images to so many pixels in height and width first.
    """
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=classes)
    return nn.Sequential(*numbered([*enlarged(scale), *model.features, model.avgpool, nn.Flatten(), *model.classifier]))


def branching(
    network: str, classes: int = 1000, in_channels: int = 3, crossing: int | None = None, **options: Any
) -> nn.Sequential:
    """Any of torchvision's classification networks, laid out as a row of layers (`linearise`).

    Args:
        network: its name in torchvision, such as googlenet.
        in_channels: 3; torchvision's networks take nothing else.
        crossing: the most tensors that may cross a boundary.
        options: of the network, such as `aux_logits: false`.

    Raises:
        PipelagError: a name that torchvision does not know (the message names the nearest), an option that the network
            does not take, or a network that `linearise` refuses.
    """
    import torchvision

    known = torchvision.models.list_models(module=torchvision.models)
    if network not in known:
        raise unknown("network of torchvision", network, known)
    try:
        model = torchvision.models.get_model(network, weights=None, num_classes=classes, **options)
    except (TypeError, ValueError) as error:
        raise PipelagError(
            f"torchvision's network '{network}' does not take the options {', '.join(options) or 'given'}: {error}"
        ) from error
    return linearise(model, crossing=crossing)


def numbered(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Group modules into layers, with one weighted module and what follows it per layer.

    Dropout, and modules before the first weighted one, go to the layer after them.
    """
    groups: list[list[nn.Module]] = []
    waiting: list[nn.Module] = []
    for module in modules:
        if any(True for _ in module.parameters()):
            groups.append([*waiting, module])
            waiting = []
        elif groups and not isinstance(module, nn.Dropout):
            groups[-1].append(module)
        else:
            waiting.append(module)
    if waiting:
        groups[-1] += waiting
    return [Layer(label(group), *group) for group in groups]


def label(group: list[nn.Module]) -> str:
    """A layer's label: the kind and sizes of its weighted module."""
    for module in group:
        if isinstance(module, nn.Conv2d):
            return f"conv{module.kernel_size[0]}x{module.kernel_size[1]} {module.in_channels}-{module.out_channels}"
        if isinstance(module, nn.Linear):
            return f"linear {module.in_features}-{module.out_features}"
    return type(group[0]).__name__
