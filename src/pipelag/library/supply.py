"""A user's minibatches, by number or in order, for one epoch or several, as (inputs, targets)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch

from pipelag import asked
from pipelag.errors import PipelagError, noting
from pipelag.randomness import drawn_for
from pipelag.tensors import sent


@dataclass(frozen=True)
class Supply:
    """Minibatches as (inputs, targets), each checked before it is used.

    Args:
        batches: indexable by number, or any iterable. An iterable is iterated anew in every epoch, so that a
            `DataLoader` shuffles as it does in a user's own loop.
        epochs: how many times the minibatches are used.
        unpack: item of `batches` -> (inputs, targets); None: the items are such pairs.
        seed: for random draws while a numbered minibatch is looked up and unpacked; they depend on (seed, number) alone
            and so are the same in every process. Iterables draw from the generators that the caller's script has
            seeded.
    """

    batches: Any
    epochs: int = 1
    unpack: Callable[[Any], Any] | None = None
    seed: int = 0

    @property
    def numbered(self) -> bool:
        """Whether minibatches are looked up by number; otherwise they are iterated in order."""
        return asked.numbered(self.batches)

    @property
    def length(self) -> int | None:
        """The number of minibatches in an epoch; None if the data have no length."""
        try:
            return len(self.batches)
        except TypeError:
            return None

    def __getitem__(self, step: int) -> tuple[Any, Any]:
        """Minibatch `step` of numbered ones; data that are not endless start again after every epoch."""
        direct = self.epochs == 1 or hasattr(self.batches, "epoch") or not self.length
        with self._drawing(step):
            return self._pair(self.batches[step if direct else step % (self.length or 1)], step)

    def _drawing(self, step: int) -> AbstractContextManager[None]:
        """A context for looking up minibatch `step`."""
        as_it_is = isinstance(self.batches, (list, tuple)) or hasattr(self.batches, "epoch")
        return nullcontext() if as_it_is and self.unpack is None else drawn_for(self.seed, step)

    def first(
        self, count: int, start: int = 0, seen: Callable[[tuple[Any, Any]], None] | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """The minibatches from number `start` up to `count`, in order.

        Args:
            seen: called with minibatch 0 before any is yielded.

        Raises:
            PipelagError: there are fewer than `count` minibatches.
        """
        there = self.length
        if there is not None and there * self.epochs < count and not hasattr(self.batches, "epoch"):
            raise self._too_few(count, f"are {there * self.epochs}")
        if self.numbered:
            if seen is not None:
                pair = self[0]
                seen(pair)
                if not start:
                    yield pair
            yield from (self[step] for step in range(start or int(seen is not None), count))
            return
        taken = 0
        for _ in range(self.epochs):
            before = taken
            for item in islice(self.batches, count - taken):
                pair = self._pair(item, taken)  # for skipped ones too, as `unpack` may draw random numbers
                if seen is not None and not taken:
                    seen(pair)
                if taken >= start:
                    yield pair
                taken += 1
            if taken in (before, count):
                break
        if taken < count:
            raise self._too_few(count, f"were only {taken}")

    def once(self) -> Iterator[tuple[Any, Any]]:
        """The minibatches of one epoch."""
        if self.numbered and self.length is not None:
            yield from (self[step] for step in range(self.length))
            return
        for step, item in enumerate(self.batches):
            yield self._pair(item, step)

    def _pair(self, item: Any, step: int) -> tuple[Any, Any]:
        return asked.check_pair(item if self.unpack is None else self.unpack(item), step, self.unpack is not None)

    def _too_few(self, count: int, there: str) -> PipelagError:
        more = "repeat them with epochs=..."
        if self.length is None:
            more = "give a list or a loader with a length, which epochs=... can repeat"
        return PipelagError(f"{count} steps need {count} minibatches, and there {there}; train fewer steps, or {more}")


def noted(pairs: Iterator[tuple[Any, Any]], start: int = 0) -> Iterator[tuple[Any, Any]]:
    """The same minibatches, the first of which is for step `start`; adds the step to what the user's data raise."""
    for step in count(start):
        with noting(f"in the data, for step {step}"):
            pair = next(pairs, None)
        if pair is None:
            return
        yield pair


def to(value: Any, device: torch.device) -> Any:
    """Send a tensor, or those in a tuple or dict, to a device; leave other values. Does not wait for a GPU's copies."""
    if isinstance(value, tuple):
        return tuple(to(item, device) for item in value)
    if isinstance(value, Mapping):
        return {key: to(item, device) for key, item in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    if device.type != "cuda" or value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad:
        return value.to(device)
    return sent(value.clone() if value.is_pinned() else value, device)  # the caller may reuse its pinned memory
