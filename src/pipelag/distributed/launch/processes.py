"""Start, watch and end worker processes on this machine together; their store listens on the loopback interface only.

torchrun's agent does more (several machines, restarts). But its stores listen on every address, and it unpickles what
they hold; it does not restore the caller's signal handlers, and takes half a minute to end workers that do not answer.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock, Timeout

from pipelag.errors import PipelagError
from pipelag.job import QUIET, be_parent

LOOPBACK = "127.0.0.1"
GRACE = 3.0  # seconds for the other workers to notice that one has failed
LONGER = 10  # times that: for the end of the worker that others have lost, which a busy machine may be late to tell
OURS = "pipelag-workers-"


class Stopped(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def stoppable(folder: Path | None = None) -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the workers first, as SIGINT does, and then end this process.

    The caller's own handlers are left alone, and the default ones are restored at the end.

    folder: where the training's checkpoints remain, for the message.
    """
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        numbers = []

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    for number in numbers:
        signal.signal(number, stop)
    stopped = None
    try:
        yield
    except Stopped as error:
        stopped = error
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
    if stopped is not None:
        left = f"what lies in {folder} is kept" if folder is not None else "nothing of the training is kept"
        print(f"pipelag: stopped by {stopped}; all workers have ended, and {left}", file=sys.stderr)
        sys.stderr.flush()
        os.kill(os.getpid(), stopped.number)


@contextmanager
def workers_folder() -> Iterator[Path]:
    """Make a folder that only this user can read, and remove it at the end, and those of launchers that were killed.

    Raises:
        PipelagError: the folder cannot be made, or its disk does not support locks.
    """
    try:
        remove_abandoned()
        folder = Path(tempfile.mkdtemp(prefix=OURS))
    except OSError as error:
        raise no_folder(error) from error
    lock = FileLock(folder / "lock")
    try:
        try:
            lock.acquire()
        except OSError as error:
            raise no_folder(error) from error
        yield folder
    finally:
        lock.release()
        remove(folder)


def no_folder(error: OSError) -> PipelagError:
    """The error that no folder for the workers can be made."""
    return PipelagError(
        f"no folder for the workers can be created and locked among the temporary files ({error.strerror}); set TMPDIR "
        "to a folder where it can"
    )


def remove_abandoned() -> None:
    """Remove the folders of launchers that were killed."""
    for old in Path(tempfile.gettempdir()).glob(f"{OURS}*"):
        lock = FileLock(old / "lock")
        try:
            about = old.lstat()
            if about.st_uid == os.getuid() and about.st_mtime < time.time() - 60:  # a newer one may not be locked yet
                lock.acquire(timeout=0)
                shutil.rmtree(old, ignore_errors=True)
        except (OSError, Timeout):  # another user's, or in use
            pass
        finally:
            lock.release()


def remove(folder: Path) -> None:
    """Remove a folder, although a worker that was just killed may still write a last file into it."""
    until = time.monotonic() + GRACE
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.02)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def loopback_store() -> Iterator[int]:
    """Run a store that listens on 127.0.0.1 only; yields its port.

    Raises:
        PipelagError: the loopback interface is down.
    """
    # Imported here, because a process that only watches others needs no torch.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with socket.socket() as listening:
        try:
            listening.bind((LOOPBACK, 0))
            listening.listen(1024)
            with socket.create_connection(listening.getsockname(), timeout=5):
                listening.accept()[0].close()
        except OSError as error:
            raise PipelagError(
                f"workers on one machine talk over its loopback interface, and {LOOPBACK} does not answer "
                f"({error.strerror or error}); bring it up: ip link set lo up"
            ) from error
        port = int(listening.getsockname()[1])
        store = TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    try:
        yield port
    finally:
        del store


def loopback_name() -> str | None:
    """The name of this machine's loopback interface, lo or lo0; None: it has neither."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def on_loopback() -> dict[str, str]:
    """The environment variables that make gloo and nccl listen on the loopback interface."""
    name = loopback_name()
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name, "TP_SOCKET_IFNAME": name}


def run(
    words: Sequence[str], workers: int, folder: Path, meanwhile: Callable[[], None] | None = None
) -> dict[int, int]:
    """Run a command as each of `workers` ranks; returns the exit codes other than 0 by rank.

    When one worker fails, the others have `GRACE` seconds to report what they saw, and are then killed. Killed workers
    have no exit code here.

    Args:
        folder: where the workers leave their reports.
        meanwhile: called in this process many times a second; an exception from it ends the workers.
    """
    with loopback_store() as port:
        shared = {"WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers), "MASTER_ADDR": LOOPBACK}
        shared |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True", **on_loopback()}
        be_parent()
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(workers):
                started.append(start(words, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
            return watch(started, folder, meanwhile)
        finally:
            end(started)


def start(words: Sequence[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start one worker in a session of its own, so that the keyboard's signals reach only the launcher.

    The launcher ends the worker.
    """
    environment = QUIET | dict(os.environ) | more
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)


def watch(
    started: Sequence[subprocess.Popen[Any]], folder: Path, meanwhile: Callable[[], None] | None = None
) -> dict[int, int]:
    """Wait until all workers have ended, or for `GRACE` seconds after one failed; returns exit codes but 0 by rank.

    Where all that failed have only lost another, the one that failed first is still to end, and has longer.
    """
    failed_at = None
    while True:
        codes = {rank: process.poll() for rank, process in enumerate(started)}
        if failed_at is None and any(codes.values()):
            failed_at = time.monotonic()
        failed = {rank: code for rank, code in codes.items() if code}
        grace = LONGER * GRACE if all(only_lost_another(folder, rank) for rank in failed) else GRACE
        late = failed_at is not None and time.monotonic() > failed_at + grace
        if late or None not in codes.values():
            return failed
        if meanwhile is not None and failed_at is None:
            meanwhile()
        time.sleep(0.05)


def only_lost_another(folder: Path, rank: int) -> bool:
    """Whether a worker that failed has reported no more than the loss of another, or of the store."""
    path = folder / f"error-{rank}.json"
    return path.exists() and bool(json.loads(path.read_text())["peer_lost"])


def end(started: Sequence[subprocess.Popen[Any]]) -> None:
    """End workers and the processes that they have started; no checkpoint is damaged, as they are written atomically.

    First by SIGTERM: a client of the warm process passes it on, and ends when its fork has. Killed, it would leave the
    fork at work for a moment, in a folder where the next run may begin.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 1.0
        for process in (each for each in started if each.poll() is None):
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):
                process.send_signal(number)
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(None if number == signal.SIGKILL else max(0.0, until - time.monotonic()))
