"""Shared by `pipelag methods`, `models` and `schedules`: a line per entry of a registry, and an entry's settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Literal, get_args, get_origin


def first_sentence(docstring: str | None) -> str:
    """The first sentence of a docstring, on one line; "no description" where there is none."""
    text = " ".join((docstring or "").split("\n\n")[0].split())
    match = re.match(r".*?\.(?<! al\.)(?=\s|$)", text)
    return match[0] if match else text or "no description"


def listed(entries: Mapping[str, str]) -> str:
    """A line per entry: its name and what it is."""
    width = max(map(len, entries))
    return "\n".join(f"{name:{width}}  {text}" for name, text in entries.items())


def settings(signature: Signature) -> list[str]:
    """The parameters of a function as one would set them: name, type and default."""
    taken = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    return [_setting(one.name, _type(one), _default(one)) for one in taken]


def settings_of(function: ast.FunctionDef, given: tuple[str, ...]) -> list[str]:
    """The same from a function's source; `given`: parameters that the caller sets, which are left out."""
    arguments = function.args
    none: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    names, values = [*arguments.args, *arguments.kwonlyargs], [*none, *arguments.defaults, *arguments.kw_defaults]
    return [
        _setting(one.arg, _source(one.annotation) or "", _source(value))
        for one, value in zip(names, values, strict=True)
        if one.arg not in given
    ]


def _source(node: ast.expr | None) -> str | None:
    return None if node is None else ast.unparse(node)


def _setting(name: str, kind: str, default: str | None) -> str:
    """`width: float = 1.0`, or without a default, `depth: int`."""
    typed = f"{name}: {kind}" if kind else name
    return typed if default is None else f"{typed} = {default}"


def _type(parameter: Parameter) -> str:
    kind = parameter.annotation
    if get_origin(kind) is Literal:
        return " | ".join(map(repr, get_args(kind)))
    if isinstance(kind, type) and not get_args(kind):
        return "" if kind is Parameter.empty else kind.__name__
    return str(kind)


def _default(parameter: Parameter) -> str | None:
    return None if parameter.default is Parameter.empty else repr(parameter.default)
