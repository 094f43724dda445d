"""Count what autograd keeps on the meta device, where tensors have no address, but their storages an identity."""

from __future__ import annotations

import torch


def id_of(tensor: torch.Tensor) -> int:
    """The identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)


class Saved:
    """A hook for saved tensors that notes the bytes of each storage once, except of the storages `but`."""

    def __init__(self, but: set[int]) -> None:
        self.but, self.bytes = but, dict[int, int]()
        self.alive: list[torch.Tensor] = []  # kept, as a new storage may get the identity of one that is gone

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that is saved, and return it unchanged."""
        place = id_of(tensor)
        if place not in self.but:
            self.bytes[place] = tensor.untyped_storage().nbytes()
            self.alive.append(tensor)
        return tensor
