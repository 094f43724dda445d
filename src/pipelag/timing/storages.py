"""What autograd keeps on the meta device, where tensors have no address but their storages an identity."""

from __future__ import annotations

import torch


def id_of(tensor: torch.Tensor) -> int:
    """A storage's identity."""
    return int(tensor.untyped_storage()._cdata)


class Saved:
    """A hook for saved tensors: bytes by storage, each once, of all but the storages `but`."""

    def __init__(self, but: set[int]) -> None:
        self.but, self.bytes = but, dict[int, int]()
        self.alive: list[torch.Tensor] = []  # an identity is given again once its storage is gone

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that is saved; it is saved as it is."""
        place = id_of(tensor)
        if place not in self.but:
            self.bytes[place] = tensor.untyped_storage().nbytes()
            self.alive.append(tensor)
        return tensor
