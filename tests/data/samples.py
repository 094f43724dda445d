"""Small files in the layouts that the readers know, written by hand: independent of the code under test."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from pipelag.data.files.manifest import Sums


def sums(content: bytes) -> Sums:
    """Size and sha256."""
    return Sums(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def idx(values: np.ndarray) -> bytes:
    """A gzipped IDX file of unsigned bytes."""
    return gzip.compress(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes())


def mnist_files(train: int = 30, test: int = 10) -> dict[str, bytes]:
    """MNIST's four files, with fewer images; image i is filled with i, its label is i % 10."""
    files = {}
    for stem, count in (("train", train), ("t10k", test)):
        numbers = np.arange(count, dtype=np.uint8)
        files[f"{stem}-images-idx3-ubyte.gz"] = idx(np.broadcast_to(numbers[:, None, None], (count, 28, 28)))
        files[f"{stem}-labels-idx1-ubyte.gz"] = idx(numbers % 10)
    return files


def image_zip(images: Mapping[str, np.ndarray]) -> bytes:
    """A zip of PNGs: path -> uint8 (height, width, 3)."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for path, pixels in images.items():
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, format="png")
            archive.writestr(path, file.getvalue())
    return whole.getvalue()


def tar(files: Mapping[str, bytes]) -> bytes:
    """A gzipped tar."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def _text(value: str) -> bytes:
    return b"U" + bytes([len(value)]) + value.encode()  # SHORT_BINSTRING: a str of Python 2


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def cifar_batch(images: np.ndarray, **lists: list[int] | list[str]) -> bytes:
    """A batch as Python 2 pickled it in 2009: opcodes written out, `images` uint8 (n, 3072)."""
    rows, columns = images.shape
    raw = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + b"(K\x00t" + _text("b") + b"tR"
        b"(K\x01(" + _number(rows) + _number(columns) + b"t"
        b"cnumpy\ndtype\n(" + _text("u1") + b"K\x00K\x01tR"
        b"(K\x03" + _text("|") + b"NNN" + _number(-1) + _number(-1) + b"K\x00tb"
        b"I00\nT" + struct.pack("<i", len(raw)) + raw + b"tb"
    )
    entries = _text("data") + array + b"s"
    for name, values in lists.items():
        entries += _text(name) + b"("
        entries += b"".join(_text(value) if isinstance(value, str) else _number(value) for value in values) + b"ls"
    return b"\x80\x02}" + entries + b"."


def mirror(folder: Path, files: Mapping[str, bytes], **release: object) -> Path:
    """A mirror folder whose manifest describes the data set `name` as `files`."""
    entries = []
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        entries.append({"path": path, **sums(content).model_dump(exclude_none=True)})
    name = release.pop("name")
    (folder / "manifest.yaml").write_text(yaml.safe_dump({"datasets": {name: {**release, "files": entries}}}))
    return folder
