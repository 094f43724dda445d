"""What a scale's records say, read once for the site and for the typeset reports: papers, results, claims, runs.

A record that is missing or damaged becomes a sentence that names the file; the others are gathered all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelag.experiments import load_paper
from pipelag.experiments.schema import Paper, Scale, reading_order
from pipelag.report.conditions import Notes
from pipelag.report.tables import kind_of

HOLDS, FAILS, OPEN = WORDS = ("holds", "fails", "cannot be judged")
NO_LOG = "no log"  # the status of a run that is asked for and not there; of one left out it is the reason
NOT_READ = "not read"  # of one whose log is damaged, or is not what its run wrote
# What docs/judging.md says at length.
JUDGING = (
    "A claim holds or fails where the logs decide it, within the tolerance that it names. It cannot be judged where "
    "runs are missing, where arms cannot be told apart, or where only the paper's own data, model and length, or GPUs, "
    "could decide it. Trained methods are compared seed by seed: one is ahead of another where the whole 95 % interval "
    "of their mean difference is above zero. In verdicts, ± is half of such an interval; with one seed, it is that of "
    "the test set's sampling error. In tables, ± is what their notes say."
)
FIGURE_FILES, TABLE_FILES = ("svg", "pdf", "png", "csv"), ("csv", "md", "tex")


class Part(BaseModel):
    """A part of a record; what it does not know it leaves alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Run(Part):
    """A run of a result. folder: of its log, empty where there is none; damaged: why one that is there is not read."""

    id: str
    labels: dict[str, str]
    seed: int
    status: str
    folder: str = ""
    damaged: str = ""
    steps: int | None = None
    seconds: float | None = None
    data: str | None = None
    release: str | None = None
    device: str | None = None
    date: str | None = None
    commit: str | None = None

    @property
    def source(self) -> str:
        """Of the code, the commit in short, and "+" where there were changes beside it."""
        commit = self.commit or ""
        return commit[:9] + "+" * (len(commit) > 9 and commit.endswith("+"))


def logged(runs: Iterable[Run]) -> str:
    """How many of some runs are logged, how many their scale leaves out, and of how many the log is not read.

    "37 of 75; 38 left out".
    """
    states = Counter("logged" if run.folder else run.status for run in runs)
    left_out = states.total() - states["logged"] - states[NO_LOG] - states[NOT_READ]
    others = ((left_out, "left out"), (states[NOT_READ], NOT_READ))
    parts = [f"{states['logged']} of {states.total()}", *(f"{count} {what}" for count, what in others if count)]
    return "; ".join(parts)


class Judged(Part):
    """A claim and what became of it."""

    claim: str
    text: str
    verdict: str = Field(pattern="|".join(f"^{word}$" for word in WORDS))
    why: str
    tolerance: str = ""
    p: float | None = None
    learnt: bool = False  # about what networks learn, and not a count or a time alone
    own: bool = False  # pipelag's, and not the paper's
    conditions: str = ""  # the part of `why` that says how the runs differ from the paper's


class Cells(Part):
    """A table as a reader sees it: groups of columns as (title, width), titles, rows of texts, notes."""

    groups: list[tuple[str, int]]
    titles: list[str]
    rows: list[list[str]]
    rules: list[int] = []
    notes: list[str] = []

    @cached_property
    def kinds(self) -> list[str]:
        """By column: "number" (a cell may still have more to say), "word", or "text" where cells need several lines."""
        return [kind_of([row[i] for row in self.rows if i < len(row)]) for i in range(len(self.titles))]


class Record(Part):
    """<result>.json, as `pipelag result` leaves it."""

    result: str
    caption: str
    is_figure: bool
    chart: dict[str, Any] | None = None
    table: Cells | None = None
    shortfall: str
    footer: str = ""
    data: list[str]
    devices: list[str]
    logged: int
    asked: int
    runs: list[Run]
    verdicts: list[Judged]


@dataclass(frozen=True)
class Entry:
    """A result: its record, or None and a sentence that says what is wrong with it."""

    paper: Paper
    name: str
    folder: Path
    record: Record | None
    trouble: str = ""

    @property
    def title(self) -> str:
        """As a reader calls it."""
        return title_of(self.paper, self.name)

    @property
    def target(self) -> str:
        """What Snakemake makes it by."""
        return f"{self.paper.id}_{self.name}"

    @property
    def base(self) -> Path:
        """Its files, without their ends."""
        return self.folder / self.paper.id / self.name

    @property
    def verdicts(self) -> list[Judged]:
        """Its claims."""
        return self.record.verdicts if self.record else []

    @property
    def notes(self) -> Notes:
        """Of the conditions that its claims share."""
        return Notes(self.verdicts)

    @property
    def counts(self) -> Counter[str]:
        """Its claims by verdict."""
        return Counter(verdict.verdict for verdict in self.verdicts)

    @property
    def ends(self) -> Sequence[str]:
        """Of the files that can be taken away."""
        return FIGURE_FILES if self.record and self.record.is_figure else TABLE_FILES


@dataclass(frozen=True)
class Chapter:
    """A paper's results in reading order."""

    paper: Paper
    entries: list[Entry]

    @property
    def counts(self) -> Counter[str]:
        """Its claims by verdict."""
        return Counter(verdict.verdict for entry in self.entries for verdict in entry.verdicts)

    @property
    def by_training(self) -> Counter[str]:
        """The same of those that are about what networks learn: the others are counted, timed or proved."""
        return Counter(verdict.verdict for entry in self.entries for verdict in entry.verdicts if verdict.learnt)

    @property
    def runs(self) -> dict[str, Run]:
        """All its runs, each once."""
        return {run.id: run for entry in self.entries if entry.record for run in entry.record.runs}

    @property
    def computed(self) -> bool:
        """Whether nothing was trained or measured: its runs have neither data nor a time."""
        there = [run for run in self.runs.values() if run.folder]
        return bool(there) and not any(run.data or run.seconds for run in there)

    @property
    def hours(self) -> float:
        """Of its logged runs together, on the devices they ran on."""
        return sum(run.seconds or 0.0 for run in self.runs.values()) / 3600

    def every(self, what: str) -> list[str]:
        """All data sets or devices of its results."""
        return sorted({text for entry in self.entries if entry.record for text in getattr(entry.record, what)})


def gather(names: Iterable[str], scale: Scale, folder: Path, beyond: str = "") -> list[Chapter]:
    """The records of some papers under a scale's folder of figures; optional results only where they have been made.

    beyond: what Snakemake has to be told beside the scale to make them.
    """
    chapters, how = [], scale.asked_beside(beyond)
    for name in names:
        paper = load_paper(name)
        results = [
            result
            for result in reading_order(paper)
            if not paper.results[result].optional or (folder / paper.id / f"{result}.json").exists()
        ]
        chapters.append(Chapter(paper, [read(folder, paper, result, how) for result in results]))
    return chapters


def read(folder: Path, paper: Paper, result: str, how: str = "") -> Entry:
    """A result's record; with a sentence instead where it is missing or damaged, or a file that it needs is missing.

    how: what Snakemake is told before the result's name, to draw it.
    """
    path = folder / paper.id / f"{result}.json"
    command = f"snakemake --cores all {how}{paper.id}_{result}"
    if not path.exists():
        return Entry(paper, result, folder, None, f"{path} is not there; draw it first: {command}")
    if not path.is_file():
        return Entry(paper, result, folder, None, f"{path} is no file; delete it and draw it again: {command}")
    try:
        record = Record.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        why = f"{first['msg']} at {place}" if place else first["msg"]
        return Entry(paper, result, folder, None, f"{path} is damaged ({why}); delete it and draw it again: {command}")
    except OSError as error:
        return Entry(paper, result, folder, None, f"{path} cannot be read ({error.strerror}); draw it again: {command}")
    if record.is_figure and (why := unreadable(path.with_suffix(".svg"))):
        sentence = f"{path.with_suffix('.svg')} {why}; delete {path} and draw it again: {command}"
        return Entry(paper, result, folder, record, sentence)
    if not record.is_figure and record.table is None:
        return Entry(paper, result, folder, None, f"{path} is damaged (no table in it); delete it and draw: {command}")
    return Entry(paper, result, folder, record)


def unreadable(svg: Path) -> str:
    """What is wrong with an SVG, in words; empty where it can be shown."""
    try:
        ElementTree.parse(svg)
    except FileNotFoundError:
        return "is not there"
    except (OSError, ElementTree.ParseError) as error:
        return f"is damaged ({error})"
    return ""


def unlike(paper: Paper) -> str:
    """What introduces how runs fall short of a paper's, or of a study's own at the full setting."""
    return "different from the paper" if paper.citation else "short of the full setting"


def title_of(paper: Paper, result: str) -> str:
    """`table_2` -> "Table 2", `text_headline_speedup` -> "In the text: " and its title, or "headline speedup"."""
    kind, _, rest = result.partition("_")
    title = paper.results[result].title
    if kind == "text":
        return f"In the text: {title or rest.replace('_', ' ')}"
    return title or f"{kind.capitalize()} {rest.replace('_', ' ')}".strip()
