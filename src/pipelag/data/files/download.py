"""Download one file over HTTP: resumed, retried, verified, landed by rename.

What has arrived is kept in `<name>.part`; a cut connection, a kill or a full disk costs only what is still missing.
A file that has changed on the server meanwhile is begun anew.
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
from tqdm import tqdm

from pipelag.data.files.compressed import strange
from pipelag.data.files.manifest import Sums
from pipelag.errors import PipelagError
from pipelag.files import is_watched

TIMEOUT = 30.0  # seconds without a byte
RETRIES = 4  # in a row without progress, per address
SLOWEST = 1000  # bytes per second that a connection has to give on average, or it is opened anew
WINDOW = 60.0  # seconds over which that is looked at
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
    """Bring a file to `target`, from the first of the addresses that gives it whole and right.

    Two processes may ask for the same file at once: one downloads, the other waits and finds it done.

    Args:
        addresses: tried in turn; a partial file is continued from whichever answers.
        target: appears only when size and sum are right. One that is there and wrong is kept aside as `<name>.bad`.
        sums: what the manifest states; None where it states nothing: the server's word on the size is taken then, and
            the file must begin as those of its kind do.
        most_bytes: of a file without sums.
        pause: seconds before the first retry of an address.

    Raises:
        Unavailable: no address gave the right file; what a wrong one gave is kept aside as `<name>.bad`.
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
                if sums is None:  # nothing would tell that a part is that of another file
                    part.unlink(missing_ok=True)
                joined = _complete(address, part, size, pause)
                complaint = _complaint(part, target, sums)
                if joined and complaint is not None:  # halves of two files, it may be
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
        note = f" ({there:,} bytes are kept, the next try goes on from there)" if there else ""
        raise Unavailable(f"{target.name} could not be downloaded{note}: {'; '.join(reasons)}")


def _complaint(part: Path, target: Path, sums: Sums | None) -> str | None:
    """What is wrong with what has come; None where nothing is, as far as anybody can tell."""
    return sums.complaint(part) if sums is not None else strange(part, target.name)


@contextmanager
def locked(target: Path, waiting: str) -> Iterator[None]:
    """Hold `<target>.lock`; print `waiting` if another process holds it. The folder is made where it is missing."""
    lock = FileLock(target.with_name(target.name + ".lock"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        print(waiting, file=sys.stderr)
        lock.acquire()
    except OSError as error:
        raise PipelagError(
            f"{target.parent} cannot be written ({error.strerror}); name another folder with PIPELAG_DATA (data sets "
            "that lie here whole are read where PIPELAG_MIRROR names this one)"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _stated_size(address: str, most: int, pause: float) -> int:
    """The bytes that a server says a file has; refused where it says nothing, or more than `most`."""
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
    """Whether a server would answer the same again: it refuses the request, and is not just busy."""
    return error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR and error.code != http.HTTPStatus.TOO_MANY_REQUESTS


def _request(address: str) -> urllib.request.Request:
    return urllib.request.Request(address, headers={"User-Agent": "pipelag"})


def _complete(address: str, part: Path, size: int, pause: float) -> bool:
    """Append to `part` until it has `size` bytes; a connection that is cut is opened again where it was cut.

    Returns whether it is joined of several pieces.
    """
    joined, source = _size(part) > 0, _Source(address)
    bar = tqdm(
        total=size,
        initial=_size(part),
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        desc=part.stem,
        mininterval=0.1 if is_watched() else 10.0,
    )
    failures = 0
    # Unbuffered, so that on a full disk nothing is left to be written when the file is closed.
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
    """An address, and the name or the date by which its server knows again the file that it has begun to give."""

    address: str
    stamp: str = ""

    def stamped(self, headers: http.client.HTTPMessage) -> None:
        """Of a whole answer; a weak name may stand for other bytes (RFC 9110, section 13.1.5)."""
        name = headers.get("ETag", "")
        self.stamp = name if name.startswith('"') else headers.get("Last-Modified", "")


@dataclass
class Pace:
    """Whether a connection gives enough: looked at once in a `WINDOW`."""

    have: int
    since: float = field(default_factory=time.monotonic)

    def slow(self, have: int) -> bool:
        """With `have` bytes now."""
        now = time.monotonic()
        if now - self.since < WINDOW:
            return False
        slow = have - self.have < SLOWEST * (now - self.since)
        self.have, self.since = have, now
        return slow


def _answer(request: urllib.request.Request) -> http.client.HTTPResponse:
    """The open answer to a request, in a `WINDOW` or never: a name may not resolve, a header trickle in."""
    answers: Queue[Any] = Queue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(request, timeout=TIMEOUT))
        except BaseException as error:  # raised by who waits
            answers.put(error)

    Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=WINDOW)
    except Empty:
        raise TimeoutError(f"no whole answer in {WINDOW:g} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer  # type: ignore[no-any-return]


def _continue(source: _Source, file: io.FileIO, size: int, bar: tqdm[Any]) -> str | None:
    """One connection: append what it gives. Returns why it ended early, None if it did not."""
    have = file.tell()
    request = _request(source.address)
    if have:
        request.add_header("Range", f"bytes={have}-")
    if have and source.stamp:  # of another file the server gives all
        request.add_header("If-Range", source.stamp)
    try:
        with _answer(request) as answer:
            whole = not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if whole:
                source.stamped(answer.headers)
            if have and whole:
                stated = answer.headers.get("Content-Length", str(size))
                if stated != str(size):  # an error page, say: what is there is not given up for that
                    raise _AddressFails(f"the server gives a file of {stated} bytes instead of {size:,}")
                file.truncate(0)  # this server knows no ranges, or has another file now: it starts over
                file.seek(0)
                bar.reset()
            _require_space(file, size)
            pace = Pace(file.tell())
            while file.tell() < size and (chunk := answer.read1(min(_CHUNK, size - file.tell()))):  # what is there
                _write(file, chunk)
                bar.update(len(chunk))
                if pace.slow(file.tell()):
                    return f"the server gives less than {SLOWEST:,} bytes a second"
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _AddressFails(f"the file is truncated there, it ends after {have:,} of {size:,} bytes") from error
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
