"""The options of runs, typed, by kind: `RunSpec.options` is one of these. Each study of kind `theory` has its own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from pipelag.errors import PipelagError, shown, unknown
from pipelag.runs.objectives import LOSSES, METRICS
from pipelag.typed import MOST_BATCH, MOST_PASSES, MOST_STAGES, MOST_STEPS, MOST_WORKERS, Cut, Typed


class TaskOptions(Typed):
    """The options of every kind that opens a data set (`pipelag.runs.tasks.open_task`).

    standardise: scale images to mean 0 and standard deviation 1 per channel.
    label_smoothing, tokens (the most of a minibatch), beam, lenpen, generator: for translation.
    length: words in a stretch of running text.
    loss: the name of a loss to use instead of the task's own; metrics: names of metrics to log beside the task's own
    (`pipelag.runs.objectives`).
    """

    standardise: bool = True
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    tokens: int | None = Field(default=None, ge=1)
    beam: int = Field(default=1, ge=1)
    lenpen: float = 1.0
    generator: Literal["pipelag", "fairseq"] = "pipelag"
    length: int = Field(default=35, ge=1)
    loss: str | None = None
    metrics: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _known(self) -> TaskOptions:
        if self.loss is not None and self.loss not in LOSSES:
            raise unknown("loss", self.loss, LOSSES)
        for name in self.metrics:
            if name not in METRICS:
                raise unknown("metric", name, METRICS)
        return self


class DiscrepancyOptions(Typed):
    """Measure how far weights that are read are from the right ones.

    every: measure in each minibatch whose number is a multiple of this, how far the weights that passes read are from
    those that they should have read.
    horizons: for each, how far predictions so many updates ahead are from the weights that came.
    """

    horizons: list[Annotated[int, Field(ge=1, le=1000)]] = Field(default_factory=list)
    every: int = Field(default=10, ge=1)


class TrainingOptions(TaskOptions):
    """precision: with bf16, passes read weights rounded to bfloat16 from float32 masters (`pipelag.stage.rounded`)."""

    precision: Literal["fp32", "bf16"] = "fp32"


class TrainOptions(TrainingOptions):
    """The options of a training.

    save_model: save the trained weights as model.pt.
    graphs: auto replays passes as CUDA graphs on a GPU where the result is bit-identical (`pipelag.simulate.graphs`);
    false never does.
    grouped: microbatches that read the same weights share passes, which changes rounding (`pipelag.simulate.grouped`).
    discrepancy: what to measure of the weights that passes read; None: nothing.
    """

    save_model: bool = False
    graphs: Literal["auto", False] = "auto"
    grouped: bool = False
    discrepancy: DiscrepancyOptions | None = None


Rate = Annotated[float, Field(gt=0)]


class LinkOptions(Typed):
    """Links between workers in network namespaces of their own: rates in Gbit/s, latency in ms."""

    gbit: Annotated[list[Rate], BeforeValidator(lambda rate: rate if isinstance(rate, list) else [rate])]
    latency_ms: float = Field(default=0.0, ge=0)


class SpeedOptions(TrainingOptions):
    """The options of a speed run.

    blocks: how many; block_steps: minibatches of each (by default the phase's steps).
    hybrid: also time hybrid training, with half the steps pipelined.
    links: the links over which to time; repeats: rounds of their profile.
    """

    blocks: int | None = Field(default=None, ge=1)
    block_steps: int | None = Field(default=None, ge=1)
    hybrid: bool = True
    repeats: int = Field(default=5, ge=1)
    links: LinkOptions | None = None


class ProfileOptions(TaskOptions):
    """repeats: rounds over all layers; threads: CPU threads (by default all that the run was given).

    split: also measure the part of each backward that computes the gradients of weights (`pipelag.profile`).
    """

    repeats: int = Field(default=10, ge=1)
    threads: int | None = Field(default=None, ge=1)
    split: bool = False


Shape = Annotated[list[Annotated[int, Field(ge=1, le=100_000)]], Field(min_length=1, max_length=8)]


class CountOptions(Typed):
    """sample_shape: (C, H, W) of an input; words: the model takes words instead; cuts: copied into the summary."""

    sample_shape: Shape = Field(default_factory=lambda: [3, 32, 32])
    words: bool = False
    cuts: list[Cut] = Field(default_factory=list)

    @model_validator(mode="after")
    def _increasing(self) -> CountOptions:
        if any(later <= cut for cut, later in pairwise(self.cuts)):
            raise ValueError(f"cuts, the layers after which a stage ends, should increase, not be {shown(self.cuts)}")
        return self


class TimelineOptions(Typed):
    """See `pipelag.runs.kinds.timeline.lay_out`."""

    form: Literal["K+1", "2K+1"] = "K+1"
    costs: dict[str, Any] | list[dict[str, Any]] | None = None
    topology: dict[str, Any] = Field(default_factory=dict)
    clock: Literal["free", "lockstep"] = "free"
    replicas: list[Annotated[int, Field(ge=1, le=MOST_WORKERS)]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _timed(self) -> TimelineOptions:
        of_times = [name for name, value in (("topology", self.topology), ("clock", self.clock != "free")) if value]
        if self.costs is None and of_times:
            raise ValueError(
                f"{of_times[0]} needs a schedule laid out in time; give the costs of its passes, or leave "
                f"{of_times[0]} out"
            )
        return self


MOST_LOSSES = 10**8  # 800 MB
Delay = Annotated[int, Field(ge=0, le=1000)]  # in updates; the eigenvalues of a matrix of this size take a second
Coefficient = Annotated[float, Field(ge=-1e6, le=1e6)]  # of a polynomial; beyond this its roots lose their precision
Depth = Annotated[int, Field(ge=1, le=1000)]  # of a pipeline whose every pass is timed
V = TypeVar("V", "Variant", "Trajectories")


class Variant(Typed):
    """A variant of the quadratic model (`pipelag.theory.quadratic`), with discrepancy, correction, or momentum."""

    forward: Delay
    backward: Delay | None = None
    recompute: Delay | None = None
    delta: Coefficient = 0.0
    phi: Coefficient = 0.0
    curvature: float = Field(default=1.0, gt=0, le=1e6)
    momentum: Coefficient | None = None
    D: Coefficient | Literal["theory"] | None = None

    @model_validator(mode="after")
    def _momentum_alone(self) -> Variant:
        others = sorted(self.model_fields_set & {"backward", "recompute", "delta", "deltas", "phi", "D"})
        if self.momentum is not None and others:
            raise ValueError(
                f"the model with momentum takes only a forward delay and a curvature; leave {others[0]} out"
            )
        if self.D is not None and self.backward in (None, self.forward):
            raise ValueError(
                "D is of T2, which corrects a backward that is less late than its forward; give a backward delay below "
                "the forward's, or leave D out"
            )
        return _older_first(self)


def _older_first(variant: V) -> V:
    """Refuse a backward delay above the forward delay: in PipeMare's model the backward reads no older weights."""
    if variant.backward is not None and variant.backward > variant.forward:
        raise ValueError(
            f"a backward should read weights no older than its forward's, but backward is {variant.backward} and "
            f"forward is {variant.forward}"
        )
    return variant


Span = tuple[Coefficient, Coefficient, Annotated[int, Field(ge=1, le=100_000)]]  # first, last, how many


class Trajectories(Typed):
    """`pipelag.runs.kinds.theory.trajectories`."""

    forward: Delay
    backward: Delay | None = None
    delta: Coefficient = 0.0
    alpha: float = Field(gt=0, le=1e6)
    steps: int = Field(ge=1, le=MOST_STEPS)
    runs: int = Field(default=1, ge=1, le=MOST_LOSSES)
    every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _held(self) -> Trajectories:
        if self.steps * self.runs > MOST_LOSSES:
            raise ValueError(
                f"{self.steps:,} steps of {self.runs:,} runs are more than the {MOST_LOSSES:,} losses that are held "
                "in memory; take fewer"
            )
        return _older_first(self)


class Radius(Variant):
    """`pipelag.runs.kinds.theory.radius`."""

    alphas: Span = Field(strict=False)


class StableOverDelta(Variant):
    """`pipelag.runs.kinds.theory.stable_over_delta`."""

    deltas: Span = Field(strict=False)

    @model_validator(mode="after")
    def _one_kind(self) -> StableOverDelta:
        if "delta" in self.model_fields_set:
            raise ValueError(
                "delta is given, but this study goes over deltas, [first, last, how many]; leave delta out"
            )
        return self


class StableOverPairs(Typed):
    """`pipelag.runs.kinds.theory.stable_over_pairs`."""

    most: int = Field(ge=1, le=200)
    deltas: list[Coefficient] = Field(min_length=1)


class Lemmas(Typed):
    """`pipelag.runs.kinds.theory.lemmas`."""

    taus: list[Delay] = Field(min_length=1)
    deltas: list[Coefficient]
    betas: list[Coefficient]


class Decays(Typed):
    """`pipelag.runs.kinds.theory.decays`."""

    gaps: list[Annotated[int, Field(ge=1, le=1000)]] = Field(min_length=1)
    backward: list[Delay] = Field(min_length=1)


class Regression(Typed):
    """`pipelag.runs.kinds.theory.regression`."""

    alphas: Span = Field(strict=False)
    taus: list[Delay] = Field(min_length=1)
    steps: int = Field(ge=1, le=MOST_STEPS)
    batch: int = Field(default=64, ge=1, le=MOST_BATCH)
    data: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_set(self) -> Regression:
        if self.data is not None and self.file is not None:
            raise ValueError("data and file are both given, but a regression uses one set; leave one of them out")
        if min(self.alphas[:2]) <= 0:
            raise ValueError(
                f"alphas, the step sizes [first, last, how many], should be above 0, not {shown(list(self.alphas))}"
            )
        return self


class Caching(Typed):
    """`pipelag.runs.kinds.theory.caching`."""

    stages: list[Annotated[int, Field(ge=1, le=MOST_STAGES)]] = Field(min_length=1)
    segment: Annotated[int, Field(ge=1, le=MOST_STAGES)] | Literal["root"]
    microbatches: Annotated[list[Annotated[int, Field(ge=1, le=MOST_PASSES)]], Field(min_length=1)] | None = None


class Compute(Typed):
    """`pipelag.runs.kinds.theory.compute`."""

    model: str
    sample: Shape | None = None
    words: int | None = Field(default=None, ge=1, le=100_000)

    @model_validator(mode="after")
    def _one_input(self) -> Compute:
        if (self.sample is None) == (self.words is None):
            raise ValueError(
                "a model takes either numbers or words; give either sample (the shape of a sample) or words (its "
                "number of words)"
            )
        return self


class Copies(Typed):
    """`pipelag.runs.kinds.theory.copies`."""

    optimizer: Literal["sgd", "adam"]


class Predictions(Typed):
    """`pipelag.theory.foreseen.study`."""

    optimizer: str
    horizons: list[Annotated[int, Field(ge=1, le=1000)]] = Field(default_factory=lambda: [1, 2, 3], min_length=1)
    steps: int = Field(default=600, ge=1, le=10**6)
    noise: float = Field(default=0.0, ge=0)


Pipeline = Annotated[tuple[Depth, Annotated[int, Field(ge=1, le=10_000)]], Field(strict=False)]  # stages, microbatches


class Pipelines(Typed):
    """`pipelag.runs.kinds.theory.pipelines`."""

    pipelines: list[Pipeline] = Field(min_length=1)


class Segments(Typed):
    """`pipelag.runs.kinds.theory.segments`."""

    pipelines: list[Pipeline] = Field(min_length=1)


class Servers(Typed):
    """The fields of `pipelag.partitioner.layouts.Machine` except the data sheet."""

    server: int = Field(ge=1, le=1024)
    inside: float = Field(gt=0, le=1e18)
    between: float = Field(gt=0, le=1e18)
    ports: int = Field(ge=1, le=1024)
    latency: float = Field(ge=0, le=1)


class AtScale(Typed):
    """`pipelag.theory.at_scale.study`.

    model: {gpt: its sizes}, computed by formula in bfloat16, or {name, options, inputs} of a registered model, by the
    roofline in float32. batch: samples of an update. efficiency: the rate of a GPT's matrix products, as a share of
    the data sheet's. summed: bytes of a number in the sums of gradients; without it, as many as in the weights. tensor:
    the numbers of GPUs of a server that may share every layer of a GPT (tensor parallelism); without it, only 1.
    sharded: whether replicas may divide the optimizer's state (ZeRO's first stage).
    """

    model: dict[str, Any]
    batch: int = Field(ge=1, le=MOST_BATCH)
    gpus: list[Annotated[int, Field(ge=1, le=65536)]] = Field(min_length=1)
    sheet: str
    efficiency: float = Field(default=1.0, gt=0, le=1)
    summed: int | None = Field(default=None, ge=1, le=8)
    tensor: list[Annotated[int, Field(ge=1, le=1024)]] | None = Field(default=None, min_length=1)
    sharded: bool = False
    machine: Servers


STUDIES: dict[str, type[Typed]] = {
    "at_scale": AtScale,
    "trajectories": Trajectories,
    "radius": Radius,
    "stable_over_delta": StableOverDelta,
    "stable_over_pairs": StableOverPairs,
    "lemmas": Lemmas,
    "decays": Decays,
    "regression": Regression,
    "caching": Caching,
    "segments": Segments,
    "compute": Compute,
    "copies": Copies,
    "predictions": Predictions,
    "pipelines": Pipelines,
}


def study_of(options: Mapping[str, Any]) -> type[Typed]:
    """The options class of the study that `options.study` names; raises `PipelagError` if it is missing or unknown."""
    name = options.get("study")
    if name is None:
        raise PipelagError(f"a run of kind 'theory' needs options.study, one of {', '.join(STUDIES)}")
    if not isinstance(name, str) or name not in STUDIES:
        raise unknown("study", str(name), STUDIES)
    return STUDIES[name]
