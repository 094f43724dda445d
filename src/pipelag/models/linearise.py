"""A branching model (residual, inception, dense) as a row of layers, through torch.fx.

PipeDream's profiler takes a model apart in an order in which it runs (section 3.1); this does so for any model that
torch.fx can trace. Between two layers crosses every tensor that a later one still needs, alone or in a tuple: a
boundary inside a residual block carries the branch and the skip.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError, unknown
from pipelag.models.steps import Ref, Step, Traced, attribute, filled, refs
from pipelag.models.tracing import OVERWRITING, trace
from pipelag.tensors import alone, as_tuple

LAYERS = ("weights", "operators")
SCALARS = {"shape", "ndim", "dtype", "device", "size", "dim", "numel", "stride"}  # of a tensor, themselves none
SEVERAL = {"chunk", "split", "unbind", "tensor_split", "topk", "sort"}  # give several tensors
VIEWS = {"getitem", "flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "expand", "_assert"}
PLAIN = {overwriting: getattr(operator, overwriting.__name__[1:]) for overwriting in OVERWRITING}


class Piece(nn.Module):
    """One layer of a linearised model: some of its operators, with the model's own modules and parameters.

    label: the first module with weights. merged: the paths of all modules, and the names of functions and methods, that
    it calls, in order. takes, gives: how many tensors cross the boundaries before and after it.
    """

    def __init__(self, model: nn.Module, steps: Sequence[Step], inputs: Sequence[str], output: Any) -> None:
        super().__init__()
        self.original = nn.Module()
        for step in steps:
            if step.op in ("call_module", "get_attr"):
                graft(self.original, step.target, thing(model, step))
        called = [step for step in steps if step.op != "get_attr"]
        self.merged = tuple(step.called for step in called)
        self.label = next((step.called for step in called if weighted(model, step)), self.merged[0])
        self.inputs, self.output = tuple(inputs), output
        self.takes, self.gives = len(inputs), len(set(refs(output)))
        # A tensor that another layer made is not overwritten: it may be what that layer's backward needs.
        made = {step.name for step in steps}
        foreign = [step.inplace and bool(step.uses) and step.uses[0] not in made for step in steps]
        both = list(zip(steps, foreign, strict=True))
        self.steps = [replace(step, target=PLAIN.get(step.target, step.target)) if is_ else step for step, is_ in both]
        self.copied = [is_ and step.target not in PLAIN for step, is_ in both]
        last = {name: number for number, step in enumerate(steps) for name in (step.name, *step.uses)}
        stay = set(refs(output))
        self.done = [[n for n, at in last.items() if at == number and n not in stay] for number in range(len(steps))]

    def forward(self, value: Any) -> Any:
        """What the next layer takes: a tensor, or a tuple of those that cross."""
        values = dict(zip(self.inputs, as_tuple(value), strict=True))
        for step, copied, done in zip(self.steps, self.copied, self.done, strict=True):
            if copied:
                values[step.uses[0]] = values[step.uses[0]].clone()
            values[step.name] = step.run(values, self.original)
            for name in done:
                del values[name]
        given = filled(self.output, values, self.training)
        for name, one in zip(refs(self.output), as_tuple(given), strict=True):
            if not isinstance(one, torch.Tensor):
                raise PipelagError(
                    f"layer '{self.label}' gives a {type(one).__name__} ('{name}'), and only tensors cross a boundary; "
                    "name the module around it in whole=(...)"
                )
        return given

    def extra_repr(self) -> str:
        """The label."""
        return self.label


class Linearised(nn.Sequential):
    """A model as a row of layers (`Piece`s)."""

    def report(self) -> str:
        """A line per layer: its number, the tensors that cross after it, and what was merged into it."""
        pieces = [piece for piece in self if isinstance(piece, Piece)]
        lines = [f"{n:>5}  {piece.gives:>6}  {', '.join(piece.merged)}" for n, piece in enumerate(pieces, start=1)]
        return "\n".join(["layer  tensors  merged", *lines])


def linearise(
    model: nn.Module,
    *,
    layers: str = "weights",
    crossing: int | None = None,
    whole: Sequence[str | type[nn.Module]] = (),
) -> Linearised:
    """A branching model as an `nn.Sequential` that computes the same, to be cut, profiled, partitioned and trained.

    The layers hold the model's own modules: training the one trains the other, and a module used twice stays one. A
    model of several inputs becomes one that takes them as a tuple; arguments with defaults keep these.

    Args:
        layers: "weights": a layer begins at every module that has weights (kernels, matrices), with what follows it
            (normalisation, activations, sums); "operators": at every operator that writes a new tensor.
        crossing: at most so many tensors cross a boundary; layers between are merged. 1 leaves whole blocks.
        whole: modules, by path ("features.3") or class, that are taken as one operator and not looked into.

    Raises:
        PipelagError: a model that torch.fx cannot trace (it says where), that computes something else in training than
            in evaluation (auxiliary outputs), that returns no tensors, or without an operator; an unknown option.

    >>> from torchvision.models import resnet18
    >>> model = linearise(resnet18())
    >>> len(model), len(linearise(resnet18(), crossing=1)), model[1].merged
    (21, 10, ('layer1.0.conv1', 'layer1.0.bn1', 'layer1.0.relu'))
    """
    if layers not in LAYERS:
        raise unknown("kind of layers", layers, LAYERS)
    if crossing is not None and crossing < 1:
        raise PipelagError(f"at least 1 tensor crosses a boundary, so crossing cannot be {crossing}")
    traced = trace(model, whole)
    constants = {step.name: step for step in traced.steps if step.op == "get_attr"}
    steps = in_order([step for step in traced.steps if step.op != "get_attr"], model)
    if not steps:
        raise PipelagError(f"{type(model).__name__} has no operator: there is nothing to lay out")
    bounds = boundaries(model, steps, constants, traced, layers, crossing)
    pieces = []
    for start, end in pairwise([0, *bounds, len(steps)]):
        used = {name: None for step in steps[start:end] for name in step.uses if name in constants}
        inputs = traced.inputs if start == 0 else live(steps, traced, start)
        output = traced.output if end == len(steps) else alone([Ref(name) for name in live(steps, traced, end)])
        pieces.append(Piece(model, [*(constants[name] for name in used), *steps[start:end]], inputs, output))
    return Linearised(*pieces).train(model.training)


def in_order(steps: Sequence[Step], model: nn.Module) -> list[Step]:
    """The steps with the parts of what gives several tensors taken out at once, so that only tensors travel on."""
    several = {step.name for step in steps if gives_several(model, step)}
    parts = [s for s in steps if s.target is operator.getitem and s.args[0] in several and isinstance(s.args[1], int)]
    taken = {step.name for step in parts}
    ordered = []
    for step in steps:
        if step.name not in taken:
            ordered += [step, *(part for part in parts if part.args[0] == step.name)]
    return ordered


def gives_several(model: nn.Module, step: Step) -> bool:
    """Whether an operator's value is a tuple of tensors, as far as its name tells."""
    if step.op == "call_module":
        return isinstance(thing(model, step), (nn.RNNBase, nn.MultiheadAttention))
    return step.called in SEVERAL


def live(steps: Sequence[Step], traced: Traced, at: int) -> list[str]:
    """The values made before step `at` that it or a later one needs, or the output, in the order they were made."""
    made = [*traced.inputs, *(step.name for step in steps[:at])]
    needed = {name for step in steps[at:] for name in step.uses} | set(refs(traced.output))
    return [name for name in made if name in needed]


def boundaries(
    model: nn.Module,
    steps: Sequence[Step],
    constants: dict[str, Step],
    traced: Traced,
    layers: str,
    crossing: int | None,
) -> list[int]:
    """The steps at which a new layer begins, but for the first."""
    no_tensor = scalars(steps) | {step.name for step in steps if gives_several(model, step)}
    matrices = {name for name, step in constants.items() if is_weight(thing(model, step))}

    def begins(step: Step) -> bool:
        if layers == "weights":
            return weighted(model, step) or not matrices.isdisjoint(step.uses)
        return writes(model, step) and step.name not in no_tensor

    def allowed(at: int) -> bool:
        crosses = live(steps, traced, at)
        return no_tensor.isdisjoint(crosses) and len(crosses) <= (crossing or len(crosses))

    found = []
    before = None
    for at, step in enumerate(steps):
        if begins(step):
            if before is not None:  # where fewer tensors must cross, the cut may lie earlier: before a normalisation
                found += [place for place in range(at, before, -1) if allowed(place)][:1]
            before = at
    return found


def scalars(steps: Iterable[Step]) -> set[str]:
    """Values that are sizes and the like: asked of a tensor, or calculated from such alone."""
    found: set[str] = set()
    for step in steps:
        asked = step.called in SCALARS or (step.target is getattr and step.args[1] in SCALARS)
        calculated = step.op == "call_function" and step.target.__module__ in ("_operator", "math", "builtins")
        if asked or (calculated and step.uses and found.issuperset(step.uses)):
            found.add(step.name)
    return found


def weighted(model: nn.Module, step: Step) -> bool:
    """Whether a step calls a module with weights (no biases, no normalisation)."""
    return step.op == "call_module" and any(map(is_weight, thing(model, step).parameters()))


def is_weight(value: Any) -> bool:
    """A kernel or a matrix."""
    return isinstance(value, nn.Parameter) and value.dim() > 1


def writes(model: nn.Module, step: Step) -> bool:
    """Whether a step writes a new tensor."""
    looks = step.op == "call_module" and isinstance(thing(model, step), (nn.Flatten, nn.Unflatten, nn.Identity))
    return not (step.inplace or looks or step.called in VIEWS)


def thing(model: nn.Module, step: Step) -> Any:
    """The module, parameter or buffer that a step names."""
    return model.get_submodule(step.target) if step.op == "call_module" else attribute(model, step.target)


def graft(tree: nn.Module, path: str, value: Any) -> None:
    """Put a module, parameter or buffer into a tree of modules, at its path in the original."""
    *parents, name = path.split(".")
    for parent in parents:
        if parent not in tree._modules:
            tree.add_module(parent, nn.Module())
        tree = tree.get_submodule(parent)
    if isinstance(value, nn.Module):
        tree.add_module(name, value)
    elif isinstance(value, nn.Parameter):
        tree.register_parameter(name, value)
    elif isinstance(value, torch.Tensor):
        tree.register_buffer(name, value)
    else:
        setattr(tree, name, value)
