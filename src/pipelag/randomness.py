"""Random numbers that are the same in every executor: seeded per (seed, minibatch, stage), whatever ran before."""

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
# All threads of a process share its generators. A thread that has seeded one must draw from it before another does.
TURN = threading.RLock()
if hasattr(os, "register_at_fork"):  # in a fork the thread that holds the lock does not exist
    os.register_at_fork(after_in_child=TURN._at_fork_reinit)  # type: ignore[attr-defined]


def mix(*numbers: int) -> int:
    """A 63-bit seed from small integers, whose order matters (splitmix64's finaliser over each in turn)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number + 0x9E3779B97F4A7C15)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & _MASK


def seed_stage(seed: int, minibatch: int, stage: int, device: torch.device) -> None:
    """Seed the generator from which dropout on `device` draws, for one stage's forward of one minibatch."""
    generator_of(device).manual_seed(mix(seed, minibatch, stage))


def generator_of(device: torch.device) -> torch.Generator:
    """The generator from which dropout on `device` draws."""
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator


def state_of(device: torch.device) -> torch.Tensor:
    """The state of the generator from which dropout on `device` draws."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_state(state: torch.Tensor, device: torch.device) -> None:
    """Set the state of the generator from which dropout on `device` draws."""
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)


@contextmanager
def drawn_for(seed: int, minibatch: int) -> Iterator[None]:
    """In the body, torch's, NumPy's and Python's generators draw numbers that depend on the seed and minibatch only.

    So everybody who looks a minibatch up gets the same one: the first stage's worker for its inputs, the last stage's
    for its targets, and a training that resumes. Afterwards the generators (the CPU's) are as they were.
    """
    value = mix(seed, minibatch, -1)
    with TURN, preserved_randomness(), others_preserved():
        torch.default_generator.manual_seed(value)
        np.random.seed(value % (1 << 32))
        random.seed(value)
        yield


@contextmanager
def others_preserved() -> Iterator[None]:
    """Restore Python's and NumPy's generators on leaving."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


class preserved_randomness:
    """Restore torch's generators on leaving: a run must not disturb its caller's random numbers.

    Args:
        device: the device whose generator is restored beside the CPU's.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device if device is not None and device.type == "cuda" else None

    def __enter__(self) -> preserved_randomness:
        self.state = torch.get_rng_state()
        if self.device is not None:
            self.on_device = torch.cuda.get_rng_state(self.device)
        return self

    def while_drawing(self, items: Iterable[T], waiting: bool = False) -> Iterator[T]:
        """The caller's items, each made with the caller's random numbers, which continue from one item to the next.

        waiting: making an item may wait for a training in another thread, so that thread must be able to take its turn.
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


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """In the body, the CPU's and the device's generators draw by this seed; afterwards they are as they were.

    `torch.manual_seed` would seed all GPUs' generators, which are the caller's.
    """
    with preserved_randomness(device):
        for place in {torch.device("cpu"), device}:
            generator_of(place).manual_seed(seed)
        yield


class callers_randomness(preserved_randomness):
    """As `preserved_randomness`, for a whole training, while other threads may train too.

    If another thread is training, the generator gives that training's numbers just now. The caller's state is then the
    one from before that training.
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
