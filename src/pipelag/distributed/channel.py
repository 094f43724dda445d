"""Messages between workers of one machine, in memory that both map; a Unix socket announces them.

Over network sockets the kernel copies a message twice, the second time in a thread that competes with the receiver's
passes. Here the sender writes the message once, and the receiver's passes read it in place. The memory has no name in
any file system, so it is freed when the workers end, however they end. A socket that closes shows that a peer has died.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
import tempfile
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import torch

from pipelag.distributed.launch.processes import OURS

ALIGNED = 64  # bytes; tensors begin at multiples of it, as in torch's own allocator
MOST_UNREAD = 100  # messages that may wait for their reader; the socket has room for 278
MOST_KEPT = 200  # pieces in use by a receiver; for each of them Python keeps a file open at both ends
ROOM = 212_992  # bytes of the socket's buffer: Linux's default, whatever this machine's is
HEAD = struct.Struct("<qq")  # a piece's number, and its size if it is new; for a piece given back: -1 - number, 0
FILE = struct.Struct("i")
BESIDE = socket.CMSG_LEN(FILE.size)  # ancillary data with one file descriptor
PEER = struct.Struct("3i")  # the peer's process, user and group


class Lost(RuntimeError):
    """The peer has closed its end of a channel, most likely because it died."""


class Message:
    """Tensors that lie one after another in a piece of memory."""

    def __init__(self, memory: Any) -> None:
        self.memory, self.at = memory, 0

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next tensor, contiguous; it keeps the memory alive."""
        count = prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        begin, self.at = self.at, self.at + room(count * dtype.itemsize)
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=begin).view(shape)


class Channel:
    """One end of a two-way channel between two workers of a machine; messages keep their order.

    A message lies in a piece of the sender's memory. The piece is free again once the receiver has dropped every tensor
    in it. If no piece is free, the sender makes a new one, so that it never waits for its receiver.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.process = connection, os.getpid()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        self.pieces: list[mmap.mmap] = []  # this end's pieces, by number
        self.free: list[int] = []
        self.peer_pieces: dict[int, mmap.mmap] = {}  # the peer's pieces, by number
        self.come: deque[Message] = deque()
        self.in_use = 0  # pieces of the peer that still hold tensors in use

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send one message.

        Raises:
            Lost: the peer is gone.
        """
        size = max(ALIGNED, sum(room(tensor.numel() * tensor.element_size()) for tensor in tensors))
        while not self.free and self._heard(wait=False):
            pass
        number = self.free.pop() if self.free else len(self.pieces)
        new = number == len(self.pieces) or len(self.pieces[number]) < size
        head, beside = HEAD.pack(number, size if new else 0), []
        with ExitStack() as stack:
            if new:
                file = os.memfd_create("pipelag")
                stack.callback(os.close, file)
                os.ftruncate(file, size)
                self.pieces[number : number + 1] = [mmap.mmap(file, size)]
                beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, FILE.pack(file))]
            message = Message(self.pieces[number])
            for tensor in tensors:
                message.tensor(tuple(tensor.shape), tensor.dtype).copy_(tensor)
            with gone():
                self.connection.sendmsg([head], beside)

    def take(self) -> Message:
        """Wait for the next message, and return it.

        Raises:
            Lost: the peer is gone.
        """
        while not self.come:
            self._heard(wait=True)
        return self.come.popleft()

    def _heard(self, wait: bool) -> bool:
        """Take the peer's next announcement, a message or a piece given back. False: there is none now."""
        with gone():
            try:  # not `socket.recv_fds`, which ignores the flags that it takes
                head, beside, _, _ = self.connection.recvmsg(HEAD.size, BESIDE, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
        if not head:
            raise Lost("it has closed its end")
        number, size = HEAD.unpack(head)
        if number < 0:
            self.free.append(-1 - number)
            return True
        if size:
            if not beside:
                raise OSError(
                    errno.EMFILE, "a message arrived without its shared memory: this process has too many open files"
                )
            (file,) = FILE.unpack(beside[0][2])
            self.peer_pieces[number] = mmap.mmap(file, size)
            os.close(file)
        view = memoryview(self.peer_pieces[number])
        if self.in_use >= MOST_KEPT:  # the caller collects messages: copy this one
            view = memoryview(bytearray(view))
            self._say_free(number)
        else:
            self.in_use += 1
            weakref.finalize(view, self._give_back, number).atexit = False
        self.come.append(Message(view))
        return True

    def _give_back(self, number: int) -> None:
        """Give a piece back to the peer, once its last tensor is gone; do nothing in a fork of this process."""
        if os.getpid() == self.process:
            self.in_use -= 1
            self._say_free(number)

    def _say_free(self, number: int) -> None:
        with suppress(OSError):  # the peer is gone, or does not read; it then makes a new piece
            self.connection.send(HEAD.pack(-1 - number, 0), socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close the channel; messages that were received stay valid."""
        self.connection.close()


@contextmanager
def gone() -> Iterator[None]:
    """Turn the system's errors for a lost connection into `Lost`."""
    try:
        yield
    except ConnectionError as error:  # a broken pipe is one
        raise Lost(str(error.strerror)) from error


def room(size: int) -> int:
    """The bytes that a tensor of `size` bytes takes in a message, padding included."""
    return -(-size // ALIGNED) * ALIGNED


def possible() -> bool:
    """Whether this system has, and allows, what a channel needs."""
    try:
        os.close(os.memfd_create("pipelag"))
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (AttributeError, OSError):
        return False
    one.close()
    other.close()
    return True


def listen(store: Any, name: str) -> Channel | None:
    """Open a channel to the worker that calls `join` with the same name; None: one of the two cannot open it."""
    with ExitStack() as stack:
        door, path = stack.enter_context(_socket()), ""
        with suppress(OSError):  # no room for a folder, or a path too long for a socket's name
            place = str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{OURS}channel-")), "door"))
            door.bind(place)
            door.listen(1)
            path = place
        store.set(name, path)
        joined = bool(path) and store.get(f"{name}/joined") == b"yes"
        return Channel(door.accept()[0]) if joined else None


def join(store: Any, name: str) -> Channel | None:
    """Open the other end of the channel that `listen` opens; None: one of the two cannot open it."""
    path = store.get(name).decode()
    if not path:
        return None
    connection = _socket()
    try:
        connection.connect(path)
        ours = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1] == os.getuid()
    except OSError:
        ours = False
    store.set(f"{name}/joined", "yes" if ours else "no")
    if ours:
        return Channel(connection)
    connection.close()
    return None


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
