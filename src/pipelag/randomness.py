"""Random draws that every executor repeats: seeded per (seed, minibatch, stage), never by what ran before."""

from __future__ import annotations

import torch

_MASK = (1 << 63) - 1


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
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)


class preserved_randomness:
    """Put the CPU generator back as it was on leaving: a run must not disturb its caller's random numbers."""

    def __enter__(self) -> None:
        self.state = torch.get_rng_state()

    def __exit__(self, *exception: object) -> None:
        torch.set_rng_state(self.state)
