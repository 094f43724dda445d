"""Minibatch t depends on the seed and t alone; every sample comes once in an epoch; augmentation moves and mirrors."""

from __future__ import annotations

import random
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelag.data.images.batches import PADDING, Batches, Evaluation
from pipelag.data.images.dataset import Dataset
from pipelag.data.images.imagenet import random_box
from pipelag.data.minibatches import Ahead
from pipelag.errors import PipelagError
from pipelag.randomness import mix


def make(count: int = 50, channels: int = 1, size: int = 8, test: int = 7) -> Dataset:
    """Image i is filled with 5 i, its label is i % 10."""
    images = (5 * torch.arange(count)).to(torch.uint8).view(-1, 1, 1, 1).repeat(1, channels, size, size)
    labels = torch.arange(count) % 10
    names = tuple("0123456789")
    return Dataset("toy", "Toy", "made here", True, "", names, images, labels, images[:test], labels[:test])


@given(count=st.integers(1, 60), batch=st.integers(1, 60), seed=st.integers(0, 1 << 40), epoch=st.integers(0, 1000))
@settings(max_examples=50)
def test_an_epoch_holds_every_sample_once_but_the_last_partial_minibatch(
    count: int, batch: int, seed: int, epoch: int
) -> None:
    if batch > count:
        with pytest.raises(PipelagError, match=f"minibatch of {batch} does not fit 'toy'; choose 1 to {count} samples"):
            Batches(make(count), batch, seed)
        return
    batches = Batches(make(count), batch, seed)
    assert len(batches) == count // batch
    seen = torch.cat([batches.indices(epoch * len(batches) + t) for t in range(len(batches))])
    assert len(seen) == len(batches) * batch and len(seen.unique()) == len(seen)
    assert set(seen.tolist()) <= set(range(count))


@pytest.mark.parametrize("augment", [False, True, "crop"])
def test_any_order_of_asking_gives_the_same(augment: bool | str) -> None:
    forwards, backwards = (Batches(make(), 8, 3, augment) for _ in range(2))
    expected = [forwards[t] for t in range(20)]
    for t in reversed(range(20)):
        assert torch.equal(backwards.targets(t), expected[t][1])
        assert torch.equal(backwards.inputs(t), expected[t][0])


@pytest.mark.parametrize("augment", [False, True, "crop"])
@pytest.mark.parametrize("count", [50, 20, 8])
def test_minibatches_made_together_are_those_made_alone(augment: bool | str, count: int) -> None:
    """In any order, over the ends of epochs, and whatever a layer has done to those given before."""
    alone, together = (Batches(make(count, 3), 8, 3, augment, channels_last=True) for _ in range(2))
    together.together = 5
    for t in (*range(12), 3, 21, 2, 4):
        inputs, targets = together[t]
        assert torch.equal(inputs, alone.inputs(t)) and torch.equal(targets, alone.targets(t))
        assert inputs.is_contiguous(memory_format=torch.channels_last)
        assert inputs.untyped_storage().nbytes() == 4 * inputs.numel()
        inputs.zero_()
    assert together.several.cache_info().hits == 10


def test_inputs_belong_to_their_targets() -> None:
    dataset = make()
    batches = Batches(dataset, 8, 0)
    for t in range(12):
        inputs, targets = batches[t]
        values = (inputs[:, 0, 0, 0] * dataset.std + dataset.mean).mul(255).round().long()
        assert torch.equal(values // 5 % 10, targets)


def test_epochs_and_seeds_differ() -> None:
    one, two = Batches(make(), 50, 0), Batches(make(), 50, 1)
    assert not torch.equal(one.targets(0), one.targets(1))
    assert not torch.equal(one.targets(0), two.targets(0))
    assert (one.epoch(3), Batches(make(), 20, 0).epoch(3)) == (3.0, 1.5)


def test_the_callers_random_numbers_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    batches = Batches(make(), 8, 0, augment=True)
    for t in range(10):
        batches[t]
    assert torch.equal(torch.rand(3), expected)


def test_training_inputs_have_mean_0_and_deviation_1() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (64, 3, 8, 8), generator=generator, dtype=torch.uint8)
    images[:, 1] //= 3
    labels = torch.zeros(64, dtype=torch.int64)
    dataset = Dataset("toy", "Toy", "", True, "", ("a",), images, labels, images // 2, labels)
    inputs = Batches(dataset, 64, 0).inputs(0)
    assert torch.allclose(inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(inputs.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)
    scaled = images.double() / 255
    assert torch.allclose(dataset.mean.double(), scaled.mean((0, 2, 3)))
    assert torch.allclose(dataset.std.double(), scaled.std((0, 2, 3), correction=0))
    ((tested, _),) = Evaluation(dataset)  # by the training images' mean and deviation, too
    expected = ((images // 2) / 255 - dataset.mean.view(-1, 1, 1)) / dataset.std.view(-1, 1, 1)
    torch.testing.assert_close(tested, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("augment", [False, True, "crop"])
def test_memory_format_changes_no_value(augment: bool | str) -> None:
    plain = Batches(make(channels=3), 8, 0, augment).inputs(4)
    last = Batches(make(channels=3), 8, 0, augment, channels_last=True).inputs(4)
    assert torch.equal(plain, last)
    assert plain.is_contiguous() and last.is_contiguous(memory_format=torch.channels_last)


def numbered(count: int, size: int = 8) -> Dataset:
    """Every image shows the numbers 1, 2, 3, ... row by row, the second channel their double, modulo 256."""
    image = torch.arange(1, size * size + 1).view(1, 1, size, size)
    images = torch.cat([image, 2 * image % 256], 1).to(torch.uint8).repeat(count, 1, 1, 1)
    labels = torch.zeros(count, dtype=torch.int64)
    return Dataset("toy", "Toy", "", True, "", ("a",), images, labels, images, labels)


def test_augmentation_is_a_crop_of_the_padded_image_or_its_mirror_image() -> None:
    dataset = numbered(400)
    batches = Batches(dataset, 400, 0, augment=True)
    padded = torch.nn.functional.pad(dataset.train_images[0], (PADDING,) * 4)
    crops = {}
    for top in range(2 * PADDING + 1):
        for left in range(2 * PADDING + 1):
            crop = padded[:, top : top + 8, left : left + 8]
            crops[crop.numpy().tobytes()] = (top, left, False)
            crops[crop.flip(2).contiguous().numpy().tobytes()] = (top, left, True)
    places = []
    for t in range(10):
        images = (batches.inputs(t) * dataset.std.view(-1, 1, 1) + dataset.mean.view(-1, 1, 1)).mul(255).round()
        places += [crops[image.to(torch.uint8).contiguous().numpy().tobytes()] for image in images]
    # 4,000 draws: each of 9 offsets is expected 444 times, standard deviation 20; mirror images 2,000 times, 32.
    for axis in (0, 1):
        counts = [sum(place[axis] == offset for place in places) for offset in range(9)]
        assert all(abs(count - 444) < 100 for count in counts), counts
    assert abs(sum(place[2] for place in places) - 2000) < 160
    assert len(set(places)) == 9 * 9 * 2


def test_a_part_of_the_image_can_be_enlarged_instead() -> None:
    images = torch.randint(0, 256, (60, 2, 12, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(60, dtype=torch.int64)
    dataset = Dataset("toy", "Toy", "", True, "", ("a",), images, labels, images, labels)
    batches = Batches(dataset, 60, 4, augment="crop")
    enlarged = batches.inputs(2) * dataset.std.view(-1, 1, 1) + dataset.mean.view(-1, 1, 1)
    shares, flips = [], 0
    for place, index in enumerate(batches.indices(2).tolist()):
        (left, top, right, bottom), flip = random_box(random.Random(mix(4, 2, 2, place)))(9, 12)
        part = images[index : index + 1, :, int(top) : int(bottom), int(left) : int(right)].float()
        expected = torch.nn.functional.interpolate(part, (12, 9), mode="bilinear", align_corners=False)[0] / 255
        torch.testing.assert_close(enlarged[place], expected.flip(2) if flip else expected, rtol=0, atol=1e-4)
        shares.append(part[0, 0].numel() / 108)
        flips += flip
    assert min(shares) < 0.2 and max(shares) > 0.8 and 15 < flips < 45
    with pytest.raises(PipelagError, match="unknown augmentation 'corp'; did you mean 'crop'"):
        Batches(dataset, 60, 4, augment="corp")


def test_augmentation_differs_between_minibatches_and_seeds() -> None:
    dataset = numbered(16)
    one, two = Batches(dataset, 16, 0, augment=True), Batches(dataset, 16, 1, augment=True)
    assert not torch.equal(one.inputs(0), one.inputs(1))
    assert not torch.equal(one.inputs(0), two.inputs(0))


def test_augmenting_cifar_costs_little() -> None:
    images = torch.randint(0, 256, (2000, 3, 32, 32), dtype=torch.uint8)
    labels = torch.zeros(2000, dtype=torch.int64)
    batches = Batches(Dataset("toy", "", "", True, "", ("a",), images, labels, images, labels), 128, 0, True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = []
        for t in range(40):
            began = time.thread_time()
            batches[t]
            times.append(time.thread_time() - began)
    finally:
        torch.set_num_threads(threads)
    assert min(times) < 0.006, "seconds for 128 CIFAR images on one thread"


def test_evaluation_holds_the_test_set_in_order() -> None:
    dataset = make()
    evaluation = Evaluation(dataset, batch=3)
    inputs, targets = zip(*evaluation, strict=True)
    assert evaluation.samples == 7 and [len(part) for part in targets] == [3, 3, 1]
    assert torch.equal(torch.cat(targets), dataset.test_labels)
    values = (torch.cat(inputs)[:, 0, 0, 0] * dataset.std + dataset.mean).mul(255).round().long()
    assert values.tolist() == [5 * i for i in range(7)]


def test_large_images_are_tested_few_at_once_on_a_cpu() -> None:
    few, many = Evaluation(make(600, channels=3, size=32, test=600)), Evaluation(make(600, test=600))
    assert max(len(targets) for _, targets in few) < 100 and max(len(targets) for _, targets in many) == 500
    assert torch.equal(torch.cat([targets for _, targets in few]), few.labels)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_sees_the_same_minibatches() -> None:
    for t in (0, 7):
        cpu = Batches(make(), 8, 0, augment=True)[t]
        gpu = Batches(make(), 8, 0, augment=True, device="cuda")[t]
        assert gpu[0].is_cuda and torch.allclose(gpu[0].cpu(), cpu[0], atol=1e-6) and torch.equal(gpu[1].cpu(), cpu[1])


def test_minibatches_made_ahead_are_the_same(device: str) -> None:
    batches, other = (Batches(make(), 8, 0, augment=True, device=device) for _ in range(2))
    assert other.together == (8 if device == "cuda" else 1)
    ahead = Ahead(other, 7, torch.device(device))
    for t in (0, 1, 2, 4, 5, 6):  # one is left out
        inputs, targets = ahead.take(t)
        expected = batches[t]
        ahead.make(t + 1)
        if device == "cuda":
            assert (ahead.ready is not None) == (t < 6)
        assert torch.equal(inputs, expected[0]) and torch.equal(targets, expected[1])


def test_a_minibatch_that_cannot_be_made_is_missed_where_it_is_taken() -> None:
    """Not a step earlier, which has still to be logged."""

    class Broken(Ahead):
        def _make(self, t: int, stream: torch.cuda.Stream) -> None:
            raise OSError("a file is gone")

    ahead = Broken(Batches(make(), 8, 0), 7, torch.device("cpu"))
    ahead.stream = object()  # type: ignore[assignment]
    ahead.make(3)
    with pytest.raises(OSError, match="a file is gone"):
        ahead.take(3)
