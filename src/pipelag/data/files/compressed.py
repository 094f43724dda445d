"""Read compressed files from untrusted sources: damaged ones are refused, and memory is limited."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pipelag.errors import PipelagError

MOST = 2 << 30  # the most bytes to which a file that is read at once may unpack
_MEMORY = 512 << 20  # the most bytes of memory that unpacking an xz file may need; xz -9 needs 65 million
_CHUNK = 1 << 20
KINDS = {  # the first bytes of files, by suffix
    ".gz": b"\x1f\x8b",
    ".tgz": b"\x1f\x8b",
    ".zip": b"PK",
    ".xz": b"\xfd7zXZ\x00",
    ".bz2": b"BZh",
}


def reason(error: BaseException) -> str:
    """An error's message in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def strange(path: Path, name: str) -> str | None:
    """Why a file's first bytes do not fit the suffix of `name`; None if they fit."""
    begins, page = KINDS.get(Path(name).suffix, b""), (b"<!doctype", b"<html")
    with path.open("rb") as file:
        head = file.read(20)
    if head.startswith(begins) and not head.lstrip().lower().startswith(page):
        return None
    return f"begins with {head!r}, which no {Path(name).suffix or 'such'} file does (an error page, perhaps)"


def decompressed(path: Path, most: int = MOST) -> bytes:
    """The content of a gzip or xz file.

    Raises:
        PipelagError: the file is of another kind, truncated or damaged, or unpacks to more than `most` bytes.
    """
    kind, parts, total = "xz" if path.suffix == ".xz" else "gzip", [], 0
    try:
        with path.open("rb") as file:
            kind = "xz" if file.read(6) == KINDS[".xz"] else kind  # whatever its name is
            file.seek(0)
            if not path.stat().st_size:
                raise EOFError("it is empty")
            for part in _xz(file) if kind == "xz" else iter(partial(gzip.GzipFile(fileobj=file).read, _CHUNK), b""):
                parts.append(part)
                total += len(part)
                if total > most:
                    raise PipelagError(f"{path} is unsafe: it unpacks to more than {most:,} bytes")
    except PipelagError:
        raise
    except Exception as error:  # on foreign bytes these libraries raise what they like
        raise PipelagError(f"{path} is not a complete {kind} file: {reason(error)}") from error
    return b"".join(parts)


def utf8(content: bytes, name: str) -> str:
    """The content as text; raises `PipelagError` if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PipelagError(f"{name} is not UTF-8 text: {error}") from error


def _xz(file: BinaryIO) -> Iterator[bytes]:
    """The content of all streams of an xz file, in parts of at most `_CHUNK` bytes."""
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
    while True:
        if decoder.eof:
            rest = decoder.unused_data or file.read(_CHUNK)
            while rest and not rest.strip(b"\0"):  # padding after a stream
                rest = file.read(_CHUNK)
            if not rest:
                return
            decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
            rest = rest.lstrip(b"\0")
        else:
            rest = file.read(_CHUNK) if decoder.needs_input else b""
            if decoder.needs_input and not rest:
                raise EOFError("it ends early")
        yield decoder.decompress(rest, max_length=_CHUNK)


class Bounded:
    """A decompressed stream that refuses to give more than `most` bytes, before they are decompressed."""

    def __init__(self, file: BinaryIO, most: int, name: str) -> None:
        self.file, self.most, self.name, self.at = file, most, name, 0

    def read(self, size: int = -1) -> bytes:
        """As a file's `read`, within the limit."""
        if size < 0 or self.at + size > self.most:
            raise PipelagError(f"{self.name} is unsafe: it unpacks to more than {self.most:,} bytes")
        content = self.file.read(size)
        self.at += len(content)
        return content

    def close(self) -> None:
        """As a file's `close`."""
        self.file.close()


def opened(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed according to its first bytes: gzip, bzip2, xz, or as it is."""
    kinds: dict[bytes, Any] = {
        KINDS[".gz"]: gzip.open,
        KINDS[".bz2"]: bz2.open,
        KINDS[".xz"]: lzma.open,
    }
    with path.open("rb") as file:
        head = file.read(8)
    for begins, decompressing in kinds.items():
        if head.startswith(begins):
            return decompressing(path)  # type: ignore[no-any-return]
    return path.open("rb")
