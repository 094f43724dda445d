"""The records of a scale as typeset reports, one per paper and one over all, by typst.

The template (`templates/report.typ`) gets all texts as data, never as source: what a log says cannot become markup.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipelag.errors import PipelagError
from pipelag.experiments.schema import Scale
from pipelag.report.ambiguities import cited, read_sheet
from pipelag.report.explore import frame_of, plain, seen
from pipelag.report.gather import JUDGING, NO_LOG, NOT_READ, WORDS, Cells, Chapter, Entry, Run, logged, unlike

COLUMN_POINTS, PAGE_POINTS = 244.8, 504.0  # widths of a column and of both: those that figures are drawn for
CHARACTER = 0.47  # of the size of the letters: how wide one is, on average
SIZES = (8.0, 7.5, 7.0, 6.5)  # of a table's letters, in points
LONGEST = 40  # characters of a cell that stay in one line
WHY = {NO_LOG: "they are not made yet", NOT_READ: "what is there is damaged, or not theirs"}
TALLEST = 44  # rows of a wide table on one page


def typeset(scale: Scale, chapters: Sequence[Chapter], folder: Path, beyond: str = "") -> list[Path]:
    """Write <folder>/<paper>.pdf for each paper and, of several, <folder>/pipelag.pdf over all; returns the paths.

    beyond: what Snakemake has to be told beside the scale to draw them.
    """
    papers = [chapter_of(chapter) for chapter in chapters]
    written = []
    for paper in papers:
        title = f"{paper['short']}, reproduced from logs"
        data = {"title": title, "whole": False, "chapters": [paper]}
        written.append(compiled(folder / f"{paper['id']}.pdf", data, scale, beyond))
    if len(papers) > 1:
        title = "Papers on pipelined training with stale weights, reproduced from logs"
        data = {"title": title, "whole": True, "chapters": papers}
        written.append(compiled(folder / "pipelag.pdf", data, scale, beyond))
    return written


def compiled(path: Path, data: dict[str, Any], scale: Scale, beyond: str) -> Path:
    """Compile one report, tagged so that it can be read out (PDF/UA-1).

    Fonts are those of typst and matplotlib alone, and no date is in it: equal records are equal files.
    """
    import matplotlib
    import typst

    data |= {"scale": {"name": scale.name, "title": scale.title, "note": scale.note}, "words": WORDS}
    data |= {"judging": JUDGING}
    source = (files("pipelag.report") / "templates" / "report.typ").read_bytes()
    fonts = typst.Fonts(include_system_fonts=False, font_paths=[Path(matplotlib.get_data_path()) / "fonts/ttf"])
    try:
        compiler = typst.Compiler(source, root=path.parent, font_paths=fonts, sys_inputs={"data": json.dumps(data)})
        compiler.compile(output=path, timestamp=0, pdf_standards="ua-1")
    except typst.TypstError as error:
        why = " ".join(error.message.split())
        again = f"snakemake --cores all --forcerun figure {scale.asked_beside(beyond).removesuffix('-- ')}".strip()
        raise PipelagError(f"{path} cannot be typeset ({why}); draw the figures again: {again}") from error
    return path


def chapter_of(chapter: Chapter) -> dict[str, Any]:
    """A paper for the template."""
    paper, runs = chapter.paper, chapter.runs
    c = paper.citation
    there = [run for run in runs.values() if run.folder]
    entries = [entry_of(entry) for entry in chapter.entries]
    texts = [text for entry in chapter.entries for text in texts_of(entry)]
    sheet = read_sheet()
    return {
        "id": paper.id, "short": paper.short, "title": paper.title, "year": str(paper.year),
        "authors": ", ".join(c.authors) if c else "", "venue": c.venue if c else "", "links": c.links if c else [],
        "counts": [chapter.counts[word] for word in WORDS], "data": chapter.every("data"),
        "computed": chapter.computed,
        "devices": chapter.every("devices"), "hours": f"{chapter.hours:.1f}",
        "logged": logged(runs.values()), "seeds": len({run.seed for run in there}), "entries": entries,
        "unlike": unlike(paper), "deviations": deviations(chapter), "left_out": left_out(runs.values()),
        "ambiguities": [
            {"id": name, "topic": sheet[name].topic, "paragraphs": [bare(p) for p in sheet[name].paragraphs]}
            for name in dict.fromkeys(name for text in texts for name in cited(text))
            if name in sheet
        ],
        "environments": environments(there), "runs": [run_of(run) for run in runs.values()],
    }  # fmt: skip


def entry_of(entry: Entry) -> dict[str, Any]:
    """A result for the template."""
    content: dict[str, Any] = {
        "id": f"{entry.paper.id}-{entry.name}", "title": entry.title, "trouble": entry.trouble, "figure": None,
        "table": None, "caption": "", "runs": "", "shortfall": "", "unlike": unlike(entry.paper),
        "verdicts": [verdict.model_dump() | {"why": entry.notes.why(verdict)} for verdict in entry.verdicts],
        "notes": entry.notes.lines,
    }  # fmt: skip
    record = entry.record
    if record is None:
        return content
    content |= {"caption": plain(record.caption), "shortfall": record.shortfall}
    content["runs"] = f"logged runs: {logged(record.runs)}"
    if record.table is not None:
        content["table"] = table_of(record.table)
    elif not entry.trouble:
        content["figure"] = figure_of(entry)
    return content


def figure_of(entry: Entry) -> dict[str, Any]:
    """The figure's file, its width in points and a sentence for those who do not see it.

    The SVG, whose text stays text: a PDF in a PDF cannot be read out (PDF/UA).
    """
    assert entry.record is not None
    svg = entry.base.with_suffix(".svg")
    match = re.search(r'<svg[^>]*? width="([\d.]+)', svg.read_text(errors="replace"))
    width = float(match[1]) if match else PAGE_POINTS
    try:
        alt = seen(entry.record, frame_of(entry.base.with_suffix(".csv")))
    except PipelagError:
        alt = entry.record.caption
    path = f"/{entry.paper.id}/{entry.name}.svg"
    return {"path": path, "width": min(width, PAGE_POINTS), "wide": width > 1.02 * COLUMN_POINTS, "alt": alt}


def table_of(table: Cells) -> dict[str, Any]:
    """The table with what its columns hold, the size of its letters, and whether it spans the page.

    It is set in one column where that can be read, else over both in the largest letters that fit. How wide its columns
    then are the template measures (`columns`): no word of theirs, the heads' included, may be cut or run over.
    """
    titles = [plain(title) for title in table.titles]
    columns = [column_of([row[i] for row in table.rows], title) for i, title in enumerate(titles)]
    needs = [
        1.5 + max([min(len(line), LONGEST) for line in c["lines"]] + [1.15 * len(word) for word in c["heads"]])
        for c in columns
    ]
    places = [(False, size) for size in SIZES[:2]] + [(True, size) for size in SIZES]
    wide, size = next(
        (place for place in places if fits(sum(needs), *place)),
        (True, SIZES[-1]),
    )
    return {
        **table.model_dump(), "titles": titles, "kinds": table.kinds, "columns": columns, "wide": wide, "size": size,
        "long": wide and len(table.rows) > TALLEST,
    }  # fmt: skip


def column_of(cells: Sequence[str], title: str) -> dict[str, list[str]]:
    """The longest lines of a column's cells, and the longest pieces of them and of its title that no break divides."""
    return {
        "lines": longest(cells),
        "words": longest(piece for cell in cells for piece in pieces(cell)),
        "heads": longest(pieces(title)),
    }


def pieces(text: str) -> list[str]:
    """Between spaces, and behind hyphens before a letter: there lines may be broken."""
    return re.split(r"\s+|(?<=[^\W\d_]-)(?=[^\W\d_])", text)


def longest(texts: Iterable[str], count: int = 12) -> list[str]:
    """The texts with the most characters: so many that one is the widest, though letters are not of one width."""
    return sorted(dict.fromkeys(texts), key=len, reverse=True)[:count]


def fits(characters: float, wide: bool, size: float) -> bool:
    """Whether so many characters in a row fit in this place."""
    return characters * CHARACTER * size <= (PAGE_POINTS if wide else COLUMN_POINTS)


def texts_of(entry: Entry) -> list[str]:
    """What a result says in words."""
    if entry.record is None:
        return []
    notes = entry.record.table.notes if entry.record.table else []
    return [entry.record.caption, *notes, *(text for v in entry.verdicts for text in (v.text, v.why, v.tolerance))]


def deviations(chapter: Chapter) -> list[dict[str, Any]]:
    """How runs are not the paper's: each sentence once, with the results that it is said of."""
    results_of: dict[str, list[list[str]]] = {}
    for entry in chapter.entries:
        for text in entry.record.shortfall.split("; ") if entry.record else []:
            if text:
                results_of.setdefault(text, []).append([f"{chapter.paper.id}-{entry.name}", entry.title])
    return [{"text": text, "results": results} for text, results in results_of.items()]


def left_out(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Why runs have no log, and how many."""
    counts = Counter(WHY.get(run.status, run.status) for run in runs if not run.folder)
    return [{"text": text, "count": count} for text, count in counts.items()]


def run_of(run: Run) -> list[str]:
    """A run's line of the appendix."""
    state = "" if run.status == "finished" or not run.folder else f" ({run.status})"
    what = ", ".join(run.labels.values()) + (state if run.folder else " (no log)")
    return [run.id, what, str(run.seed), "" if run.steps is None else f"{run.steps:,}",
            "" if run.seconds is None else f"{run.seconds:,.1f}", run.source]  # fmt: skip


def environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What runs were made with, by their environment.json: device, versions; how many, of which commits and days."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        try:
            environment = json.loads((Path(run.folder) / "environment.json").read_text())
            versions = {"python": environment["python"], **environment["versions"]}
        except (OSError, ValueError, KeyError, TypeError):
            versions = {}
        words = ", ".join(f"{name} {version}" for name, version in versions.items()) or "versions not logged"
        groups.setdefault((run.device or "device not logged", words), []).append(run)
    return [
        {
            "device": device, "versions": words, "count": len(same),
            "days": span(sorted({(run.date or "")[:10] for run in same} - {""})),
            "commits": ", ".join(sorted({run.source for run in same} - {""})),
        }
        for (device, words), same in groups.items()
    ]  # fmt: skip


def span(days: Sequence[str]) -> str:
    """The first and the last of some days."""
    return " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))


def bare(paragraph: str) -> str:
    """A paragraph of docs/ambiguities.md without its marks."""
    return re.sub(r"\*\*|`", "", paragraph)
