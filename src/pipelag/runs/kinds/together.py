"""Several simulated trainings in one process, which take turns of one step; on a GPU each has a stream of its own.

A small model leaves most of a GPU idle. Processes that share a GPU take turns of milliseconds at it, but the kernels of
several streams run side by side. The runs do not affect one another: each draws its random numbers by its own seed and
minibatch, so its log and weights are bit for bit those that it would have alone.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from pipelag.errors import PipelagError
from pipelag.files import alone
from pipelag.runs.kinds.train_simulated import in_turns
from pipelag.runs.spec import RunSpec

Turns = Generator[None, None, dict[str, Any]]


def train_together(
    asked: Sequence[tuple[RunSpec, Path]], device: torch.device, threads: int
) -> list[dict[str, Any] | Exception]:
    """Train each spec in its folder, as `train_simulated.train` does; returns for each its summary or its error.

    A run that cannot go on prints why at once, and the others continue.
    """
    ends: dict[int, dict[str, Any] | Exception] = {}
    with ExitStack() as stack:
        turns: dict[int, Turns] = {}
        for number, (spec, out) in enumerate(asked):
            try:
                stack.enter_context(alone(out / "partial"))
            except PipelagError as error:
                ends[number] = _reported(error, out)
            else:
                turns[number] = in_turns(spec, out, device, threads, len(asked))
                stack.callback(turns[number].close)
        streams = {number: torch.cuda.Stream(device) if device.type == "cuda" else None for number in turns}
        while turns:
            for number, run in list(turns.items()):
                stream = streams[number]
                try:
                    with nullcontext() if stream is None else torch.cuda.stream(stream):
                        next(run)
                except StopIteration as end:
                    ends[number] = end.value
                except Exception as error:  # whatever it is, it ends this run only
                    ends[number] = _reported(error, asked[number][1])
                if number in ends:
                    del turns[number]
    return [ends[number] for number in range(len(asked))]


def _reported(error: Exception, out: Path) -> Exception:
    words = " ".join(str(error).split()) or type(error).__name__
    print(f"pipelag: the run in {out} has failed, and the others continue: {words}", file=sys.stderr)
    return error
