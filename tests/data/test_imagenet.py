"""ImageNet from the user's own folder: what it must look like, and minibatches that depend on seed and number alone."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import ResNet50_Weights
from torchvision.transforms import RandomResizedCrop

from pipelag import cores, data
from pipelag.data import absent
from pipelag.data.images import imagenet
from pipelag.data.images.imagenet import FolderBatches, FolderEvaluation, middle_box, random_box
from pipelag.errors import PipelagError
from pipelag.runs.carry_out import carry_out
from pipelag.runs.spec import RunSpec


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of 6 and 4 images of different sizes, the classes told by their colour."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 4)):
        for label, name in enumerate(("ants", "bees")):
            folder = tmp_path / "imagenet" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                noise = draw.integers(0, 60, (40 + 5 * i, 60 - 4 * i, 3))
                noise[..., label] += 150
                Image.fromarray(noise.astype(np.uint8)).save(folder / f"{i}.{('JPEG', 'png')[i % 2]}")
    monkeypatch.setenv("PIPELAG_MIRROR", str(tmp_path))
    return tmp_path


def test_minibatches_depend_on_seed_and_number_alone(mirror: Path) -> None:
    folders = data.load("imagenet", size=16)
    assert folders.classes == ("ants", "bees") and len(folders.train) == 12 and not folders.official
    first, second = (FolderBatches(folders, 4, seed=3, augment=True) for _ in range(2))
    second[0], second[2]
    images, labels = first[1]
    assert torch.equal(images, second[1][0]) and torch.equal(labels, second[1][1])
    assert images.shape == (4, 3, 16, 16) and images.dtype == torch.float32
    assert not torch.equal(images, FolderBatches(folders, 4, seed=4, augment=True)[1][0])
    plain = FolderBatches(folders, 4, seed=3)
    assert not torch.equal(images, plain[1][0]) and torch.equal(labels, plain[1][1])
    seen = torch.cat([first.targets(t) for t in range(3)])
    assert seen.bincount().tolist() == [6, 6]  # an epoch holds every image once
    assert ((images[:, 0] > images[:, 1]).float().mean((1, 2)).round().long() == 1 - labels).all()


def test_a_crop_lies_inside_and_has_the_ratio_that_it_should() -> None:
    shares, ratios, flips = [], [], 0
    for seed in range(200):
        (left, top, right, bottom), flip = random_box(random.Random(seed))(60, 40)
        assert 0 <= left < right <= 60 and 0 <= top < bottom <= 40
        shares.append((right - left) * (bottom - top) / 2400)
        ratios.append((right - left) / (bottom - top))
        flips += flip
    assert 0.07 <= min(shares) < 0.15 and 0.85 < max(shares) <= 1.0
    assert 0.7 <= min(ratios) < 0.8 and 1.25 < max(ratios) <= 1.43  # 3/4 to 4/3, but for whole pixels
    assert 60 < flips < 140
    assert middle_box(64, 32) == ((18.0, 2.0, 46.0, 30.0), False)


@pytest.mark.parametrize(("width", "height"), [(1000, 10), (10, 1000)])
def test_a_long_image_is_cropped_as_torchvision_does(width: int, height: int) -> None:
    """No area of 8 % of it has a ratio of 3/4 to 4/3: the middle at the nearest of these, not all of it squeezed."""
    image = torch.arange(float(width * height)).view(1, height, width)
    top, left, rows, columns = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
    assert random_box(random.Random(0))(width, height)[0] == (left, top, left + columns, top + rows)


def test_the_test_set_is_whole_and_in_order(mirror: Path) -> None:
    parts = list(FolderEvaluation(data.load("imagenet", size=16), batch=3))
    assert [len(labels) for _, labels in parts] == [3, 3, 2]
    assert torch.cat([labels for _, labels in parts]).tolist() == [0] * 4 + [1] * 4


@pytest.fixture
def one_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two classes of one image each, in both parts, no two pixels alike; returns the images to train on."""
    draw, paths = np.random.default_rng(1), []
    for part in ("train", "val"):
        for name in ("ants", "bees"):
            (tmp_path / "imagenet" / part / name).mkdir(parents=True)
            path = tmp_path / "imagenet" / part / name / "0.png"
            Image.fromarray(draw.integers(0, 256, (40, 56, 3)).astype(np.uint8)).save(path)
            paths.append(path)
    monkeypatch.setenv("PIPELAG_MIRROR", str(tmp_path))
    return paths


def test_as_many_threads_decode_as_the_process_has_cores(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a cluster has given it, not the machine's."""
    made: list[int] = []

    def pool(threads: int) -> ThreadPoolExecutor:
        made.append(threads)
        return ThreadPoolExecutor(threads)

    monkeypatch.setattr(imagenet, "ThreadPoolExecutor", pool)
    for given in (1, 3, 100):
        monkeypatch.setattr(cores, "count", lambda given=given: given)
        assert FolderBatches(data.load("imagenet", size=16), 2, seed=3).inputs(0).shape == (2, 3, 16, 16)
    assert made == [1, 3, 16]


def test_every_minibatch_draws_its_own_crops(one_each: list[Path]) -> None:
    batches = FolderBatches(data.load("imagenet", size=16), 2, seed=3, augment=True)
    crops: dict[int, set[bytes]] = {0: set(), 1: set()}
    for t in range(6):
        for image, label in zip(*batches[t], strict=True):
            crops[int(label)].add(image.numpy().tobytes())
    assert [len(seen) for seen in crops.values()] == [6, 6]


def test_every_image_of_a_minibatch_and_every_seed_draws_its_own_crop(one_each: list[Path]) -> None:
    """Of four images that show the same."""
    for path in (one_each[1], one_each[0].with_name("1.png"), one_each[0].with_name("2.png")):
        path.write_bytes(one_each[0].read_bytes())
    folders = data.load("imagenet", size=16)
    images = [image for seed in (0, 1) for image in FolderBatches(folders, 4, seed, augment=True).inputs(0)]
    assert len({image.numpy().tobytes() for image in images}) == 8


def test_images_to_test_on_are_the_middle_normalised_as_torchvisions_models_have_it(one_each: list[Path]) -> None:
    folders = data.load("imagenet", size=16)
    usual = ResNet50_Weights.IMAGENET1K_V1.transforms()
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (usual.mean, usual.std))

    def seen(path: Path) -> torch.Tensor:
        """The middle 35 of 40 rows: scaled to 16, the shorter side is 8/7 of that."""
        with Image.open(path) as image:
            part = image.resize((16, 16), Image.Resampling.BILINEAR, (10.5, 2.5, 45.5, 37.5))
        return (torch.from_numpy(np.array(part)).permute(2, 0, 1) / 255 - mean) / std

    ((images, _),) = FolderEvaluation(folders)
    torch.testing.assert_close(images, torch.stack([seen(path) for path in one_each[2:]]), rtol=0, atol=1e-5)
    images, labels = FolderBatches(folders, 2, seed=0)[0]  # without augmentation so are those to train on
    torch.testing.assert_close(images, torch.stack([seen(one_each[int(label)]) for label in labels]), rtol=0, atol=1e-5)


def test_a_run_trains_on_it(mirror: Path, tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "model": {"name": "resnet20", "options": {"width": 0.25}},
            "data": {"name": "imagenet", "augment": True, "options": {"size": 32}},
            "batch": 4,
            "optimizer": {"lr": 0.05},
            "phases": [{"method": "pipedream", "steps": 6, "cuts": [7]}],
        }
    )
    summary = carry_out(spec, tmp_path / "run", "cpu", 1)
    assert summary["status"] == "finished" and summary["data"]["note"] == "2 classes, 12 training images"


def test_what_is_not_there_or_not_right_is_said(mirror: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert absent("imagenet") == "" and absent("cifar10") == ""
    (mirror / "imagenet/val/bees").rename(mirror / "imagenet/val/wasps")
    with pytest.raises(PipelagError, match="val must have the same folders as"):
        data.load("imagenet")
    (mirror / "imagenet/val/wasps").rename(mirror / "imagenet/val/bees")
    (mirror / "imagenet/train/bees/0.JPEG").write_bytes(b"no image")
    with pytest.raises(PipelagError, match="0.JPEG cannot be read as an image"):
        for t in range(3):
            FolderBatches(data.load("imagenet", size=16), 4, seed=3)[t]
    monkeypatch.delenv("PIPELAG_MIRROR")
    assert "a folder per class" in absent("imagenet")
    with pytest.raises(PipelagError, match="ImageNet is not passed on"):
        data.load("imagenet")
