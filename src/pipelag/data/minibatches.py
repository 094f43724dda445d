"""Minibatches by number: the content of minibatch t depends on the seed and t only, so a run can resume anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from pipelag.errors import PipelagError
from pipelag.randomness import mix
from pipelag.tensors import sent


class Minibatches(ABC):
    """`batches[t] -> (inputs, targets)` for t = 0, 1, 2, ... without end; `len` is the number in an epoch.

    `inputs` and `targets` are separate methods: a pipeline's first stage needs only the former, its last the latter.
    """

    uneven = False  # whether minibatches differ in shape

    @abstractmethod
    def __len__(self) -> int:
        """Minibatches per epoch."""

    @abstractmethod
    def inputs(self, t: int) -> Any:
        """The first layer's input in minibatch `t`."""

    @abstractmethod
    def targets(self, t: int) -> Any:
        """What the loss takes beside the output in minibatch `t`: a tensor, or a tuple of tensors."""

    def summary(self) -> dict[str, Any]:
        """Entries about the minibatches for a run's summary, beside those about its data."""
        return {}

    def __getitem__(self, t: int) -> tuple[Any, Any]:
        """Inputs and targets of minibatch `t`."""
        return self.inputs(t), self.targets(t)

    def epoch(self, t: int) -> float:
        """Epochs done after `t` minibatches."""
        return t / len(self)


class Ahead:
    """Minibatches in their order; on a GPU each is made on a stream of its own while the step before runs.

    The small kernels that crop and normalise then run where the step's kernels leave the GPU idle. On a CPU a minibatch
    is made when it is taken.

    Args:
        end: the number of minibatches; none is made from this number on.
    """

    def __init__(self, batches: Minibatches, end: int, device: torch.device) -> None:
        self.batches, self.end = batches, end
        self.stream: torch.cuda.Stream | None = None
        self.ready: tuple[int, tuple[Any, Any], torch.cuda.Event] | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)
            self.stream.wait_stream(torch.cuda.current_stream(device))  # which copies the data set to the GPU

    def take(self, t: int) -> tuple[Any, Any]:
        """Minibatch `t`."""
        if self.stream is None:
            return self.batches[t]
        if self.ready is None or self.ready[0] != t:
            self._make(t, self.stream)
        assert self.ready is not None
        _, minibatch, done = self.ready
        self.ready, current = None, torch.cuda.current_stream(self.stream.device)
        current.wait_event(done)
        for leaf in tree_leaves(minibatch):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(current)  # or the next minibatch would get its memory while the step still reads it
        return minibatch

    def make(self, t: int) -> None:
        """Start to make minibatch `t`, if there is one. Call it once the step before has been launched.

        An error is left to `take`, which tries again, so that the step before is finished first.
        """
        if self.stream is not None and t < self.end:
            with suppress(Exception):
                self._make(t, self.stream)

    def _make(self, t: int, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            minibatch = self.batches[t]
            self.ready = t, minibatch, stream.record_event()


class Shuffled(Minibatches):
    """Minibatches of a training set. Every epoch is a new permutation; its last, partial minibatch is dropped.

    Args:
        name: the set's name. samples: how many it has. what: the word for them in messages.
        stream: which of the seed's streams of random numbers orders the samples. device: the device of the indices.

    Raises:
        PipelagError: the training set is smaller than a minibatch.
    """

    def __init__(
        self, name: str, samples: int, batch: int, seed: int, stream: int, device: torch.device, what: str = "samples"
    ) -> None:
        if not 1 <= batch <= samples:
            raise PipelagError(f"a minibatch of {batch} does not fit '{name}'; choose 1 to {samples} {what}")
        self.samples, self.batch, self.seed, self.stream, self.indexed_on = samples, batch, seed, stream, device
        # Two epochs: when a pipeline's first stage begins an epoch, its last stage is still in the one before.
        self.permutation = lru_cache(maxsize=2)(self._permutation)

    def __len__(self) -> int:
        """Minibatches per epoch."""
        return self.samples // self.batch

    def indices(self, t: int) -> torch.Tensor:
        """int64 (batch,): which training samples minibatch `t` holds."""
        epoch, place = divmod(t, len(self))
        return self.permutation(epoch)[place * self.batch : (place + 1) * self.batch]

    def _permutation(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(mix(self.seed, self.stream, epoch))
        return sent(torch.randperm(self.samples, generator=generator), self.indexed_on)
