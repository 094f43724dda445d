"""Atomic checkpoints: written aside, flushed to the disk, then renamed over the old one. A partial one is never read.

Before a run resumes from a checkpoint, its sums (the CRC-32 of each member in torch's archive) and its owner (the
archive's comment) are checked. A checkpoint that does not match is set aside.
"""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from pipelag.errors import PipelagError


def save(state: dict[str, Any], path: Path, keep: bool = False, of: str = "", earlier: bool = False) -> None:
    """Replace the checkpoint at `path`.

    Args:
        keep: move the checkpoint that was there to `before(path)`.
        of: the checkpoint's owner, such as a run's id.
        earlier: there is an older checkpoint elsewhere; an error message then says that one is kept.

    Raises:
        PipelagError: the disk is full or not writable; the checkpoint that was there stays intact.
    """
    try:
        _replace(state, path, keep, of)
    except OSError as error:
        kept = earlier or path.exists() or before(path).exists()
        outcome = "the one before it is kept" if kept else "none is kept"
        raise PipelagError(
            f"the checkpoint {path} could not be written ({error.strerror}); {outcome}: free some space and start again"
        ) from error


def save_whole(state: dict[str, Any], path: Path) -> None:
    """Write tensors so that a reader sees the old file or the new one, never a part.

    Raises:
        PipelagError: the path cannot be written, or the disk is full; `path` is as it was.
    """
    try:
        _replace(state, path)
    except OSError as error:
        raise PipelagError(
            f"{path} could not be written ({error.strerror}); free some space and start again"
        ) from error


def _replace(state: dict[str, Any], path: Path, keep: bool = False, of: str = "") -> None:
    """Write aside, then rename; raises OSError. The name aside is always the same, so kills leave at most one file."""
    aside = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(state, aside, of)
        if keep and path.exists():
            os.replace(path, before(path))
        os.replace(aside, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the rename itself survives a power cut
        finally:
            os.close(folder)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise


def _write(state: dict[str, Any], path: Path, of: str) -> None:
    """Write the state as torch's archive; it is on the disk when this returns. Raises OSError."""
    try:
        with open(path, "wb") as file:
            torch.save(state, file)
            if of:  # an archive without a comment ends with the comment's length, 0
                file.seek(-2, os.SEEK_END)
                file.write(len(of.encode()).to_bytes(2, "little") + of.encode())
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # what torch raises when a write fails
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise OSError(None, str(error).splitlines()[0]) from error
        raise cause from error


def before(path: Path) -> Path:
    """The path to which `save` moves the checkpoint at `path` if it is to be kept."""
    return path.with_name(f"{path.stem}-before{path.suffix}")


def load(path: Path, of: str = "") -> dict[str, Any] | None:
    """The checkpoint at `path`, on the CPU; None if there is none, or only a damaged one, which is set aside.

    Args:
        of: the owner that it should have.

    Raises:
        PipelagError: it cannot be opened (then it stays, as it need not be damaged), or is damaged and cannot be set
            aside.
    """
    with suppress(OSError):
        path.with_suffix(".tmp").unlink(missing_ok=True)
    if not path.exists():
        return None
    if path.is_file():  # never open a pipe: if nobody writes to it, that blocks
        try:
            path.open("rb").close()
        except OSError as error:
            raise PipelagError(
                f"the checkpoint {path} cannot be opened ({error.strerror}); fix that and start again"
            ) from error
    try:
        if whole(path, of):
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
    except (RuntimeError, EOFError, ValueError, OSError, pickle.UnpicklingError):
        pass
    aside = path.with_suffix(".damaged")
    try:
        os.replace(path, aside)
    except OSError as error:
        raise PipelagError(
            f"the checkpoint {path} is damaged and cannot be set aside as {aside.name} ({error.strerror}); remove "
            "both files"
        ) from error
    print(f"pipelag: the checkpoint {path} is damaged and was set aside as {aside.name}", file=sys.stderr)
    return None


def whole(path: Path, of: str = "") -> bool:
    """Whether every member of the archive matches its sum, and the archive's owner is `of`."""
    try:
        if not path.is_file():  # a pipe, as in `load`
            return False
        with zipfile.ZipFile(path) as archive:
            return archive.comment == of.encode() and archive.testzip() is None
    except Exception:  # with a flipped bit it may want a password or an unknown compression, or be from before 1980
        return False
