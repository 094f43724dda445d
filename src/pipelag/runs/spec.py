"""The spec of a run: everything that can change its outcome. The spec's hash is the run's id.

Importing this module loads neither torch nor numpy: the workflow reads it at every `snakemake` call.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from pipelag.errors import PipelagError, shown, unknown
from pipelag.methods import METHODS
from pipelag.runs.kinds import KINDS
from pipelag.runs.optimizers import OptimizerSpec, Rate
from pipelag.runs.rates import LRScheduleSpec
from pipelag.typed import (
    MOST_BATCH,
    MOST_STAGES,
    MOST_STEPS,
    MOST_WORKERS,
    Cut,
    Options,
    Seed,
    Stage,
    Tuple,
    Typed,
    check_passes,
)

M = TypeVar("M", bound=Typed)


class ModelSpec(Typed):
    """A registered model (`pipelag.models`) and its keyword arguments."""

    name: str
    options: Options = Field(default_factory=dict)


class DataSpec(Typed):
    """A registered data set (`pipelag.data`) and its keyword arguments. augment: see `pipelag.data.images.batches`."""

    name: str
    augment: bool | Literal["crop"] = False
    options: Options = Field(default_factory=dict)


class PhaseSpec(Typed):
    """A stretch of a run with one method over one set of cuts.

    Hybrid training has two phases; the pipeline drains between them.
    """

    method: str
    steps: int = Field(gt=0, le=MOST_STEPS)
    cuts: Annotated[Tuple[Cut], Field(max_length=MOST_STAGES - 1)] = ()
    stage_lr: dict[Stage, Rate] = Field(default_factory=dict)  # base rates of the stages (1-based) whose rate differs
    options: Options = Field(default_factory=dict)  # the method's, such as {"annealing": 400}
    microbatches: int = Field(default=1, gt=0, le=MOST_BATCH)  # equal parts of a minibatch, one update for all
    # True: run a stage's forward again before its backward instead of keeping its activations. A number: recompute
    # segments of so many stages, each from one checkpoint.
    recompute: bool | Annotated[int, Field(ge=0, le=MOST_STAGES)] = False
    replicas: Tuple[
        Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    ] = ()  # workers of each stage (1F1B-RR); empty: one each

    @property
    def stages(self) -> int:
        """The number of stages that the cuts make."""
        return len(self.cuts) + 1

    @property
    def segments(self) -> int:
        """The number of segments, each of stages recomputed together from one checkpoint; 0 without recomputation."""
        return -(-self.stages // int(self.recompute)) if self.recompute else 0

    @model_validator(mode="after")
    def _increasing(self) -> PhaseSpec:
        if any(later <= cut for cut, later in zip((0, *self.cuts), self.cuts, strict=False)):
            raise ValueError(
                f"cuts, the layers after which a stage ends, should increase from 1 on, not be {shown(list(self.cuts))}"
            )
        check_passes(self.stages, self.microbatches)
        late = [stage for stage in self.stage_lr if stage > self.stages]
        if late:
            raise ValueError(f"stage_lr names stage {late[0]}, but the cuts make stages 1 to {self.stages}")
        if self.replicas and len(self.replicas) != self.stages:
            raise ValueError(
                f"replicas, the workers of each stage, should be {self.stages} numbers, not {len(self.replicas)}"
            )
        return self


# Settings that were added after logs had been published. At its default, such a setting is left out of a run's id.
LATER: dict[str, dict[str, Any]] = {
    "optimizer": {"dampening": None, "betas": None, "eps": None, "trust": None, "options": {}},
    "lr_schedule": {"options": {}},
    "phases": {"microbatches": 1, "recompute": False, "replicas": []},
}


ALWAYS = ("kind", "options", "seed")  # fields that runs of every kind may have


class RunSpec(Typed):
    """One run of one of the kinds in `pipelag.runs.kinds`. The kind says which `options` it takes."""

    kind: str = "train"
    model: ModelSpec | None = None
    data: DataSpec | None = None
    batch: int = Field(default=1, gt=0, le=MOST_BATCH)
    optimizer: OptimizerSpec | None = None
    lr_schedule: LRScheduleSpec = Field(default_factory=LRScheduleSpec)
    phases: Annotated[Tuple[PhaseSpec], Field(max_length=1000)] = ()
    evaluate_every: int = Field(default=0, ge=0, le=MOST_STEPS)  # steps; 0 = only at the end
    seed: Seed = 0
    executor: Literal["simulated", "real"] = "simulated"
    workers: int = Field(default=1, gt=0, le=MOST_WORKERS)  # processes of the real executor
    options: Options = Field(default_factory=dict)  # the kind's

    @model_validator(mode="after")
    def _complete(self) -> RunSpec:
        if self.kind not in KINDS:
            raise unknown("kind of a run", self.kind, KINDS)
        kind = KINDS[self.kind]
        spared = "model" if self.published else ""
        missing = [key for key in kind.needs if key != spared and not getattr(self, key)]
        if missing:
            raise ValueError(f"a run of kind '{self.kind}' needs {' and '.join(missing)}")
        kind.check(self.options)
        if kind.fields is not None:
            others = [key for key in type(self).model_fields if key not in (*ALWAYS, *kind.fields)]
            spare = next((key for key in others if getattr(self, key) != _usual(key)), None)
            if spare is not None:
                raise ValueError(f"a run of kind '{self.kind}' has no {spare}; leave it out")
        if self.kind == "speed" and self.executor == "simulated":
            raise ValueError("a run of kind 'speed' measures real workers; set executor: real")
        if self.workers > 1 and self.kind == "train" and self.executor == "simulated":
            raise ValueError(
                f"workers is {self.workers}, but the simulated executor has no workers; set executor: real"
            )
        wanted = next((key for key in ("discrepancy", "grouped") if self.options.get(key)), None)
        if wanted is not None and self.kind == "train" and self.executor == "real":
            raise ValueError(
                f"options.{wanted} is for the simulated executor; leave it out, or set executor: simulated"
            )
        for phase in self.phases:
            if self.data is not None and self.batch % phase.microbatches:
                raise ValueError(
                    f"a minibatch of {self.batch} cannot be split into {phase.microbatches} equal microbatches"
                )
        return self

    def asked(self, model: type[M]) -> M:
        """The run's options as an instance of `model`, with defaults filled in.

        Raises:
            PipelagError: the options of the run's kind are not an instance of `model`.
        """
        options = KINDS[self.kind].check(self.options)
        if not isinstance(options, model):
            raise PipelagError(
                f"the options of a run of kind '{self.kind}' should be of a class derived from "
                f"{model.__module__}.{model.__name__}"
            )
        return options

    @property
    def published(self) -> bool:
        """Whether the run reads a published profile in place of a model."""
        profile = self.options.get("profile")
        return isinstance(profile, Mapping) and bool(profile.get("published"))

    @property
    def data_set(self) -> str | None:
        """The name of the data set, or of the published profiles, that the run reads; None if it reads none."""
        if self.published:
            return "pipedream_profiles"
        return self.data.name if self.data else self.options.get("data")

    @property
    def steps(self) -> int:
        """The number of minibatches in all phases."""
        return sum(phase.steps for phase in self.phases)

    def canonical(self) -> str:
        """The JSON text of the spec: sorted keys, no spaces; all defaults are written out except those in `LATER`."""
        return json.dumps(self._without_later(), sort_keys=True, separators=(",", ":"))

    def _without_later(self) -> dict[str, Any]:
        dumped = self.model_dump(mode="json")
        for key, defaults in LATER.items():
            for part in dumped[key] if isinstance(dumped[key], list) else [dumped[key] or {}]:
                for name, default in defaults.items():
                    if part.get(name, default) == default:
                        part.pop(name, None)
        return dumped

    @property
    def revisions(self) -> dict[str, int]:
        """The revisions of what the spec names and whose meaning has since changed, by name (`Method.revision`)."""
        named = {phase.method: METHODS[phase.method].revision for phase in self.phases if phase.method in METHODS}
        named |= KINDS[self.kind].revisions(self.options)
        return {name: revision for name, revision in named.items() if revision > 1}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> RunSpec:
        """As pydantic's, but without the cached id: the copy may have another."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("id", None)
        return copy

    @cached_property
    def id(self) -> str:
        """The first twelve hex digits of a SHA-256: equal runs have equal ids, so they run once.

        The hash is over `canonical()` and, where there are any, `revisions`: when a method's meaning changes, its runs
        get new ids.
        """
        content = self.canonical()
        if self.revisions:
            content += json.dumps(self.revisions, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def _usual(field: str) -> Any:
    """The default of a field of `RunSpec`."""
    return RunSpec.model_fields[field].get_default(call_default_factory=True)
