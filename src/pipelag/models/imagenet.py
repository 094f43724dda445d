"""torchvision's ImageNet networks as numbered layers: what PipeDream profiles (section 5.1). No weights are loaded."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from pipelag.models.layers import Layer


def from_torchvision(name: str, classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """AlexNet or a VGG, a layer per convolution or linear layer with what follows it.

    Args:
        in_channels: 3; torchvision's networks take nothing else.
    """
    import torchvision

    model = (
        torchvision.models.get_model(name, weights=None, num_classes=classes, init_weights=False)
        if (name.startswith("vgg"))
        else torchvision.models.get_model(name, weights=None, num_classes=classes)
    )
    return nn.Sequential(*numbered([*model.features, model.avgpool, nn.Flatten(), *model.classifier]))


def numbered(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Modules grouped so that each group begins with one that has weights."""
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
    """The weighted module's kind and sizes."""
    for module in group:
        if isinstance(module, nn.Conv2d):
            return f"conv{module.kernel_size[0]}x{module.kernel_size[1]} {module.in_channels}-{module.out_channels}"
        if isinstance(module, nn.Linear):
            return f"linear {module.in_features}-{module.out_features}"
    return type(group[0]).__name__
