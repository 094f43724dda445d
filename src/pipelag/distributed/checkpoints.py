"""Checkpoints of a real pipeline, stage by stage (PipeDream section 4, "Checkpointing").

A stage writes its part when its own update of a marked minibatch is done; no worker waits for another. A set is
complete when every stage's part is written, and an interrupted run goes on from the newest complete set. While the
pipeline fills again, a stage's forwards read old versions. Its part holds these versions, so that the run ends bit for
bit as if it had not been interrupted. If the run goes on with another pipeline (other cuts, another method, more
minibatches under way), the old versions are of no use; the pipeline then fills from the checkpoint's weights, as in
PipeDream.

The files of a set are `step-<n>/<kind>-<stage>-of-<stages>.pt`. The kinds `losses` and `stage` (weights and statistics)
serve the evaluations; only a restart needs `resume` and `policy`. The two newest sets have all kinds. Fewer and fewer
of the older sets keep those for a restart (`outdated`), in case a newer set is damaged.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch import nn

from pipelag import checkpoint
from pipelag.errors import PipelagError
from pipelag.stage.optimizers import counted, made_with
from pipelag.stage.phase import Phase
from pipelag.stage.rounded import Masters, in_full
from pipelag.stage.weights import whole_state

Tensors = dict[str, torch.Tensor]
PART = re.compile(r"([a-z]+)-(\d{1,9})-of-(\d{1,9})\.pt")
SET = re.compile(r"step-(\d{9})")
LASTING, RESTART = ("losses", "stage"), ("resume", "policy")  # kinds of files: that are kept; that a restart needs


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run.

    marks: the numbers of minibatches of the run after which a checkpoint is written.
    run: the run's id.
    """

    folder: Path
    marks: frozenset[int]
    run: str = ""

    def steps(self) -> list[int]:
        """The complete sets, oldest first, by the number of minibatches done."""
        return [step for step in self._begun() if self.complete(step)]

    def _begun(self) -> list[int]:
        """The sets that have a folder, complete or not, oldest first."""
        names = [path.name for path in self.folder.glob("step-*") if path.is_dir()]
        return sorted(int(match[1]) for name in names if (match := SET.fullmatch(name)))

    def complete(self, step: int) -> bool:
        """Whether the set after `step` minibatches is complete."""
        return self.at(step).is_dir() and _division(self.at(step)) > 0

    def rewind(self, measured: Collection[int] | None = None) -> int:
        """Go back to the newest set from which the run can go on; returns its minibatches, or 0 without such a set.

        The run can go on from a set that is undamaged, if the losses of all sets before it are undamaged too, and the
        weights of those at which the model is `measured` (None: of all). Newer complete sets are renamed, not deleted,
        because perhaps only a single file is damaged. Newer incomplete sets are deleted.
        """
        steps, newest = self.steps(), 0
        for step in reversed(self._told(steps, measured)):
            if not any(path.is_file() for kind in RESTART for path in self.at(step).glob(f"{kind}-*")):
                continue  # an older set, without the files for a restart
            wrong = self._wrong(step, LASTING + RESTART)
            if not wrong:
                newest = step
                break
            print(f"pipelag: the checkpoint {wrong}; its set is not used", file=sys.stderr)
        for step in self._begun():
            if step > newest and step in steps:
                self._set_aside(step)
            elif step > newest:
                self._drop(self.at(step))
        return newest

    def _told(self, steps: Sequence[int], measured: Collection[int] | None) -> list[int]:
        """The oldest of these sets, up to the first whose losses, or weights if measured, are damaged or incomplete."""
        whole, counted = list[int](), 0
        for step in steps:
            wrong = self._wrong(step, LASTING if measured is None or step in measured else ("losses",))
            counted += 0 if wrong else sum(len(part["losses"]) for part in self.parts(step, "losses"))
            if not wrong and counted != step:
                wrong = f"{self.at(step)} needs an earlier one that is missing"
            if wrong:
                print(f"pipelag: the checkpoint {wrong}; its set is not used", file=sys.stderr)
                break
            whole.append(step)
        return whole

    def _set_aside(self, step: int) -> None:
        """Rename a set, in place of one of the same step that was renamed before."""
        aside = self.at(step).with_suffix(".damaged")
        if aside.exists():
            self._drop(aside)
        try:
            os.replace(self.at(step), aside)
        except OSError as error:
            raise PipelagError(
                f"{self.at(step)}, from which no run can continue, cannot be set aside as {aside.name} "
                f"({error.strerror}); remove it"
            ) from error
        print(f"pipelag: {self.at(step)} was set aside as {aside.name}", file=sys.stderr)

    def _drop(self, folder: Path) -> None:
        try:
            rmtree(folder)
        except OSError as error:
            raise PipelagError(
                f"{folder}, which is incomplete, cannot be removed ({error.strerror}); remove it"
            ) from error

    def _wrong(self, step: int, kinds: Iterable[str]) -> str:
        """What is wrong with a set's files of these kinds, in words; empty if nothing is."""
        number = _division(self.at(step))
        for kind in kinds:
            for stage in range(1, number + 1):
                path = self.at(step) / f"{kind}-{stage}-of-{number}.pt"
                if not checkpoint.whole(path, self.name_of(path)):
                    return f"{path} is {'damaged' if path.exists() else 'missing'}"
        return ""

    def name_of(self, path: Path) -> str:
        """The identity that a file carries: its run, set, kind and stage."""
        return f"{self.run} {path.parent.name}/{path.name}"

    def at(self, step: int) -> Path:
        """The folder of a set."""
        return self.folder / f"step-{step:09d}"

    def parts(self, step: int, kind: str) -> list[dict[str, Any]]:
        """The contents of all stages' files of a kind after `step` minibatches, first stage first."""
        number = _division(self.at(step))
        names = [f"{kind}-{stage}-of-{number}.pt" for stage in range(1, number + 1)]
        return [self._read(self.at(step) / name) for name in names]

    def model(self, step: int) -> Tensors:
        """The whole model's state after `step` minibatches."""
        return {name: value for part in self.parts(step, "stage") for name, value in part.items()}

    def losses(self, until: int) -> list[float]:
        """The losses of the run's first `until` minibatches, from the complete sets."""
        parts = [part for step in self.steps() if step <= until for part in self.parts(step, "losses")]
        return [value for part in parts for value in part["losses"]]

    def policy(self, step: int, stage: int, stages: int) -> dict[str, Any] | None:
        """The state of a stage's weight policy (`pipelag.stage.history`)."""
        return self._read(self.at(step) / f"policy-{stage}-of-{stages}.pt")["policy"]  # type: ignore[no-any-return]

    def check_over(self, step: int, asked: Mapping[str, str]) -> None:
        """Refuse the checkpoint of a finished training to a different training, which would report it as its own.

        Args:
            asked: describes the training (`told_of`, and its optimizer); only what the checkpoint says is compared.

        Raises:
            PipelagError: a difference; the message names the first.
        """
        past = training_of(self.parts(step, "resume"))
        for name, value in asked.items():
            if past.get(name, value) != value:
                raise PipelagError(
                    f"the checkpoints in {self.folder} hold all {step} steps of a training with {name} {past[name]}, "
                    f"but this one has {name} {value} and no steps left to train; train more steps, or name another "
                    "folder"
                )
        print(
            f"pipelag: {self.folder} holds all {step} steps already; there was nothing left to train", file=sys.stderr
        )

    def _read(self, path: Path) -> dict[str, Any]:
        part = checkpoint.load(path, self.name_of(path))
        if part is None:
            raise PipelagError(f"the checkpoint {path} is missing; start again, and the run begins from the start")
        return part


@dataclass
class CheckpointWriter:
    """Writes one stage's part of the checkpoints of one phase.

    Args:
        about: describes the phase, so that a restart can tell whether it goes on with the same phase.
        held: maps names in the stage's module to names in the model.
        parameters: the parameters' names in the model, in the optimizer's order.
        base: the phase's clock and traffic when the worker began.
        seconds: the run's seconds when the worker began.
        last: the number of minibatches done at the last mark.
        masters: in bfloat16, the float32 master weights, which the checkpoint holds.
        training: describes the training (`told_of`), for a later start that finds nothing left to train.
        carriers: what the run's messages have gone through so far.
    """

    checkpoints: Checkpoints
    about: str
    stage: int
    stages: int
    held: Mapping[str, str]
    parameters: Sequence[str]
    base: dict[str, float]
    seconds: float
    last: int
    masters: Masters | None = None
    training: Mapping[str, str] = field(default_factory=dict)
    carriers: Sequence[str] = ()
    buffers: dict[int, Tensors] = field(default_factory=dict)

    def wants(self, step: int) -> bool:
        """Whether a checkpoint is written after `step` minibatches of the run."""
        return step in self.checkpoints.marks

    def note_buffers(self, step: int, module: nn.Module) -> None:
        """Keep the statistics after the forward of minibatch `step`-1; more forwards run before its update is done."""
        self.buffers[step] = self.state_of(module, weights=False)

    def state_of(self, module: nn.Module, weights: bool) -> Tensors:
        """Copies of the stage's weights, or of its statistics, by their names in the model.

        A shared tensor appears under all its names.
        """
        parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        state = in_full(module, self.masters).items()
        return {self.held[name]: on_cpu(value) for name, value in state if (name in parameters) == weights}

    def save(
        self,
        step: int,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        state: Mapping[int, Mapping[str, Any]],
        losses: Sequence[torch.Tensor],
        clock: Mapping[str, float],
        policy: dict[str, Any] | None,
    ) -> None:
        """Write the stage's part of the checkpoint after `step` minibatches.

        Args:
            optimizer, state: the stage's optimizer, and its state by the parameter's position.
            losses: the losses of the minibatches since the last mark, on the last stage only.
            clock: the phase's clock and traffic so far.
            policy: the state of the weight policy (`pipelag.stage.history`).
        """
        resume = {
            "about": self.about,
            "optimizer": {self.parameters[i]: on_cpu(values) for i, values in state.items()},
            "kind": type(optimizer).__name__ if optimizer is not None else None,
            "training": dict(self.training) | ({"optimizer": described(optimizer)} if optimizer is not None else {}),
            "groups": groups_of(optimizer),
            "counted": on_cpu(counted(optimizer)),
            "carriers": list(self.carriers),
            "clock": dict(clock),
            "seconds": self.seconds + clock["seconds"] - self.base.get("seconds", 0.0),
        }
        files: dict[str, dict[str, Any]] = {  # `stage` comes last: it completes the set
            "resume": resume,
            "policy": {"policy": policy},
            "losses": {"losses": [float(loss) for loss in losses]},
            "stage": self.state_of(module, weights=True) | self.buffers.pop(step, {}),
        }
        self.last, folder, suffix = step, self.checkpoints.at(step), f"{self.stage}-of-{self.stages}.pt"
        earlier = bool(self.checkpoints.steps())
        for kind, content in files.items():
            path = folder / f"{kind}-{suffix}"
            checkpoint.save(content, path, of=self.checkpoints.name_of(path), earlier=earlier)
        for old in outdated(self.checkpoints.steps()):
            for kind in RESTART:
                with suppress(OSError):  # no longer needed; at worst it takes room
                    (self.checkpoints.at(old) / f"{kind}-{suffix}").unlink(missing_ok=True)


def outdated(steps: Sequence[int]) -> list[int]:
    """The sets whose files for a restart can be deleted: the two newest keep them, and ever fewer of the older sets.

    If a set is damaged, a run that has to go on from an earlier one finds it at most three times as far from the end as
    the damaged set (counted in sets, where the end lies one beyond the newest).

    >>> outdated([10, 20, 30, 40, 50, 60, 70, 80])
    [10, 20, 30, 50]
    """
    count = len(steps)
    return [step for n, step in enumerate(steps, start=1) if 2 * (n & -n) < count - n]


def training_of(parts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The description of the training in a set's "resume" parts; those of older versions have none."""
    parts = list(parts)
    settings = {name: value for part in parts for name, value in part.get("training", {}).items()}
    return settings | grouped(setting for part in parts for setting in part.get("groups", ()))


def fits(state: Mapping[str, torch.Tensor], model: nn.Module) -> bool:
    """Whether a state fits this model in names and shapes; buffers that a `state_dict` leaves out may be missing."""
    model_state = model.state_dict()
    left_out = whole_state(model).keys() - model_state.keys()

    def shapes(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: getattr(value, "shape", None) for name, value in values.items() if name not in left_out}

    return shapes(state) == shapes(model_state)


def told_of(phase: Phase, seed: int, bf16: bool) -> dict[str, str]:
    """The description of a training that its checkpoints carry: the settings of a phase, without the optimizer."""
    settings = {"method": phase.method.name, "cuts": str(list(phase.cuts)), "microbatches": str(phase.microbatches)}
    settings |= {"replicas": str(list(phase.replicas)), "recompute": str(int(phase.recompute))}
    return settings | {"seed": str(seed), "precision": "bf16" if bf16 else "fp32"}


def described(optimizer: torch.optim.Optimizer) -> str:
    """An optimizer's class and settings in words, without settings that are None, 0 or off."""
    settings = [f"{name}={value}" for name, value in optimizer.defaults.items() if value]
    return f"{type(optimizer).__name__}({', '.join(settings)})"


def groups_of(optimizer: torch.optim.Optimizer | None) -> list[str]:
    """For each group, the settings that differ from the optimizer's; without rates, which may differ by stage."""
    if optimizer is None:
        return []
    usual = {f"{name}={value}" for name, value in optimizer.defaults.items()}
    groups = [
        {f"{name}={group[name]}" for name in optimizer.defaults.keys() & group.keys()} for group in made_with(optimizer)
    ]
    return [", ".join(sorted(settings - usual)) for settings in groups]


def grouped(groups: Iterable[str]) -> dict[str, str]:
    """The description of a training's optimizer groups; empty for checkpoints of older versions, which have none."""
    different = set(groups)
    return {"groups": "; ".join(sorted(different - {""})) or "all alike"} if different else {}


def on_cpu(value: Any) -> Any:
    """A copy of the value with all tensors, also within dicts, lists and tuples, on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [on_cpu(item) for item in value]
    return value


def _place(path: Path) -> tuple[str, int, int] | None:
    """The (kind, stage, stages) in the name of a part's file; None: it is no such file."""
    match = PART.fullmatch(path.name)
    return (match[1], int(match[2]), int(match[3])) if match else None


def _division(folder: Path) -> int:
    """The number of stages of a complete set, 0 if it is incomplete. A stage writes its `stage` file last."""
    counts = [place[2] for path in folder.iterdir() if (place := _place(path)) and place[0] == "stage"]
    return max((count for count in counts if counts.count(count) == count), default=0)
