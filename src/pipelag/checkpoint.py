"""Atomic checkpoints: written aside, flushed to the disk, then renamed over the old one. A torn one is never read.

Their sums (the CRC-32 that torch's archives hold of each member) are checked before a run goes on from one; one that
does not match is set aside.
"""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from pipelag.errors import PipelagError


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from writing their checkpoints into a folder. Kept by a lock that dies with the process.

    Raises:
        PipelagError: another process is at work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise PipelagError(f"another process is at work in {folder}; wait for it, or choose another folder") from error
    try:
        yield
    finally:
        lock.release()


def save(state: dict[str, Any], path: Path, keep: bool = False) -> None:
    """Replace the checkpoint at `path`; keep: leave the one that was there at `before(path)`.

    Raises:
        PipelagError: the disk is full or not writable; the checkpoint that was there stays whole.
    """
    aside = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        if keep and path.exists():
            os.replace(path, before(path))
        os.replace(aside, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself must survive a power cut
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
        aside.unlink(missing_ok=True)
        kept = "the one before it is kept" if path.exists() or before(path).exists() else "none is kept"
        raise PipelagError(
            f"the checkpoint {path} could not be written ({_reason(error)}); {kept}: free some space and start again"
        ) from error


def before(path: Path) -> Path:
    """Where the checkpoint goes that one at `path` replaces, if it is kept."""
    return path.with_name(f"{path.stem}-before{path.suffix}")


def load(path: Path) -> dict[str, Any] | None:
    """The checkpoint at `path`, on the CPU; None if there is none, or only a damaged one, which is set aside."""
    path.with_suffix(".tmp").unlink(missing_ok=True)
    if not path.exists():
        return None
    try:
        if whole(path):
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
        pass
    aside = path.with_suffix(".damaged")
    os.replace(path, aside)
    print(f"pipelag: the checkpoint {path} is damaged and was set aside as {aside.name}", file=sys.stderr)
    return None


def whole(path: Path) -> bool:
    """Whether every member of the archive has the sum that it was written with."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, OSError):
        return False


def _reason(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]
