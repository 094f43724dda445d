"""Read CIFAR's batches, which are published as pickles, so that only arrays of numbers and plain values can come out.

A pickle is a program. Here it runs in Python's interpreter of pickles that is written in Python: in the one written in
C, a forged index exhausts the memory. The few names that a batch may use stand for the functions below instead of
NumPy's, because a NumPy array of objects made from foreign bytes would crash Python.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelag.data.files.archives import members
from pipelag.data.files.compressed import reason
from pipelag.errors import PipelagError

PIXELS = 3 * 32 * 32  # values of an image: its red ones row by row, then green, then blue
_TYPES = {"u1": np.uint8, "i4": np.int32, "i8": np.int64}
Array = npt.NDArray[Any]


def _refuse(what: str) -> PipelagError:
    return PipelagError(f"a CIFAR batch may hold only arrays of numbers, lists and names, but {what}")


class _Type:
    """The stand-in for `numpy.dtype`."""

    def __init__(self, name: Any, *also: Any) -> None:
        if not isinstance(name, str) or name.lstrip("<|=") not in _TYPES:
            raise _refuse(f"this one holds values of type {name!r:.50}")
        self.type = _TYPES[name.lstrip("<|=")]

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", "|", "="):
            raise _refuse(f"this one holds values of byte order {state[1]!r:.50}")


class _Array:
    """The stand-in for a NumPy array while it is being built."""

    value: Array

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self.value = _array(content, kind, shape, "F" if fortran else "C")


def _array(content: Any, kind: Any, shape: Any, order: Any = "C") -> Array:
    if isinstance(content, str):
        content = content.encode("latin1")  # a str of Python 2
    if not isinstance(content, bytes | bytearray) or not isinstance(kind, _Type) or order not in ("C", "F"):
        raise _refuse("this one holds an array of other values")
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 4:
        raise _refuse(f"this one holds an array of shape {shape!r:.50}")
    flat = np.frombuffer(bytearray(content), kind.type) if content else np.empty(0, kind.type)
    if flat.size != math.prod(shape):
        raise _refuse(f"this one holds {flat.size:,} values for an array of shape {shape}")
    return flat.reshape(shape, order=order)


def _reconstruct(*args: Any) -> _Array:
    return _Array()


def _frombuffer(content: Any, kind: Any, shape: Any, order: Any) -> Array:
    return _array(content, kind, shape, order)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise _refuse("this one encodes something other than bytes")
    return text.encode("latin1")


class _Reader(pickle._Unpickler):  # type: ignore[name-defined, misc]
    """Runs a pickle that may use only the names in `ALLOWED`."""

    ALLOWED = {
        "numpy.ndarray": _Array,
        "numpy.dtype": _Type,
        "numpy.core.multiarray._reconstruct": _reconstruct,  # NumPy 1, in the official batches too
        "numpy._core.multiarray._reconstruct": _reconstruct,  # NumPy 2; the next is NumPy 2 from protocol 5 on
        "numpy._core.numeric._frombuffer": _frombuffer,
        "numpy.core.numeric._frombuffer": _frombuffer,
        "_codecs.encode": _encode,  # how Python 3 writes bytes for Python 2
    }

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name."""
        if f"{module}.{name}" not in self.ALLOWED:
            raise _refuse(f"this one asks for {module}.{name}")
        return self.ALLOWED[f"{module}.{name}"]


def batch_of(content: bytes, name: str) -> dict[str, Any]:
    """The dict in a pickled batch: its arrays and its plain values.

    Raises:
        PipelagError: the content is no pickle of a dict, or it makes objects other than arrays.
    """
    try:
        batch = _Reader(io.BytesIO(content), encoding="latin1").load()
        if not isinstance(batch, dict):
            raise _refuse(f"this one holds a {type(batch).__name__}")
    except PipelagError as error:
        raise PipelagError(f"{name}: {error}") from error
    except Exception as error:  # a forged pickle can fail in any way
        raise PipelagError(f"{name} is not a pickled CIFAR batch: {reason(error)}") from error
    return {
        key: value.value if type(value) is _Array and hasattr(value, "value") else value for key, value in batch.items()
    }


def images_of(batch: dict[str, Any], name: str) -> npt.NDArray[np.uint8]:
    """The images of a batch: uint8 (N, 3, 32, 32)."""
    data = batch.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise PipelagError(f"{name} should hold 'data', unsigned bytes in {PIXELS:,} columns, one row per image")
    return data.reshape(-1, 3, 32, 32)


def labels_of(batch: dict[str, Any], key: str, images: int, classes: int, name: str) -> npt.NDArray[np.int64]:
    """The labels of a batch under `key`: int64 (N,), from 0."""
    labels = batch.get(key)
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(labels, list) or len(labels) != images or not all(type(each) is int for each in labels):
        raise PipelagError(f"{name} should hold '{key}', a list of one number for each of its {images:,} images")
    if not all(0 <= each < classes for each in labels):
        raise PipelagError(f"{name} has a label that is not among the {classes} classes, 0 to {classes - 1}")
    return np.array(labels, np.int64)


def read(archive: Path) -> tuple[tuple[str, ...], list[tuple[Array, Array]]]:
    """Read the archive as published: the classes' names, then (images, labels) of the training and of the test set."""
    wanted = {"train", "test", "meta", "test_batch", "batches.meta", *(f"data_batch_{i}" for i in range(1, 6))}
    contents: dict[str, dict[str, Any]] = {}
    for path, content in members(archive, limit=1 << 30):
        name = PurePosixPath(path).name
        if name in wanted:
            contents[name] = batch_of(content, f"{archive}, {path}")
    fine = "meta" in contents
    meta, test = ("meta", "test") if fine else ("batches.meta", "test_batch")
    last = max((int(name[-1]) for name in contents if name.startswith("data_batch_")), default=1)
    train = ["train"] if fine else [f"data_batch_{number}" for number in range(1, last + 1)]
    missing = [name for name in (meta, test, *train) if name not in contents]
    if missing:
        raise PipelagError(f"{archive} lacks batches of CIFAR: {', '.join(missing)}")
    key = "fine_label_names" if fine else "label_names"
    classes = contents[meta].get(key)
    if not isinstance(classes, list) or not classes or not all(type(each) is str for each in classes):
        raise PipelagError(f"{archive}, {meta}: it should hold '{key}', the classes' names")

    def part(batches: Sequence[str]) -> tuple[Array, Array]:
        images = [images_of(contents[name], f"{archive}, {name}") for name in batches]
        labels = [
            labels_of(
                contents[name], "fine_labels" if fine else "labels", len(each), len(classes), f"{archive}, {name}"
            )
            for name, each in zip(batches, images, strict=True)
        ]
        return np.concatenate(images), np.concatenate(labels)

    return tuple(classes), [part(train), part([test])]
