"""A warm process that forks: a workflow's jobs begin with torch and matplotlib loaded, in milliseconds, not seconds.

    python -m pipelag.warm SOCKET

serves `pipelag` commands on a Unix socket until its parent is gone; Snakemake starts one (`WarmProcess`). A client
(`workflow/scripts/job.py`, which needs nothing but Python's own library) passes the command's words, its working
directory, environment, and standard output and error; what answers is a fork of this process that carries the command
out as if it had been started by itself. The client's end gone, the fork is ended too; a signal to the client reaches
the fork. Nothing here runs torch before a fork, whose threads a fork would lack.
"""

from __future__ import annotations

import array
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pipelag.distributed.processes import PARENT, end_with_parent, leave_with_parent

LOADED = (  # what most commands need; importing them does no work
    "torch",
    "pandas",
    "matplotlib.pyplot",
    "pipelag.__main__",
    "pipelag.runs.cli",
    "pipelag.runs.train",
    "pipelag.runs.inspect",
    "pipelag.runs.plan",
    "pipelag.runs.theory",
    "pipelag.runs.timeline",
    "pipelag.results.cli",
    "pipelag.report.cli",
    "pipelag.report.frames",
)
MOST = 1 << 20  # bytes of a request


def load() -> None:
    """Import what the forks will need; a part that is not there is left to them."""
    import importlib

    import matplotlib

    matplotlib.use("Agg")
    for name in LOADED:
        with suppress(ImportError):
            importlib.import_module(name)


def carry_out(request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """In the fork: become the command that was asked for."""
    os.setsid()  # a group of its own, so that its own processes end with it
    end_with_parent()
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    code = 1
    try:
        from pipelag.__main__ import main

        code = main(request["words"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for output in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                output.flush()
        os._exit(code)


class Server:
    """The forks under way, each with the connection of its client."""

    def __init__(self, path: Path) -> None:
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(str(path))
        os.chmod(path, 0o600)
        self.listening.listen(128)
        self.watch = selectors.DefaultSelector()
        self.watch.register(self.listening, selectors.EVENT_READ, self.begin)
        self.parent = os.getppid()

    def serve(self) -> None:
        """Until the parent is gone."""
        while os.getppid() == self.parent:
            for key, _ in self.watch.select(timeout=2.0):
                key.data()

    def begin(self) -> None:
        """A client is there: fork."""
        client, _ = self.listening.accept()
        try:
            request, streams = receive(client)
        except (OSError, ValueError, KeyError):
            client.close()
            return
        child = os.fork()
        if child == 0:
            self.watch.close()
            self.listening.close()
            client.close()
            carry_out(request, streams)
        for stream in streams:
            os.close(stream)
        handle = os.pidfd_open(child)

        def ended() -> None:
            self.watch.unregister(handle)
            os.close(handle)
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):
                client.sendall(bytes([code if code >= 0 else 128 - code]))
            if client.fileno() >= 0:
                self.watch.unregister(client)
                client.close()

        def told() -> None:
            """The client passes a signal on, or is gone."""
            word = b""
            with suppress(OSError):
                word = client.recv(1)
            with suppress(ProcessLookupError):
                os.killpg(child, word[0] if word else signal.SIGKILL)
            if not word:
                self.watch.unregister(client)
                client.close()

        self.watch.register(handle, selectors.EVENT_READ, ended)
        self.watch.register(client, selectors.EVENT_READ, told)


def receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, one line of JSON, and the file descriptors that came with it."""
    streams, text = array.array("i"), b""
    while not text.endswith(b"\n"):
        part, extra, _, _ = client.recvmsg(65536, socket.CMSG_SPACE(2 * streams.itemsize))
        for _, kind, content in extra:
            if kind == socket.SCM_RIGHTS:
                streams.frombytes(content[: len(content) - len(content) % streams.itemsize])
        text += part
        if not part or len(text) > MOST:
            raise ValueError("no request")
    request = json.loads(text)
    if len(streams) != 2 or {type(word) for word in request["words"]} - {str}:
        raise ValueError("no request")
    return {key: request[key] for key in ("words", "folder", "environment")}, list(streams)


class WarmProcess:
    """A warm process for the time of a workflow; jobs find it by PIPELAG_WARM in their environment."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, log: str | Path) -> None:
        """Start it beside the caller, and let it write to `log`; where forks cannot be watched there is none."""
        if self.process is not None or not hasattr(os, "pidfd_open"):
            return
        self.folder = tempfile.TemporaryDirectory(prefix="pipelag-warm-")  # readable by its owner alone
        path = Path(self.folder.name, "socket")
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as text:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipelag.warm", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=text,
                stderr=text,
                start_new_session=True,  # the keyboard's signals are for the jobs, which pass them on
                env=os.environ | {PARENT: str(os.getpid())},
            )
        while not path.exists() and self.process.poll() is None:
            time.sleep(0.01)
        os.environ["PIPELAG_WARM"] = str(path)

    def stop(self) -> None:
        """End it; no job is under way any more."""
        os.environ.pop("PIPELAG_WARM", None)
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.folder.cleanup()
            self.process = None


def main() -> int:
    """Serve on the socket that the command line names."""
    leave_with_parent()
    server = Server(Path(sys.argv[1]))  # first, so that clients wait for it instead of starting by themselves
    load()
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
