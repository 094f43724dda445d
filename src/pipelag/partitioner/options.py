"""The typed options of a run of kind `partition`, checked before anything is computed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipelag.partitioner.cluster import Cluster
from pipelag.typed import MOST_BATCH, Typed, checked

OF_ARMS = ("cuts", "workers", "memory", "moving")  # options of a plan that only its arms read
Count = Annotated[int, Field(ge=1, le=MOST_BATCH)]


class InputOptions(Typed):
    """One input of the model: its shape without the dimension of samples, and whether it holds numbers or words.

    Words are integers.
    """

    shape: list[Count]
    of: Literal["numbers", "words"] = "numbers"


class ProfileOptions(Typed):
    """Where a profile comes from: a roofline, or a published profile of PipeDream's authors.

    roofline: the device's data sheet.
    inputs: the model's inputs, which a roofline needs.
    precision: "fp16" for half precision.
    loss: the last layer also computes the cross-entropy of its output, as the last stage does in training.
    published: the published profile to take in place of the roofline.
    batch: the samples of the minibatch with which it was measured.
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
    """A plan that is given, not searched for.

    replicas: the number of workers of each stage.
    cuts: the last layers of all stages but the last. A cut may also be the beginning of a layer's name; it then lies
        before that layer. Without cuts, a plan of two or three stages gets those with the shortest predicted period
        (`predict`, with gradients summed in a ring).
    """

    replicas: list[int] = Field(min_length=1)
    cuts: list[int | str] | None = None


class GPipeOptions(Typed):
    """GPipe over the straight plan. memory: bytes of a worker's memory."""

    memory: float = Field(gt=0)


class ArmOptions(Typed):
    """A method to be timed over the straight plan, or data parallelism (bsp).

    settings: the method's own settings.
    batch: samples of a minibatch (None: the run's), or "largest": as many as fit into a GPU's memory.
    microbatches: the number of equal parts of a minibatch.
    recompute: a stage's forward runs again before its backward.
    clock: "free", or "lockstep" (`pipelag.timing.lockstep`).
    gather: how data parallelism sums gradients: in a ring, or on a server that is one of the GPUs.
    overlap: whether messages travel while the GPUs compute. None: a pipeline's messages do, but data parallelism sums
        gradients after the backward.
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
    """The options of a run of kind `partition`; see `pipelag.runs.kinds.partition.partition`."""

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
        for name in OF_ARMS if not self.arms else ():
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"{name} is for the plan's arms, and there are none; give arms, or leave {name} out")
        return self
