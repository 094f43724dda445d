"""Files in, images and labels out; and what is not what it says is refused."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipelag import data
from pipelag.data.images import readers
from pipelag.errors import PipelagError
from tests.data.samples import cifar_batch, idx, image_zip, mirror, mnist_files, tar


def write(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def test_idx(tmp_path: Path) -> None:
    decoded = readers.idx_gz(write(tmp_path, mnist_files()))
    assert decoded.train_images.shape == (30, 1, 28, 28) and decoded.test_images.shape == (10, 1, 28, 28)
    assert decoded.train_images[:, 0, 27, 27].tolist() == list(range(30))
    assert decoded.train_labels.tolist() == [*range(10)] * 3
    assert decoded.classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"hello", "not a complete gzip"),
        (idx(np.zeros((3, 2), np.uint8))[:-12], "not a complete gzip"),
        (gzip.compress(b"hello"), "not an IDX file"),
        (gzip.compress(b""), "not an IDX file"),
        (gzip.compress(b"\0\0\x0d\x01" + bytes(8)), "not an IDX file of unsigned bytes"),
        (gzip.compress(b"\0\0\x08\x02\0\0\0\x03\0\0\0\x02" + bytes(5)), "holds 5 values, .* promises 3 x 2"),
    ],
)
def test_what_is_not_idx(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(PipelagError, match=complaint):
        readers.read_idx(tmp_path / "a.gz")


def test_a_missing_mnist_file_is_named(tmp_path: Path) -> None:
    files = mnist_files()
    del files["t10k-labels-idx1-ubyte.gz"]
    with pytest.raises(PipelagError, match="needs a file t10k-labels-idx1-ubyte.gz"):
        readers.idx_gz(write(tmp_path, files))


def pixels(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def test_cifar10_as_python_2_pickled_it(tmp_path: Path) -> None:
    files = {f"cifar-10-batches-py/data_batch_{i}": cifar_batch(pixels(4, i), labels=[i, 0, 1, 9]) for i in range(1, 6)}
    files["cifar-10-batches-py/readme.html"] = b"<html>"
    files["cifar-10-batches-py/test_batch"] = cifar_batch(pixels(3, 6), labels=[5, 4, 3])
    names = [f"class {i}" for i in range(10)]
    files["cifar-10-batches-py/batches.meta"] = cifar_batch(pixels(1, 7), label_names=names)
    decoded = readers.cifar_python_tar(write(tmp_path, {"cifar.tar.gz": tar(files)}))
    assert decoded.classes == tuple(names)
    assert decoded.train_labels.tolist() == [label for i in range(1, 6) for label in (i, 0, 1, 9)]
    assert decoded.test_labels.tolist() == [5, 4, 3]
    # A row is 1,024 red values, then green, then blue, each row by row.
    assert torch.equal(decoded.test_images[1], torch.from_numpy(pixels(3, 6)[1].reshape(3, 32, 32)))
    assert torch.equal(decoded.train_images[4], torch.from_numpy(pixels(4, 2)[0].reshape(3, 32, 32)))


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    files = {
        "cifar-100-python/train": cifar_batch(pixels(2, 0), coarse_labels=[1, 1], fine_labels=[7, 99]),
        "cifar-100-python/test": cifar_batch(pixels(1, 1), coarse_labels=[1], fine_labels=[42]),
        "cifar-100-python/meta": cifar_batch(pixels(1, 2), fine_label_names=[f"fine {i}" for i in range(100)]),
    }
    decoded = readers.cifar_python_tar(write(tmp_path, {"cifar.tar.gz": tar(files)}))
    assert (decoded.train_labels.tolist(), decoded.test_labels.tolist()) == ([7, 99], [42])
    assert decoded.classes[99] == "fine 99"


def test_cifar_as_a_newer_numpy_pickles_it(tmp_path: Path) -> None:
    batch = {"data": pixels(2, 0), "labels": [0, 1]}
    names = {"label_names": ["a", "b"]}
    for protocol in (2, 5):
        content = {name: pickle.dumps(batch, protocol) for name in ("data_batch_1", "test_batch")}
        content["batches.meta"] = pickle.dumps(names, protocol)
        decoded = readers.cifar_python_tar(write(tmp_path, {"cifar.tar.gz": tar(content)}))
        assert torch.equal(decoded.train_images, torch.from_numpy(pixels(2, 0)).view(2, 3, 32, 32))


def test_a_batch_that_is_missing_among_cifars_is_said(tmp_path: Path) -> None:
    batch = pickle.dumps({"data": pixels(2, 0), "labels": [0, 1]})
    content = {name: batch for name in ("data_batch_1", "data_batch_3", "test_batch")}
    content["batches.meta"] = pickle.dumps({"label_names": ["a", "b"]})
    with pytest.raises(PipelagError, match="lacks batches of CIFAR: data_batch_2$"):
        readers.cifar_python_tar(write(tmp_path, {"cifar.tar.gz": tar(content)}))


class Exploit:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        return open, (self.path, "w")


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    evil = pickle.dumps({"data": Exploit(tmp_path / "owned")}, 2)
    with pytest.raises(PipelagError, match="only arrays .*this one asks for .*open"):
        readers.cifar_python_tar(write(tmp_path, {"cifar.tar.gz": tar({"test_batch": evil})}))
    assert not (tmp_path / "owned").exists()


def test_a_tar_without_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelagError, match="lacks batches of CIFAR: batches.meta, test_batch, data_batch_1"):
        readers.cifar_python_tar(write(tmp_path, {"cifar.tar.gz": tar({"hello": b"x"})}))


def colour(red: int, size: int = 4) -> np.ndarray:
    return np.full((size, size, 3), (red, 1, 2), np.uint8)


def test_image_folders_in_one_zip_or_two(tmp_path: Path) -> None:
    train = {f"train/{name}/{i}.png": colour(10 * k + i) for k, name in enumerate(("dog", "cat")) for i in (1, 0)}
    test = {"test/dog/9.png": colour(99)}
    apart = write(tmp_path, {"train.zip": image_zip(train), "test.zip": image_zip(test)})
    together = write(tmp_path, {"all.zip": image_zip({f"set/{path}": image for path, image in (train | test).items()})})
    for paths in (apart, together):
        decoded = readers.image_folder_zip(paths)
        assert decoded.classes == ("cat", "dog")
        assert decoded.train_labels.tolist() == [0, 0, 1, 1] and decoded.test_labels.tolist() == [1]
        assert decoded.train_images[:, 0, 3, 3].tolist() == [10, 11, 0, 1]
        assert decoded.test_images[0, :, 0, 0].tolist() == [99, 1, 2]


def test_pixels_stay_where_they_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(4, 4, 3), dtype=np.uint8)
    files = write(tmp_path, {"a.zip": image_zip({"train/a/0.png": pixels, "test/a/0.png": pixels})})
    decoded = readers.image_folder_zip(files)
    assert torch.equal(decoded.train_images[0], torch.from_numpy(pixels).permute(2, 0, 1))
    grey = pixels[None, :, :, 0]
    contents = {"images-idx3-ubyte.gz": idx(grey), "labels-idx1-ubyte.gz": idx(np.zeros(1, np.uint8))}
    four = {f"{part}-{name}": content for part in ("train", "t10k") for name, content in contents.items()}
    assert torch.equal(readers.idx_gz(write(tmp_path, four)).test_images[0, 0], torch.from_numpy(grey[0]))


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        ({"train/a/0.png": colour(0)}, "there are 1 training and 0 test images"),
        ({"a/0.png": colour(0)}, "there are 0 training and 0 test images"),
        ({"train/a/0.png": colour(0), "test/b/0.png": colour(0)}, "no training images of b"),
        (
            {"train/a/0.png": colour(0), "train/a/1.png": colour(0, 5), "test/a/0.png": colour(0)},
            "train/a/1.png is 5x5, the images before it are 4x4; resize",
        ),
    ],
)
def test_image_folders_that_are_no_data_set(tmp_path: Path, images: dict[str, np.ndarray], complaint: str) -> None:
    with pytest.raises(PipelagError, match=complaint):
        readers.image_folder_zip(write(tmp_path, {"a.zip": image_zip(images)}))


def test_decoded_once_for_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = readers.READERS["idx-gz"]
    monkeypatch.setitem(readers.READERS, "idx-gz", lambda paths: calls.append(paths) or real(paths))
    one = mirror(tmp_path / "one", mnist_files(), name="mnist", layout="idx-gz")
    same = mirror(tmp_path / "same", mnist_files(), name="mnist", layout="idx-gz")
    other = mirror(tmp_path / "other", mnist_files(train=20), name="mnist", layout="idx-gz")
    first, second = (data.load("mnist", mirrors=(str(folder),)) for folder in (one, same))
    assert len(calls) == 1 and torch.equal(first.train_images, second.train_images)
    assert len(data.load("mnist", mirrors=(str(other),)).train_labels) == 20 and len(calls) == 2
    (cached, _) = sorted((tmp_path / "downloads" / "mnist").glob("decoded-*.pt"))
    cached.write_bytes(cached.read_bytes()[:1000])
    for folder in (one, other):
        data.load("mnist", mirrors=(str(folder),))
    assert len(calls) == 3, "a torn file is decoded again"


def test_a_kept_file_with_a_changed_pixel_is_decoded_again(tmp_path: Path) -> None:
    """torch reads such a file without complaint: only the archive's sums tell."""
    folder = mirror(tmp_path / "one", mnist_files(), name="mnist", layout="idx-gz")
    images = data.load("mnist", mirrors=(str(folder),)).train_images
    (kept,) = (tmp_path / "downloads" / "mnist").glob("decoded-*.pt")
    content = bytearray(kept.read_bytes())
    place = content.index(images.numpy().tobytes())
    content[place + 1000] ^= 1
    kept.write_bytes(content)
    assert not torch.equal(torch.load(kept)["train_images"], images)
    assert torch.equal(data.load("mnist", mirrors=(str(folder),)).train_images, images)


def test_another_decoder_decodes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours in another form, or another Pillow, which does not give every JPEG the same pixels."""
    calls: list[object] = []
    for layout in ("idx-gz", "tiny-imagenet-zip"):
        real = readers.READERS[layout]
        monkeypatch.setitem(readers.READERS, layout, lambda paths, real=real: calls.append(paths) or real(paths))
    numbers = mirror(tmp_path / "one", mnist_files(), name="mnist", layout="idx-gz")
    pictures = mirror(tmp_path / "two", {"t.zip": zipped(tiny())}, name="tiny_imagenet", layout="tiny-imagenet-zip")

    def decodings() -> int:
        before = len(calls)
        data.load("mnist", mirrors=(str(numbers),))
        data.load("tiny_imagenet", mirrors=(str(pictures),))
        return len(calls) - before

    assert decodings() == 2 and decodings() == 0
    monkeypatch.setattr(readers.metadata, "version", lambda package: f"another {package}")
    assert decodings() == 1
    monkeypatch.setattr(readers, "FORM", readers.FORM + 1)
    assert decodings() == 2 and decodings() == 0


def test_real_mnist(real_mirror: str) -> None:
    dataset = data.load("mnist")
    assert dataset.train_labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert dataset.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert round(float(dataset.mean), 4) == 0.1307 and round(float(dataset.std), 4) == 0.3081


@pytest.mark.slow
def test_real_cifar10(real_mirror: str) -> None:
    dataset = data.load("cifar10")
    assert dataset.train_images.shape == (50_000, 3, 32, 32) and dataset.test_images.shape == (10_000, 3, 32, 32)
    assert dataset.train_labels.bincount().tolist() == [5000] * 10
    assert dataset.classes[0] == "airplane" and dataset.classes[9] == "truck"
    assert torch.allclose(dataset.mean, torch.tensor([0.4914, 0.4822, 0.4465]), atol=3e-4)
    assert torch.allclose(dataset.std, torch.tensor([0.2470, 0.2435, 0.2616]), atol=3e-3)


def tiny(**changes: bytes | None) -> dict[str, bytes]:
    """Tiny-ImageNet's folders with two classes; the first training image is grey."""
    grey, red = io.BytesIO(), io.BytesIO()
    Image.fromarray(np.full((4, 4), 7, np.uint8)).save(grey, format="png")
    Image.fromarray(colour(200)).save(red, format="png")
    files: dict[str, bytes | None] = {
        "test/images/test_0.JPEG": red.getvalue(),
        "train/n02/images/n02_0.JPEG": red.getvalue(),
        "train/n02/n02_boxes.txt": b"n02_0.JPEG\t0\t0\t1\t1\n",
        "train/n01/images/n01_0.JPEG": grey.getvalue(),
        "val/images/val_0.JPEG": red.getvalue(),
        "val/images/val_1.JPEG": grey.getvalue(),
        "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n",
        "words.txt": b"n01\tkoala, koala bear\nn99\tnothing\n",
    }
    return {f"tiny-imagenet-200/{name}": content for name, content in (files | changes).items() if content is not None}


def zipped(files: Mapping[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return whole.getvalue()


def test_tiny_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = {"name": "tiny_imagenet", "layout": "tiny-imagenet-zip", "note": "2 of 200 classes"}
    folder = mirror(tmp_path / "m", {"tiny.zip": zipped(tiny())}, **release)
    monkeypatch.setenv("PIPELAG_MIRROR", str(folder))
    images = data.load("tiny_imagenet")
    assert images.classes == ("koala", "n02")
    assert images.train_images[:, :, 0, 0].tolist() == [[7, 7, 7], [200, 1, 2]]
    assert images.train_labels.tolist() == [0, 1]
    assert images.test_labels.tolist() == [0, 1] and images.test_images[:, 0, 3, 3].tolist() == [7, 200]
    assert not images.official and images.note == "2 of 200 classes"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"val/val_annotations.txt": b"val_0.JPEG\tn02\t0\n"}, "2 test images, 1 of them in the list"),
        ({"train/n01/images/n01_0.JPEG": None}, "no training images of n01"),
        ({"val/images/val_0.JPEG": None, "val/images/val_1.JPEG": None}, "0 test images"),
    ],
)
def test_what_is_not_tiny_imagenet(tmp_path: Path, changes: dict[str, bytes | None], complaint: str) -> None:
    with pytest.raises(PipelagError, match=complaint):
        readers.tiny_imagenet_zip(write(tmp_path, {"tiny.zip": zipped(tiny(**changes))}))


def test_the_mirrors_tiny_imagenet(real_mirror: str) -> None:
    images = data.load("tiny_imagenet")
    assert images.train_images.shape == (20_000, 3, 64, 64) and images.test_images.shape == (2_000, 3, 64, 64)
    assert images.train_labels.bincount().tolist() == [500] * 40 and images.test_labels.bincount().tolist() == [50] * 40
    assert "40 of the 200" in images.note and not images.official
