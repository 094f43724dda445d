"""Gather plain values and tensors from all ranks, without unpickling arbitrary objects from a socket.

`dist.all_gather_object` unpickles, and so runs any code that the sender names. Here ranks accept only tensors, numbers,
strings, lists and dicts (torch.load's `weights_only`).
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
import torch.distributed as dist

from pipelag.errors import PipelagError


def gathered(value: Any, device: torch.device, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Gather the value of every rank of the group, by rank; all ranks call this together.

    Args:
        device: where the messages lie while they are under way.

    Returns:
        The values by rank, with tensors on the CPU.

    Raises:
        PipelagError: a rank's value holds more than tensors and plain values.
    """
    file = io.BytesIO()
    torch.save(value, file)
    text = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8).to(device)
    world = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(text)], device=device), group=group)
    longest = max(int(size) for size in sizes)
    texts = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in range(world)]
    dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))), group=group)
    return [_read(padded[: int(size)]) for padded, size in zip(texts, sizes, strict=True)]


def _read(text: torch.Tensor) -> Any:
    try:
        return torch.load(io.BytesIO(text.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise PipelagError(
            "a worker's results hold other objects than tensors, numbers, strings, lists and dicts, which workers do "
            "not accept from one another; keep such objects out of the optimizer's state"
        ) from error
