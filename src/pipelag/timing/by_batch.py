"""A model's profiles for any number of samples per pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipelag.errors import PipelagError
from pipelag.timing.layers import Profile


@dataclass(frozen=True)
class Sizes:
    """Bytes of each layer's output, and of what its backward needs besides weights and input: arrays [layers]."""

    output_bytes: np.ndarray
    kept_bytes: np.ndarray

    @classmethod
    def of(cls, profile: Profile) -> Sizes:
        """The sizes that a profile holds."""
        layers = profile.layers
        return cls(np.array([layer.output_bytes for layer in layers]), np.array([layer.kept_bytes for layer in layers]))


class Profiles:
    """A model's profiles by the number of samples per pass, each made when it is first asked for.

    Args:
        make: makes the profile for a number of samples.
        input_bytes: bytes of one sample of the model's input.
        scaled: `make` only scales another profile, so that calling it costs next to nothing.
    """

    def __init__(self, make: Callable[[int], Profile], input_bytes: float = 0.0, scaled: bool = False) -> None:
        self.make, self.input_bytes, self.scaled = make, input_bytes, scaled
        self.made: dict[int, Profile] = {}
        self.line: list[tuple[int, Sizes]] = []  # (samples, sizes) of the first two profiles made

    def at(self, samples: int) -> Profile:
        """The profile for passes of `samples`."""
        if samples not in self.made:
            profile = self.make(samples)
            if len(self.line) == 2 and not self.scaled:
                check_line(profile, self.sizes(samples), samples)
            self.made[samples] = profile
            self.line = [*self.line, (samples, Sizes.of(profile))][:2]
        return self.made[samples]

    def sizes(self, samples: int) -> Sizes:
        """The sizes of the profile `at(samples)`, read off a line, because they are linear in the number of samples.

        The line goes through the first two profiles made, which are made here if need be. Every further profile is
        checked against it (`check_line`).
        """
        if self.scaled:
            return Sizes.of(self.make(samples))
        while len(self.line) < 2:
            self.at(2 * max(self.made, default=samples))
        (low, below), (high, above) = self.line
        steps, of = samples - low, high - low
        return Sizes(
            below.output_bytes + (above.output_bytes - below.output_bytes) * steps // of,
            below.kept_bytes + (above.kept_bytes - below.kept_bytes) * steps // of,
        )


def check_line(profile: Profile, expected: Sizes, samples: int) -> None:
    """Refuse a model whose sizes are not linear in the number of samples."""
    counted = Sizes.of(profile)
    for what in ("output", "kept"):
        sizes, on_line = (getattr(each, f"{what}_bytes") for each in (counted, expected))
        for layer, here, foreseen in zip(profile.layers, sizes, on_line, strict=True):
            if here != foreseen:
                raise PipelagError(
                    f"layer {layer.layer} '{layer.name}' has {here} {what} bytes for {samples} samples, but two other "
                    f"profiles predict {foreseen}; the largest batch that fits cannot be found for a model whose sizes "
                    "do not grow linearly with the samples"
                )
