"""Random draws that every executor repeats: seeded per (seed, minibatch, stage), never by what ran before."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import ClassVar, TypeVar

import numpy as np
import torch

T = TypeVar("T")
_MASK = (1 << 63) - 1
# A process has one of each generator for all its threads: who has seeded one draws from it before another thread does
TURN = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TURN._at_fork_reinit)  # type: ignore[attr-defined]  # its holder is not in the child


def mix(*numbers: int) -> int:
    """A 63-bit seed from small integers (splitmix64's finaliser over each in turn): (1, 2) and (2, 1) differ."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number + 0x9E3779B97F4A7C15)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & _MASK


def seed_stage(seed: int, minibatch: int, stage: int, device: torch.device) -> None:
    """Set the generator that dropout on `device` draws from, for one stage's forward of one minibatch."""
    value = mix(seed, minibatch, stage)
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[number].manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)


def state_of(device: torch.device) -> torch.Tensor:
    """Of the generator that dropout on `device` draws from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_state(state: torch.Tensor, device: torch.device) -> None:
    """Let that generator go on from there."""
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)


@contextmanager
def drawn_for(seed: int, minibatch: int) -> Iterator[None]:
    """Within, a caller's code draws numbers of this minibatch alone, from torch's, NumPy's and Python's generators.

    So whoever looks a minibatch up finds the same: the worker of the first stage its inputs, that of the last one its
    targets, and a training that goes on after a break. Afterwards the generators (the CPU's) are as they were.
    """
    value = mix(seed, minibatch, -1)
    with TURN, preserved_randomness(), others_preserved():
        torch.default_generator.manual_seed(value)
        np.random.seed(value % (1 << 32))
        random.seed(value)
        yield


@contextmanager
def others_preserved() -> Iterator[None]:
    """Put Python's and NumPy's generators back as they were on leaving."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


class preserved_randomness:
    """Put the generators back as they were on leaving: a run must not disturb its caller's random numbers.

    Args:
        device: whose generator is kept beside the CPU's.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device if device is not None and device.type == "cuda" else None

    def __enter__(self) -> preserved_randomness:
        self.state = torch.get_rng_state()
        if self.device is not None:
            self.on_device = torch.cuda.get_rng_state(self.device)
        return self

    def while_drawing(self, items: Iterable[T], waiting: bool = False) -> Iterator[T]:
        """The items of the caller's, each drawn with the caller's random numbers, which go on from one to the next.

        waiting: an item may come from what another thread trains, for which that one needs its turn.
        """
        iterator = iter(items)
        while True:
            with nullcontext() if waiting else TURN:
                with TURN:
                    inside = torch.get_rng_state()
                    torch.set_rng_state(self.state)
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                finally:
                    with TURN:
                        self.state = torch.get_rng_state()
                        torch.set_rng_state(inside)
            yield item

    def __exit__(self, *exception: object) -> None:
        torch.set_rng_state(self.state)
        if self.device is not None:
            torch.cuda.set_rng_state(self.on_device, self.device)


class callers_randomness(preserved_randomness):
    """The same for a whole training: where another thread trains, whose numbers the generator gives just now, the
    caller's are those that were there when that one began.
    """

    trainings: ClassVar[list[callers_randomness]] = []

    def __enter__(self) -> callers_randomness:
        with TURN:
            super().__enter__()
            self.thread = threading.get_ident()
            self.state = next((each.state for each in self.trainings if each.thread != self.thread), self.state)
            self.trainings.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        with TURN:
            self.trainings.remove(self)
            super().__exit__(*exception)
