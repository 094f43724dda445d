"""The models that come with pipelag, and their options. No torch: the workflow reads this at every call.

A model or a data set is a function, whose signature gives the names and types of its options, and which are required.
The signature is read from the function's source, so nothing is imported. An option's range follows from its name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, create_model

from pipelag.errors import PipelagError, unknown
from pipelag.typed import Seed, Tuple, Typed, checked

HOMES = {
    "alexnet": "alexnet:alexnet",
    "alexnet_imagenet": "imagenet:from_torchvision",
    "awd_lm": "recurrent:awd_lm",
    "bert": "bert:bert",
    "fairseq_transformer": "fairseq_row:fairseq_transformer",
    "gnmt": "gnmt:gnmt",
    "googlenet": "inception:googlenet",
    "inception_v3": "inception:inception_v3",
    "inception_v4": "inception_v4:inception_v4",
    "lenet5": "lenet:lenet5",
    "mask_rcnn": "detection:mask_rcnn",
    "residual_lstm": "sentiment:residual_lstm",
    "s2vt": "recurrent:s2vt",
    "sentiment_transformer": "sentiment:sentiment_transformer",
    "snn": "snn:snn",
    "ssd300": "detection:ssd300",
    "torchvision": "imagenet:branching",
    "transformer": "transformer:transformer",
    "vgg16": "vgg:vgg16",
    "vgg16_imagenet": "imagenet:from_torchvision",
    **{f"resnet{depth}": "resnet:resnet" for depth in (20, 56, 110, 224, 362)},
    **{f"resnet{depth}": "bottleneck:resnet_bottleneck" for depth in (50, 101, 152)},
}
GIVEN = {
    "resnet:resnet": ("depth",),
    "bottleneck:resnet_bottleneck": ("depth",),
    "imagenet:from_torchvision": ("name",),
}
LANGUAGE = ("awd_lm",)  # models that score the next word at each place of running text, for which data set `words`
DEEPEST = 2000  # layers: the deepest published ResNet has 1,202
# The number of layers of models for which it is fixed, or follows from an option.
LAYERS = {"lenet5": 5, "alexnet": 8, "vgg16": 16, "alexnet_imagenet": 8, "vgg16_imagenet": 16, "s2vt": 4}
# Model: (its layers beside those that the option `layers` counts, the option's default).
BESIDE = {"snn": (0, 32), "awd_lm": (2, 6), "gnmt": (2, 8), "residual_lstm": (2, 8)}

Size = Annotated[int, Field(ge=1, le=2**20)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=1000)]
NAMED: dict[str, Any] = {
    "seed": Seed,
    "width": Annotated[float, Field(gt=0, le=64)],
    "dropout": Share,
    "attention_dropout": Share,
    "activation_dropout": Share,
    "noise": Share,
    "negated": Share,
    "layers": Annotated[int, Field(ge=1, le=DEEPEST)],
    "train": Annotated[int, Field(ge=1, le=10**9)],
    "most": Annotated[int, Field(ge=1, le=10**9)],
}
TYPES: dict[str, Any] = {"int": Size, "float": Amount, "bool": bool, "str": str, "None": None}
TYPES |= {f"{kind}[int]": Tuple[Annotated[int, Field(ge=0, le=10_000)]] for kind in ("Iterable", "Sequence", "list")}
TYPES |= {"tuple[int, ...]": TYPES["list[int]"]}


def check_model(name: str, options: Mapping[str, Any], known: set[str]) -> None:
    """Refuse an unknown model, one that is too deep, or options that it does not take.

    Args:
        known: all registered names. The options of a user's own models are checked when they are called.
    """
    depth = re.fullmatch(r"resnet([0-9]{1,50})", name)
    if depth is not None and name not in known:
        check_depth(int(depth[1]))
        check_options("models.resnet:resnet", options, f"option of model '{name}'", ("depth",))
    elif name not in known:
        raise unknown("model", name, known)
    elif name in HOMES:
        home = HOMES[name]
        check_options(f"models.{home}", options, f"option of model '{name}'", GIVEN.get(home, ()))


def check_told(name: str, from_data: Iterable[str], data: str) -> None:
    """Refuse data of another kind than one of pipelag's models is for.

    Args:
        from_data: the options that this data set, called `data`, gives to a model.
    """
    home = HOMES.get(name)
    options = options_model(f"models.{home}", GIVEN.get(home, ())) if home is not None else None
    if options is None or options.model_config["extra"] == "allow":
        return
    strange = [each for each in from_data if each not in options.model_fields]
    if strange:
        raise PipelagError(
            f"model '{name}' cannot be used with data such as '{data}', which sets a model's options "
            f"{' and '.join(from_data)}; the options of '{name}' are {', '.join(sorted(options.model_fields))}"
        )
    if set(from_data) == {"words"} and name not in LANGUAGE:  # others have this option too, but read other data
        raise PipelagError(
            f"model '{name}' cannot be used with running text such as '{data}', because it does not score the next "
            f"word at each place; take a language model: {', '.join(LANGUAGE)}"
        )


def check_depth(depth: int) -> None:
    """Refuse a depth that a CIFAR ResNet cannot have, naming the nearest ones that it can, or that is too large."""
    blocks, rest = divmod(depth - 2, 6)
    if depth > DEEPEST:
        raise PipelagError(f"a ResNet of {depth} layers is too deep to be built; the limit is {DEEPEST}")
    if rest or blocks < 1:
        below = max(8, 6 * blocks + 2)
        raise PipelagError(f"a CIFAR ResNet has depth 6n + 2, not {depth}; the nearest are {below} and {below + 6}")


def layers_in(name: str, options: Mapping[str, Any]) -> int | None:
    """The number of a model's layers; None if the model has to be built to count them."""
    if name in BESIDE:
        beside, default = BESIDE[name]
        return int(options.get("layers", default)) + beside
    depth = re.fullmatch(r"resnet(\d+)", name)
    if depth is not None and HOMES.get(name, "resnet:resnet") == "resnet:resnet":
        return int(depth[1])
    return LAYERS.get(name)


def check_options(home: str, options: Mapping[str, Any], kind: str, given: tuple[str, ...] = ()) -> None:
    """Refuse options that one of pipelag's functions does not take, or of a wrong type or size.

    Args:
        home: "module:function" within pipelag. kind: what its options are called in the refusal.
        given: the function's parameters that are not options.
    """
    model = options_model(home, given)
    checked(model, dict(options), f"{kind}:")


@lru_cache(maxsize=256)
def options_model(home: str, given: tuple[str, ...]) -> type[Typed]:
    """A function's options as a pydantic model, from its source."""
    function = function_of(home)
    arguments = function.args
    named = [*arguments.args, *arguments.kwonlyargs]
    needed = len(arguments.args) - len(arguments.defaults)
    lacking = [
        *arguments.args[:needed],
        *(a for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None),
    ]
    fields: dict[str, Any] = {}
    for each in named:
        if each.arg not in given:
            fields[each.arg] = (_type(each.arg, each.annotation), ... if each in lacking else None)
    config = ConfigDict(extra="allow") if arguments.kwarg is not None else None
    base = type("Options", (Typed,), {"model_config": {**Typed.model_config, **(config or {})}})
    return create_model(function.name, __base__=base, **fields)


def function_of(home: str) -> ast.FunctionDef:
    """The syntax tree of one of pipelag's functions, "module:function" within pipelag."""
    module, _, name = home.partition(":")
    path = Path(__file__).parent.joinpath(*module.removeprefix("pipelag.").split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)


def _type(name: str, annotation: ast.expr | None) -> Any:
    """The type that an option's annotation allows; `Any` for an annotation that is not in `TYPES`."""
    text = ast.unparse(annotation) if annotation is not None else ""
    parts = [part.strip() for part in text.split("|")]
    if not all(part in TYPES for part in parts):
        return Any
    kind: Any = NAMED.get(name, TYPES[parts[0]])
    return kind | None if "None" in parts else kind
