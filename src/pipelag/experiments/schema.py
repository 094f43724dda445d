"""What config/papers/*.yaml and config/scales/*.yaml may say. A wrong key is refused with its place and the nearest."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, ValidationInfo, field_validator

from pipelag.errors import shown
from pipelag.files import read_yaml
from pipelag.runs.optimizers import OptimizerSpec
from pipelag.runs.rates import LRScheduleSpec
from pipelag.runs.spec import DataSpec, ModelSpec
from pipelag.typed import MOST_BATCH, MOST_STEPS, MOST_WORKERS, Name, Options, Seed, Stage, Typed, mistake

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Share = Annotated[tuple[int, int], Field(strict=False), AfterValidator(lambda share: proper(share))]
Places = list[int | str]
Seeds = Annotated[list[Seed], Field(max_length=1000), AfterValidator(lambda seeds: distinct(seeds, "seed"))]


def proper(share: tuple[int, int]) -> tuple[int, int]:
    """A share that is one: [numerator, denominator], above 0 and at most 1."""
    if not 0 < share[0] <= share[1] <= MOST_STEPS:
        raise ValueError(f"a share is [numerator, denominator], above 0 and at most 1, not {list(share)}")
    return share


def distinct(values: list[T], what: str) -> list[T]:
    """Values of which none stands twice: runs of one seed are one run, and no spread would be one."""
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ValueError(f"the {what} {twice} appears twice; name each once")
    return values


def a_place(folder: str) -> str:
    """A folder as Snakemake takes it: what is in braces would be a wildcard, and nobody stands for ~."""
    if folder.startswith("~") or re.search(r"[{}\x00-\x1f]", folder) or folder != folder.strip():
        raise ValueError(f"{shown(folder)} is not a folder name that Snakemake accepts; write it without ~, {{ and }}")
    return folder


class Setup(Typed):
    """A named base of runs: what a paper's appendix lists for one model and data set.

    cuts, replicas, microbatches: of the arms that give none of their own, so that a scale with another model can change
    them.
    shares: shares of a run's steps, [numerator, denominator], that arms ask for by name, for the same reason;
    checkpoints: numbers of segments that arms ask for by name.
    seeds: of its runs that name none, where a scale has others for them than for the rest.
    note: a sentence for who reads what its runs came to, said below every figure and table that shows them.
    """

    kind: str = "train"
    model: ModelSpec | None = None
    data: DataSpec | None = None
    batch: int = Field(default=1, ge=1, le=MOST_BATCH)
    optimizer: OptimizerSpec | None = None
    lr_schedule: LRScheduleSpec = Field(default_factory=LRScheduleSpec)
    steps: int = Field(default=0, ge=0, le=MOST_STEPS)
    cuts: Places = Field(default_factory=list)
    replicas: list[int] = Field(default_factory=list)
    microbatches: int = Field(default=1, ge=1, le=MOST_BATCH)
    evaluate_every: int = Field(default=0, ge=0, le=MOST_STEPS)
    executor: Literal["simulated", "real"] = "simulated"
    workers: int = Field(default=1, ge=1, le=MOST_WORKERS)
    options: Options = Field(default_factory=dict)
    shares: dict[str, Share] = Field(default_factory=dict)
    checkpoints: dict[str, int] = Field(default_factory=dict)
    seeds: Seeds = Field(default_factory=list)
    note: str = ""


class PhaseArm(Typed):
    """A phase of an arm.

    share: its steps as a fraction [numerator, denominator] of the setup's steps, a name among the setup's shares, or
    "rest". lr_times, stage_lr_times: factors on the setup's learning rate, for all stages or for single ones. settings:
    the method's options; one counted in minibatches may be a share of the phase's steps, {share: [1, 4]} or {share:
    name}, and {setup: microbatches} is the setup's. cuts: layers, ranges of them such as "1-106" and "4-104:4" (every
    fourth), or "54/107", 107 layers spread evenly over 54 stages. recompute: as of a phase, or {checkpoints: so many
    segments of stages}, a number or a name among the setup's.
    """

    method: str
    settings: Options = Field(default_factory=dict)
    microbatches: int | str | None = None
    recompute: bool | int | dict[str, int | str] = False
    replicas: list[int] = Field(default_factory=list)
    cuts: Places | str = Field(default_factory=list)
    share: Share | str = (1, 1)
    lr_times: float = Field(default=1.0, gt=0, le=1e6)
    stage_lr_times: dict[Stage, Annotated[float, Field(gt=0, le=1e6)] | str] = Field(default_factory=dict)


class ArmConfig(PhaseArm):
    """One arm: a phase, or several; and what it overrides in the setup."""

    method: str = ""
    phases: list[PhaseArm] = Field(default_factory=list)
    options: Options = Field(default_factory=dict)


class Runs(Typed):
    """Runs of a result: arms over a setup, once for every entry of `each`; or those of another result, with such labels
    and seeds.

    In strings, `{name}` stands for the variable of that name in `each`; a string that is nothing else takes its type.
    note: as a setup's, of these runs.
    """

    setup: str = ""
    labels: dict[str, Annotated[str, BeforeValidator(str)]] = Field(default_factory=dict)
    arms: dict[str, ArmConfig] = Field(default_factory=dict)
    each: list[Options] = Field(default_factory=list)
    note: str = ""
    use: str = ""
    where: dict[str, str | list[str]] = Field(default_factory=dict)
    seeds: Seeds = Field(default_factory=list)


class Claim(Typed):
    """A checkable claim of the paper: the predicate is in `pipelag.results`, under this id.

    because: why it cannot be judged at all, instead of a predicate.
    """

    id: Name
    text: str
    because: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is ours and not the paper's: what a scale says where it cannot say what the paper says."""
        return self.id.endswith("_here")


class Result(Typed):
    """A table, figure or claim in the text.

    title: what a reader calls it, where its id does not say so as `table_2` does; of what the text says, what follows
    "In the text: ".
    """

    title: str = ""
    kind: Literal["table", "figure", "curve", "timeline", "diagram", "config", "text-claim", "heatmap", "bar"]
    caption: str
    draw: str = ""
    optional: bool = False  # made by name only; shown with the others once it is there
    runs: list[Runs] = Field(default_factory=list)
    reported: Any = None
    claims: list[Claim] = Field(default_factory=list)
    options: Options = Field(default_factory=dict)

    @field_validator("claims")
    @classmethod
    def _each_once(cls, claims: list[Claim]) -> list[Claim]:
        distinct([claim.id for claim in claims], "claim")
        return claims


class Citation(Typed):
    """Who wrote a paper and where it can be read. arxiv, doi: its numbers there; pages link to them."""

    authors: list[str]
    venue: str
    year: int
    arxiv: str = Field(default="", pattern=r"^(\d{4}\.\d{4,5})?$")
    doi: str = Field(default="", pattern=r"^(10\.\d{4,9}/\S+)?$")

    @property
    def links(self) -> list[tuple[str, str]]:
        """Names and addresses."""
        links = [(f"arXiv:{self.arxiv}", f"https://arxiv.org/abs/{self.arxiv}")] if self.arxiv else []
        return links + ([(f"doi:{self.doi}", f"https://doi.org/{self.doi}")] if self.doi else [])


class Paper(Typed):
    """A paper's file."""

    id: Name
    title: str
    short: str
    year: int = Field(ge=1, le=9999)
    citation: Citation | None = None
    clusters: Options = Field(default_factory=dict)  # named once, to be referred to by YAML anchors
    setups: dict[Name, Setup]
    results: dict[Name, Result]

    @field_validator("citation")
    @classmethod
    def of_one_year(cls, citation: Citation | None, info: ValidationInfo) -> Citation | None:
        """The year is that of the version that is cited, wherever it is shown."""
        year = info.data.get("year")
        if citation is not None and year not in (None, citation.year):
            raise ValueError(
                f"the citation's year is {citation.year}, but the paper's year is {year}; both should be the cited "
                "version's"
            )
        return citation


def reading_order(paper: Paper) -> list[str]:
    """A paper's results as a reader looks for them: tables, figures, then what the text says, by their numbers."""

    def place(name: str) -> tuple[int, int, str]:
        kind, _, rest = name.partition("_")
        number = re.match(r"\d+", rest)
        order = {"table": 0, "figure": 1, "text": 3}.get(kind, 2)
        return order, int(number[0]) if number else 0, "" if order == 3 else rest

    return sorted(paper.results, key=place)  # what the text says stays in the order of the config


class LeaveOut(Typed):
    """Runs that a scale does not make, and why; tables show the reason.

    Those of a result, or of some setups whatever results need them; where: of these, the runs with such labels; seeds:
    of these, the runs with such seeds.
    """

    paper: Name
    result: str = ""
    setups: list[str] = Field(default_factory=list)
    where: dict[str, str | list[str]] = Field(default_factory=dict)
    seeds: Seeds = Field(default_factory=list)
    why: str


USUAL = "cpu"  # the folder of results/published that nobody needs to name


class Scale(Typed):
    """How large a scale's runs are: overrides per setup, merged into the paper's.

    A value of null takes away what the paper or the extended scale says there; of a whole setup: its overrides.
    `least_seeds`: how many a comparison of arms needs, by paper, where it is more than one; fewer do not tell.
    `hours`: what the runs that a paper's results ask for first may take in all, by paper; `pipelag list --hours` prints
    it beside what they took.
    """

    name: Name
    title: str
    note: str
    extends: str = ""
    setups: dict[str, dict[str, dict[str, Any] | None]] = Field(default_factory=dict)  # paper -> setup -> overrides
    seeds: Seeds = Field(default_factory=lambda: [0], min_length=1)
    leave_out: list[LeaveOut] = Field(default_factory=list)
    least_seeds: dict[str, Annotated[int, Field(ge=1, le=1000)]] = Field(default_factory=dict)
    hours: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(default_factory=dict)
    frozen: bool = False
    folder: Annotated[str, AfterValidator(a_place)] = ""  # of the runs; else results/<name>

    @property
    def device(self) -> str:
        """Of published logs, the name of their folder where it is not the usual one; empty otherwise."""
        name = self.folder.rpartition("/")[2]
        return name if self.name == "published" and name != USUAL else ""

    @property
    def figures(self) -> str:
        """The folder of what is drawn at this scale."""
        return f"figures/{self.name}" + (f"-{self.device}" if self.device else "")

    def asked_beside(self, more: str) -> str:
        """What Snakemake is told of this scale and of more, before the names of results; or nothing."""
        scale = "" if self.name == "quick" else f"scale={self.name}"
        words = " ".join(filter(None, (scale, f"published={self.device}" if self.device else "", more)))
        return f"--config {words} -- " if words else ""


class Workflow(Typed):
    """config/config.yaml, with what `--config` says over it."""

    scale: Name
    device: Literal["auto", "cpu", "cuda"]
    papers: Annotated[list[Name], Field(min_length=1), AfterValidator(lambda papers: distinct(papers, "paper"))]
    published: Name
    retrain: bool
    threads_per_run: int = Field(ge=1, le=MOST_WORKERS)
    runs_per_gpu: int = Field(ge=1, le=100)
    plugins: list[str]


def read(model: type[M], path: Path) -> M:
    """Read and validate a YAML file; the first mistake is named with its place and the nearest valid key.

    A file that has not changed since is not read again: what was made of it is to be left as it is.
    """
    try:
        now = path.stat()
    except OSError:
        return validate(model, read_yaml(path, "a config file"), str(path))
    return _unchanged(model, path, path.resolve(), now.st_mtime_ns, now.st_size, now.st_ino)  # type: ignore[return-value]


@lru_cache(maxsize=128)
def _unchanged(model: type[BaseModel], path: Path, *_: Any) -> BaseModel:
    """What a file says, by where it is and what its folder says of it."""
    return validate(model, read_yaml(path, "a config file"), str(path))


def validate(model: type[M], content: Any, where: str) -> M:
    """`model.model_validate`, refusing with one sentence."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise mistake(error, content, model).at(where) from error
