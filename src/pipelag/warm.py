"""A warm process that forks: a workflow's jobs start with matplotlib and torch loaded, in milliseconds, not seconds.

    python -m pipelag.warm SOCKET

serves `pipelag` commands on a Unix socket until its parent is gone; Snakemake starts one (`WarmProcess`). The client is
`job.py` in this folder, which needs only Python's standard library. It passes the command's words, its working
directory, its environment, and its standard output and error. A fork of this process then carries the command out as if
it had been started by itself. If the client ends, the fork is killed; a signal to the client reaches the fork. Torch
runs nothing in this process, because a fork would lack the threads that torch starts. A command that starts workers
(`pipelag.distributed.launch`) starts clients instead, so that its workers are forks, too.

Torch and other modules that compute are loaded when the first command that does not draw comes. A fork that draws
stays and takes the next command that draws, so that config, schedules and fonts need not be read again. There are as
many such forks as have ever drawn at the same time.
"""

from __future__ import annotations

import array
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pipelag.job import PARENT, QUIET, end_with_parent, leave_with_parent, open_streams, send

DRAWING = (  # modules for commands that draw; importing them computes nothing
    "pandas",
    "matplotlib.pyplot",
    "pipelag.__main__",
    "pipelag.commands.result",
    "pipelag.commands.report",
    "pipelag.report.frames",
)
COMPUTING = (  # further modules for most other commands; loading them takes four times as long
    "torch",
    "torch._dynamo",  # imported by every optimizer when it is made, which takes 2 s
    "torchvision",
    "sklearn.datasets",
    "sacrebleu",
    "pipelag.commands.run",
    "pipelag.runs.kinds.train_simulated",
    "pipelag.runs.kinds.speed",
    "pipelag.runs.kinds.partition",
    "pipelag.runs.kinds.theory",
    "pipelag.runs.kinds.timeline",
)
STAY = ("result", "report")  # commands that leave nothing in their process but caches of what they have read
FOLDER = "pipelag-warm-"  # the beginning of the folder's name, among other temporary files
MOST = 1 << 20  # the most bytes of a request


def load(names: Sequence[str]) -> None:
    """Import the modules that forks will need; an import that fails is left to the forks."""
    import matplotlib

    matplotlib.use("Agg")
    for name in names:
        with suppress(ImportError):
            import_module(name)


def carry_out(request: dict[str, Any], streams: Sequence[int]) -> int:
    """In a fork: carry out the requested command; returns its exit code.

    streams: the file descriptors for standard output and error.
    """
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"] | {PARENT: str(os.getppid())})  # this fork's parent, not the client's
    os.chdir(request["folder"])
    words = request["words"]
    sys.argv = ["pipelag", *words]  # recorded in a run's environment.json
    module, words = (words[1], words[2:]) if words[:1] == ["-m"] else ("pipelag.__main__", words)
    try:
        return import_module(module).main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
    finally:
        for output in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                output.flush()


def work(control: socket.socket) -> NoReturn:
    """In a fork: carry out the requests that come over `control` and send exit codes back, until it is closed."""
    os.setsid()  # a process group of its own, so that the processes it starts end with it
    end_with_parent()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError, KeyboardInterrupt):
        while True:
            code = carry_out(*receive(control))
            for number in (1, 2):  # close the command's output, so that its reader sees the end
                os.dup2(nowhere, number)
            control.sendall(bytes([code & 255]))
    os._exit(1)  # no exit code was sent, or the server has it and has closed `control`


def pass_on(process: int, number: int) -> None:
    """Send a signal to a fork's process group; only to the fork if it has not made its group yet."""
    for kill in (os.killpg, os.kill):
        try:
            kill(process, number)
            return
        except ProcessLookupError:  # there is no such group yet; or no such process: it has ended
            continue


@dataclass
class Fork:
    """A fork, the server's end of its control connection, and the client that it works for; None: it waits for work."""

    process: int
    control: socket.socket
    client: socket.socket | None = None


class Server:
    """Accepts clients, and keeps the forks that work for them or wait."""

    def __init__(self, path: Path) -> None:
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        aside = path.with_name("new")
        self.listening.bind(str(aside))
        os.chmod(aside, 0o600)
        self.listening.listen(128)
        aside.rename(path)  # whoever finds the name can connect
        self.watch = selectors.DefaultSelector()
        self.watch.register(self.listening, selectors.EVENT_READ, self.begin)
        self.parent = os.getppid()
        self.waiting: list[Fork] = []
        self.computes = False  # whether COMPUTING has been loaded

    def serve(self) -> None:
        """Handle events until the parent is gone."""
        while os.getppid() == self.parent:
            for key, _ in self.watch.select(timeout=2.0):
                live = self.watch.get_map().get(key.fd)
                if live is not None and live.fileobj is key.fileobj:  # an event before this one may have closed it
                    key.data()

    def begin(self) -> None:
        """Accept a client, and give its request to a waiting fork or to a new one."""
        client, _ = self.listening.accept()
        try:
            request, streams = receive(client)
        except (OSError, ValueError, KeyError):
            client.close()
            return
        stays = request["words"][:1] in ([name] for name in STAY)
        if not stays and not self.computes:  # a workflow that only draws never comes here
            load(COMPUTING)
            self.computes = True
        fork = self.waiting.pop() if stays and self.waiting else None
        if fork is not None:
            self.watch.unregister(fork.control)
            try:
                send(fork.control, request, streams)
            except OSError:  # it was killed a moment ago
                self.end(fork)
                fork = None
        if fork is None:
            fork = self.fork(client, streams)
            with suppress(OSError):  # if it is killed at once, `done` tells the client
                send(fork.control, request, streams)
        fork.client = client
        for stream in streams:
            os.close(stream)

        def done() -> None:
            """Handle the fork's exit code, or its end without one."""
            code = b""
            with suppress(OSError):
                code = fork.control.recv(1)
            self.watch.unregister(fork.control)
            if code and stays:
                self.waiting.append(fork)
                self.watch.register(fork.control, selectors.EVENT_READ, partial(self.bury, fork))
            else:
                ended = self.end(fork)
                code = code or bytes([ended if ended >= 0 else 128 - ended])
            if fork.client is not None:
                with suppress(OSError):
                    fork.client.sendall(code)
                self.watch.unregister(fork.client)
                fork.client.close()
                fork.client = None

        def heard() -> None:
            """Handle a signal that the client passes on, or the client's end."""
            word = b""
            with suppress(OSError):
                word = client.recv(1)
            pass_on(fork.process, word[0] if word else signal.SIGKILL)
            if not word:
                self.watch.unregister(client)
                client.close()
                fork.client = None

        self.watch.register(fork.control, selectors.EVENT_READ, done)
        self.watch.register(client, selectors.EVENT_READ, heard)

    def end(self, fork: Fork) -> int:
        """Let a fork end; returns its exit code."""
        fork.control.close()
        _, status = os.waitpid(fork.process, 0)
        return os.waitstatus_to_exitcode(status)

    def bury(self, fork: Fork) -> None:
        """Remove a waiting fork that has ended."""
        self.watch.unregister(fork.control)
        self.waiting.remove(fork)
        self.end(fork)

    def fork(self, client: socket.socket, streams: Sequence[int]) -> Fork:
        """Start a fork, which waits for a request; it closes all of the server's connections."""
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            for each in (*(key.fileobj for key in self.watch.get_map().values()), client, ours):
                assert isinstance(each, socket.socket)
                each.close()
            for stream in streams:  # the fork gets them over its control connection
                os.close(stream)
            self.watch.close()
            work(theirs)
        theirs.close()
        return Fork(child, ours)


def receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive a request, one line of JSON, and the two file descriptors that come with it.

    Raises:
        ValueError: the connection is closed, or what came is no request.
    """
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


def remove_abandoned() -> None:
    """Remove folders of warm processes that were killed: generated data are in them, and nobody listens there."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            about = folder.stat()
            age = time.time() - about.st_mtime
            if about.st_uid == os.getuid() and age > 60:  # a younger one may not listen yet
                try:
                    asked.connect(str(folder / "socket"))
                except ConnectionRefusedError:
                    shutil.rmtree(folder, ignore_errors=True)
                except FileNotFoundError:
                    if age > 3600:  # killed before it listened
                        shutil.rmtree(folder, ignore_errors=True)


class WarmProcess:
    """A warm process for the duration of a workflow; jobs find it by PIPELAG_WARM in their environment."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.socket = ""

    def start(self, log: str | Path) -> None:
        """Start the process, whose output goes to `log`; does nothing on a system without pidfd_open."""
        if self.process is not None or not hasattr(os, "pidfd_open"):
            return
        remove_abandoned()
        self.folder = tempfile.TemporaryDirectory(prefix=FOLDER)  # readable by its owner alone
        path = Path(self.folder.name, "socket")
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as text:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipelag.warm", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=text,
                stderr=text,
                start_new_session=True,  # signals from the keyboard go to the jobs, which pass them on
                # torch reads its log level when it is loaded in this process, for all forks
                env=QUIET | os.environ | {PARENT: str(os.getpid())},
            )
        while not path.exists() and self.process.poll() is None:
            time.sleep(0.01)
        self.socket = os.environ["PIPELAG_WARM"] = str(path)

    def stop(self) -> None:
        """Kill the process. Call this when no job is running any more."""
        os.environ.pop("PIPELAG_WARM", None)
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.folder.cleanup()
            self.process = None


def main() -> int:
    """Serve on the socket that the command line names."""
    leave_with_parent()
    open_streams()  # here, for the forks: a fork's streams are replaced later, when Python cannot set them up any more
    server = Server(Path(sys.argv[1]))  # before loading, so that clients wait for it instead of starting by themselves
    tempfile.tempdir = str(Path(sys.argv[1]).parent)  # where matplotlib keeps what a home that is read only cannot
    load(DRAWING)
    tempfile.tempdir = None
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
