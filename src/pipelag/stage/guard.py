"""That a backward reads the weights of its own time, whatever layers a stage has.

Autograd keeps a layer's weights by reference, and a policy writes other weights where they lie. Where a layer works on
another form of them instead, its backward reads the forward's weights: every method would silently become weight
stashing. Recurrent layers by cuDNN do so (it packs the weights), and in bfloat16 by oneDNN (it casts their biases):
they run on torch's own operators meanwhile. Autocast does so (it casts the weights), and a layer that joins, scales,
norms or adapts its weights before it uses them: a method that this would falsify is refused. So is a forward that
changes its weights where passes read several versions of them: it would change one of these, which may not be the live
one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import itemgetter
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
from pipelag.tensors import kept_for_backward, nodes_of

Weights = frozenset[int] | None
NONE: Weights = frozenset()
# Rows looked up are a layer's input, whatever looked them up: what follows keeps them as it keeps any activation.
LOOKED_UP = (torch.ops.aten.embedding, torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only)
# These keep their gates and biases for a second derivative alone: a GPU's recurrent layers without cuDNN. Of the first
# step, whose state is zeros, they are computed from weights.
CELLS = (torch.ops.aten._thnn_fused_lstm_cell, torch.ops.aten._thnn_fused_gru_cell)
# These take of a tensor its shape and kind alone.
ITS_SHAPE = ("aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::rand", "aten::new_")


class Origins(TorchDispatchMode):
    """Follows, within a forward, of which weights alone a tensor is computed; what a minibatch went into is of none.

    Args:
        module: the stage. Its buffers and frozen weights, and what a layer makes of nothing, are constants.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.places = {place_of(p) for p in module.parameters()}  # several lie in one buffer
        self.weights = sorted((p.data_ptr(), id(p)) for p in module.parameters())
        self.trained = {id(p) for p in module.parameters() if p.requires_grad}
        # By place: the storage, which may have gone, and the `id`s of the weights; None: a minibatch's, too.
        self.known: dict[int, tuple[StorageWeakRef, Weights]] = {}
        self.unread: set[int] = set()  # places of what is kept for a backward that does not read it
        for buffer in module.buffers():
            self.note(buffer, NONE)

    def note(self, tensor: torch.Tensor, weights: Weights) -> None:
        """A tensor lies where it lies, of these weights."""
        self.known[place_of(tensor)] = (StorageWeakRef(tensor.untyped_storage()), weights)
        self.unread.discard(place_of(tensor))

    def weights_of(self, tensor: torch.Tensor) -> Weights:
        """The `id`s of the weights that it is computed from; None: of others, too."""
        if place_of(tensor) in self.places:
            at = bisect_right(self.weights, tensor.data_ptr(), key=itemgetter(0)) - 1
            return frozenset({self.weights[at][1]} & self.trained)
        storage, weights = self.known.get(place_of(tensor), (None, None))
        return None if storage is None or storage.expired() else weights

    def copied(self, tensor: torch.Tensor) -> set[int]:
        """The weights of which it is another form: computed from them alone, in other memory."""
        return set(self.weights_of(tensor) or ()) if place_of(tensor) not in self.places else set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and note what came of it."""
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
            self.note(out[1], NONE)  # its mask is drawn
        return out


def place_of(tensor: torch.Tensor) -> int:
    """Where its storage is; 0 where it has none."""
    return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class Later:
    """What phases to come would refuse, hours later: by a parameter's `id`, the method that it would falsify.

    copied: of which a layer keeps another form; changed: that a forward changes.
    """

    copied: dict[int, str] = field(default_factory=dict)
    changed: dict[int, str] = field(default_factory=dict)


def packed(module: nn.Module) -> set[int]:
    """The `id`s of the parameters that recurrent layers pack, which cuDNN lays out anew."""
    return {id(p) for part in module.modules() if isinstance(part, nn.RNNBase) for p in part.parameters()}


def later(model: nn.Sequential, phases: Sequence[Phase]) -> Later:
    """What these phases would refuse. A recurrent layer packs its weights before, and in these it does not."""
    left_out, found = packed(model), Later()
    for phase in phases:
        for number, piece in enumerate(stages(model, phase.cuts), start=1):
            its = [id(p) for p in piece.parameters() if id(p) not in left_out]
            for into, refuses in ((found.copied, phase.apart(number)), (found.changed, phase.several(number))):
                for p in its if refuses else ():
                    into.setdefault(p, phase.method.name)  # the first that would
    return found


class Guard:
    """Watches the forwards of one stage.

    Args:
        module: the stage; weights: its policy, in this phase.
        to_come: what the phases after it would refuse.
    """

    def __init__(self, module: nn.Module, weights: StageWeights, phase: Phase, to_come: Later | None = None) -> None:
        self.module, self.weights = module, weights
        self.device = weights.live[0].device.type if weights.live else "cpu"
        self.castable = torch.amp.is_autocast_available(self.device)
        trained = weights.optimizer is not None and bool(weights.live)
        self.needed = trained and phase.apart(weights.stage)  # else copies do no harm
        several = trained and phase.several(weights.stage)
        own, to_come = [id(p) for p in module.parameters()], to_come or Later()

        def refused(by: dict[int, str], now: bool) -> dict[int, str]:
            """By a parameter's `id`, the method in words."""
            return {
                p: f"'{weights.method.name}'" if now else f"'{by[p]}', of a later phase," for p in own if now or p in by
            }

        self.refused = Later(refused(to_come.copied, self.needed), refused(to_come.changed, several))
        self.unseen = bool(self.refused.copied or self.refused.changed)
        self.before: list[tuple[str, nn.Parameter, int, torch.Tensor]] = []  # with its count of changes, and its values
        self.copies: dict[int, set[int]] = {}  # by the place of what is kept, the weights of which it is another form
        self.origins: Origins | None = None
        self.recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)] if self.needed else []

    def __call__(self) -> AbstractContextManager[None]:
        """Around every forward of the stage. The first one is looked at, and refused by `check`."""
        return self._looked_at() if self.unseen else self.running()

    def running(self) -> AbstractContextManager[None]:
        """The same without a look."""
        if self.castable and torch.is_autocast_enabled(self.device):
            torch.clear_autocast_cache()  # casts of the weights of another pass
        return unpacked(self.recurrent) if self.recurrent else nullcontext()

    @contextmanager
    def _looked_at(self) -> Iterator[None]:
        look = kept_for_backward(set(), self.look) if self.refused.copied else nullcontext()
        with self.running(), self.following(), look:
            yield
        self.check()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Around a forward of which `look` is shown what autograd keeps."""
        watched = [(name, p) for name, p in self.module.named_parameters() if id(p) in self.refused.changed]
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
        """Note what autograd functions of a user's keep as attributes, of which no hook of autograd's tells.

        Lists are left alone: somebody else may hold them, too, and note in them what passes read.
        """
        tensors = [tensor for tensor in tree_leaves(output) if isinstance(tensor, torch.Tensor)]
        own = [vars(node) for node in nodes_of(tensors) if isinstance(node, BackwardCFunction)]
        for kept in tree_leaves(own, is_leaf=lambda value: isinstance(value, list) and value is not own):
            if isinstance(kept, torch.Tensor):
                self.look(kept)

    def look(self, tensor: torch.Tensor) -> None:
        """Note whether what autograd keeps is another form of weights."""
        if self.origins is not None:
            self.copies.setdefault(place_of(tensor), set()).update(self.origins.copied(tensor))

    def check(self) -> None:
        """Once a forward has been looked at. Raises `PipelagError` where it kept copies, or changed weights."""
        unread = self.origins.unread if self.origins is not None else set()
        kept = {p for place, weights in self.copies.items() if place not in unread for p in weights}
        self.unseen, self.origins = False, None
        laid_out_anew = packed(self.module)
        for changed, p, count, values in self.before:
            same = p.is_meta or torch.equal(p, values) or torch.allclose(p, values, rtol=0, atol=0, equal_nan=True)
            if not same or (p._version != count and id(p) not in laid_out_anew):
                raise PipelagError(
                    f"method {self.refused.changed[id(p)]} keeps several versions of the weights, but the forward of "
                    f"stage {self.weights.stage} changes '{changed}' in place, which would change only one version; "
                    "change it in the optimizer's step, or use a method that keeps one version"
                )
        self.before = []
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


@contextmanager
def unpacked(recurrent: Sequence[nn.RNNBase]) -> Iterator[None]:
    """Within these layers, and nowhere else, cuDNN is off, and in bfloat16 oneDNN, which keeps biases in float32."""
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
