"""The site of a scale: an index with every claim, a page per paper and one per result; files that need no server."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context, select_autoescape
from jinja2.runtime import Context
from markupsafe import Markup

from pipelag.errors import PipelagError
from pipelag.experiments.schema import Scale
from pipelag.files import write_whole
from pipelag.report import explore
from pipelag.report.ambiguities import Ambiguity, linker, marked, read_sheet
from pipelag.report.gather import FAILS, HOLDS, JUDGING, OPEN, Chapter, Entry, Run, logged, unlike
from pipelag.report.search import searched
from pipelag.report.tables import LINE

RULES = Path("docs/judging.md")
CLASSES = {HOLDS: "holds", FAILS: "fails", OPEN: "open"}


@dataclass
class Site:
    """What the pages show.

    typeset_beside: the typeset reports are being made while these pages are. beyond: what Snakemake is told with
    --config beside the scale. troubles: sentences on records that are missing or damaged, as they are found.
    """

    scale: Scale
    chapters: Sequence[Chapter]
    folder: Path
    typeset_beside: bool = False
    beyond: str = ""
    ambiguities: Mapping[str, Ambiguity] = field(default_factory=read_sheet)
    troubles: list[str] = field(default_factory=list)

    def write(self) -> Path:
        """Write all pages; the index, which comes last, is returned."""
        self.troubles = [entry.trouble for chapter in self.chapters for entry in chapter.entries if entry.trouble]
        for chapter in self.chapters:
            (self.folder / chapter.paper.id).mkdir(parents=True, exist_ok=True)
            for before, entry, after in neighbours(chapter.entries):
                self.page(
                    f"{chapter.paper.id}/{entry.name}.html", "result.html", chapter=chapter, entry=entry,
                    before=before, after=after, **self.drawn(entry),
                )  # fmt: skip
            self.page(f"{chapter.paper.id}/index.html", "paper.html", chapter=chapter)
        self.statics()
        self.page("ambiguities.html", "ambiguities.html", entries=list(self.ambiguities.values()))
        total = sum((chapter.counts for chapter in self.chapters), Counter[str]())
        trained = sum((chapter.by_training for chapter in self.chapters), Counter[str]())
        names = {entry.target: searched(entry) for chapter in self.chapters for entry in chapter.entries}
        return self.page(
            "index.html", "index.html", total=total, trained=trained, troubles=self.troubles, names=names,
        )  # fmt: skip

    def page(self, name: str, template: str, **values: Any) -> Path:
        """Render a page; its links are relative to where it lies."""
        path = self.folder / name
        up = "../" * name.count("/")
        here = {"scale": self.scale, "chapters": self.chapters, "up": up, "page": name}
        values = {"chapter": None, "entry": None} | here | values
        write_whole(path, self.environment.get_template(template).render(**values))
        return path

    @cached_property
    def environment(self) -> Environment:
        """Templates in which every value is text."""
        link = linker(self.ambiguities)

        @pass_context
        def linked(context: Context, text: str) -> Markup:
            return link(explore.plain(text), f"{context['up']}ambiguities.html")

        environment = Environment(
            loader=PackageLoader("pipelag.report", "templates"), autoescape=select_autoescape(),
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        environment.filters |= {"marked": marked, "plain": explore.plain, "linked": linked}
        environment.globals |= {
            "CLASSES": CLASSES,
            "JUDGING": JUDGING,
            "LINE": LINE,
            "logged": logged,
            "rules": self.rules(),
            "unlike": unlike,
        }
        environment.globals |= {
            "made_again": self.made_again,
            "trained_again": self.trained_again,
            "log": self.log,
            "report": self.report,
        }
        return environment

    def drawn(self, entry: Entry) -> dict[str, Any]:
        """Of a figure: a sentence that says what it shows, and its curves for the browser."""
        if entry.record is None or not entry.record.is_figure or entry.trouble:
            return {"alt": "", "curves": []}
        try:
            frame = explore.frame_of(entry.base.with_suffix(".csv"))
        except PipelagError as error:
            self.troubles.append(str(error))
            return {"alt": entry.record.caption, "curves": []}
        chart = explore.lines_of(entry.record)
        try:
            curves = list(explore.panels(chart, frame)) if chart else []
        except (KeyError, TypeError, ValueError):  # the frame of another version: the figure is there all the same
            curves = []
        return {"alt": explore.seen(entry.record, frame), "curves": curves}

    def made_again(self, target: str) -> str:
        """The command that makes something again at this scale."""
        return f"snakemake --cores all {self.scale.asked_beside(self.beyond)}{target}"

    def trained_again(self, target: str) -> str:
        """The command that makes the runs of a published result again where their logs are missing."""
        folder = "" if self.scale.device else f"published={Path(self.scale.folder).name}"
        more = " ".join(filter(None, (folder, "retrain=true", self.beyond)))
        return f"snakemake --cores all {self.scale.asked_beside(more)}{target}"

    def rules(self) -> str:
        """The link from the index to how claims are judged, where this is there."""
        return Path(os.path.relpath(RULES, self.folder)).as_posix() if RULES.is_file() else ""

    def log(self, run: Run, name: str, paper: str) -> str:
        """The link from a paper's folder to a file of a run; empty where it is not there."""
        path = Path(run.folder) / name
        return Path(os.path.relpath(path, self.folder / paper)).as_posix() if run.folder and path.exists() else ""

    def report(self, name: str) -> str:
        """The typeset report of that name, where it is or is being made; "pipelag" is over several papers."""
        made = (self.folder / f"{name}.pdf").exists()
        coming = self.typeset_beside and (name != "pipelag" or len(self.chapters) > 1)
        return f"{name}.pdf" if made or coming else ""

    def statics(self) -> None:
        """Copy style, script and the library that draws curves."""
        target = self.folder / "static"
        target.mkdir(parents=True, exist_ok=True)
        for source in (files("pipelag.report") / "static").iterdir():
            if source.is_file():
                (target / source.name).write_bytes(source.read_bytes())


def neighbours(entries: Sequence[Entry]) -> Iterator[tuple[Entry | None, Entry, Entry | None]]:
    """Every entry between the one before and the one after."""
    for (before, entry), (_, after) in pairwise(pairwise([None, *entries, None])):
        assert entry is not None
        yield before, entry, after
