"""Readers: a release's files -> images and labels. One per layout; what they decode is kept for the next run."""

from __future__ import annotations

import gzip
import io
import pickle
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from pipelag.data.files.archives import members
from pipelag.data.files.decoded_cache import kept
from pipelag.data.files.fetch import data_folder, fetch
from pipelag.data.images.dataset import Dataset
from pipelag.errors import PipelagError, unknown

Bytes = npt.NDArray[np.uint8]

_IDX_UNSIGNED_BYTE = 0x08
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm")


@dataclass(frozen=True)
class Decoded:
    """Images (uint8, N, C, H, W) and labels (int64, N) of both parts, and the classes' names."""

    classes: tuple[str, ...]
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


Reader = Callable[[Sequence[Path]], Decoded]


def read(name: str, to: str | Path | None = None, mirrors: Sequence[str | Path] = ()) -> Dataset:
    """A data set with a manifest: fetched, verified, decoded (once) and in memory. Arguments as for `fetch`.

    Raises:
        PipelagError: as `fetch`; or a file is not what its layout says.
    """
    release = fetch(name, to, mirrors)
    if release.layout not in READERS:
        raise unknown(f"layout of {name} in {release.origin}:", release.layout, READERS)
    folder = data_folder() if to is None else Path(to)
    path = folder / name / f"decoded-{release.fingerprint}.pt"
    decoded = kept(path, release.title, lambda: vars(READERS[release.layout](release.paths)))
    return Dataset(name, release.title, str(release), release.official, release.note, **decoded)


def idx_gz(paths: Sequence[Path]) -> Decoded:
    """MNIST's four gzipped IDX files, greyscale."""
    files = {path.name: path for path in paths}

    def part(stem: str) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = f"{stem}-images-idx3-ubyte.gz", f"{stem}-labels-idx1-ubyte.gz"
        for name in (images, labels):
            if name not in files:
                raise PipelagError(f"layout idx-gz needs a file {name}; there are {', '.join(files)}")
        return (
            torch.from_numpy(read_idx(files[images])).unsqueeze(1),
            torch.from_numpy(read_idx(files[labels])).long(),
        )

    train, test = part("train"), part("t10k")
    return Decoded(tuple(str(label) for label in range(int(train[1].max()) + 1)), *train, *test)


def read_idx(path: Path) -> Bytes:
    """The array in a gzipped IDX file of unsigned bytes (format: the MNIST page of LeCun, Cortes and Burges).

    Raises:
        PipelagError: it is no gzip, no IDX of unsigned bytes, or shorter or longer than its header says.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PipelagError(f"{path} is not a whole gzip file: {error}") from error
    # Header: two zero bytes, the type of the elements, the number of dimensions, then a big-endian int32 for each.
    header = 4 + 4 * content[3] if content[:3] == bytes((0, 0, _IDX_UNSIGNED_BYTE)) and len(content) > 3 else 0
    if not header or len(content) < header:
        raise PipelagError(f"{path} is not an IDX file of unsigned bytes")
    shape = tuple(int(size) for size in np.frombuffer(content[4:header], ">i4"))
    values = np.frombuffer(bytearray(content[header:]), np.uint8)
    if values.size != np.prod(shape):
        promised = " x ".join(map(str, shape))
        raise PipelagError(f"{path} holds {values.size:,} values, but its header promises {promised}")
    return values.reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays in plain containers; anything else that a pickle could call is refused."""

    ALLOWED = frozenset(
        {
            "numpy.ndarray",
            "numpy.dtype",
            "numpy.core.multiarray._reconstruct",  # as NumPy 1 wrote it, the official batches too
            "numpy._core.multiarray._reconstruct",  # as NumPy 2 does, and the next, from pickle protocol 5 on
            "numpy._core.numeric._frombuffer",
            "_codecs.encode",  # how Python 3 writes bytes for Python 2
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in self.ALLOWED:
            raise PipelagError(f"a CIFAR batch may hold nothing but arrays; this one asks for {module}.{name}: refused")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def cifar_python_tar(paths: Sequence[Path]) -> Decoded:
    """CIFAR-10 or CIFAR-100 (fine labels) as published: pickled batches in a tar."""
    (archive,) = paths
    wanted = {"train", "test", "meta", "test_batch", "batches.meta", *(f"data_batch_{i}" for i in range(1, 6))}
    found: dict[str, dict[str, Any]] = {}
    for name, content in members(archive, limit=1 << 30):
        batch = PurePosixPath(name).name
        if batch in wanted:
            found[batch] = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    fine = "meta" in found
    meta, test = ("meta", "test") if fine else ("batches.meta", "test_batch")
    train = ["train"] if fine else sorted(wanted & {name for name in found if name.startswith("data_batch_")})
    missing = [name for name in (meta, test, *train) if name not in found]
    if missing or not train:
        raise PipelagError(f"{archive} holds no CIFAR batches: {', '.join(missing) or 'data_batch_1'} is missing")

    def part(batches: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        images = np.concatenate([found[name]["data"] for name in batches]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([found[name]["fine_labels" if fine else "labels"] for name in batches])
        return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))

    classes = tuple(found[meta]["fine_label_names" if fine else "label_names"])
    return Decoded(classes, *part(train), *part([test]))


def image_folder_zip(paths: Sequence[Path]) -> Decoded:
    """Archives of `train/<class>/<image>` and `test/<class>/<image>`, in RGB; sorted class names give the labels."""
    files: dict[str, list[tuple[str, str, bytes]]] = {"train": [], "test": []}
    for path in paths:
        for name, content in members(path):
            folders = PurePosixPath(name).parts[-3:]
            if len(folders) == 3 and folders[0] in files and name.lower().endswith(_IMAGES):
                files[folders[0]].append((folders[1], name, content))
    classes = tuple(sorted({label for label, _, _ in files["train"]}))
    strange = sorted({label for label, _, _ in files["test"]}.difference(classes))
    if not classes or not files["test"] or strange:
        found = f"{len(files['train'])} training and {len(files['test'])} test images"
        raise PipelagError(
            f"layout image-folder-zip needs images under train/<class>/ and test/<class>/ with the same classes; in "
            f"{', '.join(path.name for path in paths)} there are {found}"
            + (f", and no training images of {', '.join(strange)}" if strange else "")
        )
    return _decoded(files, classes)


def tiny_imagenet_zip(paths: Sequence[Path]) -> Decoded:
    """Tiny-ImageNet's folders: `train/<id>/images/`, and `val/images/`, on which it is tested, with a list of labels.

    The sorted WordNet ids give the labels, as many as the release has; the images of `test/` have none and are left
    out. Grey images become RGB. Classes are called by the first name that `words.txt` gives them.
    """
    (archive,) = paths
    files: dict[str, list[tuple[str, str, bytes]]] = {"train": [], "test": []}
    images: dict[str, bytes] = {}
    texts: dict[str, list[list[str]]] = {"val_annotations.txt": [], "words.txt": []}
    for name, content in members(archive, wanted=lambda name: "/test/" not in name):
        *folders, file = PurePosixPath(name).parts
        if file in texts:
            texts[file] = [line.split("\t") for line in content.decode("utf-8").splitlines() if "\t" in line]
        elif folders[-3:-2] == ["train"] and file.lower().endswith(_IMAGES):
            files["train"].append((folders[-2], name, content))
        elif folders[-2:] == ["val", "images"]:
            images[file] = content
    files["test"] = [(row[1], row[0], images[row[0]]) for row in texts["val_annotations.txt"] if row[0] in images]
    ids = tuple(sorted({label for label, _, _ in files["train"]}))
    strange = sorted({label for label, _, _ in files["test"]}.difference(ids))
    if not ids or not images or len(files["test"]) != len(images) or strange:
        raise PipelagError(
            f"layout tiny-imagenet-zip needs images under train/<id>/images/ and val/images/, and the ids of the "
            f"latter, among the former, in val/val_annotations.txt; {archive.name} has {len(files['train'])} images of "
            f"{len(ids)} ids to train on, {len(images)} to test on, {len(files['test'])} of them in the list"
            + (f", and no training images of {', '.join(strange)}" if strange else "")
        )
    names = {row[0]: row[1].partition(",")[0] for row in texts["words.txt"]}
    decoded = _decoded(files, ids)
    return replace(decoded, classes=tuple(names.get(one, one) for one in ids))


def _decoded(files: dict[str, list[tuple[str, str, bytes]]], classes: tuple[str, ...]) -> Decoded:
    """Both parts of (class, path, content), in this order."""
    quiet = not sys.stderr.isatty()
    with tqdm(total=sum(map(len, files.values())), desc="decoding", unit="image", disable=quiet) as bar:
        parts = [_decode(sorted(files[part]), classes, bar) for part in ("train", "test")]
    return Decoded(classes, *parts[0], *parts[1])


def _decode(
    files: Sequence[tuple[str, str, bytes]], classes: Sequence[str], bar: tqdm[Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    from PIL import Image, UnidentifiedImageError

    images: Bytes | None = None
    for index, (_, name, content) in enumerate(files):
        try:
            pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise PipelagError(f"{name} is not an image: {error}") from error
        if images is None:
            images = np.empty((len(files), *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            one, others = (f"{shape[1]}x{shape[0]}" for shape in (pixels.shape, images.shape[1:]))
            raise PipelagError(f"{name} is {one}, the images before it are {others}; resize them to one size first")
        images[index] = pixels
        bar.update()
    assert images is not None
    labels = torch.tensor([classes.index(label) for label, _, _ in files])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels


READERS: dict[str, Reader] = {
    "idx-gz": idx_gz,
    "cifar-python-tar": cifar_python_tar,
    "image-folder-zip": image_folder_zip,
    "tiny-imagenet-zip": tiny_imagenet_zip,
}
