"""Data without a download, the registry, and what a `Dataset` refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from pipelag import data
from pipelag.data import DATASETS, Dataset, load, register
from pipelag.errors import PipelagError


@pytest.fixture(scope="module")
def shapes() -> Dataset:
    return load("shapes", train=1200, test=300)


def test_digits_are_the_real_ones_split_by_class() -> None:
    from sklearn.datasets import load_digits

    digits = load("digits")
    assert digits.train_images.shape == (1437, 1, 28, 28) and digits.test_images.shape == (360, 1, 28, 28)
    both = torch.cat([digits.train_labels, digits.test_labels])
    assert both.bincount().tolist() == torch.from_numpy(load_digits().target).bincount().tolist()
    assert set(digits.test_labels.bincount().tolist()) <= {35, 36, 37}
    assert torch.equal(load("digits").test_images, digits.test_images)
    assert load("digits", size=32).train_images.shape[2:] == (32, 32)


def test_digits_keep_their_pixels_at_the_original_size() -> None:
    from sklearn.datasets import load_digits

    digits = load("digits", size=8)
    ours = torch.cat([digits.train_images, digits.test_images]).flatten(1).long()
    raw = (torch.from_numpy(load_digits().data) * (255 / 16)).round().long()
    assert sorted(map(tuple, ours.tolist())) == sorted(map(tuple, raw.tolist()))


def test_shapes_are_the_same_every_time(shapes: Dataset) -> None:
    reloaded = load("shapes", train=1200, test=300)
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert torch.equal(getattr(reloaded, name), getattr(shapes, name))


def test_fewer_shapes_are_the_first_of_more(shapes: Dataset) -> None:
    fewer = load("shapes", train=700, test=10)
    assert torch.equal(fewer.train_images, shapes.train_images[:700])
    assert torch.equal(fewer.test_labels, shapes.test_labels[:10])


def test_shapes_differ_between_seeds_and_parts(shapes: Dataset) -> None:
    other = load("shapes", train=300, test=300, seed=1)
    assert not torch.equal(other.train_images, shapes.train_images[:300])
    assert not torch.equal(shapes.test_images, shapes.train_images[:300])


def test_shapes_are_colour_images_of_all_classes(shapes: Dataset) -> None:
    assert shapes.train_images.shape == (1200, 3, 32, 32) and len(shapes.classes) == 10
    counts = shapes.train_labels.bincount(minlength=10)
    assert int(counts.min()) > 80 and int(counts.max()) < 160  # 120 expected, standard deviation 10
    assert float(shapes.train_images.float().std((1, 2, 3)).min()) > 10, "no empty image"


def test_difficulty_changes_the_share_of_wrong_labels() -> None:
    clean, usual, hard = (load("shapes", train=4000, test=1, difficulty=d) for d in (0.0, 1.0, 4.0))
    # The generator's draws come in the same order at every difficulty, so the kinds drawn are the same.
    for dataset, expected in ((usual, 0.05 * 0.9), (hard, 0.20 * 0.9)):
        share = float((dataset.train_labels != clean.train_labels).float().mean())
        assert abs(share - expected) < 0.02


def test_clean_shapes_of_a_class_are_alike_and_unlike_others() -> None:
    clean = load("shapes", train=2000, test=500, difficulty=0.0)
    dark = clean.train_images.float().amin((2, 3), keepdim=True)
    masks = (clean.train_images.float() - dark).mean(1).gt(25).float().flatten(1)
    means = torch.stack([masks[clean.train_labels == kind].mean(0) for kind in range(10)])
    assert float(torch.cdist(means, means).add(torch.eye(10) * 99).min()) > 0.5


def test_fewer_classes_and_other_sizes() -> None:
    small = load("shapes", train=200, test=20, classes=3, size=16)
    assert small.classes == ("disc", "ring", "square") and small.train_images.shape[2:] == (16, 16)
    assert small.train_labels.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "options", [{"difficulty": -1.0}, {"size": 4}, {"classes": 11}, {"classes": 1}, {"train": 0}, {"test": 0}]
)
def test_shapes_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(PipelagError, match="shapes need difficulty 0 to 4, size 8 or more, 2 to 10 classes"):
        load("shapes", **options)


def test_digits_out_of_range_are_refused() -> None:
    with pytest.raises(PipelagError, match="size should be 8 or more, not 7"):
        load("digits", size=7)


def test_unknown_names_and_options_get_the_nearest() -> None:
    with pytest.raises(PipelagError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        load("cifar")
    with pytest.raises(PipelagError, match="option 'dificulty' of data set 'shapes'; did you mean 'difficulty'"):
        load("shapes", dificulty=2)


@pytest.fixture
def own_name() -> Iterator[str]:
    yield "own"
    DATASETS.pop("own", None)


def test_a_users_own_set(own_name: str) -> None:
    @register(own_name)
    def small_shapes(flip: bool = False) -> Dataset:
        small = load("shapes", train=20, test=10)
        return replace(small, name=own_name, train_images=small.train_images.flip(3)) if flip else small

    assert load("own", flip=True).summary()["name"] == "own"
    with pytest.raises(PipelagError, match="'own' is already registered; choose another name"):
        register(own_name)(small_shapes)


def test_an_error_inside_a_users_set_is_shown_as_it_is(own_name: str) -> None:
    @register(own_name)
    def failing() -> Dataset:
        raise TypeError("inside")

    with pytest.raises(TypeError, match="inside"):
        load("own")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"train_images": torch.zeros(1200, 3, 32, 32)}, r"train_images of 'shapes' are torch.float32 .* torch.uint8"),
        ({"test_labels": torch.zeros(299, dtype=torch.int64)}, r"test_labels .* torch.int64 \(300,\)"),
        ({"classes": ("a",)}, "train_labels of 'shapes' run from 0 to 9; with 1 classes"),
        ({"test_images": torch.zeros(300, 1, 32, 32, dtype=torch.uint8)}, "should have the same shape"),
    ],
)
def test_a_dataset_refuses_what_it_cannot_be(shapes: Dataset, change: dict[str, object], complaint: str) -> None:
    with pytest.raises(PipelagError, match=complaint):
        replace(shapes, **change)  # type: ignore[arg-type]


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, pipelag.data, pipelag.commands.fetch; sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


def test_dataset_is_found_in_the_package() -> None:
    assert data.Dataset is Dataset
    with pytest.raises(AttributeError, match="no attribute 'Datset'"):
        data.Datset  # noqa: B018
