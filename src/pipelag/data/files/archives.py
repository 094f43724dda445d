"""Read archives that somebody else made: no member outside the folder, no links, no bombs."""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from pipelag.errors import PipelagError

LIMIT = 8 << 30  # bytes that an archive may hold, unpacked

_File = tuple[str, int, Callable[[], bytes]]  # path as the archive gives it, stated size, how to read it


def members(
    archive: Path, limit: int = LIMIT, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, bytes]]:
    """The files of a tar (any compression) or a zip, in its order: path and content. Nothing is written to disk.

    Args:
        wanted: of a path; the others are checked like these, but not read.

    Raises:
        PipelagError: no archive, cut short, over `limit` bytes unpacked, or with a member that is a link or a device,
            or whose path is absolute or climbs out with `..`.
    """
    total = 0
    try:
        for name, size, read in (_zip_files if zipfile.is_zipfile(archive) else _tar_files)(archive):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0]:
                raise PipelagError(f"{archive.name} is unsafe: its member '{name}' would land outside the folder")
            total += size
            if total > limit:
                raise PipelagError(f"{archive.name} is unsafe: it unpacks to more than {limit:,} bytes")
            if wanted(name):
                yield name, read()
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise PipelagError(f"{archive} is not a whole tar or zip archive: {error}") from error


def unpack(archive: Path, folder: Path, limit: int = LIMIT) -> None:
    """Unpack into a new folder, which appears by rename once everything is in it.

    Raises:
        PipelagError: as `members`; or `folder` exists already.
    """
    if folder.exists():
        raise PipelagError(f"{folder} exists already; remove it, and {archive.name} will be unpacked there")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        inside = Path(scratch) / folder.name
        inside.mkdir()
        for name, content in members(archive, limit):
            target = inside / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        os.replace(inside, folder)


def _tar_files(archive: Path) -> Iterator[_File]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            file = tar.extractfile(member) if member.isfile() else None
            if file is None:
                raise PipelagError(f"{archive.name} is unsafe: its member '{member.name}' is a link or a device")
            yield member.name, member.size, file.read


def _zip_files(archive: Path) -> Iterator[_File]:
    with zipfile.ZipFile(archive) as whole:
        for member in whole.infolist():
            if member.is_dir():
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                raise PipelagError(f"{archive.name} is unsafe: its member '{member.filename}' is a link or a device")
            yield member.filename, member.file_size, partial(whole.read, member)
