"""A backward in two parts: the gradients of a stage's inputs at once (B), those of its weights later (W).

Qi et al. 2024 (arXiv 2401.10241, section 2): of y = W x with the arriving gradient dy, B computes dx = W^T dy, for
which the stage before waits, and W computes dW = dy x^T, for which nobody waits. dy and x are kept in between.

In autograd's graph, B runs through the nodes from which an input is reached, and no further. From some of them, the
forks, edges lead out of this part of the graph, to weights. B keeps the gradients that arrive at the forks. W goes on
from each fork by itself, and autograd then runs only what lies between the fork and its weights. This is exact for
weights that are behind one fork alone. Weights behind several (tied ones) would be counted again for each fork that is
reached from another, so their gradients are computed, and added to `grad`, in B. So are those of nodes that compute
both gradients together, of the user's own autograd functions, and of layers that are checkpointed inside: W would do
all of their work again.

Between B and W the forks keep alive what is behind them: all that autograd has saved up to the last fork, whether W
reads it or not, and the stage's input. What was saved after the last fork is free after B.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipelag.errors import PipelagError
from pipelag.stage.recompute import Gradients, differentiable
from pipelag.tensors import as_it_is, as_tuple, nodes_behind

Node = Any  # torch.autograd.graph.Node
Edges = list[GradientEdge]
# Their kernels get both gradients from the same sums, or (recurrent ones) those of the weights from the inputs'.
TOGETHER = (
    *("NativeBatchNormBackward", "CudnnBatchNormBackward", "MiopenBatchNormBackward", "BatchNormWithUpdateBackward"),
    *("NativeLayerNormBackward", "NativeGroupNormBackward", "FusedRmsNormBackward", "PreluKernelBackward"),
    *("MkldnnRnnLayerBackward", "CudnnRnnBackward", "MiopenRnnBackward"),
)


class Part(NamedTuple):
    """A backward that is left: from these edges, with these gradients, to these leaves; None: to all."""

    edges: Edges
    gradients: list[torch.Tensor]
    leaves: Edges | None


@dataclass
class Later:
    """What B left to W: the backwards still to be done, and leaves' gradients that have to wait for their turn."""

    parts: list[Part] = field(default_factory=list)
    found: list[tuple[Node, torch.Tensor]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """The bytes of the gradients that are kept until W: the whole memory of which they are parts."""
        kept = [gradient for part in self.parts for gradient in part.gradients if gradient.layout == torch.strided]
        # Not by their addresses, which tensors on the meta device do not have.
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in kept}.values())

    @property
    def leaves(self) -> set[Node]:
        """The leaves whose gradients W adds to `grad`."""
        some = [edge.node for part in self.parts for edge in part.leaves or ()]
        every = [edge.node for part in self.parts if part.leaves is None for edge in part.edges]
        return {*some, *(node for node, _ in self.found), *filter(is_leaf, nodes_behind(every))}

    def saved(self) -> Iterator[torch.Tensor]:
        """The tensors that autograd's graph keeps until W: the stage's input, weights, and what the forward saved."""
        for node in nodes_behind(edge.node for part in self.parts for edge in part.edges):
            yield from (t for t in saved_by(node) if t.layout == torch.strided)

    def accumulate(self) -> None:
        """Compute the gradients of the weights, and add them to `grad`, as an ordinary backward does; call it once."""
        while self.parts:
            edges, gradients, leaves = self.parts.pop(0)
            torch.autograd.backward(edges, gradients, inputs=leaves)
        with torch.no_grad():
            while self.found:
                add(*self.found.pop(0))


def backward_to_inputs(
    output: Any, gradients: Gradients | None, inputs: Any, before: Iterable[Later] = ()
) -> tuple[Gradients, Later]:
    """Compute the gradients of a stage's inputs (B), and leave those of its weights to `Later.accumulate` (W).

    A hook on a tensor that is an operator's output may be called in both parts; hooks on weights are called once.

    Args:
        output, gradients, inputs: as `recompute.backward_through` takes them.
        before: what earlier microbatches left to W. A weight's gradients are added in the order of the microbatches,
            also where B computes one of them, and W an earlier one (of weights that microbatches use differently).

    Returns:
        The gradients of the inputs that require one, and what is left.

    Raises:
        PipelagError: a layer is checkpointed in the way that cannot compute the gradients of inputs alone.
    """
    outputs = [t for t in as_tuple(output) if t.requires_grad]
    given = [torch.ones_like(t) for t in outputs] if gradients is None else gradients
    used = [(t, gradient) for t, gradient in zip(outputs, given, strict=True) if gradient is not None]
    starts = Part([get_gradient_edge(t) for t, _ in used], [gradient for _, gradient in used], None)
    received = differentiable(inputs)
    entrances: list[Node] = [get_gradient_edge(t).node for t in received]
    graph = Graph(starts.edges, entrances)
    if not graph.inside:  # the first stage, or one that computes nothing from its inputs
        return (None,) * len(received), Later([starts] if used else [])
    early, beside, late = shared_out(graph, starts)
    asked = [GradientEdge(leaf, 0) for leaf in (*entrances, *early)] + [edge for edges, _ in late for edge in edges]
    with as_if_kept(graph):
        found = iter(
            torch.autograd.grad([t for t, _ in used], asked, starts.gradients, retain_graph=True, allow_unused=True)
        )
    left = Later(beside)
    waiting = set[Node]().union(*(one.leaves for one in before)) if early else ()
    with torch.no_grad():
        for node, gradient in zip((*entrances, *early), found, strict=False):
            if gradient is not None and node in waiting:
                left.found.append((node, gradient))
            elif gradient is not None:
                add(node, gradient)
    for edges, leaves in late:
        arrived = [(edge, gradient) for edge, gradient in zip(edges, found, strict=False) if gradient is not None]
        if arrived:
            left.parts.append(Part([edge for edge, _ in arrived], [gradient for _, gradient in arrived], leaves))
    return tuple(t.grad for t in received), left


def as_if_kept(graph: Graph) -> AbstractContextManager[None]:
    """A context for B.

    A backward compiled by `torch.compile` may overwrite what its forward has saved, and therefore refuses to run if the
    graph is kept. Here only other nodes run again: those of autograd functions run once.
    """
    if not any(type(node).__name__ == "CompiledFunctionBackward" for node in graph.after):
        return nullcontext()
    return importlib.import_module("torch._functorch.config").patch(donated_buffer=False)  # type: ignore[no-any-return]


def add(node: Node, gradient: torch.Tensor) -> None:
    """Add a leaf's gradient to its `grad`, laid out in memory as an ordinary backward lays it out.

    The hooks for after that are called; those of the tensor were called when the gradient was computed.
    """
    node(gradient)


def is_leaf(node: Node) -> bool:
    """Whether a node accumulates the gradients of a leaf."""
    return type(node).__name__ == "AccumulateGrad"


def shared_out(graph: Graph, starts: Part) -> tuple[list[Node], list[Part], list[tuple[Edges, Edges]]]:
    """What B and W do for the weights.

    Returns:
        The leaves whose gradients B computes; the backward from outputs that are not computed from any input, if there
        are some; and for every fork that W starts from, its own edges and those of its leaves.
    """
    beside = Part([], [], [])
    for edge, gradient in zip(starts.edges, starts.gradients, strict=True):
        if edge.node not in graph.inside:
            beside.edges.append(edge)
            beside.gradients.append(gradient)
    before, forks = graph.behind([edge.node for edge in beside.edges]), graph.forks()
    groups = [before, *forks.values()]
    times = Counter(leaf for group in groups for leaf in group.leaves)
    early = {leaf: None for group in groups for leaf in group.leaves if group.whole or times[leaf] > 1}

    def late(group: Behind) -> Edges:
        return [GradientEdge(leaf, 0) for leaf in group.leaves if leaf not in early]

    alone = [beside._replace(leaves=late(before))] if late(before) else []
    return list(early), alone, [(graph.edges(node), late(fork)) for node, fork in forks.items() if late(fork)]


class Behind(NamedTuple):
    """What lies behind edges that lead out of the part of the graph from which an input is reached.

    leaves: the nodes that accumulate gradients.
    whole: their gradients cannot be computed apart, or only by doing other work again.
    """

    leaves: list[Node]
    whole: bool


class Graph:
    """Autograd's graph from these edges on.

    after: the nodes behind each node.
    numbers: the outputs of each node, by number, to which a gradient comes.
    inside: the nodes from which one of the `entrances` is reached.
    """

    def __init__(self, starts: Iterable[GradientEdge], entrances: Iterable[Node]) -> None:
        self.after: dict[Node, list[Node]] = {}
        self.numbers: dict[Node, set[int]] = {}
        before: dict[Node, list[Node]] = {}
        for edge in starts:
            self.numbers.setdefault(edge.node, set()).add(edge.output_nr)
        todo = list(self.numbers)
        while todo:  # in one function, because this runs for every backward
            node = todo.pop()
            self.after[node] = after = []
            for other, number in node.next_functions:
                if other is None:
                    continue
                after.append(other)
                if other in before:
                    before[other].append(node)
                else:
                    before[other] = [node]
                if other in self.numbers:
                    self.numbers[other].add(number)
                else:
                    self.numbers[other] = {number}
                    todo.append(other)
        self.inside = set[Node]()
        todo = [node for node in entrances if node in self.numbers]
        while todo:
            node = todo.pop()
            if node not in self.inside:
                self.inside.add(node)
                todo += before.get(node, ())

    def edges(self, node: Node) -> Edges:
        """The edges by which gradients come to a node."""
        return [GradientEdge(node, number) for number in sorted(self.numbers[node])]

    def forks(self) -> dict[Node, Behind]:
        """Fork -> what is behind its edges that lead out.

        Raises:
            PipelagError: see `backward_to_inputs`.
        """
        forks = {}
        for node, after in self.after.items():
            if node not in self.inside:
                continue
            if type(node).__name__ == "CheckpointFunctionBackward":
                raise PipelagError(
                    "a layer is checkpointed with use_reentrant=True, which computes the gradients of its weights and "
                    "of its inputs only together, but this schedule computes them apart; use use_reentrant=False, or "
                    "a method such as 1f1b_flush"
                )
            leading_out = [other for other in after if other not in self.inside]
            if leading_out and (behind := self.behind(leading_out)).leaves:
                whole = isinstance(node, BackwardCFunction) or node.name().startswith(TOGETHER)
                forks[node] = Behind(behind.leaves, behind.whole or whole or unpacks(node))
        return forks

    def behind(self, nodes: Iterable[Node]) -> Behind:
        """What lies behind nodes outside, themselves included."""
        seen, todo, leaves, whole = set[Node](), list(nodes), [], False
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                if is_leaf(node):
                    leaves.append(node)
                whole = whole or unpacks(node)
                todo += self.after[node]
        return Behind(leaves, whole)


def unpacks(node: Node) -> bool:
    """Whether hooks make a node's saved tensors again for each backward, as checkpointing inside a layer does."""
    kind: Any = type(node)
    return any(made_again(one) for name in saved_names(kind) for one in as_tuple(getattr(node, name)))


def made_again(saved: Any) -> bool:
    """Whether hooks make a saved tensor again."""
    return getattr(saved, "unpack_hook", None) not in (None, as_it_is)


def saved_by(node: Node) -> list[torch.Tensor]:
    """The tensors that a node keeps: those saved for its backward, or the leaf whose gradient it accumulates."""
    if (leaf := getattr(node, "variable", None)) is not None:
        return [leaf]
    kind: Any = type(node)
    pairs = [(name, name.replace("_raw", "", 1)) for name in saved_names(kind)]
    if isinstance(node, BackwardCFunction):
        pairs = [("_raw_saved_tensors", "saved_tensors")]
    kept = [getattr(node, name) for raw, name in pairs if not any(map(made_again, as_tuple(getattr(node, raw))))]
    return [t for one in kept for t in as_tuple(one) if isinstance(t, torch.Tensor)]


@cache
def saved_names(kind: Any) -> list[str]:
    """The attributes of a kind of nodes that hold its saved tensors; of the user's functions none."""
    its_own = issubclass(kind, BackwardCFunction)
    return [] if its_own else [name for name in dir(kind) if name.startswith("_raw_saved_")]
