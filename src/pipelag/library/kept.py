"""Checkpoints of `pipelag.train` where simulated: one file, from which the same training goes on bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelag import checkpoint
from pipelag.distributed.checkpoints import Checkpoints, described, fits, grouped, groups_of, told_of
from pipelag.errors import PipelagError
from pipelag.library.telling import Telling
from pipelag.randomness import preserved_randomness
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

NAME = "simulated.pt"


class Kept:
    """The checkpoint of one training.

    Args:
        marks: after how many steps it is written.
        told: what is said of each phase in it (`told_of`), by which another training is known.
    """

    def __init__(self, folder: Path, marks: frozenset[int], phases: Sequence[Phase], told: Sequence[dict[str, str]]):
        self.path, self.marks, self.phases, self.told = folder / NAME, marks, phases, told
        self.total = sum(phase.steps for phase in phases)

    def save(self, training: SimulatedTraining, telling: Telling, callers: preserved_randomness) -> None:
        """Everything that the steps to come depend on, and what was told of those done."""
        state = {
            "training": training.state_dict(),
            "losses": list(telling.losses()),
            "evaluations": list(telling.evaluations),
            "phases": [phase.steps for phase in self.phases],
            "told": [told | optimizer_told(training) for told in self.told],
            "caller": callers.state,  # where the caller's data draw on
        }
        checkpoint.save(state, self.path, keep=True)
        if telling.wishes.on_checkpoint is not None:
            telling.wishes.on_checkpoint(training.done, self.path)

    def resume(self, training: SimulatedTraining) -> dict[str, Any] | None:
        """Go on from the newest checkpoint that is whole; what it says, None where there is none.

        Raises:
            PipelagError: it is another training's, or a longer one's.
        """
        for path in (self.path, checkpoint.before(self.path)):
            saved = checkpoint.load(path)
            if saved is not None:
                self._check(path, saved, training)
                training.load_state_dict(saved["training"])
                if training.done == self.total:
                    print(
                        f"pipelag: {path} holds all {self.total} steps, and nothing was left to train", file=sys.stderr
                    )
                return saved
        return None

    def _check(self, path: Path, saved: Mapping[str, Any], training: SimulatedTraining) -> None:
        done, phase = saved["training"]["done"], saved["training"]["phase"]
        if not fits(saved["training"]["model"], training.model):
            raise PipelagError(f"the checkpoint {path} is of another model; go on with that model, or delete it")
        if done > self.total:
            raise PipelagError(
                f"the checkpoint {path} is of step {done}, and only {self.total} are to be trained; train more, or "
                "delete it"
            )
        if phase >= len(self.phases):
            raise PipelagError(f"the checkpoint {path} is of phase {phase + 1}, and there are {len(self.phases)}")
        own = [told | optimizer_told(training) for told in self.told]
        for number in range(phase + 1):
            steps = [str(phases[number]) for phases in (saved["phases"], [each.steps for each in self.phases])]
            was, now = saved["told"][number], own[number]
            if number < phase:  # the last one may be longer now
                was, now = was | {"steps": steps[0]}, now | {"steps": steps[1]}
            for name in now:
                if was.get(name) != now[name]:
                    raise PipelagError(
                        f"the checkpoint {path} is of a training with {name} {was.get(name)}, and this one has {name} "
                        f"{now[name]}: where simulated, the same training alone goes on; name another folder"
                    )


def optimizer_told(training: SimulatedTraining) -> dict[str, str]:
    """The optimizer as checkpoints tell of it."""
    made = training.optimizer
    return {"optimizer": described(made)} | grouped(groups_of(made)) if made is not None else {}


@contextmanager
def kept_in(
    folder: str | Path | None, every: int, phases: Sequence[Phase], seed: int, bf16: bool
) -> Iterator[Kept | None]:
    """The checkpoint in a user's folder, where there is one; marks: every so many steps, and the end.

    Raises:
        PipelagError: real workers' checkpoints are there, or another process is at work.
    """
    if folder is None:
        yield None
        return
    if Checkpoints(Path(folder), frozenset()).steps():
        raise PipelagError(f"{folder} holds checkpoints of real workers; use executor='real', or name another folder")
    total = sum(phase.steps for phase in phases)
    with checkpoint.alone(Path(folder)):
        marks = frozenset({*(range(every, total, every) if every else ()), total})
        yield Kept(Path(folder), marks, phases, [told_of(phase, seed, bf16) for phase in phases])


def refuse_simulated(folder: Path) -> None:
    """Real workers do not go on from a simulated training's checkpoint."""
    if (folder / NAME).exists():
        raise PipelagError(
            f"{folder} holds a checkpoint of the simulated executor; use executor='simulated', or name another folder"
        )


def told_again(saved: Mapping[str, Any], telling: Telling) -> None:
    """Tell of the steps and evaluations that a checkpoint knows of."""
    rows = {row["step"]: row for row in saved["evaluations"]}
    for step, loss in enumerate(saved["losses"], start=1):
        telling.repeat(loss, rows.get(step))
    telling.losses()  # in float64, which others to come are not
