"""Links between neighbouring stages: tensors sent straight to the next worker, overlapped with compute.

A message is the tuple of tensors that crosses one boundary. The receiver learns shapes, types and memory format once,
through the job's key-value store, and from then on keeps receives posted ahead; the sender never waits.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pipelag.errors import PipelagError

POSTED_AHEAD = 2  # receives kept open: one being filled while the other is consumed


class PeerLost(RuntimeError):
    """The connection to another worker broke, most likely because that worker died."""

    def __init__(self, rank: int, peer: int, reason: str) -> None:
        super().__init__(f"rank {rank} lost its connection to rank {peer} ({reason})")


@dataclass(frozen=True)
class TensorMeta:
    """What a receiver must know of a tensor. `channels_last`: dense as NHWC, and sent as that contiguous view."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool
    differentiable: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        """Describe `tensor`."""
        last = (
            tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()
        )
        return cls(tuple(tensor.shape), tensor.dtype, last, tensor.requires_grad)

    def wire(self, tensor: torch.Tensor) -> torch.Tensor:
        """The contiguous tensor to send for `tensor`."""
        return (tensor.permute(0, 2, 3, 1) if self.channels_last else tensor).contiguous()

    def buffer(self, device: torch.device) -> torch.Tensor:
        """An empty tensor to receive into."""
        shape = tuple(self.shape[d] for d in (0, 2, 3, 1)) if self.channels_last else self.shape
        return torch.empty(shape, dtype=self.dtype, device=device)

    def unwire(self, buffer: torch.Tensor) -> torch.Tensor:
        """The received tensor in its own shape and memory format."""
        return buffer.permute(0, 3, 1, 2) if self.channels_last else buffer


@dataclass(frozen=True)
class Wire:
    """What a link needs of the job: who this is, the group to send in, the store, the device, a unique name."""

    rank: int
    group: dist.ProcessGroup
    store: Any  # torch.distributed.Store
    device: torch.device
    name: str


class Sender:
    """The sending end. Sends are asynchronous; a tensor is kept alive until it has left.

    `ahead`: how many messages this worker may be ahead of its neighbour by the schedule; an older send is waited for
    (gloo calls a send complete only to who waits for it), which therefore takes no time.
    """

    def __init__(self, wire: Wire, peer: int, ahead: int, metas: list[TensorMeta] | None = None) -> None:
        self.wire, self.peer, self.ahead, self.metas = wire, peer, ahead, metas
        self.inflight: deque[tuple[Any, torch.Tensor]] = deque()
        self.bytes = 0
        self.seconds = 0.0  # spent in `send` and `finish`

    def send(self, tensors: tuple[torch.Tensor, ...], what: str) -> None:
        """Start sending one message; `what` names it in a refusal."""
        begin = time.perf_counter()
        metas = [TensorMeta.of(tensor) for tensor in tensors]
        if self.metas is None:
            self.metas = metas
            self.wire.store.set(self.wire.name, pickle.dumps(metas))  # type: ignore[arg-type]
        for now, first in zip(metas, self.metas, strict=True):
            if now.shape != first.shape:
                raise PipelagError(
                    f"{what} has shape {list(now.shape)} where the ones before it had {list(first.shape)}; the real "
                    "executor needs minibatches of one size: drop or pad the last partial one"
                )
        while len(self.inflight) > self.ahead * len(metas):
            _wait(self.inflight.popleft()[0], self.wire.rank, self.peer)
        for tag, (meta, tensor) in enumerate(zip(self.metas, tensors, strict=True)):
            out = meta.wire(tensor.detach())
            self.bytes += out.numel() * out.element_size()
            try:
                work = dist.isend(out, self.peer, group=self.wire.group, tag=tag)
            except RuntimeError as error:
                raise PeerLost(self.wire.rank, self.peer, _first_line(error)) from error
            self.inflight.append((work, out))
        self.seconds += time.perf_counter() - begin

    def finish(self) -> None:
        """Wait until everything has left."""
        begin = time.perf_counter()
        while self.inflight:
            _wait(self.inflight.popleft()[0], self.wire.rank, self.peer)
        self.seconds += time.perf_counter() - begin


class Receiver:
    """The receiving end of a link that carries `count` messages in order."""

    def __init__(self, wire: Wire, peer: int, count: int) -> None:
        self.wire, self.peer, self.left = wire, peer, count
        self.metas: list[TensorMeta] | None = None
        self.posted: deque[list[tuple[Any, torch.Tensor]]] = deque()
        self.waited = 0.0

    def describe(self, metas: list[TensorMeta]) -> None:
        """Tell the receiver what will come, where it is known here; posts the first receives."""
        if self.metas is None:
            self.metas = metas
            self._post()

    def _post(self) -> None:
        assert self.metas is not None
        while self.left and len(self.posted) < POSTED_AHEAD:
            message = []
            for tag, meta in enumerate(self.metas):
                buffer = meta.buffer(self.wire.device)
                try:
                    work = dist.irecv(buffer, self.peer, group=self.wire.group, tag=tag)
                except RuntimeError as error:
                    raise PeerLost(self.wire.rank, self.peer, _first_line(error)) from error
                message.append((work, buffer))
            self.posted.append(message)
            self.left -= 1

    def receive(self) -> tuple[torch.Tensor, ...]:
        """The next message; waits for it."""
        start = time.perf_counter()
        if self.metas is None:
            try:
                self.describe(pickle.loads(self.wire.store.get(self.wire.name)))
            except RuntimeError as error:
                raise PeerLost(self.wire.rank, self.peer, _first_line(error)) from error
        assert self.metas is not None
        message = self.posted.popleft()
        for work, _ in message:
            _wait(work, self.wire.rank, self.peer)
        self.waited += time.perf_counter() - start
        self._post()
        return tuple(meta.unwire(buffer) for meta, (_, buffer) in zip(self.metas, message, strict=True))


def _wait(work: Any, rank: int, peer: int) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise PeerLost(rank, peer, _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200]
