"""Data sets and minibatches: what minibatch t holds depends on the seed and t alone."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelag import data
from pipelag.data.batches import Batches, Evaluation
from pipelag.data.fetch import Release
from pipelag.data.manifest import File, Manifest
from pipelag.data.readers import _ArraysOnly, cifar_python_tar
from pipelag.errors import PipelagError

needs_mirror = pytest.mark.skipif("PIPELAG_MIRROR" not in os.environ, reason="PIPELAG_MIRROR names no mirror")


@pytest.fixture(scope="module")
def shapes() -> data.Dataset:
    return data.load("shapes", train=500, test=200)


def test_generated_data_are_the_same_every_time(shapes: data.Dataset) -> None:
    again, other = data.load("shapes", train=500, test=200), data.load("shapes", train=500, test=200, seed=1)
    assert torch.equal(shapes.train_images, again.train_images) and torch.equal(shapes.test_labels, again.test_labels)
    assert not torch.equal(shapes.train_images, other.train_images)
    assert shapes.train_images.shape == (500, 3, 32, 32) and shapes.train_images.dtype == torch.uint8
    assert len(set(shapes.train_labels.tolist())) == len(shapes.classes) == 10


def test_digits_are_real_and_split_evenly() -> None:
    digits = data.load("digits")
    assert digits.train_images.shape == (1437, 1, 28, 28) and digits.test_images.shape == (360, 1, 28, 28)
    assert torch.bincount(digits.test_labels).tolist() == [36] * 10


def test_every_epoch_takes_every_sample_once(shapes: data.Dataset) -> None:
    batches = Batches(shapes, 50, seed=0)
    assert len(batches) == 10
    epochs = [torch.cat([batches.indices(t) for t in range(10 * e, 10 * e + 10)]) for e in (0, 1)]
    assert all(sorted(e.tolist()) == list(range(500)) for e in epochs)
    assert not torch.equal(*epochs)


def test_minibatches_can_be_had_in_any_order_and_in_parts(shapes: data.Dataset) -> None:
    one, two = Batches(shapes, 32, seed=3, augment=True), Batches(shapes, 32, seed=3, augment=True)
    state = torch.get_rng_state()
    late = one.inputs(40)
    assert torch.equal(torch.get_rng_state(), state)
    for t in range(5):
        two[t]
    assert torch.equal(two[40][0], late)
    assert torch.equal(two.targets(40), one[40][1])


def test_augmentation_crops_and_flips_whole_images(shapes: data.Dataset) -> None:
    batches = Batches(shapes, 64, seed=0, augment=True)
    images = shapes.train_images[batches.indices(0)]
    padded = torch.nn.functional.pad(images, (4,) * 4)
    made = batches._augmented(images, 0)
    seen = set()
    for before, after in zip(padded, made, strict=True):
        found = [
            (dy, dx, flip)
            for dy in range(9)
            for dx in range(9)
            for flip in (False, True)
            if torch.equal(after.flip(2) if flip else after, before[:, dy : dy + 32, dx : dx + 32])
        ]
        assert found
        seen.add(found[0])
    assert len(seen) > 40 and 10 < sum(flip for *_, flip in seen) < 54


def test_inputs_are_normalised(shapes: data.Dataset) -> None:
    inputs = torch.cat([Batches(shapes, 500, seed=0).inputs(0)])
    assert inputs.mean((0, 2, 3)).abs().max() < 1e-3
    assert (inputs.std((0, 2, 3)) - 1).abs().max() < 1e-2
    assert sum(len(targets) for _, targets in Evaluation(shapes, batch=64)) == 200


def test_refusals() -> None:
    with pytest.raises(PipelagError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        data.load("cifar")
    with pytest.raises(PipelagError, match="does not take these options"):
        data.load("shapes", dificulty=1)
    with pytest.raises(PipelagError, match="a minibatch of 600 does not fit 'shapes', which has 500 training samples"):
        Batches(data.load("shapes", train=500, test=10), 600, 0)


def release_of(path: Path) -> Release:
    file = File(path=path.name, bytes=1, md5="0" * 32)
    return Release(Manifest(layout="cifar-python-tar", files=[file]), True, {path.name: path}, "test")


def test_the_official_cifar_archive_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    with tarfile.open(path, "w:gz") as tar:
        contents = {
            name: {b"data": np.full((4, 3072), number, np.uint8), b"labels": [number] * 4} for number, name in enumerate(names)
        }
        contents["batches.meta"] = {b"label_names": [b"airplane", b"automobile"]}  # type: ignore[dict-item]
        for name, content in contents.items():
            body = pickle.dumps(content, protocol=2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    arrays = cifar_python_tar(release_of(path))
    assert arrays["train_images"].shape == (20, 3, 32, 32) and arrays["test_labels"].tolist() == [5] * 4
    assert arrays["classes"] == ("airplane", "automobile")


def test_a_pickle_that_would_run_code_is_refused() -> None:
    with pytest.raises(PipelagError, match="asks for posix.system"):
        _ArraysOnly(io.BytesIO(pickle.dumps(os.system)), encoding="bytes").load()


@needs_mirror
def test_real_mnist_and_cifar10_are_read_from_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELAG_DATA", str(tmp_path))
    mnist, cifar = data.load("mnist"), data.load("cifar10")
    assert mnist.train_images.shape == (60000, 1, 28, 28) and torch.bincount(mnist.test_labels)[0] == 980
    assert cifar.train_images.shape == (50000, 3, 32, 32) and torch.bincount(cifar.test_labels).tolist() == [1000] * 10
    assert cifar.classes[0] == "airplane" and not cifar.official and "JPEG" in cifar.note
    assert torch.equal(data.load("cifar10").train_images, cifar.train_images)  # the second time from the cache
