"""Draws that are repeated: of a (seed, minibatch, stage), whatever was drawn before."""

from __future__ import annotations

import os
import random
import threading
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from pipelag import linearise
from pipelag.models import build
from pipelag.randomness import TURN, drawn_for, mix, seed_stage, seeded
from tests.pretended import CUDA, pretended


def test_seeds_are_of_all_their_numbers_in_their_order() -> None:
    seeds = [mix(*numbers) for size in (1, 2, 3) for numbers in product(range(-1, 12), repeat=size)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 63 for seed in seeds)


GOLDEN = 0x9E3779B97F4A7C15


def finalised(state: int) -> int:
    """splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ state >> shift) * factor % 2**64
    return state ^ state >> 31


def test_what_is_logged_was_drawn_with_these_seeds() -> None:
    """A change of any of them would change the numbers of every run, whose id stays."""
    assert finalised(GOLDEN) == 0xE220A8397B1DCDAF  # splitmix64's first output from state 0
    state = GOLDEN
    for number in (3, 5, 7):
        state = finalised(state ^ (number + GOLDEN) % 2**64)
    seed_stage(3, 5, 7, torch.device("cpu"))
    assert torch.initial_seed() == mix(3, 5, 7) == state % 2**63
    with drawn_for(3, 5):
        assert torch.initial_seed() == mix(3, 5, -1)


def looks(seed: int, minibatch: int) -> tuple[float, float, float]:
    with drawn_for(seed, minibatch):
        return float(torch.rand(())), float(np.random.rand()), random.random()


def test_whoever_looks_a_minibatch_up_draws_the_same_from_all_generators() -> None:
    first = looks(3, 4)
    for generator in (torch.manual_seed, np.random.seed, random.seed):
        generator(9)  # type: ignore[operator]
    assert looks(3, 4) == first
    for other in (looks(3, 5), looks(4, 4)):
        assert all(a != b for a, b in zip(first, other, strict=True))


def test_afterwards_the_generators_are_as_they_were() -> None:
    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = drawn()
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    looks(1, 2)
    assert drawn() == expected


def test_a_gpus_generator_is_left_alone_by_models_that_are_made_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` would seed all GPUs' generators, too."""
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", asked.append)
    build("lenet5", seed=3)
    linearise(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), inputs={"input": torch.ones(3, 2)})
    assert not asked


def test_a_gpu_that_draws_by_a_seed_goes_on_where_it_was() -> None:
    with pretended():
        torch.cuda.default_generators[0].manual_seed(5)
        expected = torch.rand(3, device="cuda")
        torch.cuda.default_generators[0].manual_seed(5)
        with seeded(9, CUDA):
            first = torch.rand(3, device="cuda")
        assert torch.equal(torch.rand(3, device="cuda"), expected)
        with seeded(9, CUDA):
            assert torch.equal(torch.rand(3, device="cuda"), first)


def test_seeds_are_the_same_on_every_machine() -> None:
    """Logs are repeated by them."""
    assert (mix(0), mix(1, 2), mix(2, 1)) == (0, 2877418497362709762, 268381947344025288)


def test_a_fork_need_not_wait_for_a_thread_that_it_has_not() -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with TURN:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if TURN.acquire(timeout=5) else 1)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
