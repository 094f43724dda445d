"""What the index finds a result by beside its claims: caption, id, names in table or figure, other words for these."""

from __future__ import annotations

from collections.abc import Iterator

from pipelag.errors import PipelagError
from pipelag.report.explore import frame_of, plain
from pipelag.report.gather import Cells, Entry

# Who looks for one of a line finds what has another. Hyphens, and s where others write z: `spellings` of site.js.
SAME = (
    ("tta", "time to accuracy"),
    ("planner", "partitioner", "the optimiser"),
    ("all-reduce", "allreduce", "a ring's"),
    ("data parallel", "DDP"),
    ("recomput", "checkpointing"),
    ("bfloat16", "bf16"),
    ("perplexity", "ppl"),
)
NAMING = ("line", "panel", "group", "bar", "stack")  # keys of a chart whose columns hold names


def searched(entry: Entry) -> str:
    """All that a result is found by and that its claims on the index do not say, each once."""
    if entry.record is None:
        return entry.name.replace("_", " ")
    names = cells_of(entry.record.table) if entry.record.table else lines_of(entry)
    texts = list(dict.fromkeys([entry.record.caption, entry.name.replace("_", " "), *map(plain, names)]))
    everything = " ".join([*texts, entry.title, *(v.text for v in entry.verdicts)]).lower()
    meant = (words for words in SAME if any(word.lower() in everything for word in words))
    return " ".join([*texts, *(word for words in meant for word in words)])


def cells_of(table: Cells) -> Iterator[str]:
    """A table's heads, and its cells that are no numbers."""
    yield from (title for title, _ in table.groups)
    yield from table.titles
    for row in table.rows:
        yield from (cell for cell, kind in zip(row, table.kinds, strict=False) if kind != "number")


def lines_of(entry: Entry) -> Iterator[str]:
    """The names of a figure's panels, lines and bars, and its axes' titles."""
    assert entry.record is not None
    chart = entry.record.chart or {}
    for axis in (chart.get("x"), chart.get("y")):
        if isinstance(axis, dict):
            yield from (text for text in (axis.get("title"), axis.get("column")) if isinstance(text, str))
    try:
        frame = frame_of(entry.base.with_suffix(".csv"))
    except PipelagError:  # which the figure's own page says
        return
    for key in NAMING:
        if chart.get(key) in frame:
            yield from map(str, frame[chart[key]].dropna().unique())
