"""Models by name, each an `nn.Sequential` of numbered layers. `register` adds a user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pipelag.allocator import machine_memory
from pipelag.catalogue import HOMES, check_model
from pipelag.errors import PipelagError, kind_of
from pipelag.models.alexnet import alexnet
from pipelag.models.bert import bert
from pipelag.models.bottleneck import BLOCKS, resnet_bottleneck
from pipelag.models.detection import mask_rcnn, ssd300
from pipelag.models.fairseq_row import fairseq_transformer
from pipelag.models.gnmt import gnmt
from pipelag.models.imagenet import branching, from_torchvision
from pipelag.models.inception import googlenet, inception_v3
from pipelag.models.inception_v4 import inception_v4
from pipelag.models.lenet import lenet5
from pipelag.models.recurrent import awd_lm, s2vt
from pipelag.models.resnet import resnet
from pipelag.models.sentiment import residual_lstm, sentiment_transformer
from pipelag.models.snn import snn
from pipelag.models.transformer import transformer
from pipelag.models.vgg import vgg16
from pipelag.randomness import seeded
from pipelag.registry import entered

Builder = Callable[..., nn.Sequential]

MODELS: dict[str, Builder] = {"lenet5": lenet5, "alexnet": alexnet, "vgg16": vgg16, "snn": snn}
for _depth in (20, 56, 110, 224, 362):
    MODELS[f"resnet{_depth}"] = lambda depth=_depth, **options: resnet(depth, **options)
for _depth in BLOCKS:  # also of the form 6n + 2, but these names usually mean the bottleneck networks
    MODELS[f"resnet{_depth}"] = lambda depth=_depth, **options: resnet_bottleneck(depth, **options)
for _name in ("alexnet", "vgg16"):
    MODELS[f"{_name}_imagenet"] = lambda name=_name, **options: from_torchvision(name, **options)
MODELS["torchvision"] = branching
MODELS |= {"googlenet": googlenet, "inception_v3": inception_v3, "inception_v4": inception_v4}
MODELS |= {"ssd300": ssd300, "mask_rcnn": mask_rcnn}
MODELS |= {"transformer": transformer, "fairseq_transformer": fairseq_transformer, "bert": bert}
MODELS |= {"gnmt": gnmt, "awd_lm": awd_lm, "s2vt": s2vt}
MODELS |= {"residual_lstm": residual_lstm, "sentiment_transformer": sentiment_transformer}


def register(name: str) -> Callable[[Builder], Builder]:
    """Register a model under a name: decorates a function of keyword options that returns an `nn.Sequential` of layers.

    The function is called with `classes` and `in_channels` of the run's data, and with the options of the config.
    """

    return entered("model", name, MODELS)


def build(name: str, /, seed: int | None = None, **options: Any) -> nn.Sequential:
    """Build a model with freshly initialised weights.

    Args:
        name: a registered name, or `resnet<6n+2>` of any depth.
        seed: of the initialisation; the caller's random state stays unchanged. None: draw from the caller's.
        options: keyword arguments of the model, such as `width`, `classes`, `in_channels`.

    Raises:
        PipelagError: an unknown name (the message names the nearest), an unknown option, a depth that is not 6n + 2, or
            a model that does not fit into this machine's memory.
    """
    check_model(name, options, set(MODELS))
    builder = MODELS.get(name) or partial(resnet, int(name.removeprefix("resnet")))
    try:
        with fitting(name), nullcontext() if seed is None else seeded(seed, torch.get_default_device()):
            model = builder(**options)
    except TypeError as error:
        if HOMES.get(name) is not None:  # the options have been checked, so this is a bug of ours
            raise
        raise PipelagError(f"model '{name}' does not take these options: {error}") from error
    if not isinstance(model, nn.Sequential):
        raise PipelagError(
            f"model '{name}' returns {kind_of(model)}; it should return an nn.Sequential whose children are the layers"
        )
    return model


@contextmanager
def fitting(name: str) -> Iterator[None]:
    """Refuse a model whose weights do not fit into this machine's memory, before the memory is written to."""
    room, taken = machine_memory(), 0
    there: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()

    def count(module: nn.Module, parameter_name: str, parameter: nn.Parameter | None) -> None:
        nonlocal taken
        if parameter is None or parameter.is_meta:
            return
        there[id(parameter)] = parameter
        taken += parameter.nbytes
        if taken > room:  # count again: tied weights counted once per layer, and so did those of deleted layers
            taken = sum(one.nbytes for one in there.values())
        if taken > room:
            raise PipelagError(
                f"model '{name}' with these options has more than {taken / 2**30:,.0f} GiB of weights, and this "
                f"machine has {room / 2**30:,.0f} GiB of memory; make it smaller"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise PipelagError(
                f"model '{name}' with these options does not fit into memory; make it smaller"
            ) from error
        raise
    finally:
        hook.remove()
