"""What a run of kind `plan` may be asked, typed: refused with the nearest name before anything is computed."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelag.errors import PipelagError, unknown


class _Typed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class InputOptions(_Typed):
    """One input of the model: its shape without the minibatch; numbers, or words (integers)."""

    shape: list[int]
    of: Literal["numbers", "words"] = "numbers"


class ProfileOptions(_Typed):
    """Where a profile comes from.

    roofline: a device's data sheet, with the inputs of the model; precision: fp16 for half; loss: the last layer
    computes the cross-entropy of its output too, as the last stage of a training does.
    published: a profile of PipeDream's authors; batch: the minibatch that it was measured with.
    """

    roofline: str | None = None
    inputs: list[InputOptions] = Field(default_factory=list)
    precision: Literal["fp16"] | None = None
    loss: bool = False
    published: str | None = None
    batch: int = Field(default=1, ge=1)


class GivenPlan(_Typed):
    """A plan written down: workers of each stage, and the last layers of all stages but the last.

    A cut may be the beginning of a layer's name, and stands for the layer before it; without cuts, of two or three
    stages, those with the shortest period by a ring's cost.
    """

    replicas: list[int] = Field(min_length=1)
    cuts: list[int | str] | None = None


class GPipeOptions(_Typed):
    """GPipe over the straight plan: bytes of a worker."""

    memory: float = Field(gt=0)


class ArmOptions(_Typed):
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
    batch: int | Literal["largest"] | None = None
    microbatches: int = Field(default=1, ge=1)
    recompute: bool = False
    clock: Literal["free", "lockstep"] = "free"
    gather: Literal["ring", "server"] | None = None
    overlap: bool | None = None


class PlanOptions(_Typed):
    """The options of a run; see `pipelag.runs.plan.plan`."""

    profile: dict[str, Any] = Field(default_factory=dict)
    device: str | None = None
    cluster: dict[str, Any] = Field(default_factory=dict)
    search: bool = True
    compare: bool = False
    given: dict[str, GivenPlan] = Field(default_factory=dict)
    depths: list[int] = Field(default_factory=list)
    data_parallel_over: list[int] = Field(default_factory=list)
    overlap: bool = True
    sweep: bool = False
    gpipe: GPipeOptions | None = None
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    cuts: list[int] | None = None
    workers: list[int] = Field(default_factory=list)
    memory: float | None = Field(default=None, gt=0)
    moving: Literal["separate", "fused", "free"] = "separate"


M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], content: Any, kind: str) -> M:
    """`content` as the model; the first mistake is refused with its place and, of a name, the nearest right one.

    Args:
        kind: what the content's keys are called in the refusal, such as "option of a plan".
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        # A misspelt key is also a missing one: the misspelling says more.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        key, place = str(first["loc"][0]) if first["loc"] else kind, ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            raise unknown(kind, key, model.model_fields) from error
        names = _names(model.model_fields[key].annotation) if key in model.model_fields else []
        if names and isinstance(first["input"], str):
            raise unknown(f"{kind} '{key}'", first["input"], names) from error
        raise PipelagError(f"the {kind} '{place}' is {first['input']!r}: {first['msg']}") from error


def _names(annotation: Any) -> list[str]:
    """The words that a field may be, where it may be any: those of its Literal."""
    if isinstance(annotation, str):
        return [annotation]
    return [name for part in get_args(annotation) for name in _names(part)]
