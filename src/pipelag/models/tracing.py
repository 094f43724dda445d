"""A model as a list of operators in an order in which they run, by torch.fx."""

from __future__ import annotations

import inspect
import operator
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.nn.modules.batchnorm import _BatchNorm

from pipelag.errors import PipelagError, unknown
from pipelag.models.cut import HOOKS
from pipelag.models.memory import OVERWRITING, PLAIN, assigned_in_place
from pipelag.models.steps import ByMode, Ref, Step, Traced, constant, mapped

PLAINLY = (bool, int, float, complex, str, bytes)
Values = dict[tuple[str, str], Any]  # by a module's path and an attribute
BACKWARD_HOOKS = tuple(name for name in HOOKS if "backward" in name)


def trace(
    model: nn.Module,
    whole: Sequence[str | type[nn.Module]] = (),
    inputs: Sequence[str] | Mapping[str, Any] = (),
    output: str | None = None,
) -> Traced:
    """The operators of a model in the order in which it calls them; arguments with defaults keep these.

    Args:
        whole: modules, by path or class, to take as one operator each.
        inputs: arguments with defaults that are inputs nevertheless; or examples of all inputs, and then it is
            torch.export that traces.
        output: the one to keep of what the model gives by name.

    Raises:
        PipelagError: control flow that depends on the data (where), a model that computes something else in training
            than in evaluation, one that takes any number of inputs or returns no tensor or tuple of tensors, or one
            that does what a row of layers would leave out: autocast, hooks, assigned buffers, counting in Python.
    """
    if isinstance(inputs, Mapping):
        from pipelag.models.exporting import exported

        look = partial(exported, inputs=inputs, output=output)
    else:
        look = partial(_traced, whole=whole, input_names=tuple(inputs), keep=output)
    modes, usual = {module: module.training for module in model.modules()}, model.training
    try:
        traces = []
        for training in (True, False):
            for module, mode in modes.items():  # in the model's own mode a frozen module stays frozen
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
                f"{type(model).__name__} has batch normalisation, which torch.export lays out only where it is frozen "
                "(its .eval() called while the model is in training); without examples torch.fx lays it out"
            ) from None
        raise PipelagError(
            f"{type(model).__name__} computes something else in training than in evaluation, which a row of layers "
            "cannot; if it has auxiliary outputs, build it without them (aux_logits=False), and name modules that draw "
            "random numbers themselves in whole=(...)"
        ) from None


@contextmanager
def unchanged_attributes(model: nn.Module) -> Iterator[None]:
    """What happens inside leaves the modules' attributes as they are."""
    kept = [(module, vars(module).copy()) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in kept:
            vars(module).clear()
            vars(module).update(attributes)


def values_of(model: nn.Module) -> Values:
    """The attributes of its modules that are plain values of Python."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if value is None or type(value) in PLAINLY
    }


def _settled(model: nn.Module, look: Callable[..., Traced]) -> Traced:
    """The trace of a call; `look` is given a dict for the values that the call leaves.

    A forward that changes a value so that its next call is another is refused: a row does what the first one did. What
    a call has only found out, such as the longest sequence, the next one leaves as it is.
    """
    before, left, later = values_of(model), Values(), Values()
    with unchanged_attributes(model):
        traced = look(model, left=left)
        changed = _differing(before, left)
        if changed:
            for (path, name), value in left.items():
                vars(model.get_submodule(path))[name] = value
            again = look(model, left=later)
            changed = _differing(left, later) or ("" if _alike(traced, again) else changed)
    if changed:
        raise PipelagError(
            f"{type(model).__name__} changes '{changed}' in its forward, which a row of layers would not; let every "
            "call be the same, or hold it in a buffer and change that in place (add_)"
        )
    return traced


def _differing(before: Values, after: Values) -> str:
    """The first attribute with another value, if any; what is no plain value any more does not count."""
    for key, value in after.items():
        if key not in before or (before[key] is not value and before[key] != value):  # NaN is itself
            return ".".join(filter(None, key))
    return ""


def _alike(first: Traced, second: Traced) -> bool:
    """Whether two traces in one mode are of the same operators with the same arguments."""
    try:
        _merged(first, second), _merged(second, first)  # what may differ by mode may so in one order alone
    except _Differs:
        return False
    return True


class _Value(fx.Proxy):
    """torch.fx's, which remembers where `+=` and the like are in the forward, not `+`."""


def _augmented(plain: Any) -> Any:
    def assign(value: fx.Proxy, other: Any) -> fx.Proxy:
        result: fx.Proxy = plain(value, other)
        result.node.meta["augmented"] = True
        return result

    return assign


for _target, _plain in PLAIN.items():
    setattr(_Value, f"__{_target.__name__}__", _augmented(_plain))


class _Tracer(fx.Tracer):
    """torch.fx's, which remembers the module in which it failed, and where gradients or autocast were off or on."""

    proxy_buffer_attributes = True  # else what is calculated from a buffer would be a constant of the trace

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
            raise PipelagError(f"'{path}' has backward hooks, which a row of layers would leave out; move them inside")
        try:
            return super().call_module(m, forward, args, kwargs)
        except PipelagError:
            raise
        except Exception:
            self.failed_in = self.failed_in or f"'{self.path_of_module(m)}' ({type(m).__name__})"
            raise


def _autocast() -> tuple[bool, ...]:
    return tuple(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _traced(
    model: nn.Module, whole: Sequence[str | type[nn.Module]], input_names: Sequence[str], keep: str | None, left: Values
) -> Traced:
    parameters = inspect.signature(model.forward).parameters.values()
    if isinstance(model, nn.DataParallel) or hasattr(model, "_orig_mod"):  # the latter: torch.compile's
        raise PipelagError(f"{type(model).__name__} is around the model; give the model itself")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise PipelagError(f"{type(model).__name__} takes any number of inputs; give its forward named ones")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise PipelagError(
            f"{type(model).__name__} takes arguments of any name, as models of transformers do; give examples of its "
            "inputs, linearise(model, inputs={'input_ids': tensor})"
        )
    for name in input_names:
        if name not in (names := [p.name for p in parameters]):
            raise unknown(f"input of {type(model).__name__}", name, names)
    if all(p.default is not p.empty and p.name not in input_names for p in parameters):
        first = next((p.name for p in parameters), "")
        those = f"name those it has: inputs=['{first}']" if first else "let its forward take one"
        raise PipelagError(f"{type(model).__name__} has no input without a default; {those}")
    if any(getattr(model, name) for name in HOOKS):
        raise PipelagError(
            f"{type(model).__name__} has hooks on the whole, which a row of layers would leave out; move them inside"
        )
    fixed = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in input_names}
    tracer = _Tracer(whole)
    for name in tracer.names:
        if name not in dict(model.named_modules()):
            raise PipelagError(f"whole: {type(model).__name__} has no module '{name}'")
    kept = [(path, m, vars(m).copy(), m._buffers.copy()) for path, m in model.named_modules()]
    try:
        with torch.enable_grad():
            graph = tracer.trace(model, concrete_args=fixed or None)
    except PipelagError:
        raise
    except Exception as error:
        raise _untraceable(model, tracer, error) from error
    finally:
        # Tensors that forward makes without looking at its input torch.fx hangs onto the model; it assigns its own.
        constants, assigned = {name: value for name, value in vars(model).items() if name not in kept[0][2]}, {}
        left |= values_of(model)
        for path, module, attributes, buffers in kept:
            for name, buffer in buffers.items():
                if module._buffers.get(name) is not buffer:
                    assigned[f"{path}.{name}".removeprefix(".")] = module._buffers.get(name)
            module._buffers.clear()
            module._buffers.update(buffers)
            vars(module).clear()
            vars(module).update(attributes)
    refuse_assigned(model, [name for name, value in assigned.items() if not _overwritten(value, name)])
    taken = {p.name for p in parameters} - set(fixed)
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.target not in taken:
            _erase(graph, node)
    named = lambda value: mapped(value, lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf)  # noqa: E731
    steps, output = [], None
    for node in graph.nodes:
        if node.op == "output":
            output = named(node.args[0])
        elif node.op != "placeholder" and (node.users or node.op != "get_attr" and node.target is not operator.getitem):
            module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
            step = Step(node.name, node.op, node.target, named(node.args), dict(named(node.kwargs)))
            step = replace(step, gradients=node.meta["gradients"])
            if step.op == "get_attr" and step.target in constants:
                step = Step(node.name, "call_function", constant, (constants[step.target].detach(),), {})
            steps.append(replace(step, inplace=_overwrites(step, module)))
    if keep is not None:
        if not isinstance(output, dict):
            raise PipelagError(f"{type(model).__name__} gives no values by name to keep one; leave out output")
        if keep not in output:
            raise unknown(f"output of {type(model).__name__}", keep, output)
        output = output[keep]
    output = tuple(output) if isinstance(output, list) else output
    if not isinstance(output, Ref) and not (isinstance(output, tuple) and all(isinstance(x, Ref) for x in output)):
        what = "tuple of more than tensors" if isinstance(output, tuple) else type(output).__name__
        one = f"; keep one: output='{next(iter(output), '')}'" if isinstance(output, dict) else ""
        raise PipelagError(f"{type(model).__name__} returns a {what}; a tensor or a tuple of tensors is wanted{one}")
    if any(node.meta["autocast"] != _autocast() for node in graph.nodes):
        raise PipelagError(
            f"{type(model).__name__} computes a part of itself under autocast, which cannot be laid out in layers; "
            "leave the precision to whoever trains it"
        )
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    asked = tuple(str(node.target) for node in inputs)
    augmented = {node.name for node in graph.nodes if "augmented" in node.meta}
    steps = list(assigned_in_place(model, steps, output, augmented))
    return renamed(Traced(tuple(node.name for node in inputs), tuple(steps), output, asked))


def refuse_assigned(model: nn.Module, buffers: Sequence[str]) -> None:
    """Refuse a forward that puts other tensors into the place of its buffers."""
    if buffers:
        raise PipelagError(
            f"{type(model).__name__} assigns its buffer '{buffers[0]}' in its forward, which a row of layers would "
            "not; change the buffer in place (copy_)"
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
        "modules named in whole=(...), by path or class, are taken as one operator; with examples of its inputs, "
        "inputs={'name': tensor}, torch.export lays out more"
    )


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """A placeholder whose default was taken, and the checks that torch.fx made of it."""
    for user in list(node.users):
        _erase(graph, user)
    graph.erase_node(node)


def _overwrites(step: Step, module: nn.Module | None) -> bool:
    if module is not None:
        return bool(getattr(module, "inplace", False))
    if step.op == "call_method":
        return step.target.endswith("_") and not step.target.endswith("__")
    try:
        given: Mapping[str, Any] = inspect.signature(step.target).bind(*step.args, **step.kwargs).arguments
    except (TypeError, ValueError):  # a builtin
        given = step.kwargs
    return step.target in OVERWRITING or bool(given.get("inplace")) or step.called.endswith("_")


def _overwritten(value: Any, path: str) -> bool:
    """Whether what a trace left at a buffer's path is that buffer, changed in place (`self.count += 1`)."""
    node: Any = value.node if isinstance(value, fx.Proxy) else None
    while node is not None and (node.target in OVERWRITING or "augmented" in node.meta):
        node = node.args[0]
    return node is not None and bool(node.op == "get_attr" and node.target == path)


def renamed(traced: Traced) -> Traced:
    """Whoever uses a value after it was overwritten uses the operator's that did so."""
    now: dict[str, str] = {}
    rename = lambda value: mapped(value, lambda leaf: Ref(now.get(leaf, leaf)) if isinstance(leaf, Ref) else leaf)  # noqa: E731
    steps = []
    for step in traced.steps:
        step = replace(step, args=rename(step.args), kwargs=rename(step.kwargs))
        if step.inplace and step.uses:
            old = step.uses[0]
            now |= {name: step.name for name, current in now.items() if current == old} | {old: step.name}
        steps.append(step)
    return replace(traced, steps=tuple(steps), output=rename(traced.output))


class _Differs(Exception):
    """The two traces are not of the same operators."""


def _merged(training: Traced, evaluation: Traced) -> Traced:
    """Where the two differ in a True and a False, or in a share of dropout and none, a `ByMode`."""
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
