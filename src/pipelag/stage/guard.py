"""Makes sure that a backward reads the weights that the method says it reads, whatever layers a stage has.

Autograd saves a layer's weights by reference, and the weight policy writes other weights to their memory before the
backward. If a layer computes with a copy or another form of its weights, autograd saves that form, and the backward
reads the forward's weights: every method would silently become weight stashing. Two kinds of layers do so:

* Recurrent layers under cuDNN, which packs the weights, and in bfloat16 under oneDNN, which casts the biases. They run
  on torch's own operators instead.
* Layers under autocast, which casts weights, and layers that join, scale, normalise or adapt their weights before they
  use them. Methods that this would falsify are refused.

Also refused is a forward that changes its weights in place if passes read several versions of them, or in bfloat16
copies: the change would reach only one version, perhaps not the live one, or no version at all. And one that puts other
tensors in their place (`layer.weight.data = ...`), which no update would reach.

A layer may begin to do so later. Some forwards are therefore examined again (`due`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import itemgetter
from sys import getrefcount
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipelag.errors import PipelagError
from pipelag.models.cut import stages
from pipelag.stage.phase import Phase
from pipelag.stage.policy import StageWeights
from pipelag.tensors import kept_for_backward, nodes_of, place_of

Weights = frozenset[int] | None
NONE: Weights = frozenset()
# Looked-up rows are activations, although they are computed from weights alone: later layers keep them as their input.
LOOKED_UP = (torch.ops.aten.embedding, torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only)
# Recurrent cells on a GPU without cuDNN. They keep gates and biases for second derivatives only. In the first time
# step, where the state is zeros, these are computed from weights alone.
CELLS = (torch.ops.aten._thnn_fused_lstm_cell, torch.ops.aten._thnn_fused_gru_cell)
ALONE = 3  # the uses of an object that only one container holds: by it, by a variable here, by the call that counts
# These use only the shape and type of a tensor.
ITS_SHAPE = ("aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::rand", "aten::new_")


class Origins(TorchDispatchMode):
    """Records during a forward which tensors are computed from weights alone, and from which weights.

    A tensor into which the minibatch enters is not among them.

    Args:
        module: the stage. Its buffers and frozen weights, and tensors that a layer makes from nothing, are constants.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.places = {place_of(p) for p in module.parameters()}  # several parameters share one buffer
        self.weights = sorted((p.data_ptr(), id(p)) for p in module.parameters())
        self.trained = {id(p) for p in module.parameters() if p.requires_grad}
        # Place -> (the storage, which may be gone by now, `id`s of the weights; None: the minibatch entered, too).
        self.known: dict[int, tuple[StorageWeakRef, Weights]] = {}
        self.unread: set[int] = set()  # places of tensors that are saved but that the first backward does not read
        for buffer in module.buffers():
            self.note(buffer, NONE)

    def note(self, tensor: torch.Tensor, weights: Weights) -> None:
        """Record that a tensor is computed from these weights alone (None: from the minibatch, too)."""
        self.known[place_of(tensor)] = (StorageWeakRef(tensor.untyped_storage()), weights)
        self.unread.discard(place_of(tensor))

    def weights_of(self, tensor: torch.Tensor) -> Weights:
        """The `id`s of the weights that a tensor is computed from; None: from the minibatch, too, or unknown."""
        if place_of(tensor) in self.places:
            at = bisect_right(self.weights, tensor.data_ptr(), key=itemgetter(0)) - 1
            return frozenset({self.weights[at][1]} & self.trained)
        storage, weights = self.known.get(place_of(tensor), (None, None))
        return None if storage is None or storage.expired() else weights

    def copied(self, tensor: torch.Tensor) -> set[int]:
        """The `id`s of the weights of which a tensor is another form: computed from them alone, in other memory."""
        return set(self.weights_of(tensor) or ()) if place_of(tensor) not in self.places else set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and record what its results are computed from."""
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and place_of(t)]
        sources = [self.weights_of(tensor) for tensor in tensors]
        weights = None if None in sources else frozenset[int]().union(*filter(None, sources))
        if func.overloadpacket in LOOKED_UP:
            weights = None
        elif func.name().startswith(ITS_SHAPE):
            weights = NONE
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and place_of(tensor) and place_of(tensor) not in self.places:
                self.note(tensor, weights)
        if func.overloadpacket in CELLS:
            self.unread |= {place_of(tensor) for tensor in (*args[:2], *args[3:]) if tensor is not None}
        if func.overloadpacket is torch.ops.aten.native_dropout:
            self.note(out[1], NONE)  # the mask is drawn at random, not computed from weights
        return out


def due(t: int) -> bool:
    """Whether guards examine the forwards of a phase's minibatch t: of the first, and of 16, 32, 64 and so on."""
    return t & (t - 1) == 0 and (t == 0 or t >= 16)


@dataclass(frozen=True)
class Later:
    """What later phases would refuse, found now instead of hours later. `id` of a parameter -> name of the method.

    copied: methods that are refused if a layer keeps another form of the parameter.
    changed: methods that are refused if a forward changes the parameter.
    """

    copied: dict[int, str] = field(default_factory=dict)
    changed: dict[int, str] = field(default_factory=dict)


def packed(module: nn.Module) -> set[int]:
    """The `id`s of the parameters of recurrent layers, which cuDNN packs into new memory."""
    return {id(p) for part in module.modules() if isinstance(part, nn.RNNBase) for p in part.parameters()}


def later(model: nn.Sequential, phases: Sequence[Phase]) -> Later:
    """What these phases would refuse. Parameters of recurrent layers are left out: those phases do not pack them."""
    left_out, found = packed(model), Later()
    for phase in phases:
        for number, piece in enumerate(stages(model, phase.cuts), start=1):
            its = [id(p) for p in piece.parameters() if id(p) not in left_out]
            for into, refuses in ((found.copied, phase.apart(number)), (found.changed, phase.several(number))):
                for p in its if refuses else ():
                    into.setdefault(p, phase.method.name)  # the first such phase
    return found


class Guard:
    """Watches the forwards of one stage.

    Args:
        module: the stage.
        weights: the stage's policy in this phase.
        to_come: what later phases would refuse.
    """

    def __init__(self, module: nn.Module, weights: StageWeights, phase: Phase, to_come: Later | None = None) -> None:
        self.module, self.weights = module, weights
        self.device = weights.live[0].device.type if weights.live else "cpu"
        self.castable = torch.amp.is_autocast_available(self.device)
        trained = weights.optimizer is not None and bool(weights.live)
        self.needed = trained and phase.apart(weights.stage)  # otherwise copies do no harm
        several = trained and phase.several(weights.stage)
        own, to_come = [id(p) for p in module.parameters()], to_come or Later()

        def refused(by: dict[int, str], now: bool) -> dict[int, str]:
            """`id` of a parameter -> the method, as the error message names it."""
            return {
                p: f"'{weights.method.name}'" if now else f"'{by[p]}', of a later phase," for p in own if now or p in by
            }

        self.refused = Later(refused(to_come.copied, self.needed), refused(to_come.changed, several))
        self.apart = trained and weights.flat.reads_copies  # passes read copies of the weights
        self.unseen = True  # whether the next forward is to be examined
        self.before: list[tuple[str, nn.Parameter, int, torch.Tensor]] = []  # name, parameter, version counter, values
        self.places: list[tuple[str, nn.Parameter, int]] = []  # name, parameter, address
        self.copies: dict[int, set[int]] = {}  # place of a saved tensor -> the weights of which it is another form
        self.origins: Origins | None = None
        self.recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)] if self.needed else []

    def __call__(self) -> AbstractContextManager[None]:
        """A context for every forward of the stage. A forward that is `unseen` is examined; `check` may refuse it."""
        return self._looked_at() if self.unseen else self.running()

    def running(self) -> AbstractContextManager[None]:
        """A context for a forward that is not examined."""
        if self.castable and torch.is_autocast_enabled(self.device):
            torch.clear_autocast_cache()  # it may hold casts of the weights of another pass
        return unpacked(self.recurrent) if self.recurrent else nullcontext()

    @contextmanager
    def _looked_at(self) -> Iterator[None]:
        look = kept_for_backward(set(), self.look) if self.refused.copied else nullcontext()
        with self.running(), self.following(), look:
            yield
        self.check()

    @contextmanager
    def following(self) -> Iterator[None]:
        """A context for a forward that is examined: `look` is called with the tensors that autograd saves."""
        named, self.copies = list(self.module.named_parameters()), {}
        self.places = [(name, p, p.data_ptr()) for name, p in named]
        watched = [(name, p) for name, p in named if self.apart or id(p) in self.refused.changed]
        self.before = [(name, p, p._version, p.detach().clone()) for name, p in watched if p.requires_grad]
        self.origins = Origins(self.module) if self.refused.copied else None
        if self.origins is None:
            yield
            return
        handle = self.module.register_forward_hook(lambda module, given, output: self.look_at_functions(output))
        try:
            with self.origins:
                yield
        finally:
            handle.remove()

    def look_at_functions(self, output: Any) -> None:
        """Look at the tensors that a user's autograd functions keep as attributes, which autograd's hooks do not see.

        Lists that others hold, too, are left out: they may be there to record what passes read.
        """
        tensors = [tensor for tensor in tree_leaves(output) if isinstance(tensor, torch.Tensor)]
        for node in nodes_of(tensors):
            for kept in _tensors_in(vars(node)) if isinstance(node, BackwardCFunction) else ():
                self.look(kept)

    def look(self, tensor: torch.Tensor) -> None:
        """Record whether a saved tensor is another form of weights."""
        if self.origins is not None:
            self.copies.setdefault(place_of(tensor), set()).update(self.origins.copied(tensor))

    def check(self) -> None:
        """Raise `PipelagError` if the examined forward saved copies of weights, or changed weights, and must not."""
        unread = self.origins.unread if self.origins is not None else set()
        kept = {p for place, weights in self.copies.items() if place not in unread for p in weights}
        self.unseen, self.origins = False, None
        for moved in (name for name, p, place in self.places if p.data_ptr() != place):
            raise PipelagError(
                f"the forward of stage {self.weights.stage} puts another tensor in the place of '{moved}', which would "
                "not be trained; change weights in place (copy_), or in the optimizer's step"
            )
        laid_out_anew = packed(self.module)
        for changed, p, count, values in self.before:
            same = p.is_meta or torch.equal(p, values) or torch.allclose(p, values, rtol=0, atol=0, equal_nan=True)
            if not same or (p._version != count and id(p) not in laid_out_anew):
                if id(p) not in self.refused.changed:
                    raise PipelagError(
                        f"in bfloat16 passes read copies of the weights, but the forward of stage {self.weights.stage} "
                        f"changes '{changed}' in place, which would not change the weights themselves; change it in "
                        "the optimizer's step, or train in float32"
                    )
                raise PipelagError(
                    f"method {self.refused.changed[id(p)]} keeps several versions of the weights, but the forward of "
                    f"stage {self.weights.stage} changes '{changed}' in place, which would change only one version; "
                    "change it in the optimizer's step, or use a method that keeps one version"
                )
        self.before, self.places = [], []
        kept &= self.refused.copied.keys()
        found = next(((name, id(p)) for name, p in self.module.named_parameters() if id(p) in kept), None)
        if found is not None:
            name, place = found
            raise PipelagError(
                f"method {self.refused.copied[place]} reads other weights in the backward than in the forward, but "
                f"stage {self.weights.stage} keeps a derived copy of the forward's '{name}' for its backward (autocast "
                "and layers that join, scale or normalise their weights make such copies); use the weights directly in "
                "the wanted precision, or recompute"
            )


def _tensors_in(place: Any, own: bool = True) -> Iterator[torch.Tensor]:
    """The tensors in a container and in the containers there; lists that others hold are left out.

    own: nobody else holds the container.
    """
    for each in place.values() if isinstance(place, dict) else place:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (dict, tuple, list)):
            alone = own and getrefcount(each) <= ALONE
            if alone or not isinstance(each, list):
                yield from _tensors_in(each, alone)


@contextmanager
def unpacked(recurrent: Sequence[nn.RNNBase]) -> Iterator[None]:
    """Turn off cuDNN within these layers, and nowhere else; in bfloat16 also oneDNN, which keeps biases in float32."""
    before: list[tuple[bool, bool]] = []

    def off(layer: nn.RNNBase, *_: object) -> None:
        before.append((torch.backends.cudnn.enabled, torch._C._get_mkldnn_enabled()))
        torch.backends.cudnn.enabled = False
        if any(p.dtype == torch.bfloat16 for p in layer.parameters()):
            torch._C._set_mkldnn_enabled(False)

    def on(*_: object) -> None:
        torch.backends.cudnn.enabled, onednn = before.pop()
        torch._C._set_mkldnn_enabled(onednn)

    handles = [part.register_forward_pre_hook(off) for part in recurrent]
    handles += [part.register_forward_hook(on, always_call=True) for part in recurrent]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
