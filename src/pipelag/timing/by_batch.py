"""A model's profiles for any number of samples per pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipelag.errors import PipelagError
from pipelag.timing.layers import Profile, kept_until_w

KINDS = ("output", "kept", "freed", "gradient")


@dataclass(frozen=True)
class Sizes:
    """The sizes of each layer as `LayerTime` has them: arrays [layers]; a `gradient_bytes` of -1 is unknown."""

    output_bytes: np.ndarray
    kept_bytes: np.ndarray
    freed_bytes: np.ndarray
    gradient_bytes: np.ndarray

    @classmethod
    def of(cls, profile: Profile) -> Sizes:
        """The sizes that a profile holds."""
        rows = [[getattr(layer, f"{kind}_bytes") for layer in profile.layers] for kind in KINDS]
        return cls(*(np.array([-1 if size is None else size for size in row]) for row in rows))

    def passes(self, first: int, last: int, input_bytes: float) -> np.ndarray:
        """[2, 3]: what a stage keeps of a microbatch, from F to B (or, if that is not in two parts, its end), and from
        B to W: bytes of its input, of its activations and of gradients of outputs.

        Args:
            first, last: the stage's layers (from 1).
            input_bytes: bytes of a microbatch of the model's input.
        """
        kept, freed, gradients = (
            sizes[first - 1 : last].tolist() for sizes in (self.kept_bytes, self.freed_bytes, self.gradient_bytes)
        )
        entering = float(self.output_bytes[first - 2]) if first > 1 else input_bytes
        known = [None if size < 0 else size for size in gradients]
        later = kept_until_w(entering, kept, freed, known, float(self.output_bytes[last - 1]), first == 1)
        return np.array([(entering, sum(kept), 0), later], float)


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
        pairs = [(getattr(below, f"{kind}_bytes"), getattr(above, f"{kind}_bytes")) for kind in KINDS]
        return Sizes(*(low + (high - low) * steps // of for low, high in pairs))


def check_line(profile: Profile, expected: Sizes, samples: int) -> None:
    """Refuse a model whose sizes are not linear in the number of samples."""
    counted = Sizes.of(profile)
    for what in KINDS:
        sizes, on_line = (getattr(each, f"{what}_bytes") for each in (counted, expected))
        for layer, here, foreseen in zip(profile.layers, sizes, on_line, strict=True):
            if here != foreseen:
                raise PipelagError(
                    f"layer {layer.layer} '{layer.name}' has {here} {what} bytes for {samples} samples, but two other "
                    f"profiles predict {foreseen}; the largest batch that fits cannot be found for a model whose sizes "
                    "do not grow linearly with the samples"
                )
