"""Trace a model into one list of operators for training and evaluation, by torch.fx or torch.export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipelag.errors import PipelagError
from pipelag.models.steps import ByMode, Traced
from pipelag.models.symbolic import traced
from pipelag.models.values import Values, differing, unchanged_attributes, values_of


def trace(
    model: nn.Module,
    whole: Sequence[str | type[nn.Module]] = (),
    inputs: Sequence[str] | Mapping[str, Any] = (),
    output: str | None = None,
) -> Traced:
    """The operators of a model in the order in which it calls them. Arguments with defaults keep them.

    Args:
        whole: modules, by path or class, that are each taken as one operator.
        inputs: names of arguments with defaults that are inputs too; or examples of all inputs by name, with which
            torch.export traces instead of torch.fx.
        output: the name of the value to keep, if the model returns several by name.

    Raises:
        PipelagError: control flow that depends on the data (the message says where), a model that computes something
            else in training than in evaluation, one that takes any number of inputs or returns no tensor or tuple of
            tensors, or one that does what a row of layers would leave out: autocast, hooks, assigned buffers, counting
            in Python.
    """
    if isinstance(inputs, Mapping):
        from pipelag.models.exporting import exported

        look = partial(exported, inputs=inputs, output=output)
    else:
        look = partial(traced, whole=whole, inputs=tuple(inputs), output=output)
    modes, usual = {module: module.training for module in model.modules()}, model.training
    try:
        traces = []
        for training in (True, False):
            for module, mode in modes.items():  # a frozen module stays frozen in the model's own mode
                module.training = mode if training == usual else training
            traces.append(_settled(model, look))
    finally:
        for module, mode in modes.items():
            module.training = mode
    try:
        return _merged(*traces)
    except _Differs:
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        if isinstance(inputs, Mapping) and any(norm.training == model.training for norm in norms):
            raise PipelagError(
                f"{type(model).__name__} has batch normalisation, which torch.export lays out only if it is frozen "
                "(.eval() on the norm while the model is in training mode); without examples, torch.fx lays it out"
            ) from None
        raise PipelagError(
            f"{type(model).__name__} computes something else in training than in evaluation, which its layers cannot "
            "do; if it has auxiliary outputs, build it without them (aux_logits=False); name modules that draw "
            "random numbers themselves in whole=(...)"
        ) from None


def _settled(model: nn.Module, look: Callable[..., Traced]) -> Traced:
    """The trace of a model's forward, if it is the same for every call.

    A row of layers does in every call what the first call did. So a forward is refused if it changes a Python value and
    the next call changes it again or runs other operators. A value that only the first call sets, such as the longest
    sequence, is allowed.

    look: traces a call, and fills the dict `left` with the values that the call leaves in the model's attributes.

    Raises:
        PipelagError: calls differ.
    """
    before, left, later = values_of(model), Values(), Values()
    with unchanged_attributes(model):
        first = look(model, left=left)
        changed = differing(before, left)
        if changed:
            for (path, name), value in left.items():
                vars(model.get_submodule(path))[name] = value
            again = look(model, left=later)
            changed = differing(left, later) or ("" if _alike(first, again) else changed)
    if changed:
        raise PipelagError(
            f"{type(model).__name__} changes '{changed}' in its forward, which its layers would not do; make every "
            "call the same, or hold the value in a buffer and change it in place (add_)"
        )
    return first


def _alike(first: Traced, second: Traced) -> bool:
    """Whether two traces in one mode have the same operators with the same arguments."""
    try:
        _merged(first, second), _merged(second, first)  # differences that depend on the mode pass in one order only
    except _Differs:
        return False
    return True


class _Differs(Exception):
    """Two traces do not have the same operators."""


def _merged(training: Traced, evaluation: Traced) -> Traced:
    """Merge the traces of both modes: arguments that differ as True and False, or as a rate of dropout and 0, become a
    `ByMode`.

    Raises:
        _Differs: the traces differ in something else.
    """
    if len(training.steps) != len(evaluation.steps) or training.output != evaluation.output:
        raise _Differs
    steps = []
    for a, b in zip(training.steps, evaluation.steps, strict=True):
        if (a.name, a.op, a.target, a.inplace) != (b.name, b.op, b.target, b.inplace):
            raise _Differs
        steps.append(replace(a, args=_merged_arguments(a.args, b.args), kwargs=_merged_arguments(a.kwargs, b.kwargs)))
    return replace(training, steps=tuple(steps))


def _merged_arguments(a: Any, b: Any) -> Any:
    if (a is True and b is False) or (isinstance(a, float) and b == 0 != a):
        return ByMode(a, b)
    if isinstance(a, (tuple, list)) and type(a) is type(b) and len(a) == len(b):
        return tuple(map(_merged_arguments, a, b)) if isinstance(a, tuple) else list(map(_merged_arguments, a, b))
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {key: _merged_arguments(a[key], b[key]) for key in a}
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
    if not same:
        raise _Differs
    return a
