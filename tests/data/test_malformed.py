"""Files that somebody else made: every one is read, or refused in one sentence that names it; none costs too much.

The changes are hypothesis's. 40 of each kind are tried, a matter of seconds; PIPELAG_TEST_FACTOR=50: 2,000.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import time
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelag.data.files import archives, manifest
from pipelag.data.files.archives import members
from pipelag.data.files.compressed import decompressed
from pipelag.data.images import cifar, imagenet, readers
from pipelag.data.sets import imdb
from pipelag.data.text.parallel_layouts import text_of
from pipelag.errors import PipelagError
from tests.data.samples import cifar_batch, idx, image_zip, tar
from tests.inputs.sizes import FACTOR

TRIES = settings(
    max_examples=40 * FACTOR,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CHANGES = st.lists(  # where (a share of the length), what: cut there, other bytes, inserted bytes
    st.tuples(st.floats(0, 1), st.sampled_from(["cut", "set", "insert", "number"]), st.binary(min_size=1, max_size=9)),
    max_size=4,
)


def changed(content: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    for share, what, new in changes:
        at = int(share * len(content))
        if what == "cut":
            content = content[:at]
        elif what == "insert":
            content = content[:at] + new + content[at:]
        else:
            new = new if what == "set" else b"\xff\xff\xff\x7f"
            content = content[:at] + new + content[at + len(new) :]
    return content


def tar_of(files: dict[str, bytes]) -> bytes:
    return gzip.decompress(tar(files))


PIXELS = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
CIFAR = {
    "data_batch_1": cifar_batch(PIXELS, labels=[0, 1]),
    "test_batch": pickle.dumps({"data": PIXELS, "labels": [1, 0]}, 5),
    "batches.meta": pickle.dumps({"label_names": ["a", "b"]}, 2),
}
REVIEWS = b"".join(json.dumps({"id": n, "label": n % 2, "text": "good"}).encode() + b"\n" for n in range(4))
SQUARES = {f"{part}/{name}/0.png": np.full((4, 4, 3), 7, np.uint8) for part in ("train", "test") for name in "ab"}
GREY = np.full((1, 4, 4), 3, np.uint8)


def jpeg_zip(image: bytes) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name in SQUARES:
            archive.writestr(name, image)
    return whole.getvalue()


def picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, format=kind)
    return file.getvalue()


def every(path: Path) -> Any:
    return list(members(path))


def folders(path: Path) -> Any:
    return readers.image_folder_zip([path])


def batches(path: Path) -> Any:
    return readers.cifar_python_tar([path])


def reviews(path: Path) -> Any:
    return imdb.jsonl_xz([path])


def middle(path: Path) -> Any:
    return imagenet.decoded(path, imagenet.middle_box, 8)


# What is read -> (file name, its content, how the changed content is wrapped, its reader).
KINDS: dict[str, tuple[str, bytes, Callable[[bytes], bytes], Callable[[Path], Any]]] = {
    "idx": ("a.gz", gzip.decompress(idx(GREY)), gzip.compress, readers.read_idx),
    "gzip": ("a.gz", idx(GREY), bytes, readers.read_idx),
    "cifar's pickle": (
        "c.tar.gz",
        CIFAR["data_batch_1"],
        lambda each: tar(CIFAR | {"data_batch_1": each}),
        batches,
    ),
    "a newer pickle": (
        "c.tar.gz",
        CIFAR["test_batch"],
        lambda each: tar(CIFAR | {"test_batch": each}),
        batches,
    ),
    "cifar's names": (
        "c.tar.gz",
        CIFAR["batches.meta"],
        lambda each: tar(CIFAR | {"batches.meta": each}),
        batches,
    ),
    "tar": ("t.tar.gz", tar_of({"a": b"x" * 600, "b/c": b"y"}), gzip.compress, every),
    "tar, bzip2": ("t.tar.bz2", bz2.compress(tar_of({"a": b"x"})), bytes, every),
    "zip": ("i.zip", image_zip(SQUARES), bytes, folders),
    "png": ("i.zip", picture("png"), jpeg_zip, folders),
    "jpeg": ("i.zip", picture("jpeg"), jpeg_zip, folders),
    "gif": ("i.zip", picture("gif"), jpeg_zip, folders),
    "an image of a folder": ("i.jpg", picture("jpeg"), bytes, middle),
    "jsonl": ("train.jsonl.xz", REVIEWS, lzma.compress, reviews),
    "xz": ("train.jsonl.xz", lzma.compress(REVIEWS), bytes, reviews),
    "text": ("t.gz", "Ein Satz.\nÄ\n".encode(), gzip.compress, lambda p: text_of(decompressed(p), str(p))),
    "a mirror's manifest": (
        "manifest.yaml",
        b"datasets:\n  mnist:\n    layout: idx-gz\n    files:\n    - {path: a, bytes: 3, md5: 0}\n",
        bytes,
        lambda path: manifest.mirrored(path.parent),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_or_refused_in_one_sentence(kind: str, tmp_path: Path) -> None:
    name, content, wrapped, reader = KINDS[kind]
    path = tmp_path / name

    @TRIES
    @given(CHANGES)
    def attempt(changes: list[tuple[float, str, bytes]]) -> None:
        path.write_bytes(wrapped(changed(content, changes)))
        try:
            reader(path)
        except PipelagError as error:
            message = str(error)
            assert "\n" not in message and ("/" in message or name in message or "layout" in message), message
            assert len(message) < 1000

    attempt()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_noise_is_refused(kind: str, tmp_path: Path) -> None:
    name, _, _, reader = KINDS[kind]
    for content in (b"", b"\0" * 100, bytes(range(256)) * 3, b"<!DOCTYPE html><title>404</title>"):
        (tmp_path / name).write_bytes(content)
        if kind == "a mirror's manifest" and not content:
            continue
        with pytest.raises(PipelagError):
            reader(tmp_path / name)


def objects(kind: bytes = b"O8") -> bytes:
    """A batch whose array says that its bytes are pointers: NumPy crashes when it looks at them."""
    return cifar_batch(PIXELS, labels=[0, 1]).replace(b"U\x02u1", b"U\x02" + kind[:2])


FORGED = {
    "pointers for numbers": objects(),
    "complex numbers": objects(b"c8"),
    "another shape": cifar_batch(PIXELS, labels=[0, 1]).replace(struct.pack("<i", 3072), struct.pack("<i", 1 << 30)),
    "a memo's index of 2,000,000,000": b"\x80\x02K\x01r\xff\xff\xff\x7f.",
    "a string of 9 exabytes": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 63) + b"x.",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "nested 100,000 deep": b"\x80\x02" + b"(" * 100_000 + b"l" * 100_000 + b".",
    "labels of text": pickle.dumps({"data": PIXELS, "labels": ["a", "b"]}, 2),
    "a label too many": pickle.dumps({"data": PIXELS, "labels": [0, 1, 1]}, 2),
    "a label without a class": pickle.dumps({"data": PIXELS, "labels": [0, 7]}, 2),
    "no labels": pickle.dumps({"data": PIXELS}, 2),
    "another number of columns": pickle.dumps({"data": PIXELS[:, :7], "labels": [0, 1]}, 2),
    "a list": pickle.dumps([1, 2], 2),
    "the constructor alone": b"\x80\x02}U\x04datacnumpy\nndarray\n)Rs.",
    "a type of a type": b"\x80\x02cnumpy\ndtype\n(cnumpy\ndtype\ntR.",
    "an attribute of a string": b"\x80\x02U\x01x(U\x01ytb.",
}


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """How many bytes Python held at the fullest moment since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_batch_is_refused_by_name(case: str, tmp_path: Path, peak: Callable[[], int]) -> None:
    (tmp_path / "c.tar.gz").write_bytes(tar(CIFAR | {"data_batch_1": FORGED[case]}))
    began = time.process_time()
    tracemalloc.reset_peak()
    with pytest.raises(PipelagError, match=r"c.tar.gz, data_batch_1"):
        readers.cifar_python_tar([tmp_path / "c.tar.gz"])
    assert peak() < 100 << 20
    assert time.process_time() - began < 20


def test_arrays_in_fortran_order_and_of_labels_are_read(tmp_path: Path) -> None:
    batch = {"data": np.asfortranarray(PIXELS), "labels": np.array([1, 0])}
    for protocol in (2, 5):
        decoded = cifar.batch_of(pickle.dumps(batch, protocol), "a")
        assert np.array_equal(decoded["data"], PIXELS) and decoded["labels"].tolist() == [1, 0]


def zip_with(**fields: Any) -> bytes:
    """A zip of one deflated member, its headers' fields changed: flags, method, size."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train/a/0.png", b"x" * 100)
    raw = bytearray(whole.getvalue())
    central = raw.index(b"PK\x01\x02")
    for name, value in fields.items():
        at, form = {"flags": (6, "<H"), "method": (8, "<H"), "size": (22, "<I")}[name]
        struct.pack_into(form, raw, at, value)
        struct.pack_into(form, raw, central + at + 2, value)
    return bytes(raw)


def huge_tar(name: bytes, size: int) -> bytes:
    member = tarfile.TarInfo(name.decode())
    member.size = size
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + b"x" * 2000)


def pax_bomb() -> bytes:
    """A tar whose extended header says that it takes 100 GB, and 60 MB of it in 60 kB."""
    member = tarfile.TarInfo("a")
    member.type, member.size = tarfile.XHDTYPE, 100 << 30
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(60 << 20))


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n"
LARGE: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], Any], str]] = {
    "an encrypted zip": ("a.zip", lambda: zip_with(flags=1), every, "encrypted"),
    "an unknown compression": ("a.zip", lambda: zip_with(method=77), every, "compression"),
    "4 GB in a zip": ("a.zip", lambda: zip_with(size=0xFFFFFFFE), every, "4,294,967,294 bytes"),
    "6 GB in a tar": ("a.tar.gz", lambda: huge_tar(b"a", 6 << 30), every, "has 6,442,450,944"),
    "20 GB in a tar": ("a.tar.gz", lambda: huge_tar(b"a", 20 << 30), every, "unpacks to more than"),
    "a tar's header": ("a.tar.gz", pax_bomb, every, "a.tar.gz"),
    "no name": ("a.zip", lambda: zip_of({"": b"x"}), every, "a.zip is"),
    "10 billion pixels": ("i.jpg", lambda: png(100_000, 100_000), middle, "i.jpg"),
    "many pixels in a set": ("i.zip", lambda: jpeg_zip(png(40_000, 40_000)), folders, "train/a/0.png"),
    "a drawing that is a program": ("i.zip", lambda: jpeg_zip(EPS), folders, "0.png is not"),
    "an idx of 10^10": (
        "a.gz",
        lambda: idx_head(1, 100_000, 100_000),
        readers.read_idx,
        "promises 1 x 100000 x 100000",
    ),
    "an idx whose sizes overflow": ("a.gz", lambda: idx_head(1 << 31, 1 << 31, 4), readers.read_idx, "promises"),
    "an idx of 200 dimensions": ("a.gz", lambda: idx_head(*[1] * 200), readers.read_idx, "promises 1 x 1 x .* [.]{3}$"),
    "nested json": ("test.jsonl.xz", lambda: lzma.compress(b"[" * 100_000), reviews, "line 1: it should be a review"),
    "an id that is infinite": (
        "test.jsonl.xz",
        lambda: lzma.compress(b'{"id": Infinity, "label": 1, "text": ""}'),
        reviews,
        "line 1: it should be a review",
    ),
}


def zip_of(files: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return whole.getvalue()


def idx_head(*sizes: int) -> bytes:
    return gzip.compress(bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + b"x")


@pytest.mark.parametrize("case", LARGE)
def test_what_announces_too_much_or_is_something_else_is_refused(
    case: str, tmp_path: Path, peak: Callable[[], int]
) -> None:
    name, content, reader, sentence = LARGE[case]
    (tmp_path / name).write_bytes(content())
    tracemalloc.reset_peak()
    with pytest.raises(PipelagError, match=sentence):
        reader(tmp_path / name)
    assert peak() < 100 << 20, "it was believed before it was looked at"


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_a_bomb_is_not_unpacked_beyond_the_limit(kind: str, tmp_path: Path, peak: Callable[[], int]) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes((gzip if kind == "gz" else lzma).compress(bytes(40 << 20)))
    tracemalloc.reset_peak()
    with pytest.raises(PipelagError, match=f"a.{kind} is unsafe: it unpacks to more than 1,000,000 bytes"):
        decompressed(path, most=1_000_000)
    assert peak() < 16 << 20


def test_an_xz_of_several_streams_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"one") + b"\0" * 4 + lzma.compress(b"two" * 999_999))
    assert decompressed(tmp_path / "a.xz") == b"one" + b"two" * 999_999


def test_an_archive_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST", 3)
    (tmp_path / "a.zip").write_bytes(zip_of({name: b"" for name in "abcd"}))
    with pytest.raises(PipelagError, match="unsafe: it has over 3 members"):
        list(members(tmp_path / "a.zip"))


def test_a_large_image_is_judged_by_our_sentence_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's own warning of a bomb would stand above it."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    archive = tmp_path / "large.zip"
    archive.write_bytes(image_zip(dict.fromkeys(SQUARES, np.zeros((4, 4, 3), np.uint8))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert folders(archive).train_images.shape[2:] == (4, 4)
