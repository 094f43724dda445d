"""Tables as CSV (full precision), Markdown and LaTeX (booktabs)."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from pipelag.errors import PipelagError
from pipelag.files import write_whole

EMPTY = "–"
LINE = 34  # characters of a cell that stay in one line on a page
Cell = str | float | int | None


class Formula(str):
    """A formula in letters and signs, as Markdown, pages and CSV have it; `latex`: as LaTeX's mathematics."""

    latex: str

    @classmethod
    def of(cls, text: str, latex: str) -> Formula:
        """Written twice, for neither follows from the other."""
        formula = cls(text)
        formula.latex = latex
        return formula


@dataclass(frozen=True)
class Column:
    """A column: `key` of the rows, a title, a group title above it, and a format for numbers."""

    key: str
    title: str
    group: str = ""
    format: str = "{}"

    @property
    def heading(self) -> str:
        """Both titles, where there is one line for them."""
        return f"{self.group}: {self.title}" if self.group and self.title else self.group or self.title

    def text(self, value: Cell) -> str:
        """A cell as a reader sees it; a missing value is a dash."""
        if value is None or value == "":
            return EMPTY
        return value if isinstance(value, str) else self.format.format(value)


@dataclass(frozen=True)
class Col:
    """A column of a table that is made from rows of any kind: its title, and how a row gives its cell.

    value: a key of the row (a mapping or an object's attribute), or a function of the row.
    """

    title: str
    value: str | Callable[[Any], Cell]
    format: str = "{}"
    group: str = ""

    def __post_init__(self) -> None:
        if "{" not in self.format:
            raise PipelagError(f"the format '{self.format}' of the column '{self.title}' shows nothing; write {{:.1f}}")

    def of(self, row: Any) -> Cell:
        """The row's cell; None where it has none."""
        if callable(self.value):
            return self.value(row)
        return row.get(self.value) if isinstance(row, Mapping) else getattr(row, self.value, None)


def kind_of(cells: Sequence[str]) -> str:
    """Of a column: "number" where half of the cells or more begin as a number does; dashes count for neither.

    Of long ones all must, and they must be few: "46.14 ± 0.80 (2 of 3 seeds, one diverges)" makes no text of the
    numbers that it stands among. Otherwise "word", or "text" where cells need several lines.
    """
    filled = [cell for cell in cells if cell.strip("–- ") and cell != "N/A"]
    numbers = [cell for cell in filled if cell.lstrip("+-−±<>≥≤~ ")[:1].isdigit()]
    long = [cell for cell in filled if len(cell) > LINE]
    few = set(long) <= set(numbers) and 4 * len(long) <= len(filled)
    if few and 2 * len(numbers) >= len(filled):
        return "number"
    return "text" if long else "word"


def table(
    rows: Iterable[Any], cols: Sequence[Col], caption: str = "", notes: Sequence[str] = (), rule_by: str | None = None
) -> Table:
    """A table of rows, each of which gives every column its cell.

    rule_by: the title of a column; a thin rule goes where its cell changes.
    """
    columns = [Column(str(number), col.title, col.group, col.format) for number, col in enumerate(cols)]
    cells = [{str(number): col.of(row) for number, col in enumerate(cols)} for row in rows]
    rules: list[int] = []
    if rule_by is not None:
        key = next(column.key for column in columns if column.title == rule_by)
        rules = [i for i in range(1, len(cells)) if cells[i][key] != cells[i - 1][key]]
    return Table(columns, cells, caption, list(notes), rules)


@dataclass
class Table:
    """Rows of cells under columns, a caption, and notes below. `rules`: row numbers before which a thin rule goes."""

    columns: Sequence[Column]
    rows: list[dict[str, Cell]]
    caption: str = ""
    notes: list[str] = field(default_factory=list)
    rules: Sequence[int] = ()

    @property
    def right(self) -> list[bool]:
        """Which columns stand to the right: those of numbers. The first names the rows."""
        texts = [[column.text(row.get(column.key)) for row in self.rows] for column in self.columns]
        return [i > 0 and kind_of(column) == "number" for i, column in enumerate(texts)]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Neighbouring columns under one title, as (title, width)."""
        return [(title, len(list(members))) for title, members in groupby(self.columns, key=lambda c: c.group)]

    def csv(self) -> str:
        """Comma-separated, numbers unrounded."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([c.heading for c in self.columns])
        for row in self.rows:
            writer.writerow(["" if row.get(c.key) is None else row[c.key] for c in self.columns])
        return out.getvalue()

    def texts(self) -> dict[str, Any]:
        """What a page shows: groups of columns as (title, width), titles, cells as a reader sees them, notes."""
        groups = self.groups
        return {
            "groups": groups if any(title for title, _ in groups) else [],
            "titles": [column.title for column in self.columns],
            "rows": [[column.text(row.get(column.key)) for column in self.columns] for row in self.rows],
            "rules": list(self.rules),
            "notes": list(self.notes),
        }

    def markdown(self) -> str:
        """A GitHub table with caption and notes."""
        titles = [c.heading for c in self.columns]
        lines = [f"**{self.caption}**", ""] if self.caption else []
        lines += [
            "| " + " | ".join(titles) + " |",
            "|" + "|".join(" ---: " if right else " --- " for right in self.right) + "|",
        ]
        lines += ["| " + " | ".join(c.text(row.get(c.key)) for c in self.columns) + " |" for row in self.rows]
        if self.notes:
            lines += ["", *[f"- {note}" for note in self.notes]]
        return "\n".join(lines) + "\n"

    def latex(self, label: str = "") -> str:
        """A `table` environment to `\\input`; needs the package booktabs."""
        groups = self.groups
        lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{escape(self.caption)}}}"]
        if label:
            lines.append(rf"  \label{{tab:{label}}}")
        lines += [rf"  \begin{{tabular}}{{{''.join('lr'[right] for right in self.right)}}}", r"    \toprule"]
        if any(title for title, _ in groups):
            spans, rules, at = [], [], 1
            for title, width in groups:
                spans.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(title)}}}" if title else " & ".join([""] * width))
                if title:
                    rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
                at += width
            lines += ["    " + " & ".join(spans) + r" \\", "    " + " ".join(rules)]
        lines += ["    " + " & ".join(escape(c.title) for c in self.columns) + r" \\", r"    \midrule"]
        for number, row in enumerate(self.rows):
            if number in self.rules:
                lines.append(r"    \addlinespace")
            lines.append("    " + " & ".join(in_latex(c.text(row.get(c.key))) for c in self.columns) + r" \\")
        lines += [r"    \bottomrule", r"  \end{tabular}"]
        lines += [rf"  \par\footnotesize {escape(note)}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}", ""])

    def save(self, base: Path) -> None:
        """Write <base>.csv, .md and .tex; the label is `tab:<folder>:<name>`, unique over the papers."""
        write_whole(base.with_suffix(".csv"), self.csv())
        write_whole(base.with_suffix(".md"), self.markdown())
        write_whole(base.with_suffix(".tex"), self.latex(f"{base.parent.name}:{base.name}"))


def in_latex(cell: str) -> str:
    """A cell's text for LaTeX."""
    return f"${cell.latex}$" if isinstance(cell, Formula) else escape(cell)


def escape(text: str) -> str:
    """LaTeX-safe text."""
    special = {
        "&": r"\&",
        "%": r"\%",
        "#": r"\#",
        "_": r"\_",
        "$": r"\$",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
    }
    special |= {
        "–": "--",
        "±": r"$\pm$",
        "×": r"$\times$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "→": r"$\to$",
        "^": r"\^{}",
        "<": "$<$",  # as it is, text in LaTeX's own encoding prints other signs for these three
        ">": "$>$",
        "|": "$|$",
        "Ŵ": r"\^{W}",
        "\\": r"\textbackslash{}",
    }
    return "".join(special.get(character, character) for character in text)
