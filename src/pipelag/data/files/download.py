"""Download one file over HTTP: resume, retry, verify, and put it in place by a rename.

What has arrived is kept in `<name>.part`, so that after a lost connection, a kill or a full disk only the rest has to
be downloaded. If the file has changed on the server meanwhile, the download starts over.
"""

from __future__ import annotations

import errno
import http
import http.client
import io
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from filelock import FileLock, Timeout

from pipelag.compat.bars import Bar
from pipelag.data.files.compressed import strange
from pipelag.data.files.manifest import Sums
from pipelag.errors import PipelagError
from pipelag.files import is_watched

TIMEOUT = 30.0  # seconds without a byte
RETRIES = 4  # in a row without progress, per address
SLOWEST = 1000  # bytes per second: a connection that is slower on average is opened again
WINDOW = 60.0  # seconds over which that average is taken
PAUSE = 0.5  # seconds before the first retry, doubled with each
_CHUNK = 1 << 18
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Unavailable(PipelagError):
    """No address gave the right file."""


class _AddressFails(Exception):
    """This address does not give the file; the next one may."""


def download(
    addresses: Sequence[str], target: Path, sums: Sums | None, *, most_bytes: int = 0, pause: float = PAUSE
) -> None:
    """Download a file to `target` from the first of the addresses that gives the right file.

    Two processes may ask for the same file at once: one downloads, and the other waits until it is there.

    Args:
        addresses: tried in turn; a partial file is continued from any of them.
        target: appears only when size and sum are right. A wrong file that is there is kept aside as `<name>.bad`.
        sums: the size and sums that the manifest states. None: the size is the one that the server states, and the file
            must begin as files with its suffix do.
        most_bytes: the largest size of a file without sums.
        pause: seconds before the first retry of an address.

    Raises:
        Unavailable: no address gave the right file; a wrong one is kept aside as `<name>.bad`.
        PipelagError: the disk is full, or the folder cannot be written.
    """
    with locked(target, f"another process is fetching {target.name}; waiting for it"):
        bad = target.with_name(target.name + ".bad")
        part = target.with_name(target.name + ".part")
        if target.exists():
            if sums is None or sums.complaint(target) is None:
                return
            target.replace(bad)
        reasons = []
        for address in addresses:
            try:
                size = _stated_size(address, most_bytes, pause) if sums is None else sums.bytes
                if sums is None:  # without sums, a part of another file would go unnoticed
                    part.unlink(missing_ok=True)
                joined = _complete(address, part, size, pause)
                complaint = _complaint(part, target, sums)
                if joined and complaint is not None:  # the pieces may be of two different files
                    part.unlink()
                    _complete(address, part, size, pause)
                    complaint = _complaint(part, target, sums)
            except _AddressFails as error:
                reasons.append(f"{address}: {error}")
                continue
            if complaint is None:
                part.replace(target)
                return
            part.replace(bad)
            reasons.append(f"{address}: the file {complaint} (kept aside as {bad})")
        there = _size(part) if sums is not None else 0
        note = f" ({there:,} bytes are kept, and the next try continues from there)" if there else ""
        raise Unavailable(f"{target.name} could not be downloaded{note}: {'; '.join(reasons)}")


def _complaint(part: Path, target: Path, sums: Sums | None) -> str | None:
    """What is wrong with the downloaded file; None if nothing is known to be wrong."""
    return sums.complaint(part) if sums is not None else strange(part, target.name)


@contextmanager
def locked(target: Path, waiting: str) -> Iterator[None]:
    """Hold `<target>.lock`; print `waiting` if another process holds it. A missing folder is made."""
    lock = FileLock(target.with_name(target.name + ".lock"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        print(waiting, file=sys.stderr)
        lock.acquire()
    except OSError as error:
        raise PipelagError(
            f"{target.parent} cannot be written to ({error.strerror}); name another folder with PIPELAG_DATA (to read "
            "complete data sets from this one, name it in PIPELAG_MIRROR)"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _stated_size(address: str, most: int, pause: float) -> int:
    """A file's size in bytes as the server states it.

    Raises:
        _AddressFails: the server states no size, or one above `most`, or does not answer.
    """
    for attempt in range(RETRIES + 1):
        try:
            with _answer(_request(address)) as answer:
                stated = answer.headers.get("Content-Length")
            break
        except urllib.error.HTTPError as error:
            if _is_final(error) or attempt == RETRIES:
                raise _AddressFails(f"HTTP {error.code} {error.reason}") from error
        except (http.client.HTTPException, OSError) as error:
            if attempt == RETRIES:
                raise _AddressFails(str(getattr(error, "reason", error)) or type(error).__name__) from error
        time.sleep(pause * 2**attempt)
    if stated is None or not stated.isdecimal() or not 0 < int(stated) <= most:
        raise _AddressFails(f"the server says that the file has {stated or 'unknown'} bytes; 1 to {most:,} are allowed")
    return int(stated)


def _is_final(error: urllib.error.HTTPError) -> bool:
    """Whether a retry is useless: the server refuses the request, and is not just busy."""
    return error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR and error.code != http.HTTPStatus.TOO_MANY_REQUESTS


def _request(address: str) -> urllib.request.Request:
    return urllib.request.Request(address, headers={"User-Agent": "pipelag"})


def _complete(address: str, part: Path, size: int, pause: float) -> bool:
    """Append to `part` until it has `size` bytes; a connection that is lost is opened again at that place.

    Returns whether the file is joined from several pieces.
    """
    joined, source = _size(part) > 0, _Source(address)
    bar = Bar(
        total=size,
        initial=_size(part),
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        desc=part.stem,
        mininterval=0.1 if is_watched() else 10.0,
    )
    failures = 0
    # Unbuffered, so that on a full disk closing the file has nothing left to write.
    with bar, io.FileIO(part, "ab") as file:
        while (have := file.tell()) < size:
            began = time.monotonic()
            cut = _continue(source, file, size, bar)
            if cut is None:
                continue
            joined = file.tell() > 0
            progress = file.tell() - have > SLOWEST * (time.monotonic() - began)
            failures = 0 if progress else failures + 1
            if failures > RETRIES:
                raise _AddressFails(f"{cut}, after {file.tell():,} of {size:,} bytes")
            time.sleep(pause * 2**failures)
        os.fsync(file.fileno())
    return joined


@dataclass
class _Source:
    """An address, and the ETag or the date by which its server can tell that the file is still the same."""

    address: str
    stamp: str = ""

    def stamped(self, headers: http.client.HTTPMessage) -> None:
        """Keep the stamp of a whole answer; a weak ETag may stand for other bytes (RFC 9110, section 13.1.5)."""
        name = headers.get("ETag", "")
        self.stamp = name if name.startswith('"') else headers.get("Last-Modified", "")


@dataclass
class Pace:
    """Tells whether a connection is too slow, checked once in a `WINDOW`."""

    have: int
    since: float = field(default_factory=time.monotonic)

    def slow(self, have: int) -> bool:
        """Whether the connection, with `have` bytes now, was too slow in the last window; False within a window."""
        now = time.monotonic()
        if now - self.since < WINDOW:
            return False
        slow = have - self.have < SLOWEST * (now - self.since)
        self.have, self.since = have, now
        return slow


def _answer(request: urllib.request.Request) -> http.client.HTTPResponse:
    """The open answer to a request; raises `TimeoutError` after a `WINDOW`.

    urllib's own timeout does not cover a name that does not resolve, or headers that trickle in.
    """
    answers: Queue[Any] = Queue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(request, timeout=TIMEOUT))
        except BaseException as error:  # raised in the thread that waits
            answers.put(error)

    Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=WINDOW)
    except Empty:
        raise TimeoutError(f"no complete answer within {WINDOW:g} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer  # type: ignore[no-any-return]


def _continue(source: _Source, file: io.FileIO, size: int, bar: Bar) -> str | None:
    """Open one connection and append what it gives. Returns why it ended early; None if it did not."""
    have = file.tell()
    request = _request(source.address)
    if have:
        request.add_header("Range", f"bytes={have}-")
    if have and source.stamp:  # if the file has changed, the server sends all of it
        request.add_header("If-Range", source.stamp)
    try:
        with _answer(request) as answer:
            whole = not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if whole:
                source.stamped(answer.headers)
            if have and whole:
                stated = answer.headers.get("Content-Length", str(size))
                if stated != str(size):  # an error page, say: what is there is not given up for that
                    raise _AddressFails(f"the server sends a file of {stated} bytes instead of {size:,}")
                file.truncate(0)  # this server knows no ranges, or has another file now: it starts over
                file.seek(0)
                bar.reset()
            _require_space(file, size)
            pace = Pace(file.tell())
            while file.tell() < size and (chunk := answer.read1(min(_CHUNK, size - file.tell()))):  # what has arrived
                _write(file, chunk)
                bar.update(len(chunk))
                if pace.slow(file.tell()):
                    return f"the server sends less than {SLOWEST:,} bytes a second"
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _AddressFails(
                f"the file is truncated on the server: it ends after {have:,} of {size:,} bytes"
            ) from error
        if _is_final(error):
            raise _AddressFails(f"HTTP {error.code} {error.reason}") from error
        return f"HTTP {error.code} {error.reason}"
    except (http.client.HTTPException, OSError) as error:
        if getattr(error, "errno", None) in _FULL:
            raise _full(file, size) from error
        return str(getattr(error, "reason", error)) or type(error).__name__
    return None if file.tell() == size else "the connection was cut"


def _write(file: io.FileIO, chunk: bytes) -> None:
    unwritten = memoryview(chunk)
    while unwritten:  # an unbuffered write may take less than it is given
        unwritten = unwritten[file.write(unwritten) :]


def _require_space(file: io.FileIO, size: int) -> None:
    if shutil.disk_usage(Path(str(file.name)).parent).free < size - file.tell():
        raise _full(file, size)


def _full(file: io.FileIO, size: int) -> PipelagError:
    part = Path(str(file.name))
    return PipelagError(
        f"no space left for {part.stem}: {size - file.tell():,} more bytes are needed in {part.parent}; free them and "
        f"run again ({file.tell():,} bytes are kept)"
    )
