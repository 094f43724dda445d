"""Readers: a release's files -> images and labels, one reader per layout. Decoded images are kept for the next run."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import torch

from pipelag.compat.bars import Bar
from pipelag.data.files.archives import members
from pipelag.data.files.compressed import decompressed, reason, utf8
from pipelag.data.files.decoded_cache import decoded_once
from pipelag.data.files.fetch import data_folder, fetch, only
from pipelag.data.images import cifar
from pipelag.data.images.dataset import Dataset
from pipelag.errors import PipelagError, unknown
from pipelag.files import is_watched

Bytes = npt.NDArray[np.uint8]

_IDX_UNSIGNED_BYTE = 0x08
FORM = 1  # version of what the readers make of a file; with another number, files are decoded again
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")  # some of Pillow's other formats start programs
MOST = 16 << 30  # bytes of decoded images
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
    """Fetch and verify a data set with a manifest, decode it (once), and load it. Arguments as for `fetch`.

    Raises:
        PipelagError: as `fetch`; or a file does not have the layout that the manifest names.
    """
    release = fetch(name, to, mirrors)
    if release.layout not in READERS:
        raise unknown(f"layout of {name} in {release.origin}:", release.layout, READERS)
    folder = data_folder() if to is None else Path(to)
    path = folder / name / f"decoded-{release.fingerprint}-{decoder(release.layout)}.pt"
    decoded = decoded_once(path, release.title, lambda: vars(READERS[release.layout](release.paths)))
    return Dataset(name, release.title, str(release), release.official, release.note, **decoded)


def decoder(layout: str) -> str:
    """The version of a layout's decoder, for a file's name: another version may give other pixels."""
    return f"{layout}-{FORM}" + (f"-pillow-{metadata.version('pillow')}" if layout in BY_PILLOW else "")


def idx_gz(paths: Sequence[Path]) -> Decoded:
    """MNIST's four gzipped IDX files, greyscale."""
    files = {path.name: path for path in paths}

    def part(stem: str) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = f"{stem}-images-idx3-ubyte.gz", f"{stem}-labels-idx1-ubyte.gz"
        for name in (images, labels):
            if name not in files:
                raise PipelagError(f"layout idx-gz needs a file {name}; the files are {', '.join(files)}")
        pixels, numbers = read_idx(files[images]), read_idx(files[labels])
        if pixels.ndim != 3 or numbers.ndim != 1 or len(pixels) != len(numbers) or not pixels.size:
            raise PipelagError(
                f"{files[images]} holds values of shape {pixels.shape} and {files[labels].name} of {numbers.shape}; "
                "they should be images (N, height, width) and as many labels (N,), at least one"
            )
        return torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(numbers).long()

    train, test = part("train"), part("t10k")
    return Decoded(tuple(str(label) for label in range(int(train[1].max()) + 1)), *train, *test)


def read_idx(path: Path) -> Bytes:
    """The array in a gzipped IDX file of unsigned bytes (format: the MNIST page of LeCun, Cortes and Burges).

    Raises:
        PipelagError: it is no gzip file, no IDX file of unsigned bytes, or shorter or longer than its header says.
    """
    content = decompressed(path)
    # Header: two zero bytes, the type of the elements, the number of dimensions, then a big-endian int32 for each.
    header = 4 + 4 * content[3] if content[:3] == bytes((0, 0, _IDX_UNSIGNED_BYTE)) and len(content) > 3 else 0
    if not header or len(content) < header:
        raise PipelagError(f"{path} is not an IDX file of unsigned bytes")
    shape = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    values = np.frombuffer(bytearray(content), np.uint8)[header:]
    if values.size != math.prod(shape) or len(shape) > 4:
        promised = " x ".join(map(str, shape[:9])) + " ..." * (len(shape) > 9)
        raise PipelagError(f"{path} holds {values.size:,} values, but its header promises {promised}")
    return values.reshape(shape)


def cifar_python_tar(paths: Sequence[Path]) -> Decoded:
    """CIFAR-10 or CIFAR-100 (fine labels) as published: pickled batches in a tar archive."""
    archive = only(paths, "cifar-python-tar")
    classes, parts = cifar.read(archive)
    (train, train_labels), (test, test_labels) = (tuple(map(torch.from_numpy, part)) for part in parts)
    return Decoded(classes, train, train_labels, test, test_labels)


def image_folder_zip(paths: Sequence[Path]) -> Decoded:
    """Archives of `train/<class>/<image>` and `test/<class>/<image>`, read as RGB; labels number the sorted classes."""
    files: dict[str, list[tuple[str, str, bytes]]] = {"train": [], "test": []}
    for path in paths:
        for name, content in members(path):
            folders = PurePosixPath(name).parts[-3:]
            if len(folders) == 3 and folders[0] in files and name.lower().endswith(_IMAGES):
                files[folders[0]].append((folders[1], name, content))
    classes = tuple(sorted({label for label, _, _ in files["train"]}))
    strange = sorted({label for label, _, _ in files["test"]}.difference(classes))
    if not classes or not files["test"] or strange:
        counts = f"{len(files['train'])} training and {len(files['test'])} test images"
        raise PipelagError(
            f"layout image-folder-zip needs images under train/<class>/ and test/<class>/ with the same classes; in "
            f"{', '.join(path.name for path in paths)} there are {counts}"
            + (f", and no training images of {', '.join(strange)}" if strange else "")
        )
    return _decoded(files, classes)


def tiny_imagenet_zip(paths: Sequence[Path]) -> Decoded:
    """Tiny-ImageNet's folders: `train/<id>/images/` to train on, and `val/images/` with a list of labels to test on.

    Labels number the sorted WordNet ids in the release. The images of `test/` have no labels and are left out. Grey
    images become RGB. A class is called by the first name that `words.txt` gives it.
    """
    archive = only(paths, "tiny-imagenet-zip")
    files: dict[str, list[tuple[str, str, bytes]]] = {"train": [], "test": []}
    images: dict[str, bytes] = {}
    texts: dict[str, list[list[str]]] = {"val_annotations.txt": [], "words.txt": []}
    for name, content in members(archive, wanted=lambda name: "/test/" not in name):
        *folders, file = PurePosixPath(name).parts
        if file in texts:
            texts[file] = [line.split("\t") for line in utf8(content, name).splitlines() if "\t" in line]
        elif folders[-3:-2] == ["train"] and file.lower().endswith(_IMAGES):
            files["train"].append((folders[-2], name, content))
        elif folders[-2:] == ["val", "images"]:
            images[file] = content
    files["test"] = [(row[1], row[0], images[row[0]]) for row in texts["val_annotations.txt"] if row[0] in images]
    ids = tuple(sorted({label for label, _, _ in files["train"]}))
    strange = sorted({label for label, _, _ in files["test"]}.difference(ids))
    if not ids or not images or len(files["test"]) != len(images) or strange:
        raise PipelagError(
            "layout tiny-imagenet-zip needs training images under train/<id>/images/, test images under val/images/, "
            f"and for each test image one of the training ids in val/val_annotations.txt; {archive.name} has "
            f"{len(files['train'])} training images of {len(ids)} ids and {len(images)} test images, "
            f"{len(files['test'])} of "
            "them in the list" + (f", and no training images of {', '.join(strange)}" if strange else "")
        )
    names = {row[0]: row[1].partition(",")[0] for row in texts["words.txt"]}
    decoded = _decoded(files, ids)
    return replace(decoded, classes=tuple(names.get(one, one) for one in ids))


def _decoded(files: dict[str, list[tuple[str, str, bytes]]], classes: tuple[str, ...]) -> Decoded:
    """Decode both parts; each file is (class, path, content), and images are in the order of these."""
    from PIL import Image

    quiet, images = not is_watched(), sum(map(len, files.values()))
    with warnings.catch_warnings(), Bar(total=images, desc="decoding", unit="image", disable=quiet) as bar:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `_room` refuses sizes, in one sentence
        parts = [_decode(sorted(files[part]), classes, bar) for part in ("train", "test")]
    return Decoded(classes, *parts[0], *parts[1])


def _decode(
    files: Sequence[tuple[str, str, bytes]], classes: Sequence[str], bar: Bar
) -> tuple[torch.Tensor, torch.Tensor]:
    from PIL import Image

    images: Bytes | None = None
    for index, (_, name, content) in enumerate(files):
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if images is None:
                    images = _room(len(files), image.size, name)
                if image.size != images.shape[2:0:-1]:
                    size, others = (f"{width}x{height}" for width, height in (image.size, images.shape[2:0:-1]))
                    raise PipelagError(
                        f"{name} is {size}, the images before it are {others}; resize them to one size first"
                    )
                images[index] = np.asarray(image.convert("RGB"))
        except PipelagError:
            raise
        except Exception as error:  # on foreign bytes Pillow can raise anything
            raise PipelagError(f"{name} is not an image that can be read: {reason(error)}") from error
        bar.update()
    assert images is not None
    labels = torch.tensor([classes.index(label) for label, _, _ in files])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels


def _room(count: int, size: tuple[int, int], name: str) -> Bytes:
    """An empty array for `count` images of this size: uint8 (count, height, width, 3)."""
    width, height = size
    if count * 3 * width * height > MOST:
        raise PipelagError(
            f"{name} is {width}x{height}, and {count:,} images of that size take more than {MOST:,} bytes; resize them"
        )
    return np.empty((count, height, width, 3), np.uint8)


READERS: dict[str, Reader] = {
    "idx-gz": idx_gz,
    "cifar-python-tar": cifar_python_tar,
    "image-folder-zip": image_folder_zip,
    "tiny-imagenet-zip": tiny_imagenet_zip,
}
BY_PILLOW = ("image-folder-zip", "tiny-imagenet-zip")
