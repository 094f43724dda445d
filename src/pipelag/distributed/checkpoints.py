"""Checkpoints of a real pipeline, stage by stage (PipeDream section 4, "Checkpointing").

A stage writes its part when its own update of a marked minibatch is done; nobody waits for anybody. A set is complete
when every stage's part is there, and a broken run goes on from the newest complete one. What a stage's forwards read
while the pipeline fills again are old versions: they are in its part, so that the run ends bit for bit as if it had not
been broken. Where the pipeline to go on with is another one (other cuts, another method, more minibatches in flight),
they mean nothing; it then fills from the checkpoint's weights, as PipeDream does.

Files of a set, each `<kind>-<stage>-of-<stages>.pt` in `step-<n>/`: `losses` and `stage` (weights and statistics, for
the evaluations), and `resume` and `policy`, what only a restart needs. The two newest sets have these, and ever fewer
of the older ones (`outdated`): where one is damaged, one before it serves.
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
LASTING, RESTART = ("losses", "stage"), ("resume", "policy")  # kinds of files; those that only a restart needs


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run. `marks`: after how many minibatches of the run one is written; `run`: its id."""

    folder: Path
    marks: frozenset[int]
    run: str = ""

    def steps(self) -> list[int]:
        """The complete sets, oldest first, by the minibatches done."""
        return [step for step in self._begun() if self.complete(step)]

    def _begun(self) -> list[int]:
        """The sets of which something is there, oldest first."""
        names = [path.name for path in self.folder.glob("step-*") if path.is_dir()]
        return sorted(int(match[1]) for name in names if (match := SET.fullmatch(name)))

    def complete(self, step: int) -> bool:
        """Whether the set after `step` minibatches is."""
        return self.at(step).is_dir() and _division(self.at(step)) > 0

    def rewind(self, measured: Collection[int] | None = None) -> int:
        """Drop what lies behind the newest set from which the run can go on; returns its minibatches, 0 without one.

        It can where that set is whole, and what is told of those before: their losses, and the weights of those at
        which the model is `measured` (None: at each). A complete set from which it cannot is set aside, not dropped:
        only a file of it, or of one before, may be wrong.
        """
        steps, newest = self.steps(), 0
        for step in reversed(self._told(steps, measured)):
            if not any(path.is_file() for kind in RESTART for path in self.at(step).glob(f"{kind}-*")):
                continue  # an older one, which has no longer what a restart needs
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
        """The first of these sets, up to the one from which on something that is told of them is not whole."""
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
        """Under another name, in place of what was set aside from there before."""
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
        """What is wrong with the files of these kinds in a set; empty: nothing."""
        number = _division(self.at(step))
        for kind in kinds:
            for stage in range(1, number + 1):
                path = self.at(step) / f"{kind}-{stage}-of-{number}.pt"
                if not checkpoint.whole(path, self.name_of(path)):
                    return f"{path} is {'damaged' if path.exists() else 'missing'}"
        return ""

    def name_of(self, path: Path) -> str:
        """Whose a file is: of which run, set, kind and stage."""
        return f"{self.run} {path.parent.name}/{path.name}"

    def at(self, step: int) -> Path:
        """The folder of a set."""
        return self.folder / f"step-{step:09d}"

    def parts(self, step: int, kind: str) -> list[dict[str, Any]]:
        """What all stages have written of a kind after `step` minibatches, first stage first."""
        number = _division(self.at(step))
        names = [f"{kind}-{stage}-of-{number}.pt" for stage in range(1, number + 1)]
        return [self._read(self.at(step) / name) for name in names]

    def model(self, step: int) -> Tensors:
        """The whole model's state after `step` minibatches."""
        return {name: value for part in self.parts(step, "stage") for name, value in part.items()}

    def losses(self, until: int) -> list[float]:
        """The losses of the run's first `until` minibatches, as the complete sets have them."""
        parts = [part for step in self.steps() if step <= until for part in self.parts(step, "losses")]
        return [value for part in parts for value in part["losses"]]

    def policy(self, step: int, stage: int, stages: int) -> dict[str, Any] | None:
        """What a stage's policy remembered (`pipelag.stage.history`)."""
        return self._read(self.at(step) / f"policy-{stage}-of-{stages}.pt")["policy"]  # type: ignore[no-any-return]

    def check_over(self, step: int, asked: Mapping[str, str]) -> None:
        """Refuse the checkpoint after all of a training's steps to another training: it would be told of as its own.

        Args:
            asked: of the training, as `told_of` it, and its optimizer; what a checkpoint does not say is not compared.

        Raises:
            PipelagError: naming the first difference.
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
    """One stage's part in the checkpoints of one phase.

    Args:
        about: what the phase is, to tell whether a restart goes on with the same.
        held: from the names in the stage's module to those in the model; parameters: the latter, in the order of the
            optimizer's.
        base: what the phase's clock and traffic stood at when the worker began; seconds: those of the run.
        last: the minibatches done at the mark before.
        masters: in bfloat16, the float32 ones, which are what is kept.
        training: `told_of` it, for who finds that nothing is left to train.
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
        """The statistics after the forward of minibatch `step`-1; later ones run before its update is done."""
        self.buffers[step] = self.state_of(module, weights=False)

    def state_of(self, module: nn.Module, weights: bool) -> Tensors:
        """Copies of the stage's weights, or of its statistics, by their names in the model; shared ones by all."""
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
        """Write the part after `step` minibatches.

        Args:
            optimizer, state: what updates the stage, and its state by the parameter's position.
            losses: of the minibatches since the mark before; on the last stage only.
            policy: what `pipelag.stage.history` says.
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
        files: dict[str, dict[str, Any]] = {  # the one that makes the set complete comes last
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
                with suppress(OSError):  # it is no longer needed, and takes room at most
                    (self.checkpoints.at(old) / f"{kind}-{suffix}").unlink(missing_ok=True)


def outdated(steps: Sequence[int]) -> list[int]:
    """The sets, of these, that no restart is to need: of older ones ever fewer keep what it takes, the two newest do.

    Where one is damaged that is told of, a run goes on from before it: thrice as far from its end as that is, at most.

    >>> outdated([10, 20, 30, 40, 50, 60, 70, 80])
    [10, 20, 30, 50]
    """
    count = len(steps)
    return [step for n, step in enumerate(steps, start=1) if 2 * (n & -n) < count - n]


def training_of(parts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What the "resume" parts of a set say of the training that they are of; older ones say nothing."""
    parts = list(parts)
    settings = {name: value for part in parts for name, value in part.get("training", {}).items()}
    return settings | grouped(setting for part in parts for setting in part.get("groups", ()))


def fits(state: Mapping[str, torch.Tensor], model: nn.Module) -> bool:
    """Whether a state is one of this model, by names and shapes; buffers that a `state_dict` leaves out may lack."""
    model_state = model.state_dict()
    left_out = whole_state(model).keys() - model_state.keys()

    def shapes(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: getattr(value, "shape", None) for name, value in values.items() if name not in left_out}

    return shapes(state) == shapes(model_state)


def told_of(phase: Phase, seed: int, bf16: bool) -> dict[str, str]:
    """What a checkpoint says of the training that it is of: its phase's, beside the optimizer."""
    settings = {"method": phase.method.name, "cuts": str(list(phase.cuts)), "microbatches": str(phase.microbatches)}
    settings |= {"replicas": str(list(phase.replicas)), "recompute": str(int(phase.recompute))}
    return settings | {"seed": str(seed), "precision": "bf16" if bf16 else "fp32"}


def described(optimizer: torch.optim.Optimizer) -> str:
    """An optimizer and its settings, but for what is none or off."""
    settings = [f"{name}={value}" for name, value in optimizer.defaults.items() if value]
    return f"{type(optimizer).__name__}({', '.join(settings)})"


def groups_of(optimizer: torch.optim.Optimizer | None) -> list[str]:
    """By what the settings of each group differ from the optimizer's; rates not, which a phase's stages may have."""
    if optimizer is None:
        return []
    usual = {f"{name}={value}" for name, value in optimizer.defaults.items()}
    groups = [
        {f"{name}={group[name]}" for name in optimizer.defaults.keys() & group.keys()} for group in made_with(optimizer)
    ]
    return [", ".join(sorted(settings - usual)) for settings in groups]


def grouped(groups: Iterable[str]) -> dict[str, str]:
    """What is told of a training's groups; nothing where older checkpoints say nothing."""
    different = set(groups)
    return {"groups": "; ".join(sorted(different - {""})) or "all alike"} if different else {}


def on_cpu(value: Any) -> Any:
    """Tensors within dicts, lists and tuples copied to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [on_cpu(item) for item in value]
    return value


def _place(path: Path) -> tuple[str, int, int] | None:
    """(kind, stage, stages) of a part's file."""
    match = PART.fullmatch(path.name)
    return (match[1], int(match[2]), int(match[3])) if match else None


def _division(folder: Path) -> int:
    """The number of stages whose parts are all there, 0 without; what else a stage writes was there before its part."""
    counts = [place[2] for path in folder.iterdir() if (place := _place(path)) and place[0] == "stage"]
    return max((count for count in counts if counts.count(count) == count), default=0)
