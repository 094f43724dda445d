"""What a run is: everything that can change its outcome, and the hash of that (DESIGN: "Experiments are data").

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
    """A stretch of a run with one method. Hybrid training is two phases; the pipeline drains between them."""

    method: str
    steps: int = Field(gt=0, le=MOST_STEPS)
    cuts: Annotated[Tuple[Cut], Field(max_length=MOST_STAGES - 1)] = ()
    stage_lr: dict[Stage, Rate] = Field(default_factory=dict)  # base rate of a stage (1-based), where it differs
    options: Options = Field(default_factory=dict)  # of the method: {"annealing": 400}
    microbatches: int = Field(default=1, gt=0, le=MOST_BATCH)  # equal parts of a minibatch, one update for all
    # Run a stage's forward again before its backward instead of keeping its activations; or that of so many stages.
    recompute: bool | Annotated[int, Field(ge=0, le=MOST_STAGES)] = False
    replicas: Tuple[
        Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    ] = ()  # workers of each stage (1F1B-RR); none: one each

    @property
    def stages(self) -> int:
        """How many the cuts make."""
        return len(self.cuts) + 1

    @property
    def segments(self) -> int:
        """Of stages that are recomputed together, each from one checkpoint; 0 where none is."""
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


# Settings that came after logs had been published: left out of a run's identity while they have their defaults.
LATER: dict[str, dict[str, Any]] = {
    "optimizer": {"dampening": None, "betas": None, "eps": None, "trust": None, "options": {}},
    "lr_schedule": {"options": {}},
    "phases": {"microbatches": 1, "recompute": False, "replicas": []},
}


ALWAYS = ("kind", "options", "seed")  # of a run of any kind


class RunSpec(Typed):
    """One run, of one of the kinds of `pipelag.runs.kinds`; `options` are the kind's."""

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
    options: Options = Field(default_factory=dict)  # of its kind

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
        if self.workers > 1 and self.kind == "train" and self.executor == "simulated":
            raise ValueError(
                f"workers is {self.workers}, but the simulated executor has no workers; set executor: real"
            )
        for phase in self.phases:
            if self.data is not None and self.batch % phase.microbatches:
                raise ValueError(
                    f"a minibatch of {self.batch} cannot be split into {phase.microbatches} equal microbatches"
                )
        return self

    def asked(self, model: type[M]) -> M:
        """Its options, typed, with their defaults.

        Raises:
            PipelagError: the options of its kind are no such model.
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
        """Whether it reads a published profile, which stands for a model."""
        profile = self.options.get("profile")
        return isinstance(profile, Mapping) and bool(profile.get("published"))

    @property
    def data_set(self) -> str | None:
        """The name of the data set, or of the published profiles, that it reads; None where it reads none."""
        if self.published:
            return "pipedream_profiles"
        return self.data.name if self.data else self.options.get("data")

    @property
    def steps(self) -> int:
        """Minibatches over all phases."""
        return sum(phase.steps for phase in self.phases)

    def canonical(self) -> str:
        """The JSON text of the spec: sorted keys, no spaces, defaults written out but for those of `LATER`."""
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
        """What the spec names that does not mean any more what it did, with its revision (`Method.revision`)."""
        named = {phase.method: METHODS[phase.method].revision for phase in self.phases if phase.method in METHODS}
        named |= KINDS[self.kind].revisions(self.options)
        return {name: revision for name, revision in named.items() if revision > 1}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> RunSpec:
        """pydantic's; another spec has another id."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("id", None)
        return copy

    @cached_property
    def id(self) -> str:
        """Twelve hex digits of a SHA-256: equal runs have equal ids, so they run once.

        Of `canonical()`, and of `revisions` where there are any: a method that means something else gives other ids.
        """
        content = self.canonical()
        if self.revisions:
            content += json.dumps(self.revisions, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def _usual(field: str) -> Any:
    """What a spec has that does not say otherwise."""
    return RunSpec.model_fields[field].get_default(call_default_factory=True)
