"""What config/papers/*.yaml and config/scales/*.yaml may say. A wrong key is refused with its place and the nearest."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pipelag.errors import PipelagError
from pipelag.runs.optimizers import OptimizerSpec
from pipelag.runs.rates import LRScheduleSpec
from pipelag.runs.spec import DataSpec, ModelSpec


class Strict(BaseModel):
    """Refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid")


class Setup(Strict):
    """A named base of runs: what a paper's appendix lists for one model and data set.

    cuts, replicas, microbatches: of the arms that give none of their own, so that a scale with another model can change
    them.
    shares: shares of a run's steps, [numerator, denominator], that arms ask for by name, for the same reason;
    checkpoints: numbers of segments that arms ask for by name.
    """

    kind: str = "train"
    model: ModelSpec | None = None
    data: DataSpec | None = None
    batch: int = 1
    optimizer: OptimizerSpec | None = None
    lr_schedule: LRScheduleSpec = Field(default_factory=LRScheduleSpec)
    steps: int = 0
    cuts: list[int | str] = Field(default_factory=list)
    replicas: list[int] = Field(default_factory=list)
    microbatches: int = 1
    evaluate_every: int = 0
    executor: str = "simulated"
    workers: int = 1
    options: dict[str, Any] = Field(default_factory=dict)
    shares: dict[str, tuple[int, int]] = Field(default_factory=dict)
    checkpoints: dict[str, int] = Field(default_factory=dict)


class PhaseArm(Strict):
    """A phase of an arm.

    share: its steps as a fraction [numerator, denominator] of the setup's steps, a name among the setup's shares, or
    "rest". lr_times, stage_lr_times: factors on the setup's learning rate, for all stages or for single ones. settings:
    the method's options; one counted in minibatches may be a share of the phase's steps, {share: [1, 4]} or {share:
    name}, and {setup: microbatches} is the setup's. cuts: layers, ranges of them such as "1-106" and "4-104:4" (every
    fourth), or "54/107", 107 layers spread evenly over 54 stages. recompute: as of a phase, or {checkpoints: so many
    segments of stages}, a number or a name among the setup's.
    """

    method: str
    settings: dict[str, Any] = Field(default_factory=dict)
    microbatches: int | str | None = None
    recompute: bool | int | dict[str, int | str] = False
    replicas: list[int] = Field(default_factory=list)
    cuts: list[int | str] | str = Field(default_factory=list)
    share: tuple[int, int] | str = (1, 1)
    lr_times: float = 1.0
    stage_lr_times: dict[int, float | str] = Field(default_factory=dict)


class ArmConfig(PhaseArm):
    """One arm: a phase, or several; and what it overrides in the setup."""

    method: str = ""
    phases: list[PhaseArm] = Field(default_factory=list)
    options: dict[str, Any] = Field(default_factory=dict)


class Runs(Strict):
    """Runs of a result: arms over a setup, once for every entry of `each`; or those of another result.

    In strings, `{name}` stands for the variable of that name in `each`; a string that is nothing else takes its type.
    """

    setup: str = ""
    labels: dict[str, Annotated[str, BeforeValidator(str)]] = Field(default_factory=dict)
    arms: dict[str, ArmConfig] = Field(default_factory=dict)
    each: list[dict[str, Any]] = Field(default_factory=list)
    use: str = ""
    where: dict[str, str | list[str]] = Field(default_factory=dict)
    seeds: list[int] = Field(default_factory=list)


class Claim(Strict):
    """A checkable claim of the paper: the predicate is in `pipelag.results`, under this id.

    because: why it cannot be judged at all, instead of a predicate.
    """

    id: str
    text: str
    because: str = ""


class Result(Strict):
    """A table, figure or claim in the text."""

    kind: str
    caption: str
    draw: str = ""
    optional: bool = False  # made by name only; shown with the others once it is there
    runs: list[Runs] = Field(default_factory=list)
    reported: Any = None
    claims: list[Claim] = Field(default_factory=list)
    options: dict[str, Any] = Field(default_factory=dict)


class Paper(Strict):
    """A paper's file."""

    id: str
    title: str
    short: str
    year: int
    clusters: dict[str, Any] = Field(default_factory=dict)  # named once, to be referred to by YAML anchors
    setups: dict[str, Setup]
    results: dict[str, Result]


def reading_order(paper: Paper) -> list[str]:
    """A paper's results as a reader looks for them: tables, figures, then what the text says, by their numbers."""

    def place(name: str) -> tuple[int, int, str]:
        kind, _, rest = name.partition("_")
        number = re.match(r"\d+", rest)
        order = {"table": 0, "figure": 1, "text": 3}.get(kind, 2)
        return order, int(number[0]) if number else 0, "" if order == 3 else rest

    return sorted(paper.results, key=place)  # what the text says stays in the order of the config


class LeaveOut(Strict):
    """Runs that a scale does not make, and why; tables show the reason.

    Those of a result, or of some setups whatever results need them; where: of these, the runs with such labels.
    """

    paper: str
    result: str = ""
    setups: list[str] = Field(default_factory=list)
    where: dict[str, str | list[str]] = Field(default_factory=dict)
    why: str


class Scale(Strict):
    """How large a scale's runs are: overrides per setup, merged into the paper's.

    A value of null takes away what the paper or the extended scale says there; of a whole setup: its overrides.
    """

    name: str
    title: str
    note: str
    extends: str = ""
    setups: dict[str, dict[str, dict[str, Any] | None]] = Field(default_factory=dict)  # paper -> setup -> overrides
    seeds: list[int] = Field(default_factory=lambda: [0])
    leave_out: list[LeaveOut] = Field(default_factory=list)
    frozen: bool = False
    folder: str = ""  # of the runs; results/<name> when empty


def load_yaml(text: str) -> Any:
    """`yaml.safe_load`, by libyaml where PyYAML has it: five times as fast."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read(model: type[BaseModel], path: Path) -> Any:
    """Read and validate a YAML file; the first mistake is named with its place and the nearest valid key."""
    try:
        content = load_yaml(path.read_text())
    except yaml.YAMLError as error:
        raise PipelagError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    return validate(model, content, str(path))


def validate(model: type[BaseModel], content: Any, where: str) -> Any:
    """`model.model_validate`, refusing with one sentence."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        # A misspelt key is also a missing one: the misspelling says more.
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            key = str(first["loc"][-1])
            known = _keys_at(model, first["loc"][:-1])
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(sorted(known))}"
            raise PipelagError(f"{where}: unknown key '{key}' at {place}; {hint}") from error
        raise PipelagError(f"{where}: wrong at {place}: {first['msg']}") from error


def _keys_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at a place inside `model` has."""
    current: Any = model
    for part in place:
        if isinstance(current, type) and issubclass(current, BaseModel):
            current = current.model_fields[str(part)].annotation
        else:  # dict[str, X] and list[X]: step into X
            current = getattr(current, "__args__", (None,))[-1]
        options = [a for a in getattr(current, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
        if options and getattr(current, "__origin__", None) not in (dict, list, tuple):
            current = options[0]  # Optional[X]
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []
