"""Lay out a branching model (residual, inception, dense, a transformer) as a row of layers.

PipeDream's profiler takes a model apart in an order in which it runs (section 3.1); this module does so for any model
that torch.fx or torch.export can trace. All tensors that a later layer still needs cross a boundary, alone or in a
tuple: a boundary inside a residual block carries the branch and the skip.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from numbers import Integral
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from pipelag.errors import PipelagError, expect, shown, unknown
from pipelag.models.memory import overwritten_views
from pipelag.models.pieces import Piece, is_weight, thing, weighted, writes
from pipelag.models.steps import Ref, Step, Traced, mapped, refs, scalars
from pipelag.models.tracing import trace
from pipelag.models.values import unchanged_attributes
from pipelag.randomness import seeded
from pipelag.tensors import alone, as_tuple

LAYERS = ("weights", "operators")
SEVERAL = {"chunk", "split", "unbind", "tensor_split", "topk", "sort", "kthvalue", "mode", "cummax", "cummin"}
SEVERAL |= {"aminmax", "var_mean", "std_mean", "meshgrid", "broadcast_tensors"}  # these return several tensors
ALONG = {"max", "min", "median", "nanmedian"}  # these return several tensors if they are along a dimension


class Linearised(nn.Sequential):
    """A model as an `nn.Sequential` of layers (`Piece`s): what `linearise` returns."""

    def report(self) -> str:
        """One line per layer: its number, how many tensors cross after it, and the modules merged into it."""
        pieces = [piece for piece in self if isinstance(piece, Piece)]
        lines = [f"{n:>5}  {piece.gives:>6}  {', '.join(piece.merged)}" for n, piece in enumerate(pieces, start=1)]
        return "\n".join(["layer  tensors  merged", *lines])


def linearise(
    model: nn.Module,
    *,
    layers: str = "weights",
    crossing: int | None = None,
    whole: Sequence[str | type[nn.Module]] = (),
    inputs: Sequence[str] | Mapping[str, Any] = (),
    output: str | None = None,
    carry_tied: bool = False,
) -> Linearised:
    """Turn a branching model into an equivalent `nn.Sequential`, which can be cut, profiled, partitioned and trained.

    The layers hold the model's own modules, so training the one trains the other, and a module that is used twice
    stays one module. A model with several inputs becomes one that takes them as a tuple or a dict; arguments with
    defaults keep their defaults.

    Args:
        layers: "weights": a layer begins at every module that has weights (kernels, matrices) and includes what follows
            it (normalisation, activations, sums). "operators": a layer begins at every operator that writes a new
            tensor.
        crossing: the largest number of tensors that may cross a boundary; layers are merged to respect it. With 1,
            whole blocks remain. None: no limit.
        whole: modules that are kept as one operator and not traced into, by path ("features.3") or class.
        inputs: a list of names: arguments with defaults, such as masks, that become inputs too. Or, for models that
            torch.fx cannot trace, a dict of all inputs by name, {"input_ids": words}, each a tensor with two samples or
            more; values that are not tensors are passed as they are. The model is then traced by torch.export, and the
            result is compared with the model's.
        output: which value to return, for a model that returns several by name ("logits").
        carry_tied: send a weight that several layers use from the first of them to the others, as a tensor that
            crosses the boundaries between them; its gradient comes back the same way. Cuts may then lie between these
            layers. The weight belongs to the first layer's stage, and all layers read the version that this stage read
            for the minibatch. For models that are traced by torch.export.

    Returns:
        A `Linearised`, an `nn.Sequential` whose `report()` lists its layers.

    Raises:
        PipelagError: the argument is not a module; torch.fx cannot trace the model (the sentence says where); the model
            computes something else in training than in evaluation (auxiliary outputs), returns something other than
            tensors, or has no operator; an unknown option or input, an example with one sample, or `crossing` below 1.

    >>> from torchvision.models import resnet18
    >>> model = linearise(resnet18())
    >>> len(model), len(linearise(resnet18(), crossing=1)), model[1].merged
    (21, 10, ('layer1.0.conv1', 'layer1.0.bn1', 'layer1.0.relu'))
    """
    if layers not in LAYERS:
        raise unknown("kind of layers", layers, LAYERS)
    expect("the model", model, nn.Module, "an nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise PipelagError(
            f"{type(model).__name__} is compiled and cannot be traced; give the model as it was before torch.jit"
        )
    lazy = next((n for n, p in model.named_parameters() if isinstance(p, nn.parameter.UninitializedParameter)), None)
    if lazy is not None:
        raise PipelagError(f"'{lazy}' of {type(model).__name__} has no size yet; call the model on an example first")
    if crossing is not None and not (isinstance(crossing, Integral) and crossing >= 1):
        raise PipelagError(f"crossing is {shown(crossing)}; it should be a whole number from 1 on, or None")
    examples = isinstance(inputs, Mapping)
    if isinstance(inputs, str) or (whole and examples):
        raise PipelagError("inputs should be a list of names, or, without whole=, a dict of examples by name")
    if isinstance(whole, str) or not all(isinstance(one, (str, type)) for one in whole):
        raise PipelagError(f"whole is {shown(whole)}; it should be a list of modules by path or class")
    for name, example in inputs.items() if isinstance(inputs, Mapping) else ():
        if isinstance(example, torch.Tensor) and example.dim() and len(example) == 1:
            raise PipelagError(
                f"the example '{name}' has one sample; give two or more, so that the number of samples can be told "
                "from other sizes"
            )
    traced = trace(model, whole, inputs, output)
    row = laid_out(model, traced, layers, crossing, carry_tied)
    if isinstance(inputs, Mapping):
        compare(model, row, traced.asked, inputs, output)
    return row


def laid_out(
    model: nn.Module, traced: Traced, layers: str, crossing: int | None, carry_tied: bool = False
) -> Linearised:
    """Lay out the traced steps as a row of layers.

    Values that depend on sizes only do not cross boundaries: each layer that needs one computes it again.
    """
    constants = {step.name: step for step in traced.steps if step.op == "get_attr"}
    sized = {step.name: step for step in traced.steps if step.name in traced.sized}
    work = [step for step in traced.steps if step.name not in constants and step.name not in sized]
    steps = in_order(work, model)
    if carry_tied:
        steps, constants = carried(steps, constants, model)
    if not steps:
        raise PipelagError(f"{type(model).__name__} has no operator: there is nothing to lay out")
    bounds = boundaries(model, steps, constants, traced, layers, crossing)
    pieces = []
    for start, end in pairwise([0, *bounds, len(steps)]):
        used = {name: None for step in steps[start:end] for name in step.uses if name in constants}
        inputs = traced.inputs if start == 0 else live(steps, traced, start)
        output = traced.output if end == len(steps) else alone([Ref(name) for name in live(steps, traced, end)])
        needed = [*(name for step in steps[start:end] for name in step.uses), *refs(output)]
        settled = from_sizes(needed, inputs, traced, sized) or ()
        piece_steps = [*(constants[name] for name in used), *steps[start:end]]
        pieces.append(Piece(model, traced, piece_steps, inputs, output, settled))
    row, modules = Linearised(*pieces), set(model.modules())
    for module in row.modules():
        if module not in modules:  # the model's own modules keep their modes, since some may be frozen
            module.training = model.training
    return row


def carried(
    steps: Sequence[Step], constants: Mapping[str, Step], model: nn.Module
) -> tuple[list[Step], dict[str, Step]]:
    """The steps and constants, in which a weight that several modules use is a value that its first use makes.

    Raises:
        PipelagError: a weight that a module which was not traced into shares with others.
    """
    users: dict[int, set[str]] = {}  # by the weight: the modules that use it
    for step in steps:
        ends = [thing(model, constants[name]) for name in step.uses if name in constants]
        ends += thing(model, step).parameters() if step.op == "call_module" else []
        for weight in ends:
            if isinstance(weight, nn.Parameter):  # buffers may be in several stages
                users.setdefault(id(weight), set()).add(step.within or step.called)
    tied = {weight for weight, modules in users.items() if len(modules) > 1}
    for step in steps:
        if step.op == "call_module" and any(id(p) in tied for p in thing(model, step).parameters()):
            raise PipelagError(
                f"'{step.target}' uses a weight of other layers, but is kept whole here; give an example of each input "
                "(inputs={'name': tensor}), so that torch.export traces the model"
            )
    first: dict[int, Ref] = {}
    renamed: dict[str, Ref] = {}
    for name, step in constants.items():
        weight = id(thing(model, step))
        if weight in tied:
            renamed[name] = first.setdefault(weight, Ref(name))
    rename = lambda value: mapped(value, lambda leaf: renamed.get(leaf, leaf) if isinstance(leaf, Ref) else leaf)  # noqa: E731
    ordered: list[Step] = []
    made: set[str] = set()
    for step in steps:
        step = replace(step, args=rename(step.args), kwargs=rename(step.kwargs))
        for name in step.uses:
            if name in renamed and name not in made:
                ordered.append(replace(constants[name], within=step.within))
                made.add(name)
        ordered.append(step)
    return ordered, {name: step for name, step in constants.items() if name not in renamed}


def from_sizes(
    needed: Iterable[str], inputs: Iterable[str], traced: Traced, sized: Mapping[str, Step]
) -> list[Step] | None:
    """The steps that compute the needed values that depend on sizes only, from the sizes of a layer's inputs.

    Args:
        needed: names of values that the layer uses; only those among `sized` are computed here.
        inputs: names of the layer's inputs.
        sized: by name, the steps that depend on sizes only.

    Returns:
        The steps, or None if the inputs do not have all the sizes.
    """
    where = {size: (Ref(name), number) for name in inputs for number, size in enumerate(traced.shapes.get(name, ()))}
    steps: dict[str, Step] = {}

    def add(name: str) -> bool:
        if name in steps or name not in sized:
            return True
        step = sized[name]
        if step.called == "sym_size":
            if traced.sizes[name] not in where:
                return False
            step = replace(step, args=where[traced.sizes[name]])
        elif not all(map(add, step.uses)):
            return False
        steps[name] = step
        return True

    return list(steps.values()) if all(map(add, needed)) else None


def compare(
    model: nn.Module, row: nn.Module, asked: Sequence[str], inputs: Mapping[str, Any], output: str | None
) -> None:
    """Refuse a row of layers that computes something else than its model, in evaluation, on the examples of inputs."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(value.is_meta for value in tensors):
        return
    place = tensors[0].device if tensors else torch.device("cpu")
    from pipelag.models.exporting import Called

    modes = {module: module.training for module in (*model.modules(), *row.modules())}
    buffers = {buffer: buffer.clone() for buffer in model.buffers()}
    given = tuple(inputs[name] for name in asked)
    results = []
    try:
        for called, value in ((Called(model, inputs, output).eval(), given), (row.eval(), alone(given))):
            with torch.no_grad(), seeded(0, place), unchanged_attributes(model):  # evaluation may draw, too
                results.append(called(tree_map(torch.clone, value)))
                for buffer, before in buffers.items():
                    if not torch.equal(buffer, before):  # for example a count of calls
                        buffer.copy_(before)
    finally:
        for module, mode in modes.items():
            module.training = mode
    expected, outputs = results
    for correct, computed in zip(as_tuple(expected), as_tuple(outputs), strict=True):
        sizes, most = correct.abs(), torch.finfo(correct.dtype).max / 2 if correct.is_floating_point() else inf
        # Masked values (-inf, or the least number) would make the tolerance too large, so leave them out.
        largest = float(sizes.masked_fill(~(sizes < most), 0).max())
        if not torch.allclose(correct, computed, rtol=1e-3, atol=1e-3 * largest, equal_nan=True):
            apart = float((correct - computed).nan_to_num(0.0, inf, -inf).abs().max())
            raise PipelagError(
                f"the layers of {type(model).__name__} compute something other than the model (a difference of "
                f"{apart:.3g}): torch.export has missed a part of it"
            )


def in_order(steps: Sequence[Step], model: nn.Module) -> list[Step]:
    """The steps in an order in which several tensors are unpacked at once, so that only tensors cross boundaries."""
    several = {step.name for step in steps if gives_several(model, step)}
    parts = [s for s in steps if s.target in (operator.getitem, getattr) and s.args[0] in several]
    parts = [step for step in parts if isinstance(step.args[1], (int, str))]
    taken = {step.name for step in parts}
    ordered = []
    for step in steps:
        if step.name not in taken:
            ordered += [step, *(part for part in parts if part.args[0] == step.name)]
    return ordered


def gives_several(model: nn.Module, step: Step) -> bool:
    """Whether an operator returns a tuple of tensors, as far as its name tells."""
    if step.several:
        return True
    if step.op == "call_module":
        return isinstance(thing(model, step), (nn.RNNBase, nn.MultiheadAttention))
    along = "dim" in step.kwargs or len(step.args) > 1 and isinstance(step.args[1], int)
    return step.called in SEVERAL or (step.called in ALONG and along)


def live(steps: Sequence[Step], traced: Traced, at: int) -> list[str]:
    """The values made before step `at` that this step, a later one or the output needs, in the order they were made."""
    values = [*traced.inputs, *(step.name for step in steps[:at])]
    needed = {name for step in steps[at:] for name in step.uses} | set(refs(traced.output))
    return [name for name in values if name in needed and name not in traced.sized]


def boundaries(
    model: nn.Module,
    steps: Sequence[Step],
    constants: dict[str, Step],
    traced: Traced,
    layers: str,
    crossing: int | None,
) -> list[int]:
    """The numbers of the steps at which a new layer begins, except the first."""
    no_tensor = scalars(steps) | set(traced.sizes) | {step.name for step in steps if gives_several(model, step)}
    held = [*constants.values(), *(step for step in steps if step.op == "get_attr")]
    matrices = {step.name for step in held if is_weight(thing(model, step))}
    sized = {step.name: step for step in traced.steps if step.name in traced.sized}
    apart = overwritten_views(model, steps, traced.output)

    def begins(step: Step) -> bool:
        if layers == "weights":
            return weighted(model, step) or not matrices.isdisjoint(step.uses)
        return writes(model, step) and step.name not in no_tensor

    def allowed(at: int) -> bool:
        crosses = live(steps, traced, at)
        if any(first <= at <= last for first, last in apart):
            return False
        few = no_tensor.isdisjoint(crosses) and len(crosses) <= (crossing or len(crosses))
        later = [*(name for step in steps[at:] for name in step.uses), *refs(traced.output)]
        return few and (not sized or from_sizes(later, crosses, traced, sized) is not None)

    bounds = []
    before = None
    for at, step in enumerate(steps):
        if begins(step):
            if before is not None:  # if too many tensors cross here, the layer may begin earlier: at a normalisation
                start = at
                while step.within and start - 1 > before and steps[start - 1].within == step.within:
                    start -= 1  # a reshape before the product belongs to the same module
                bounds += [place for place in range(start, before, -1) if allowed(place)][:1]
            before = at
    return bounds
