"""What config/papers/*.yaml and config/scales/*.yaml may say.

A wrong key is refused with its place and the nearest valid key.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

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
    """The share, [numerator, denominator]; raises `ValueError` if it is not above 0 and at most 1."""
    if not 0 < share[0] <= share[1] <= MOST_STEPS:
        raise ValueError(f"a share is [numerator, denominator], above 0 and at most 1, not {list(share)}")
    return share


def distinct(values: list[T], what: str) -> list[T]:
    """The values; raises `ValueError` if one occurs twice. Two runs with one seed are one run, and have no spread."""
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ValueError(f"the {what} {twice} appears twice; name each once")
    return values


def a_place(folder: str) -> str:
    """The folder; raises `ValueError` if Snakemake cannot name it: braces are wildcards, and ~ is not expanded."""
    if folder.startswith("~") or re.search(r"[{}\x00-\x1f]", folder) or folder != folder.strip():
        raise ValueError(f"{shown(folder)} is not a folder name that Snakemake accepts; write it without ~, {{ and }}")
    return folder


class Setup(Typed):
    """A named base of runs: what a paper's appendix lists for one model and data set.

    cuts, replicas, microbatches: for arms that give none of their own. They are here so that a scale with another model
    can change them.
    shares: shares of a run's steps, [numerator, denominator], that arms refer to by name, for the same reason.
    checkpoints: numbers of segments that arms refer to by name.
    seeds: for runs that name none, if they differ from the scale's.
    note: a sentence for readers of the runs' results, printed below every figure and table that shows them.
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

    settings: the method's options. One that counts minibatches may be a share of the phase's steps, {share: [1, 4]} or
    {share: name}; {setup: microbatches} takes the setup's number.
    recompute: as in `PhaseSpec`, or {checkpoints: n} for n segments of stages: a number, or a name among the setup's
    checkpoints.
    cuts: layers, ranges of layers such as "1-106" and "4-104:4" (every fourth), or "54/107": 107 layers spread evenly
    over 54 stages.
    share: the phase's steps as a fraction [numerator, denominator] of the setup's, a name among the setup's shares, or
    "rest".
    lr_times, stage_lr_times: factors on the setup's learning rate, for all stages or for single ones.
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
    """One arm: one phase or several, and the options that it overrides in the setup."""

    method: str = ""
    phases: list[PhaseArm] = Field(default_factory=list)
    options: Options = Field(default_factory=dict)


class Runs(Typed):
    """Runs of a result: arms over a setup, once for every entry of `each`; or runs of another result.

    In strings, `{name}` stands for the variable of that name in `each`; a string that is just one `{name}` becomes the
    variable's value, with its type.
    note: as a setup's, for these runs only.
    use: the other result; where, seeds: take only its runs with these labels and seeds.
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
    """A claim of the paper. The judge that tests it on the logs is in `pipelag.results`, under this id.

    because: if it has no judge, why it cannot be judged at all.
    """

    id: Name
    text: str
    because: str = ""

    @property
    def ours(self) -> bool:
        """Whether the claim is pipelag's own: what a scale shows where it cannot show what the paper says."""
        return self.id.endswith("_here")


class Result(Typed):
    """A table, a figure, or a claim in the text.

    title: its name for readers, if the id does not give one as `table_2` does; for a claim in the text, what follows
    "In the text: ".
    source: how numbers that rest on plans (runs of kind `partition`) come about, for the footer.
    """

    title: str = ""
    kind: Literal["table", "figure", "curve", "timeline", "diagram", "config", "text-claim", "heatmap", "bar"]
    caption: str
    draw: str = ""
    optional: bool = False  # made by name only; shown with the others once it is there
    runs: list[Runs] = Field(default_factory=list)
    reported: Any = None
    claims: list[Claim] = Field(default_factory=list)
    source: Literal["simulated", "counted", "described", "measured"] = "simulated"
    options: Options = Field(default_factory=dict)

    @field_validator("claims")
    @classmethod
    def _each_once(cls, claims: list[Claim]) -> list[Claim]:
        distinct([claim.id for claim in claims], "claim")
        return claims


class Citation(Typed):
    """Who wrote a paper, and where it can be read. arxiv, doi: its identifiers there, to which pages link."""

    authors: list[str]
    venue: str
    year: int
    arxiv: str = Field(default="", pattern=r"^(\d{4}\.\d{4,5})?$")
    doi: str = Field(default="", pattern=r"^(10\.\d{4,9}/\S+)?$")

    @property
    def links(self) -> list[tuple[str, str]]:
        """The name and the address of each link."""
        links = [(f"arXiv:{self.arxiv}", f"https://arxiv.org/abs/{self.arxiv}")] if self.arxiv else []
        return links + ([(f"doi:{self.doi}", f"https://doi.org/{self.doi}")] if self.doi else [])


class Paper(Typed):
    """The content of a file in config/papers. year: if it is not given, the citation's."""

    id: Name
    title: str
    short: str
    year: int = Field(ge=1, le=9999)
    citation: Citation | None = None
    clusters: Options = Field(default_factory=dict)  # named once, to be referred to by YAML anchors
    setups: dict[Name, Setup]
    results: dict[Name, Result]

    @model_validator(mode="before")
    @classmethod
    def _of_the_citation(cls, content: Any) -> Any:
        cited = content.get("citation") if isinstance(content, dict) else None
        return {"year": cited["year"], **content} if isinstance(cited, dict) and "year" in cited else content

    @field_validator("citation")
    @classmethod
    def of_one_year(cls, citation: Citation | None, info: ValidationInfo) -> Citation | None:
        """Refuse a citation of another year than the paper's: both are the cited version's."""
        year = info.data.get("year")
        if citation is not None and year not in (None, citation.year):
            raise ValueError(
                f"the citation's year is {citation.year}, but the paper's year is {year}; both should be the cited "
                "version's"
            )
        return citation


def reading_order(paper: Paper) -> list[str]:
    """A paper's results in a reader's order: tables and figures by their numbers, then claims in the text."""

    def place(name: str) -> tuple[int, int, str]:
        kind, _, rest = name.partition("_")
        number = re.match(r"\d+", rest)
        order = {"table": 0, "figure": 1, "text": 3}.get(kind, 2)
        return order, int(number[0]) if number else 0, "" if order == 3 else rest

    return sorted(paper.results, key=place)  # claims in the text stay in the order of the config


class LeaveOut(Typed):
    """Runs that a scale does not make, and why; tables show the reason.

    result, setups: the runs of a result, those over these setups in any result, or both conditions together.
    where, seeds: of these, only the runs with these labels and seeds.
    """

    paper: Name
    result: str = ""
    setups: list[str] = Field(default_factory=list)
    where: dict[str, str | list[str]] = Field(default_factory=dict)
    seeds: Seeds = Field(default_factory=list)
    why: str


USUAL = "cpu"  # the default folder of results/published


class Scale(Typed):
    """How large a scale's runs are: overrides per setup, which are merged into the paper's setups.

    A null removes the value of the paper or of the extended scale; a null for a whole setup removes its overrides.
    least_seeds: by paper, the number of seeds that a comparison of arms needs, if more than one; with fewer it cannot
    be judged.
    hours: by paper, the hours that its runs may take in all, where a run counts for the paper that asks for it first.
    `pipelag list --hours` prints them beside the hours that they took.
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
    folder: Annotated[str, AfterValidator(a_place)] = ""  # of the runs; empty: results/<name>

    @property
    def device(self) -> str:
        """For published logs, the name of their folder unless it is the default one; empty otherwise."""
        name = self.folder.rpartition("/")[2]
        return name if self.name == "published" and name != USUAL else ""

    @property
    def figures(self) -> str:
        """The folder of the figures and tables at this scale."""
        return f"figures/{self.name}" + (f"-{self.device}" if self.device else "")

    def asked_beside(self, more: str) -> str:
        """Snakemake's arguments for this scale and for `more`, to go before the names of results; empty if none."""
        scale = "" if self.name == "quick" else f"scale={self.name}"
        words = " ".join(filter(None, (scale, f"published={self.device}" if self.device else "", more)))
        return f"--config {words} -- " if words else ""


class Workflow(Typed):
    """The content of config/config.yaml, overridden by `--config`."""

    scale: Name
    device: Literal["auto", "cpu", "cuda"]
    papers: Annotated[list[Name], Field(min_length=1), AfterValidator(lambda papers: distinct(papers, "paper"))]
    published: Name
    retrain: bool
    threads_per_run: int = Field(ge=1, le=MOST_WORKERS)
    runs_per_gpu: int = Field(ge=1, le=100)
    plugins: list[str]


def read(model: type[M], path: Path) -> M:
    """Read and validate a YAML file; the first mistake is refused with its place and the nearest valid key.

    A file that has not changed is not read again, so callers must not change the object that they get.
    """
    try:
        now = path.stat()
    except OSError:
        return validate(model, read_yaml(path, "a config file"), str(path))
    return _unchanged(model, path, path.resolve(), now.st_mtime_ns, now.st_size, now.st_ino)  # type: ignore[return-value]


@lru_cache(maxsize=128)
def _unchanged(model: type[BaseModel], path: Path, *_: Any) -> BaseModel:
    """The validated file, cached by its path, time of change, size and inode."""
    return validate(model, read_yaml(path, "a config file"), str(path))


def validate(model: type[M], content: Any, where: str) -> M:
    """As `model.model_validate`, but raises `PipelagError` with one sentence."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise mistake(error, content, model).at(where) from error
