"""That a backward reads the weights of its own time, whatever layers a stage has.

Autograd keeps a layer's weights by reference, and a policy writes other weights where they lie. Where a layer works on
a copy instead, its backward reads the forward's weights: every method would silently become weight stashing. Recurrent
layers by cuDNN do so (it packs the weights): they run on torch's own operators meanwhile. Autocast does so (it casts
the weights): a method that this would falsify is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.stage.policy import StageWeights
from pipelag.tensors import kept_for_backward

# Nodes of autograd that give a tensor's numbers as they are, or cast, laid out otherwise, or normed.
COPYING = {"ToCopyBackward0", "CloneBackward0", "WeightNormInterfaceBackward0"}
VIEWING = {
    f"{name}Backward0"
    for name in (
        *("T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "Unsqueeze", "Squeeze", "Alias"),
        *("Select", "Slice", "AsStrided", "Split", "SplitWithSizes", "Chunk", "Narrow", "Unbind"),
    )
}


def copied_from(tensor: torch.Tensor) -> torch.Tensor | None:
    """The leaf that a tensor is a copy of, in other memory; None of anything else."""
    node, copied = tensor.grad_fn, False
    while node is not None and not hasattr(node, "variable"):
        name = node.name()
        if name not in COPYING | VIEWING:
            return None
        copied = copied or name in COPYING
        node = next((before for before, _ in node.next_functions if before is not None), None)
    leaf: torch.Tensor | None = getattr(node, "variable", None)
    if leaf is None or not copied or leaf.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
        return None
    return leaf


class Guard:
    """Watches the forwards of one stage.

    Args:
        module: the stage; weights: its policy.
        recompute: each backward runs the forward again on its own weights, so that a copy is one of these.
    """

    def __init__(self, module: nn.Module, weights: StageWeights, recompute: bool) -> None:
        self.module, self.weights = module, weights
        self.device = weights.live[0].device.type if weights.live else "cpu"
        self.castable = torch.amp.is_autocast_available(self.device)
        # Where the backward reads what its forward read, copies do no harm.
        apart = weights.passes["F"].lags != weights.passes["B"].lags or bool(weights.readings)
        trained = weights.optimizer is not None and bool(weights.live)
        self.needed = apart and trained and not weights.stashed and not recompute
        self.unseen = self.needed
        self.copies: set[int] = set()
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
        with self.running(), kept_for_backward(set(), self.look):
            yield
        self.check()

    def look(self, tensor: torch.Tensor) -> None:
        """Note whether what autograd keeps is a copy of weights."""
        leaf = copied_from(tensor) if self.needed else None
        self.copies.update([id(leaf)] if leaf is not None else [])

    def check(self) -> None:
        """Once a forward has been looked at. Raises `PipelagError` where it kept copies."""
        self.unseen = False
        name = next((name for name, one in self.module.named_parameters() if id(one) in self.copies), None)
        if name is not None:
            raise PipelagError(
                f"method '{self.weights.method.name}' reads other weights in the backward than in the forward, and "
                f"stage {self.weights.stage} keeps a copy of the forward's '{name}' for its backward, as autocast "
                "makes one; give the model weights of the precision wanted instead, or recompute"
            )


@contextmanager
def unpacked(recurrent: Sequence[nn.RNNBase]) -> Iterator[None]:
    """Within these layers, and nowhere else, cuDNN is off."""
    before: list[bool] = []

    def off(*_: object) -> None:
        before.append(torch.backends.cudnn.enabled)
        torch.backends.cudnn.enabled = False

    def on(*_: object) -> None:
        torch.backends.cudnn.enabled = before.pop()

    handles = [part.register_forward_pre_hook(off) for part in recurrent]
    handles += [part.register_forward_hook(on, always_call=True) for part in recurrent]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
