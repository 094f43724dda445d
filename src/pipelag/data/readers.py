"""Reading releases: IDX files, CIFAR's pickles, zips of image folders. Slow ones are cached, keyed by their sums."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipelag.data.dataset import Dataset
from pipelag.data.fetch import Release, data_folder, fetch, members
from pipelag.errors import PipelagError

Arrays = dict[str, Any]  # train_images, train_labels, test_images, test_labels (numpy), classes (tuple)

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def read_dataset(name: str, mirrors: list[Path] | None = None) -> Dataset:
    """Fetch (or find) and read `name`."""
    release = fetch(name, mirrors=mirrors)
    layout = release.manifest.layout
    if layout not in READERS:
        raise PipelagError(
            f"{name} has the layout '{layout}', which nothing here reads; the layouts are {sorted(READERS)}"
        )
    arrays = READERS[layout](release)
    note = release.manifest.note if not release.official else ""
    return Dataset(
        name,
        release.manifest.title or name,
        "official files" if release.official else f"another release ({layout})",
        release.official,
        note,
        arrays["classes"],
        *(torch.from_numpy(arrays[f"{part}_{what}"]) for part in ("train", "test") for what in ("images", "labels")),
    )


def read_idx(path: Path) -> np.ndarray[Any, Any]:
    """An IDX file of unsigned bytes, gzipped."""
    with gzip.open(path) as file:
        content = file.read()
    zero, kind, dimensions = struct.unpack(">HBB", content[:4])
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if zero or kind != 8 or values.size != np.prod(shape):
        raise PipelagError(f"{path} is not an IDX file of unsigned bytes with the size its header says")
    return values.reshape(shape).copy()


def idx_gz(release: Release) -> Arrays:
    """MNIST's four files."""
    found = {path.rsplit("/", 1)[-1]: place for path, place in release.paths.items()}
    arrays: Arrays = {"classes": tuple(str(digit) for digit in range(10))}
    for part, stem in (("train", "train"), ("test", "t10k")):
        arrays[f"{part}_images"] = read_idx(found[f"{stem}-images-idx3-ubyte.gz"])[:, None]
        arrays[f"{part}_labels"] = read_idx(found[f"{stem}-labels-idx1-ubyte.gz"]).astype(np.int64)
    return arrays


_HARMLESS = {("numpy", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class _ArraysOnly(pickle.Unpickler):
    """Reads CIFAR's pickles of dictionaries and arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.split(".")[0], name) in _HARMLESS:
            return super().find_class(module, name)
        raise PipelagError(f"the CIFAR file asks for {module}.{name}, which a data set never needs: it is refused")


def cifar_python_tar(release: Release) -> Arrays:
    """CIFAR-10 and CIFAR-100 as published: pickled batches in a tar."""
    (archive,) = release.paths.values()
    batches: dict[str, Any] = {}
    for name, content in members(archive, limit=1 << 30):
        if name.endswith((".html", ".txt~")):
            continue
        batches[name.rsplit("/", 1)[-1]] = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    hundred = "train" in batches
    parts = {
        "train": [batches["train"]] if hundred else [batches[f"data_batch_{i}"] for i in range(1, 6)],
        "test": [batches["test" if hundred else "test_batch"]],
    }
    key, names = (b"fine_labels", b"fine_label_names") if hundred else (b"labels", b"label_names")
    arrays: Arrays = {"classes": tuple(n.decode() for n in batches["meta" if hundred else "batches.meta"][names])}
    for part, pieces in parts.items():
        arrays[f"{part}_images"] = np.concatenate([piece[b"data"] for piece in pieces]).reshape(-1, 3, 32, 32)
        arrays[f"{part}_labels"] = np.concatenate([np.asarray(piece[key], np.int64) for piece in pieces])
    return arrays


def image_folder_zip(release: Release) -> Arrays:
    """Zips of `train/<class>/<image>` and `test/<class>/<image>`; sorted class names give the labels."""
    from PIL import Image

    def decode(content: bytes) -> np.ndarray[Any, Any]:
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)

    entries: dict[str, list[tuple[str, bytes]]] = {"train": [], "test": []}
    for path in release.paths.values():
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                pieces = name.split("/")
                if len(pieces) == 3 and pieces[0] in entries and pieces[2]:
                    entries[pieces[0]].append((pieces[1], archive.read(name)))
    classes = tuple(sorted({label for label, _ in entries["train"]}))
    if not classes:
        raise PipelagError(f"{', '.join(map(str, release.paths))}: no images under train/<class>/")
    arrays: Arrays = {"classes": classes}
    with ThreadPoolExecutor() as pool:
        for part, items in entries.items():
            arrays[f"{part}_images"] = np.stack(list(pool.map(decode, [content for _, content in items])))
            arrays[f"{part}_labels"] = np.asarray([classes.index(label) for label, _ in items], np.int64)
    return arrays


def cached(read: Callable[[Release], Arrays]) -> Callable[[Release], Arrays]:
    """Keep what `read` returns in the data folder, under a name made of the files' sums."""

    def reader(release: Release) -> Arrays:
        key = hashlib.sha256("".join(f.sum[1] for f in release.manifest.files).encode()).hexdigest()[:16]
        path = data_folder() / "decoded" / f"{key}.npz"
        if path.exists():
            with np.load(path) as stored:
                return {name: stored[name] for name in stored if name != "classes"} | {
                    "classes": tuple(stored["classes"].tolist())
                }
        arrays = read(release)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        with open(aside, "wb") as file:
            np.savez(file, **arrays)
        os.replace(aside, path)
        return arrays

    return reader


READERS: dict[str, Callable[[Release], Arrays]] = {
    "idx-gz": idx_gz,
    "cifar-python-tar": cached(cifar_python_tar),
    "image-folder-zip": cached(image_folder_zip),
}
