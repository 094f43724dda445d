"""Messages between workers of one machine: in memory that both map, told of by a socket.

Over a socket the kernel copies a message twice, the second time in a thread that competes with the receiver's passes.
Here the sender copies it once, and the receiver's passes read it where it lies. The memory has no name in any file
system, so that nothing is left behind by a worker that is killed; and the socket's end tells that its peer is gone.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import torch

ALIGNED = 64  # bytes; where tensors begin, as torch's own allocator has it
# Messages that may wait for their reader: Linux keeps 278 in a socket, and Python an open file for each piece.
MOST_UNREAD = 100
HEAD = struct.Struct("<qq")  # a piece's number, and its size where it is new; of one given back: -1 - number, 0
FILE = struct.Struct("i")
BESIDE = socket.CMSG_LEN(FILE.size)  # room for one open file


class Lost(RuntimeError):
    """The peer has closed its end, most likely because it died."""


class Message:
    """Tensors one after another in a piece of memory."""

    def __init__(self, memory: Any) -> None:
        self.memory, self.at = memory, 0

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next one, contiguous; the memory lives as long as it does."""
        count = prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        begin, self.at = self.at, self.at + room(count * dtype.itemsize)
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=begin).view(shape)


class Channel:
    """One end of what two workers of a machine send each other, in order.

    A message lies in a piece of the sender's memory, which is free again once the receiver has dropped every tensor in
    it. Where no piece is free there is a new one: a sender never waits for its receiver.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.own: list[mmap.mmap] = []  # pieces for what is sent, by number
        self.free: list[int] = []
        self.theirs: dict[int, mmap.mmap] = {}  # pieces of the peer, by number
        self.come: deque[Message] = deque()

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send one message.

        Raises:
            Lost: the peer is gone.
        """
        size = max(ALIGNED, sum(room(tensor.numel() * tensor.element_size()) for tensor in tensors))
        while not self.free and self._heard(wait=False):
            pass
        number = self.free.pop() if self.free else len(self.own)
        new = number == len(self.own) or len(self.own[number]) < size
        files = []
        if new:
            files = [os.memfd_create("pipelag")]
            os.ftruncate(files[0], size)
            self.own[number : number + 1] = [mmap.mmap(files[0], size)]
        message = Message(self.own[number])
        for tensor in tensors:
            message.tensor(tuple(tensor.shape), tensor.dtype).copy_(tensor)
        head = HEAD.pack(number, size if new else 0)
        try:
            _ = socket.send_fds(self.connection, [head], files) if new else self.connection.send(head)
        except OSError as error:
            raise Lost(str(error.strerror)) from error
        finally:
            for file in files:
                os.close(file)

    def take(self) -> Message:
        """The next message; waits for it.

        Raises:
            Lost: the peer is gone.
        """
        while not self.come:
            self._heard(wait=True)
        return self.come.popleft()

    def _heard(self, wait: bool) -> bool:
        """Take what the peer says next: a message, or a piece that it gives back. False: it says nothing now."""
        try:
            # Not socket.recv_fds, which takes flags and does without them.
            head, beside, _, _ = self.connection.recvmsg(HEAD.size, BESIDE, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Lost(str(error.strerror)) from error
        if not head:
            raise Lost("it has closed its end")
        number, size = HEAD.unpack(head)
        if number < 0:
            self.free.append(-1 - number)
            return True
        for _, _, data in beside:
            (file,) = FILE.unpack(data)
            self.theirs[number] = mmap.mmap(file, size)
            os.close(file)
        view = memoryview(self.theirs[number])
        weakref.finalize(view, self._give_back, number).atexit = False
        self.come.append(Message(view))
        return True

    def _give_back(self, number: int) -> None:
        """The last tensor in a piece of the peer's memory is gone."""
        with suppress(OSError):  # the peer is gone, or does not read at all: it then makes a new piece
            self.connection.send(HEAD.pack(-1 - number, 0), socket.MSG_DONTWAIT)


def room(size: int) -> int:
    """Bytes that a tensor of so many takes in a message."""
    return -(-size // ALIGNED) * ALIGNED


def possible() -> bool:
    """Whether this system has what a channel needs, and allows it."""
    try:
        os.close(os.memfd_create("pipelag"))
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (AttributeError, OSError):
        return False
    one.close()
    other.close()
    return True


def listen(store: Any, name: str) -> Channel | None:
    """Open a channel to whom calls `join` with the same name; None where one of the two cannot."""
    with tempfile.TemporaryDirectory(prefix="pipelag-channel-") as folder, _socket() as door:
        path = str(Path(folder, "door"))
        try:
            door.bind(path)
        except OSError:  # a path longer than a socket's name may be
            path = ""
        else:
            door.listen(1)
        store.set(name, path)
        joined = bool(path) and store.get(f"{name}/joined") == b"yes"
        return Channel(door.accept()[0]) if joined else None


def join(store: Any, name: str) -> Channel | None:
    """The other end of what `listen` opens."""
    path = store.get(name).decode()
    if not path:
        return None
    connection = _socket()
    try:
        connection.connect(path)
    except OSError:
        connection.close()
    store.set(f"{name}/joined", "no" if connection.fileno() < 0 else "yes")
    return Channel(connection) if connection.fileno() >= 0 else None


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
