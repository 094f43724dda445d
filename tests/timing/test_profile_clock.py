"""Layers are timed on a GPU without waiting for each: by events, read when a round is over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelag.timing.profile import Clock


class Stream:
    """A GPU's queue: `waits` counts synchronisations; events are stamped when it is empty."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, 0

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        stream, stamp = self, self

        class Event:
            def record(self) -> None:
                self.at, self.waits = stream.now, stream.waits

            def elapsed_time(self, other: Any) -> float:
                assert stamp.waits > other.waits, "read before the queue was empty"
                return other.at - self.at

        return Event()

    def synchronize(self) -> None:
        self.waits += 1


def test_one_synchronisation_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = Stream(), Clock(events=True)
    monkeypatch.setattr(torch.cuda, "Event", stream.Event)
    monkeypatch.setattr(torch.cuda, "synchronize", stream.synchronize)
    layers: list[list[float]] = [[], [], []]
    for _ in range(2):
        for length, times in enumerate(layers, start=1):
            with clock.timing(times):
                stream.now += length
        clock.read()
    assert layers == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert stream.waits == 2
