"""Run a `pipelag` command, or a module, in a fork of the warm process; without a warm process, start it anew.

    python -S -I src/pipelag/job.py run --spec ...
    python -S -I src/pipelag/job.py -m pipelag.distributed.launch.launch FOLDER

This file uses only Python's standard library, so that it starts in an instant. PIPELAG_WARM names the warm process's
socket. Workers end with the process that started them; the functions for that are here because this file cannot import
any other of pipelag's.
"""

import io
import json
import os
import signal
import socket
import stat
import sys
import time
from contextlib import suppress

PARENT = "PIPELAG_PARENT"  # environment variable: tells started processes the id of the one that starts them
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # environment: workers report a closed connection themselves, torch should not


def connected() -> socket.socket | None:
    """A connection to the warm process; None if there is none."""
    path = os.environ.get("PIPELAG_WARM", "")
    if not path or not hasattr(os, "pidfd_open"):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def warm_folder() -> str:
    """The warm process's own folder, which only its user can read or write; empty if there is none."""
    folder = os.path.dirname(os.environ.get("PIPELAG_WARM", ""))
    try:
        about = os.stat(folder)
    except OSError:
        return ""
    return folder if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077 else ""


def python() -> list[str]:
    """The words that start Python without the working directory, where a types.py, say, would hide Python's own.

    Where pipelag itself lies in the working directory, and may be installed nowhere, that directory is searched.
    """
    here = os.path.samefile(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".")
    return [sys.executable] if here else [sys.executable, "-P"]


def be_parent() -> None:
    """Tell the processes started from here that this process is their parent."""
    os.environ[PARENT] = str(os.getpid())


def end_with_parent() -> None:
    """Ask Linux to kill this process, also after execv, when its parent dies, so that nothing is left running."""
    if sys.platform == "linux":
        import ctypes  # a job that is no worker does not need it

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def leave_with_parent() -> None:
    """End this process with the launcher, also if the launcher died before this call.

    Linux does so at once. On other systems a thread looks for the launcher, often: its folder may be taken over soon.
    """
    parent = os.environ.get(PARENT, str(os.getppid()))
    end_with_parent()
    if sys.platform != "linux":
        import threading

        threading.Thread(target=leave_without, args=(parent,), daemon=True).start()
    elif str(os.getppid()) != parent:  # the launcher is dead already
        os._exit(1)


def leave_without(parent: str) -> None:
    """End this process when its parent is no longer that one."""
    while str(os.getppid()) == parent:
        time.sleep(0.05)
    os._exit(1)


def open_streams() -> None:
    """Open standard streams that are closed (`2>&-`, a daemon) to /dev/null.

    Otherwise the next file that is opened, such as a log, would get a stream's number, and messages would go into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name or a verdict may have what the locale lacks


def send(connection: socket.socket, request: dict[str, object], streams: list[int]) -> None:
    """Send a request, one line of JSON, and the two file descriptors that go with it."""
    text = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [text], streams)
    if text[sent:]:  # even an empty send would fail if the answer has come and the other end is closed
        connection.sendall(text[sent:])


def main(words: list[str]) -> int:
    """Ask the warm process, wait, and exit as the command does; if a signal ended it, by the same signal."""
    open_streams()
    module = words[:1] == ["-m"]
    if module:
        leave_with_parent()
    connection = connected()
    if connection is None:
        os.execv(sys.executable, [*python(), *(words if module else ["-m", "pipelag", *words])])
    request: dict[str, object] = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}

    def pass_on(number: int, frame: object) -> None:
        with suppress(OSError):  # the other end is closed: its answer has come already, or it is gone
            connection.send(bytes([number]))

    code = b""
    with suppress(BrokenPipeError, ConnectionResetError):  # it was killed before it had read the request
        send(connection, request, [1, 2])
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, pass_on)
        code = connection.recv(1)
    if not code:
        print("job.py: the warm process has ended; see its log, and start the workflow again", file=sys.stderr)
        return 1
    number = code[0] - 128
    if number in signal.valid_signals() and number != signal.SIGINT:  # commands themselves exit with 130 for SIGINT
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return code[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
