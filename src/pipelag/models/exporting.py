"""Trace a model into a list of operators by torch.export, for models that torch.fx cannot trace (transformers').

torch.export runs the model once on examples of its inputs, without computing, and records torch's own operators.
Control flow that depends on sizes, options and classes is recorded as it went. Sizes may differ between minibatches,
unless the model computes with one as a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from pipelag.errors import PipelagError, a, unknown
from pipelag.models.steps import Here, Operator, Ref, Step, Traced, constant, mapped, refs, renamed
from pipelag.models.symbolic import BACKWARD_HOOKS, refuse_assigned
from pipelag.models.values import Values, values_of
from pipelag.tensors import alone
from pipelag.typed import signature_of

GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled  # torch.export's form of torch.no_grad
IDLE = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range")  # checks that torch.export has already made
PRUNED = "model."  # where `Called` keeps the model


class Called(nn.Module):
    """A model that takes its tensor inputs as one tuple, has its other inputs fixed, and returns tensors.

    Args:
        output: the name of the value to keep, if the model returns several by name.
        left: is filled with the values that a call leaves in the model's attributes.
    """

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any], output: str | None, left: Values | None = None
    ) -> None:
        super().__init__()
        self.model, self.output, self.left = model, output, {} if left is None else left
        self.names = [name for name, value in inputs.items() if isinstance(value, torch.Tensor)]
        self.fixed = {name: value for name, value in inputs.items() if not isinstance(value, torch.Tensor)}

    def forward(self, given: tuple[torch.Tensor, ...]) -> Any:
        """The model's output: a tensor or a tuple of tensors."""
        before = dict(self.model.named_buffers())
        value = self.kept(self.model(**dict(zip(self.names, given, strict=True)), **self.fixed))
        self.left.update(values_of(self.model))
        refuse_assigned(self.model, [name for name, buffer in self.model.named_buffers() if before[name] is not buffer])
        many = isinstance(value, (tuple, list))
        if not all(isinstance(one, torch.Tensor) for one in (value if many else (value,))):
            kind = (
                f"a {type(value).__name__} that holds something other than tensors" if many else a(type(value).__name__)
            )
            raise PipelagError(
                f"{type(self.model).__name__} returns {kind}; it should return a tensor, a tuple of tensors, or a dict "
                "or ModelOutput of them by name"
            )
        return tuple(value) if many else value

    def kept(self, value: Any) -> Any:
        """The value to keep, if the model returns values by name; otherwise its output as it is."""
        if not isinstance(value, Mapping):
            if self.output is not None:
                raise PipelagError(
                    f"{type(self.model).__name__} does not return values by name, so none can be chosen; leave out "
                    "output"
                )
            return value
        known = {name: item for name, item in value.items() if item is not None}
        if self.output is not None:
            if self.output not in known:
                raise unknown(f"output of {type(self.model).__name__}", self.output, known)
            return known[self.output]
        if len(known) != 1:
            raise PipelagError(
                f"{type(self.model).__name__} returns {', '.join(known)}; choose one of them: "
                f"output='{next(iter(known))}'"
            )
        return next(iter(known.values()))


def exported(
    model: nn.Module, inputs: Mapping[str, Any], output: str | None = None, left: Values | None = None
) -> Traced:
    """The operators of a model, in its present mode (training or evaluation).

    Args:
        inputs: the arguments of the model's forward by name. Tensors are examples of inputs, with at least two samples;
            other values are fixed.
        output: the name of the value to keep, if the model returns several by name.
        left: is filled with the values that the call leaves in the model's attributes.

    Raises:
        PipelagError: no tensor among the inputs, a model that torch.export refuses, or one that returns no tensors.
    """
    called = Called(model, inputs, output, left)
    examples = tuple(inputs[name] for name in called.names)
    if not examples:
        raise PipelagError("inputs has no tensor; give an example of each input of the model: inputs={'name': tensor}")
    check_inputs(model, inputs)
    hooked = [path for path, m in model.named_modules() if any(getattr(m, name) for name in BACKWARD_HOOKS)]
    if hooked:
        raise PipelagError(
            f"{type(model).__name__} has backward hooks ('{hooked[0]}'), which torch.export ignores; remove them"
        )
    # torch.export fixes a size of 1 in any case, and warns unless it is declared static.
    auto, fixed = torch.export.Dim.AUTO, torch.export.Dim.STATIC
    sizes = tuple(tuple(fixed if size == 1 else auto for size in example.shape) for example in examples)
    try:
        program = torch.export.export(called, (examples,), dynamic_shapes={"given": sizes}, strict=False)
    except PipelagError:
        raise
    except Exception as error:
        raise PipelagError(
            f"{type(model).__name__} cannot be exported by torch.export with the inputs {', '.join(inputs)}: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    return _Reader(model, program).traced(tuple(called.names))


def check_inputs(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Refuse inputs that the model's forward does not take, and missing inputs that it requires."""
    parameters = signature_of(model.forward).parameters.values()
    known = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    wrong = [name for name in inputs if name not in known]
    if wrong and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise unknown(f"input of {type(model).__name__}", str(wrong[0]), known)
    missing = [name for name, p in known.items() if p.default is p.empty and name not in inputs]
    if missing:
        raise PipelagError(
            f"{type(model).__name__} needs the input '{missing[0]}'; give an example of it: "
            f"inputs={{'{missing[0]}': tensor}}"
        )


class _Reader:
    """Converts an exported program to steps, each named by its operator and a number."""

    def __init__(self, model: nn.Module, program: torch.export.ExportedProgram) -> None:
        self.model, self.program = model, program
        self.leaves = {path for path, module in model.named_modules() if path and not any(module.children())}
        self.names: dict[fx.Node, Ref] = {}
        self.numbers: Counter[str] = Counter()
        self.shapes: dict[str, tuple[int | str, ...]] = {}
        self.sizes: dict[str, str] = {}
        self.sized: set[str] = set()

    def traced(self, asked: tuple[str, ...]) -> Traced:
        """Convert the whole program."""
        signature = self.program.graph_signature
        state = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        steps: list[Step] = []
        inputs: list[str] = []
        output: Any = None
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and node.name in signature.user_inputs:
                inputs.append(self.named(node, asked[len(inputs)]))
            elif node.op == "placeholder" and node.name in state:
                steps.append(Step(self.named(node, "own"), "get_attr", state[node.name].removeprefix(PRUNED), (), {}))
            elif node.op == "placeholder":
                steps.append(self.lifted(node, signature.inputs_to_lifted_tensor_constants.get(node.name)))
            elif node.op == "output":
                output = [self.value(one) for one in node.args[0]]
            else:
                steps += self.computed(node)
        if not output or not all(isinstance(one, Ref) for one in output):
            raise PipelagError(
                f"{type(self.model).__name__} returns something other than tensors; it should return only tensors"
            )
        trace = Traced(
            tuple(inputs), tuple(steps), alone(output), asked, self.shapes, self.sizes, frozenset(self.sized)
        )
        return _needed(renamed(trace))

    def named(self, node: fx.Node, word: str) -> Ref:
        """Name a node's value. Only steps are numbered, so that both modes give the same names."""
        self.numbers[word] += 1
        name = self.names[node] = Ref(f"{word}_{self.numbers[word]}")
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self.shapes[name] = tuple(int(size) if str(size).isdigit() else str(size) for size in value.shape)
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.sizes[name] = str(value)
        return name

    def lifted(self, node: fx.Node, name: str | None) -> Step:
        """The step of a constant tensor that the model makes itself."""
        value = self.program.constants.get(name) if name else None
        if not isinstance(value, torch.Tensor):
            raise PipelagError(
                f"{type(self.model).__name__} uses '{node.name}', which is neither an input nor a tensor"
            )
        ref = self.named(node, "constant")
        self.sized.add(ref)
        return Step(ref, "call_function", constant, (value.detach(), Here.DEVICE), {})

    def computed(self, node: fx.Node) -> list[Step]:
        """The steps of a node: an operator, none, or those of a part under torch.no_grad or torch.enable_grad."""
        if node.op == "get_attr" and all(user.target is GRADIENTS for user in node.users):
            return []  # the part itself, which its caller names
        if node.target is GRADIENTS:
            return self.part(node)
        if node in self.names or self.passed_over(node):
            return []
        return [self.step(node)]

    def part(self, node: fx.Node) -> list[Step]:
        """The steps of a part with gradients switched off or on; where they are off, its outputs are detached."""
        arguments: Any = node.args
        enabled, named, *operands = arguments
        part: Any = getattr(node.graph.owning_module, named.target)
        placeholders = [each for each in part.graph.nodes if each.op == "placeholder"]
        self.names |= {inner: self.names[outer] for inner, outer in zip(placeholders, operands, strict=True)}
        steps: list[Step] = []
        values: list[Any] = []
        for inner in part.graph.nodes:
            if inner.op == "output":
                values = [self.value(each) for each in inner.args[0]]
            elif inner.op != "placeholder":
                steps += self.computed(inner)
        for user in node.users:
            place: Any = user.args[1]
            value = values[place]
            self.names[user] = value if enabled else self.named(user, "detach")
            if not enabled:
                steps.append(Step(self.names[user], "call_function", Operator("aten.detach.default"), (value,), {}))
        return steps

    def passed_over(self, node: fx.Node) -> bool:
        """Whether a node is left out: a check, a conversion that changes nothing, or a change of memory layout.

        The two modes may differ in these.
        """
        name = str(getattr(node.target, "__name__", "")).partition(".")[0]
        if name in IDLE:
            return True
        source = node.args[0] if node.args else None
        if name not in ("to", "contiguous") or not isinstance(source, fx.Node):
            return False
        before, after = source.meta["val"], node.meta["val"]
        same = bool((before.dtype, before.device) == (after.dtype, after.device))
        if same:
            self.names[node] = self.names[source]
        return same

    def step(self, node: fx.Node) -> Step:
        """The step of an operator, with its defaults written out, because the two modes may differ in one."""
        target: Any = node.target
        args, kwargs, changes, random = list(node.args), dict(node.kwargs), False, False
        if isinstance(target, torch._ops.OpOverload):
            for asked in target._schema.arguments[len(args) :]:
                if not asked.kwarg_only and asked.has_default_value():
                    args.append(kwargs.pop(asked.name, asked.default_value))
            changes, random = target._schema.is_mutable, torch.Tag.nondeterministic_seeded in target.tags
            # `passed_over` leaves tensors non-contiguous, and these may have no view.
            target = Operator("aten.reshape.default" if str(target) == "aten.view.default" else str(target))
        elif isinstance(target, torch._ops.HigherOrderOperator) or node.op != "call_function":
            raise PipelagError(
                f"{type(self.model).__name__} uses autocast in its forward, or control flow of torch "
                f"('{node.target}'), which cannot be laid out in layers"
            )
        step = Step(
            self.named(node, str(target.__name__)),
            "call_function",
            target,
            tuple(self.value(one) for one in args),
            {name: self.value(one) for name, one in kwargs.items()},
            inplace=changes,
            several=isinstance(node.meta.get("val"), (tuple, list)),
            within=self.place(node),
        )
        is_size = step.called == "sym_size"
        if is_size or (self.sized.issuperset(step.uses) and not (changes or random or step.several)):
            self.sized.add(step.name)
        return step

    def value(self, argument: Any) -> Any:
        """An argument with names in place of nodes."""

        def change(leaf: Any) -> Any:
            if isinstance(leaf, fx.Node):
                return self.names[leaf]
            return Here.DEVICE if isinstance(leaf, torch.device) else leaf

        return mapped(argument, change)

    def place(self, node: fx.Node) -> str:
        """The path of the module that calls a node, if the module has no children; otherwise empty."""
        modules = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(modules[-1][0]).removeprefix(PRUNED) if modules else ""
        return path if path in self.leaves else ""


def _needed(traced: Traced) -> Traced:
    """The trace without the steps on which its output does not depend."""
    wanted = set(refs(traced.output))
    steps = []
    for step in reversed(traced.steps):
        if step.name in wanted or step.inplace:
            wanted.update(step.uses)
            steps.append(step)
    return replace(traced, steps=tuple(reversed(steps)))
