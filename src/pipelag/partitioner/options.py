"""What a run of kind `partition` may be asked, typed: refused with the nearest name before anything is computed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipelag.partitioner.cluster import Cluster
from pipelag.typed import MOST_BATCH, Typed, checked

Count = Annotated[int, Field(ge=1, le=MOST_BATCH)]


class InputOptions(Typed):
    """One input of the model: its shape without the minibatch; numbers, or words (integers)."""

    shape: list[Count]
    of: Literal["numbers", "words"] = "numbers"


class ProfileOptions(Typed):
    """Where a profile comes from.

    roofline: a device's data sheet, with the inputs of the model; precision: fp16 for half; loss: the last layer
    computes the cross-entropy of its output too, as the last stage of a training does.
    published: a profile of PipeDream's authors, in place of the roofline's; batch: the minibatch that it was measured
    with.
    """

    roofline: str | None = None
    inputs: list[InputOptions] = Field(default_factory=list)
    precision: Literal["fp16"] | None = None
    loss: bool = False
    published: str | None = None
    batch: Count = 1

    @model_validator(mode="after")
    def _given_inputs(self) -> ProfileOptions:
        if self.roofline is not None and self.published is None and not self.inputs:
            raise ValueError(
                "a roofline's profile needs inputs, such as [{shape: [3, 32, 32]}], one for each input of the model"
            )
        return self


class GivenPlan(Typed):
    """A plan written down: workers of each stage, and the last layers of all stages but the last.

    A cut may be the beginning of a layer's name, and stands for the layer before it; without cuts, of two or three
    stages, those with the shortest period by a ring's cost.
    """

    replicas: list[int] = Field(min_length=1)
    cuts: list[int | str] | None = None


class GPipeOptions(Typed):
    """GPipe over the straight plan: bytes of a worker."""

    memory: float = Field(gt=0)


class ArmOptions(Typed):
    """A method over the straight plan, or data parallelism (bsp), timed.

    settings: the method's own. batch: samples of a minibatch (the run's where none is given), or "largest": as many as
    fit into a GPU's memory. microbatches: its equal parts. recompute: a stage's forward runs again before its backward.
    clock: free, or lockstep (`pipelag.timing.lockstep`).
    gather: how data parallelism sums gradients, in a ring or on a server that is one of the GPUs.
    overlap: whether messages travel while the GPUs compute; none given: a pipeline's do, gradients are summed after the
    backward.
    """

    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    batch: Count | Literal["largest"] | None = None
    microbatches: Count = 1
    recompute: bool = False
    clock: Literal["free", "lockstep"] = "free"
    gather: Literal["ring", "server"] | None = None
    overlap: bool | None = None


class PlanOptions(Typed):
    """The options of a run; see `pipelag.runs.kinds.partition.partition`."""

    profile: dict[str, Any] = Field(default_factory=dict)
    device: str | None = None
    cluster: dict[str, Any] = Field(default_factory=dict)
    search: bool = True
    compare: bool = False
    given: dict[str, GivenPlan] = Field(default_factory=dict)
    depths: list[Count] = Field(default_factory=list)
    data_parallel_over: list[Count] = Field(default_factory=list)
    overlap: bool = True
    sweep: bool = False
    gpipe: GPipeOptions | None = None
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    cuts: list[int] | None = None
    workers: list[int] = Field(default_factory=list)
    memory: float | None = Field(default=None, gt=0)
    moving: Literal["separate", "fused", "free"] = "separate"

    @model_validator(mode="after")
    def _parts(self) -> PlanOptions:
        Cluster.of(self.cluster)
        checked(ProfileOptions, self.profile, "option of a plan's profile")
        for name, arm in self.arms.items():
            checked(ArmOptions, arm, f"option of the plan's arm '{name}'")
        return self
