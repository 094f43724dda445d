"""Which models and minibatches can be recorded as CUDA graphs, and whether a replay computes the same."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.hooks import RemovableHandle

from pipelag.simulate.attributes import TORCHS, Attributes, contents_of
from pipelag.stage.rounded import hands_on
from pipelag.tensors import nodes_of

if TYPE_CHECKING:
    from pipelag.simulate.pipeline import SimulatedPipeline

Results = list[torch.Tensor | None]
Generators = tuple[Any, list[torch.Tensor]]
# Called through `map`, these take no call of Python for each of many tensors and modules
REQUIRES_GRAD, TRAINING = attrgetter("requires_grad"), attrgetter("training")
FIXED = TORCHS - {"training"}
HOOKS = "a layer has hooks"


def why_eager(pipeline: SimulatedPipeline, parts: nn.Module) -> str:
    """Why the steps of a phase cannot be recorded as two graphs, or "". `parts`: `modules_of` the pipeline."""
    modules, tensors = list(parts.modules()), [*parts.parameters(), *parts.buffers()]
    reasons = {
        "a minibatch goes through in several microbatches": pipeline.microbatches > 1,
        "the forward is run again before the backward": bool(pipeline.recompute),
        "stages have replicas, whose gradients are kept over a round": pipeline.rounds is not None,
        "the method keeps old gradients": pipeline.late is not None,
        "autocast is on": torch.is_autocast_enabled(pipeline.device.type),
        "the model lies on several devices": len({tensor.device for tensor in tensors}) > 1,
        "recurrent layers run without cuDNN": any(guard.recurrent for guard in pipeline.guards),
        "a layer draws random numbers, of which every minibatch has its own": any(map(_draws, modules)),
        HOOKS: has_hooks(modules, parts.parameters()),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _draws(module: nn.Module) -> bool:
    """Whether a layer is known to draw random numbers.

    Others that do are found when the passes are tried, except for an LSTM's dropout, which draws once for all steps.
    """
    if isinstance(module, nn.RNNBase):
        return module.training and module.dropout > 0
    return module.training and isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0


def has_hooks(modules: Iterable[nn.Module], parameters: Iterable[nn.Parameter]) -> bool:
    """Whether any of these have hooks, or all modules."""
    return bool(_has_any_global_hook()) or any(map(_hooked, modules)) or any(map(_hooked, parameters))


def _hooked(part: Any) -> bool:
    """Whether a module or parameter has hooks.

    The hook by which a rounded parameter gives its gradient to its master does not count, since a graph does the same.
    """
    kinds = ("backward", "backward_pre", "forward", "forward_pre")
    after = getattr(part, "_post_accumulate_grad_hooks", None) or {}
    return any(getattr(part, f"_{kind}_hooks", None) for kind in kinds) or not all(map(hands_on, after.values()))


def objects_of(loss: Any) -> list[Any]:
    """The loss function and the objects that it wraps, as far as they have attributes."""
    parts = [loss, getattr(loss, "__self__", None), getattr(loss, "function", None)]
    return [one for one in parts if hasattr(one, "__dict__") and not isinstance(one, type)]


def modules_of(pipeline: SimulatedPipeline) -> nn.ModuleList:
    """The stages, and the loss function's objects that are modules."""
    return nn.ModuleList([*pipeline.stages, *(one for one in objects_of(pipeline.loss) if isinstance(one, nn.Module))])


def parameters_of(pipeline: SimulatedPipeline) -> list[nn.Parameter]:
    """All stages' parameters that the optimizer steps on, in the order of their flat buffers."""
    return [parameter for weights in pipeline.weights for parameter in weights.flat.parameters]


def own_parameters(pipeline: SimulatedPipeline) -> list[nn.Parameter]:
    """The stage modules' own parameters; in bfloat16, the rounded ones (`parameters_of` gives their masters)."""
    return [parameter for stage in pipeline.stages for parameter in stage.parameters()]


def counting_once(parts: nn.Module, after: Sequence[torch.Tensor]) -> list[_BatchNorm]:
    """The batch norms that count one minibatch in a pass, and whose running averages do not depend on that count.

    Args:
        after: the buffers of `parts` after the pass.
    """
    numbers = {id(buffer): value for buffer, value in zip(parts.buffers(), after, strict=True)}
    norms = []
    for norm in parts.modules():
        if isinstance(norm, _BatchNorm) and type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            count = norm.num_batches_tracked if norm.momentum is not None else None
            if count is not None and int(numbers[id(count)] - count) == 1:
                norms.append(norm)
    return norms


class _Count(torch.Tensor):
    """Stands for a batch norm's count of minibatches; allows nothing but adding 1, which it ignores."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.add_ and args[1:] == (1,) and not kwargs:
            return args[0]
        raise RuntimeError("a layer reads how many minibatches a batch norm has taken")


@contextmanager
def counted_together(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """A context for a pass that raises these batch norms' counts in one operation instead of one kernel each."""
    counts = [count for norm in norms if (count := norm.num_batches_tracked) is not None]
    for norm in norms:
        norm.num_batches_tracked = torch.empty(0).as_subclass(_Count)
    try:
        yield
    finally:
        for norm, count in zip(norms, counts, strict=True):
            norm.num_batches_tracked = count
    if counts:
        torch._foreach_add_(counts, 1)


class Settings:
    """What Python code could change between two steps and that would change a pass, as it is now.

    It is compared in every step, so in few calls of Python: modules' own attributes, children and buffers; what else
    the `attributes` hold; hooks.
    """

    def __init__(self, pipeline: SimulatedPipeline, parts: nn.Module, attributes: Attributes) -> None:
        self.pipeline, self.attributes = pipeline, attributes
        self.modules, self.parameters = list(parts.modules())[1:], own_parameters(pipeline)
        self.scripted = [module for module in self.modules if "training" not in vars(module)]
        self.dicts = list(map(vars, self.modules))
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}  # modules with attributes of the same names
        for held in self.dicts:
            alike.setdefault(tuple(name for name in held if name not in FIXED), []).append(held)
        self.own = [(itemgetter(*names), some) for names, some in alike.items() if names]
        self.inner = [each.values() for module in self.modules for each in (module._modules, module._buffers) if each]
        known = set(map(id, self.modules))
        self.others = [
            one
            for one, name, _, content in attributes.held
            if id(one) not in known and one is not parts and name not in TORCHS and not _plain_function(one, content)
        ]
        self.before, self.hooks = self._now(), RemovableHandle.next_id

    def _now(self) -> list[Any]:
        return [
            torch.is_autocast_enabled(self.pipeline.device.type),
            torch.is_grad_enabled(),
            self.pipeline.loss,
            [list(map(getter, some)) for getter, some in self.own],
            list(map(len, self.dicts)),
            list(chain.from_iterable(self.inner)),
            list(map(contents_of, self.others)),
            list(map(REQUIRES_GRAD, self.parameters)),
            list(map(TRAINING, self.scripted)),
        ]

    def differ(self) -> str:
        """What has changed since; empty if nothing has."""
        try:
            same = self._now() == self.before  # tensors that are the same are not compared
        except Exception:  # an attribute is gone, or is another tensor
            same = False
        if not same:
            found = self.attributes.changed()
            return f"{found} is not what it was when they were recorded" if found else "a setting has changed"
        if self.hooks != RemovableHandle.next_id:  # somebody has registered a hook, somewhere
            if has_hooks(self.modules, self.parameters):
                return HOOKS
            self.hooks = RemovableHandle.next_id
        return ""


def _plain_function(one: Any, content: Any) -> bool:
    """Whether this is a function without a closure and without attributes."""
    return isinstance(one, FunctionType) and not content


def form_of(leaves: Sequence[Any], spec: Any, device: torch.device) -> Any:
    """The form of a minibatch: what a recording depends on, apart from the tensors' values.

    None if the minibatch holds anything but constants and dense tensors on the device.
    """
    form: list[Any] = []
    for leaf in leaves:
        if type(leaf) is torch.Tensor:
            if leaf.layout != torch.strided or leaf.requires_grad or leaf.device.type != device.type:
                return None
            form.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device))
        elif leaf is None or type(leaf) in (bool, int, float, str):
            form.append((type(leaf), leaf))
        else:
            return None
    return spec, form


def leaves_of(loss: torch.Tensor) -> list[torch.Tensor]:
    """The tensors to which a loss's backward gives gradients."""
    return [node.variable for node in nodes_of([loss]) if hasattr(node, "variable")]


def generators_of(device: torch.device) -> Generators:
    """The states of the random generators that passes could draw from: Python's and torch's."""
    there = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return random.getstate(), [torch.get_rng_state(), *there]


def same_generators(first: Generators, second: Generators) -> bool:
    """Whether two states of the generators are equal, so that nothing was drawn in between."""
    return first[0] == second[0] and all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def set_generators(generators: Generators, device: torch.device) -> None:
    """Set the generators to states that `generators_of` returned."""
    random.setstate(generators[0])
    torch.set_rng_state(generators[1][0])
    if len(generators[1]) > 1:
        torch.cuda.set_rng_state(generators[1][1], device)


def alike(first: Results, second: Results) -> bool:
    """Whether results are equal bit for bit, or to a thousandth of their norm if kernels may be nondeterministic."""
    if [value is None for value in first] != [value is None for value in second]:
        return False
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if all(torch.equal(a, b) for a, b in pairs):
        return True
    if torch.are_deterministic_algorithms_enabled() or not all(a.is_floating_point() for a, _ in pairs):
        return False
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    return apart <= 1e-6 * sum(float(a.double().square().sum()) for a, _ in pairs)
