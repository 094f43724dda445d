"""Carry out a `pipelag` command in a fork of the warm process, or, where there is none, by starting it.

    python -S -I workflow/scripts/job.py run --spec ...

Nothing but Python's own library, so that it starts in an instant. PIPELAG_WARM names the warm process's socket.
"""

import array
import json
import os
import signal
import socket
import sys


def connected():
    """A connection to the warm process; None where there is none."""
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


def main(words):
    """Ask, wait, exit as the command does."""
    connection = connected()
    if connection is None:
        os.execv(sys.executable, [sys.executable, "-m", "pipelag", *words])
    request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))]
    text = json.dumps(request).encode() + b"\n"
    sent = connection.sendmsg([text], streams)
    if text[sent:]:  # of nothing, a send would fail where the answer is here already and the other end closed
        connection.sendall(text[sent:])
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, frame: connection.send(bytes([number])))
    code = connection.recv(1)
    if not code:
        print("job.py: the warm process is gone; see its log, and start the workflow again", file=sys.stderr)
        return 1
    return code[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
