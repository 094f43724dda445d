"""Trace a model by torch.fx, which runs the forward once on stand-ins that record the operators applied to them."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError

from pipelag.errors import PipelagError, unknown
from pipelag.models.cut import HOOKS
from pipelag.models.memory import OVERWRITING, PLAIN, assigned_in_place
from pipelag.models.steps import Ref, Step, Traced, constant, mapped, renamed
from pipelag.models.values import Values, unchanged_attributes, values_of
from pipelag.typed import signature_of

BACKWARD_HOOKS = tuple(name for name in HOOKS if "backward" in name)


class _Value(fx.Proxy):
    """A proxy of torch.fx that marks augmented assignments (`+=` and the like), which torch.fx records as `+`."""


def _augmented(plain: Any) -> Any:
    def assign(value: fx.Proxy, other: Any) -> fx.Proxy:
        result: fx.Proxy = plain(value, other)
        result.node.meta["augmented"] = True
        return result

    return assign


for _target, _plain in PLAIN.items():
    setattr(_Value, f"__{_target.__name__}__", _augmented(_plain))


class _Tracer(fx.Tracer):
    """A tracer of torch.fx that notes the module in which it failed, and whether gradients and autocast were on."""

    proxy_buffer_attributes = True  # else values computed from a buffer would be constants of the trace

    def __init__(self, whole: Sequence[str | type[nn.Module]]) -> None:
        super().__init__()
        self.names = {one for one in whole if isinstance(one, str)}
        self.classes = tuple(one for one in whole if isinstance(one, type))
        self.failed_in: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        named = module_qualified_name in self.names or isinstance(m, self.classes)
        return named or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["gradients"], node.meta["autocast"] = torch.is_grad_enabled(), _autocast()
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        path = self.path_of_module(m)
        if not self.is_leaf_module(m, path) and any(getattr(m, name) for name in BACKWARD_HOOKS):
            raise PipelagError(
                f"'{path}' has backward hooks, which the layers would leave out; move them into a module inside it"
            )
        try:
            return super().call_module(m, forward, args, kwargs)
        except PipelagError:
            raise
        except Exception:
            self.failed_in = self.failed_in or f"'{self.path_of_module(m)}' ({type(m).__name__})"
            raise


def _autocast() -> tuple[bool, ...]:
    return tuple(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def traced(
    model: nn.Module,
    whole: Sequence[str | type[nn.Module]],
    inputs: Sequence[str],
    output: str | None,
    left: Values | None = None,
) -> Traced:
    """The operators of a model, in its present mode (training or evaluation); for other arguments see `trace`.

    Args:
        left: is filled with the values that the call leaves in the model's attributes.

    Raises:
        PipelagError: a model that torch.fx cannot trace, or that does something which a row of layers would leave out.
    """
    taken, fixed = _arguments(model, inputs)
    if any(getattr(model, name) for name in HOOKS):
        raise PipelagError(
            f"{type(model).__name__} has hooks on the whole model, which its layers would leave out; move them into a "
            "module inside it"
        )
    graph, constants = _followed(model, _Tracer(whole), fixed, {} if left is None else left)
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.target not in taken:
            _erase(graph, node)
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output") and not _idle(node)]
    steps = [_step(node, model, constants) for node in nodes]
    value = _tensors(model, _by_name(graph.output_node().args[0]), output)
    if any(node.meta["autocast"] != _autocast() for node in graph.nodes):
        raise PipelagError(
            f"{type(model).__name__} uses autocast in its forward, which cannot be laid out in layers; "
            "set the precision where the model is trained"
        )
    augmented = {node.name for node in graph.nodes if "augmented" in node.meta}
    steps = list(assigned_in_place(model, steps, value, augmented))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    asked = tuple(str(node.target) for node in placeholders)
    return renamed(Traced(tuple(node.name for node in placeholders), tuple(steps), value, asked))


def _arguments(model: nn.Module, asked: Sequence[str]) -> tuple[set[str], dict[str, Any]]:
    """The names of the inputs of a model's forward, and the defaults of its other arguments.

    asked: arguments with defaults that are inputs as well.
    """
    parameters = signature_of(model.forward).parameters.values()
    if isinstance(model, nn.DataParallel) or hasattr(model, "_orig_mod"):  # the latter: torch.compile's
        raise PipelagError(f"{type(model).__name__} wraps the model; give the model itself")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise PipelagError(f"{type(model).__name__} takes any number of inputs; give its forward named parameters")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise PipelagError(
            f"{type(model).__name__} takes arguments of any name, as models of transformers do; give examples of its "
            "inputs: linearise(model, inputs={'input_ids': tensor})"
        )
    names = [p.name for p in parameters]
    for name in asked:
        if name not in names:
            raise unknown(f"input of {type(model).__name__}", name, names)
    fixed = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in asked}
    if len(fixed) == len(names):
        those = f"name its inputs: inputs=['{names[0]}']" if names else "let its forward take an input"
        raise PipelagError(f"{type(model).__name__} has no input without a default; {those}")
    return set(names) - set(fixed), fixed


def _followed(
    model: nn.Module, tracer: _Tracer, fixed: dict[str, Any], left: Values
) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph of a model's forward, and by name the tensors that the forward makes without its inputs.

    torch.fx attaches these tensors to the model, and a forward may assign to its own modules; afterwards all modules
    are as they were.
    """
    modules: dict[str, nn.Module] = dict(model.named_modules())
    for name in tracer.names:
        if name not in modules:
            raise PipelagError(f"whole: {type(model).__name__} has no module '{name}'")
    own, before = set(vars(model)), {path: module._buffers.copy() for path, module in modules.items()}
    with unchanged_attributes(model):
        try:
            with torch.enable_grad():
                graph = tracer.trace(model, concrete_args=fixed or None)
        except PipelagError:
            raise
        except Exception as error:
            raise _untraceable(model, tracer, error) from error
        left.update(values_of(model))
        constants = {name: value for name, value in vars(model).items() if name not in own}
        assigned = {
            f"{path}.{name}".removeprefix("."): modules[path]._buffers.get(name)
            for path, buffers in before.items()
            for name, buffer in buffers.items()
            if modules[path]._buffers.get(name) is not buffer
        }
    refuse_assigned(model, [name for name, value in assigned.items() if not _overwritten(value, name)])
    return graph, constants


def _step(node: fx.Node, model: nn.Module, constants: Mapping[str, Any]) -> Step:
    """The step of a node of the graph."""
    if node.op == "get_attr" and (made := constants.get(str(node.target))) is not None:
        return Step(node.name, "call_function", constant, (made.detach(),), {})
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    args, kwargs = _by_name(node.args), dict(_by_name(node.kwargs))
    step = Step(node.name, node.op, node.target, args, kwargs, gradients=node.meta["gradients"])
    return replace(step, inplace=_overwrites(step, module))


def _by_name(arguments: Any) -> Any:
    """The arguments of a node, with names in place of nodes."""
    return mapped(arguments, lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf)


def _idle(node: fx.Node) -> bool:
    """Whether a node only fetches a value that no other node uses."""
    return not node.users and (node.op == "get_attr" or node.target is operator.getitem)


def _tensors(model: nn.Module, value: Any, keep: str | None) -> Any:
    """A model's output as a `Ref` or a tuple of them; if the model returns values by name, the one to keep."""
    if keep is not None:
        if not isinstance(value, dict):
            raise PipelagError(
                f"{type(model).__name__} does not return values by name, so none can be chosen; leave out output"
            )
        if keep not in value:
            raise unknown(f"output of {type(model).__name__}", keep, value)
        value = value[keep]
    value = tuple(value) if isinstance(value, list) else value
    if not isinstance(value, Ref) and not (isinstance(value, tuple) and all(isinstance(x, Ref) for x in value)):
        what = "tuple that holds something other than tensors" if isinstance(value, tuple) else type(value).__name__
        one = f"; choose one of its values: output='{next(iter(value), '')}'" if isinstance(value, dict) else ""
        raise PipelagError(
            f"{type(model).__name__} returns a {what}; it should return a tensor or a tuple of tensors{one}"
        )
    return value


def refuse_assigned(model: nn.Module, buffers: Sequence[str]) -> None:
    """Refuse a forward that replaces its buffers by other tensors."""
    if buffers:
        raise PipelagError(
            f"{type(model).__name__} assigns a new tensor to its buffer '{buffers[0]}' in its forward, which its "
            "layers would not do; change the buffer in place (copy_)"
        )


def _untraceable(model: nn.Module, tracer: _Tracer, error: Exception) -> PipelagError:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename and f.line]
    where = ""
    if frames:
        last = frames[-1]
        where = f" at '{last.line}' ({last.filename.rpartition('/')[2]}, line {last.lineno})"
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    what = "its control flow depends on the data" if isinstance(error, TraceError) else reason
    place = tracer.failed_in or "its forward"
    return PipelagError(
        f"{type(model).__name__} cannot be traced by torch.fx: {place} fails{where}: {what}; "
        "name the module in whole=(...), by path or class, to keep it as one operator, or give examples of the "
        "model's inputs, inputs={'name': tensor}, with which torch.export lays out more models"
    )


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a placeholder whose default is used, and the checks that torch.fx made of it."""
    for user in list(node.users):
        _erase(graph, user)
    graph.erase_node(node)


def _overwrites(step: Step, module: nn.Module | None) -> bool:
    if module is not None:
        return bool(getattr(module, "inplace", False))
    if step.op == "call_method":
        return step.target.endswith("_") and not step.target.endswith("__")
    try:
        given: Mapping[str, Any] = signature_of(step.target).bind(*step.args, **step.kwargs).arguments
    except (TypeError, ValueError):  # a builtin
        given = step.kwargs
    return step.target in OVERWRITING or bool(given.get("inplace")) or step.called.endswith("_")


def _overwritten(value: Any, path: str) -> bool:
    """Whether the value that a trace left at a buffer's path is this buffer, changed in place (`self.count += 1`)."""
    node: Any = value.node if isinstance(value, fx.Proxy) else None
    while node is not None and (node.target in OVERWRITING or "augmented" in node.meta):
        node = node.args[0]
    return node is not None and bool(node.op == "get_attr" and node.target == path)
