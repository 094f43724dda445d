"""Checks of data sets and their options. Without them a wrong test set would end a run only after its training."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from pipelag.errors import PipelagError, a


def check_counts(name: str, **options: int | None) -> None:
    """Refuse options of data set `name` that are below 1: as the end of a slice they would mean something else."""
    for option, value in options.items():
        if value is not None and value < 1:
            raise PipelagError(f"the option '{option}' of data set '{name}' is {value}; it should be 1 or more")


def check_some(name: str, what: str, samples: Collection[object] | torch.Tensor) -> None:
    """Refuse a part without samples; `what` says which part of which samples, such as "test pairs"."""
    if not len(samples):
        raise PipelagError(f"'{name}' has no {what}; it needs at least one")


def check_range(name: str, what: str, numbers: Collection[int] | torch.Tensor, count: int, of: str) -> None:
    """Refuse numbers outside 0 to `count` - 1; `of` says what is counted, such as "classes"."""
    if isinstance(numbers, torch.Tensor):
        numbers = [int(numbers.min()), int(numbers.max())] if numbers.numel() else []
    if numbers and not 0 <= min(numbers) <= max(numbers) < count:
        raise PipelagError(
            f"{what} of '{name}' run from {min(numbers)} to {max(numbers)}; with {count:,} {of} they should stay "
            f"within 0 to {count - 1}"
        )


def check_int64(name: str, what: str, value: Any, dimensions: str) -> None:
    """Refuse anything but an int64 tensor of as many dimensions as are named, such as "(N, length)"."""
    if not isinstance(value, torch.Tensor):
        raise PipelagError(f"{what} of '{name}' is {a(type(value).__name__)}; it should be torch.int64 {dimensions}")
    if value.dtype != torch.int64 or value.dim() != len(dimensions.strip("(),").split(",")):
        raise PipelagError(
            f"{what} of '{name}' is {value.dtype} {tuple(value.shape)}; it should be torch.int64 {dimensions}"
        )


def check_labels(name: str, part: str, labels: torch.Tensor, samples: int, what: str, classes: int) -> None:
    """Refuse labels that are not int64 (samples,) from 0 to classes - 1; `what` is a sample, such as "image"."""
    if labels.dtype != torch.int64 or labels.shape != (samples,):
        raise PipelagError(
            f"{part}_labels of '{name}' are {labels.dtype} {tuple(labels.shape)}; they should be torch.int64 "
            f"({samples},), one for each {what}"
        )
    check_range(name, f"{part}_labels", labels, classes, "classes")
