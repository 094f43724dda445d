"""Read archives from untrusted sources: members outside the folder, links and decompression bombs are refused."""

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

LIMIT = 8 << 30  # the most bytes in an archive, unpacked
LARGEST = 2 << 30  # the most bytes in one file, which is read at once
MOST = 2_000_000  # the most files
HEADER = 1 << 20  # the most bytes in a tar's extended header

_File = tuple[str, int, Callable[[], bytes]]  # path as the archive gives it, stated size, how to read it


def members(
    archive: Path, limit: int = LIMIT, wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of the files in a tar (any compression) or a zip, in its order. Nothing is written to disk.

    Args:
        limit: the most bytes in all files, unpacked.
        wanted: whether to read the file with this path; the others are checked, but not read.

    Raises:
        PipelagError: the file is no archive, or is truncated, damaged or encrypted; it unpacks to more than `limit`
            bytes or has a file over `LARGEST`; or a member is a link or a device, or its path is absolute or leaves the
            folder with `..`.
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
    """Unpack an archive into a new folder, which is put in place by a rename once it is complete.

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
    except OSError as error:  # an error of the folder: `members` reports those of the archive
        raise PipelagError(
            f"{archive.name} could not be unpacked into {folder} ({error.strerror}); fix that and start again"
        ) from error


class _Member(tarfile.TarInfo):
    """A tar's header. An extended header, which describes the next member, is read at once, so its size is limited."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in tarfile.REGULAR_TYPES and self.size > HEADER:
            raise tarfile.ReadError(f"a header in it announces {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]


def _tar_files(archive: Path, limit: int) -> Iterator[_File]:
    stream = Bounded(opened(archive), 2 * limit + (1 << 20), archive.name)  # headers, padding and end included
    with closing(stream), tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member, bufsize=1 << 18) as tar:  # type: ignore[call-overload]
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # or all headers would stay in memory
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
