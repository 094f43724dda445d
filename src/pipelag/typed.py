"""Values from outside, typed: refused with their place and, of a name, the nearest right one. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from pipelag.errors import PipelagError, unknown


class Closed(BaseModel):
    """A closed set of fields, fixed once made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Typed(BaseModel):
    """A closed set of fields, whose values are of the stated types and not merely convertible to them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], content: Any, kind: str) -> M:
    """`content` as the model; the first mistake is refused with its place and, of a name, the nearest right one.

    Args:
        kind: what the content's keys are called in the refusal, such as "option of a plan".
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        # A misspelt key is also a missing one: the misspelling says more.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        key, place = str(first["loc"][0]) if first["loc"] else kind, ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            raise unknown(kind, key, model.model_fields) from error
        if first["type"] == "missing":
            raise PipelagError(f"the {kind} '{place}' is missing") from error
        names = _names(model.model_fields[key].annotation) if key in model.model_fields else []
        if names and isinstance(first["input"], str):
            raise unknown(f"{kind} '{key}'", first["input"], names) from error
        raise PipelagError(f"the {kind} '{place}' is {first['input']!r}: {first['msg']}") from error


def check_keywords(function: Callable[..., Any], first: int, given: Iterable[str], kind: str) -> None:
    """Refuse keyword arguments that a function does not take after its `first` positional ones, or goes without.

    Raises:
        PipelagError: naming the keyword, what it is (`kind`), and the nearest right one.
    """
    named = list(signature(function).parameters.values())[first:]
    known = {each.name: each for each in named if each.kind is not Parameter.VAR_KEYWORD}
    names = set(given)
    wrong = sorted(names - set(known))
    if wrong and len(known) == len(named):
        raise (
            unknown(kind, wrong[0], known) if known else PipelagError(f"there is no {kind}: '{wrong[0]}' is not known")
        )
    missing = [name for name, each in known.items() if each.default is Parameter.empty and name not in names]
    if missing:
        raise PipelagError(f"the {kind} '{missing[0]}' is missing")


def _names(annotation: Any) -> list[str]:
    """The words that a field may be, where it may be any: those of its Literal."""
    if isinstance(annotation, str):
        return [annotation]
    return [name for part in get_args(annotation) for name in _names(part)]
