"""Read archives that somebody else made: no member outside the folder, no links, no bombs."""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path, PurePosixPath

from pipelag.data.files.compressed import Bounded, opened, reason
from pipelag.errors import PipelagError

LIMIT = 8 << 30  # bytes that an archive may hold, unpacked
LARGEST = 2 << 30  # bytes of one file, which is read at once
MOST = 2_000_000  # files
HEADER = 1 << 20  # bytes of a tar's extended header

_File = tuple[str, int, Callable[[], bytes]]  # path as the archive gives it, stated size, how to read it


def members(
    archive: Path, limit: int = LIMIT, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, bytes]]:
    """The files of a tar (any compression) or a zip, in its order: path and content. Nothing is written to disk.

    Args:
        wanted: of a path; the others are checked like these, but not read.

    Raises:
        PipelagError: no archive, cut short, damaged or encrypted; over `limit` bytes unpacked, or a file over
            `LARGEST`; or with a member that is a link or a device, or whose path is absolute or climbs out with `..`.
    """
    total = 0
    is_zip = zipfile.is_zipfile(archive) if archive.is_file() else None
    if is_zip is None:
        raise PipelagError(f"{archive} is not a complete tar or zip archive: it is not a file")
    try:
        for number, (name, size, read) in enumerate(_zip_files(archive) if is_zip else _tar_files(archive, limit)):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or {*"\\\0"} & {*name} or ":" in (path.parts or ":")[0]:
                raise PipelagError(f"{archive.name} is unsafe: its member '{name}' would land outside the folder")
            total += size
            if total > limit:
                raise PipelagError(f"{archive.name} is unsafe: it unpacks to more than {limit:,} bytes")
            if size > LARGEST or number >= MOST:
                what = f"its member '{name}' has {size:,} bytes" if size > LARGEST else f"it has over {MOST:,} members"
                raise PipelagError(f"{archive.name} is unsafe: {what}")
            if wanted(name):
                yield name, read()
    except PipelagError:
        raise
    except Exception as error:  # on foreign bytes these libraries raise what they like
        raise PipelagError(f"{archive} is not a complete tar or zip archive: {reason(error)}") from error


def unpack(archive: Path, folder: Path, limit: int = LIMIT) -> None:
    """Unpack into a new folder, which appears by rename once everything is in it.

    Raises:
        PipelagError: as `members`; or `folder` exists already.
    """
    if folder.exists():
        raise PipelagError(f"{folder} exists already; remove it, and {archive.name} will be unpacked there")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            inside = Path(scratch) / folder.name
            inside.mkdir()
            for name, content in members(archive, limit):
                target = inside / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            os.replace(inside, folder)
    except OSError as error:  # of the folder: the archive's own are told by `members`
        raise PipelagError(
            f"{archive.name} could not be unpacked into {folder} ({error.strerror}); fix that and start again"
        ) from error


class _Member(tarfile.TarInfo):
    """A tar's header; those that say more of the next one are read at once, so they may not be long."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in tarfile.REGULAR_TYPES and self.size > HEADER:
            raise tarfile.ReadError(f"a header in it announces {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]


def _tar_files(archive: Path, limit: int) -> Iterator[_File]:
    stream = Bounded(opened(archive), 2 * limit + (1 << 20), archive.name)  # headers, padding and end included
    with closing(stream), tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member, bufsize=1 << 18) as tar:  # type: ignore[call-overload]
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # or all of them stay in memory
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
