"""Links between neighbouring stages: tensors sent straight to the next worker, overlapped with compute.

A message is the tuple of tensors that crosses one boundary. The receiver learns shapes, types and memory format once,
through the job's key-value store; from then on it keeps receives posted ahead, and the sender never waits. If
minibatches are uneven (sentences), a small header with the shapes precedes each message. Between workers of one machine
messages go through shared memory instead of torch's backend (`pipelag.distributed.channel`).
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from pipelag.distributed.channel import Channel
from pipelag.errors import PipelagError
from pipelag.tensors import in_channels_last

POSTED_AHEAD = 2  # receives kept open: one being filled while the other is consumed
MOST_DIMENSIONS = 7  # of a tensor in an uneven message


class PeerLost(RuntimeError):
    """The connection to another worker broke, most likely because that worker died."""

    def __init__(self, rank: int, peer: int, reason: str) -> None:
        super().__init__(f"rank {rank} lost its connection to rank {peer} ({reason})")


@contextmanager
def reaching(rank: int, peer: int) -> Iterator[None]:
    """Turn errors of the backend or of a channel into `PeerLost`: the connection to the peer broke."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(rank, peer, said_of(error)) from error


def said_of(error: BaseException) -> str:
    """What gloo says of a connection, without its source line in front and its advice at the end.

    >>> said_of(RuntimeError("[/gloo/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:17. Check the logs"))
    'Connection closed by peer [127.0.0.1]:17'
    """
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*:\d+\] *", "", first).split(". ")[0]


def told_of_loss(error: BaseException) -> str:
    """The message of an error that means the loss of another rank or of the workers' store; empty for any other error.

    >>> told_of_loss(RuntimeError("[/gloo/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:17. Check the logs"))
    'it lost its connection to another (Connection closed by peer [127.0.0.1]:17)'
    """
    if isinstance(error, PeerLost):
        return str(error)
    if isinstance(error, dist.DistNetworkError):  # the launcher ends it before a killed worker of the warm process does
        return f"it lost its connection to the workers' store ({said_of(error)})"
    # gloo's collectives (DDP, the sums of replicas) raise a plain RuntimeError that names their source file.
    in_gloo = isinstance(error, RuntimeError) and "/gloo/" in str(error)
    return f"it lost its connection to another ({said_of(error)})" if in_gloo else ""


@dataclass(frozen=True)
class TensorMeta:
    """What a receiver must know of a tensor.

    channels_last: the tensor is dense as NHWC, and is sent as that contiguous view.
    differentiable: it requires a gradient.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool
    differentiable: bool

    @property
    def kind(self) -> str:
        """The name of the tensor's type."""
        return str(self.dtype).removeprefix("torch.")

    def text(self) -> str:
        """The description as JSON, because nothing from a socket is ever unpickled."""
        return json.dumps([list(self.shape), self.kind, self.channels_last, self.differentiable])

    @classmethod
    def read(cls, text: str) -> TensorMeta:
        """Read a description that `text` wrote."""
        shape, kind, channels_last, differentiable = json.loads(text)
        dtype = getattr(torch, str(kind), None)
        if not isinstance(dtype, torch.dtype):
            raise PipelagError(f"a worker announces tensors of type '{kind}', which torch does not have")
        return cls(tuple(int(size) for size in shape), dtype, bool(channels_last), bool(differentiable))

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        """Describe `tensor`."""
        return cls(tuple(tensor.shape), tensor.dtype, in_channels_last(tensor), tensor.requires_grad)

    def wire(self, tensor: torch.Tensor) -> torch.Tensor:
        """The contiguous tensor to send for `tensor`."""
        return (tensor.permute(0, 2, 3, 1) if self.channels_last else tensor).contiguous()

    @property
    def laid_out(self) -> tuple[int, ...]:
        """The shape of the tensor that is sent."""
        return tuple(self.shape[d] for d in (0, 2, 3, 1)) if self.channels_last else self.shape

    def buffer(self, device: torch.device, pinned: bool = False) -> torch.Tensor:
        """An empty tensor to receive into."""
        return torch.empty(self.laid_out, dtype=self.dtype, device=device, pin_memory=pinned)

    def unwire(self, buffer: torch.Tensor) -> torch.Tensor:
        """The received tensor in its own shape and memory format."""
        return buffer.permute(0, 3, 1, 2) if self.channels_last else buffer


@dataclass(frozen=True)
class Wire:
    """What a link needs of the job.

    rank: this rank.
    group: the process group of the link's messages.
    store: the job's key-value store.
    device: where messages lie while they are under way.
    name: unique among the job's links.
    place: the device that uses the messages, if it is another one.
    channel: shared memory with a peer on this machine, in place of the group.
    """

    rank: int
    group: dist.ProcessGroup
    store: Any  # torch.distributed.Store
    device: torch.device
    name: str
    uneven: bool = False  # messages differ in shape
    place: torch.device | None = None
    channel: Channel | None = None

    @property
    def carrier(self) -> str:
        """What the link's messages go through."""
        return "shared memory" if self.channel is not None else str(dist.get_backend(self.group))

    def buffer(self, meta: TensorMeta) -> torch.Tensor:
        """An empty tensor to receive into; pinned if a GPU will fetch it."""
        away = self.place is not None and self.place != self.device
        return meta.buffer(self.device, pinned=away and torch.cuda.is_available())


class Sender:
    """The sending end of a link.

    A channel copies a message at once. In a group, sends are asynchronous, and a tensor is kept alive until it has
    left.

    ahead: how many messages this worker may be ahead of its neighbour by the schedule. The sender waits for older
        sends, because gloo completes a send only when it is waited for; they have left, so the wait takes no time.
    """

    def __init__(self, wire: Wire, peer: int, ahead: int, metas: list[TensorMeta] | None = None) -> None:
        self.wire, self.peer, self.ahead, self.metas = wire, peer, ahead, metas
        self.inflight: deque[tuple[Any, torch.Tensor]] = deque()
        self.bytes = 0
        self.seconds = 0.0  # spent in `send` and `finish`

    def send(self, tensors: tuple[torch.Tensor, ...], what: str) -> None:
        """Start sending one message; `what` names the message in an error.

        Raises:
            PipelagError: the number, types or (unless uneven) shapes of its tensors differ from the first message's,
                or an uneven message has too many dimensions.
        """
        begin = time.perf_counter()
        metas = [TensorMeta.of(tensor) for tensor in tensors]
        if self.metas is None:
            self.metas = metas
            self.wire.store.set(self.wire.name, "\n".join(meta.text() for meta in metas))
        if len(metas) != len(self.metas):
            raise PipelagError(
                f"{what} has {len(metas)} tensors, but earlier ones had {len(self.metas)}; a stage should pass on "
                "the same number for every minibatch"
            )
        for now, first in zip(metas, self.metas, strict=True):
            if now.dtype != first.dtype:
                raise PipelagError(
                    f"{what} has type {now.kind}, but earlier ones had {first.kind}; a stage should pass on the "
                    "same types for every minibatch"
                )
            if now.shape != first.shape and not self.wire.uneven:
                raise PipelagError(
                    f"{what} has shape {list(now.shape)}, but earlier ones had {list(first.shape)}; drop or pad "
                    "the last partial minibatch, or pass uneven=True, so that each message states its shapes"
                )
            if self.wire.uneven and len(now.shape) > MOST_DIMENSIONS:
                raise PipelagError(
                    f"{what} has {len(now.shape)} dimensions; with uneven=True a stage may pass on at most "
                    f"{MOST_DIMENSIONS}"
                )
        header = [header_of(metas)] if self.wire.uneven else []
        out = header + [meta.wire(tensor.detach()) for meta, tensor in zip(self.metas, tensors, strict=True)]
        self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in out)
        if self.wire.channel is not None:
            with reaching(self.wire.rank, self.peer):
                self.wire.channel.put(out)
        else:
            self._send_in_group([tensor.to(self.wire.device) for tensor in out])
        self.seconds += time.perf_counter() - begin

    def _send_in_group(self, out: Sequence[torch.Tensor]) -> None:
        """Send the tensors in order, through the job's backend."""
        while len(self.inflight) > self.ahead * len(out):
            _wait(self.inflight.popleft()[0], self.wire.rank, self.peer)
        for tag, tensor in enumerate(out):
            with reaching(self.wire.rank, self.peer):
                work = dist.isend(tensor, self.peer, group=self.wire.group, tag=tag)
            self.inflight.append((work, tensor))

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
        """Describe the messages to come, if this worker knows their form, and post the first receives."""
        if self.metas is None:
            self.metas = metas
            self._post()

    def _post(self) -> None:
        assert self.metas is not None
        if self.wire.channel is not None:
            return
        if self.wire.uneven:  # a single header: nccl matches messages in the order of receives, and ignores tags
            if self.left and not self.posted:
                header = header_of(self.metas).to(self.wire.device)
                self.posted.append([self._irecv(header, 0)])
                self.left -= 1
            return
        while self.left and len(self.posted) < POSTED_AHEAD:
            buffers = [self.wire.buffer(meta) for meta in self.metas]
            self.posted.append([self._irecv(buffer, tag) for tag, buffer in enumerate(buffers)])
            self.left -= 1

    def _irecv(self, buffer: torch.Tensor, tag: int) -> tuple[Any, torch.Tensor]:
        with reaching(self.wire.rank, self.peer):
            return dist.irecv(buffer, self.peer, group=self.wire.group, tag=tag), buffer

    def receive(self) -> tuple[torch.Tensor, ...]:
        """Wait for the next message, and return its tensors."""
        start = time.perf_counter()
        if self.metas is None:
            with reaching(self.wire.rank, self.peer):
                announced = self.wire.store.get(self.wire.name).decode()
            self.describe([TensorMeta.read(line) for line in announced.splitlines()])
        buffers = self._taken() if self.wire.channel is None else self._read(self.wire.channel)
        self.waited += time.perf_counter() - start
        self._post()
        place = self.wire.place or self.wire.device
        return tuple(meta.unwire(buffer).to(place) for meta, buffer in buffers)

    def _taken(self) -> list[tuple[TensorMeta, torch.Tensor]]:
        """The next message from the job's backend."""
        assert self.metas is not None
        message, metas = self.posted.popleft(), self.metas
        if self.wire.uneven:
            ((work, header),) = message
            _wait(work, self.wire.rank, self.peer)
            metas = shaped(metas, header)
            message = [self._irecv(self.wire.buffer(meta), tag) for tag, meta in enumerate(metas, start=1)]
        for work, _ in message:
            _wait(work, self.wire.rank, self.peer)
        return [(meta, buffer) for meta, (_, buffer) in zip(metas, message, strict=True)]

    def _read(self, channel: Channel) -> list[tuple[TensorMeta, torch.Tensor]]:
        """The next message from a channel, in shared memory."""
        assert self.metas is not None
        metas = self.metas
        with reaching(self.wire.rank, self.peer):
            message = channel.take()
        if self.wire.uneven:
            metas = shaped(metas, message.tensor((len(metas), 1 + MOST_DIMENSIONS), torch.int64))
        return [(meta, message.tensor(meta.laid_out, meta.dtype)) for meta in metas]


def header_of(metas: Sequence[TensorMeta]) -> torch.Tensor:
    """The shapes of a message, int64 (tensors, 1 + MOST_DIMENSIONS): the number of dimensions, then their sizes."""
    header = torch.zeros(len(metas), 1 + MOST_DIMENSIONS, dtype=torch.int64)
    for row, meta in zip(header, metas, strict=True):
        row[: 1 + len(meta.shape)] = torch.tensor([len(meta.shape), *meta.shape])
    return header


def shaped(metas: Sequence[TensorMeta], header: torch.Tensor) -> list[TensorMeta]:
    """These descriptions with the shapes in a message's header."""
    return [replace(meta, shape=shape) for meta, shape in zip(metas, shapes_of(header), strict=True)]


def shapes_of(header: torch.Tensor) -> list[tuple[int, ...]]:
    """The shapes in a header that `header_of` has written."""
    return [tuple(row[1 : 1 + row[0]]) for row in header.tolist()]


def _wait(work: Any, rank: int, peer: int) -> None:
    with reaching(rank, peer):
        work.wait()
