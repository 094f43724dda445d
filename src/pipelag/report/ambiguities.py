"""docs/ambiguities.md: sentences of the papers that can be read in more than one way, by the ids that results cite."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

SHEET = Path("docs/ambiguities.md")
HEADING = re.compile(r"^### ([A-Z]\d+): (.+)$", re.M)
# A citation names its ids after the word, or stands in brackets by itself: "A1" alone may be an accelerator.
CITED = re.compile(r"(?:[Aa]mbiguit(?:y|ies) |(?<=\())[A-E]\d{1,2}(?:(?:, | and )[A-E]\d{1,2})*(?![\w-])")
ID = re.compile(r"[A-E]\d{1,2}")


@dataclass(frozen=True)
class Ambiguity:
    """An entry: its topic, and paragraphs that say what the paper has, what is done here and why."""

    id: str
    topic: str
    paragraphs: tuple[str, ...]


def read_sheet(path: Path = SHEET) -> dict[str, Ambiguity]:
    """The entries by id; none where there is no sheet."""
    if not path.is_file():
        return {}
    pieces = HEADING.split(path.read_text())[1:]
    entries = {}
    for name, topic, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        body = re.split(r"^## ", body, maxsplit=1, flags=re.M)[0]
        paragraphs = tuple(" ".join(part.split()) for part in body.split("\n\n") if part.strip())
        entries[name] = Ambiguity(name, topic, paragraphs)
    return entries


def cited(text: str) -> list[str]:
    """The ids that a text cites, in its order: "ambiguity E1", "ambiguities E3, E4", "(D8)"."""
    return [name for citation in CITED.finditer(text) for name in ID.findall(citation[0])]


def linker(known: Mapping[str, Ambiguity]) -> Callable[[str, str], Markup]:
    """Escapes a text for HTML and links the ids that it cites to their entries on a page, its second argument."""

    def linked(text: str, page: str) -> Markup:
        def link(name: re.Match[str]) -> str:
            return f'<a href="{page}#{name[0]}">{name[0]}</a>' if name[0] in known else name[0]

        return Markup(CITED.sub(lambda citation: ID.sub(link, citation[0]), str(escape(text))))

    return linked


def marked(text: str) -> Markup:
    """A paragraph of the sheet as HTML: `code` and **bold**."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", html))
