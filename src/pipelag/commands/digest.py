"""`pipelag digest`: what a scale's logs say, written into a document between two marks, so that none of it is typed.

The document holds `<!-- digest -->` and `<!-- end of digest -->`; what stands between them is written anew: how many
claims of each paper hold, every claim that fails with the numbers it fails by, and the tables that are asked for.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelag.commands.report import title_of
from pipelag.errors import PipelagError
from pipelag.experiments import load_paper, load_scale, papers, result_of
from pipelag.experiments.schema import Paper, Scale, reading_order
from pipelag.report.tables import Col, table
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from pipelag.results.logs import Context
from pipelag.results.verdict import WORDS, Verdict, verdicts

BEGIN, END = "<!-- digest -->", "<!-- end of digest -->"
SHOWN = ("stale_weights.table_2", "pipedream.table_1")
LONG = 260  # characters of a reason; the page has all of it


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("document", type=Path, help="a Markdown file with the two marks")
    parser.add_argument("--scale", default="published", help="quick, standard, paper or published (default: published)")
    parser.add_argument("--published", default="cpu", help="the device folder of the published scale")
    parser.add_argument("--tables", nargs="*", default=SHOWN, metavar="PAPER.RESULT", help="tables to write as well")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the document says otherwise")


def main(args: argparse.Namespace) -> int:
    """Write the digest, or with --check compare it."""
    try:
        text = args.document.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelagError(f"{args.document} cannot be read as text ({error}); name a Markdown file") from error
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise PipelagError(f"{args.document} needs the marks {BEGIN} and {END}, once each")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    new = f"{before}{BEGIN}\n\n{digest(load_scale(args.scale, args.published), args.tables)}\n{END}{after}"
    if args.check and new != text:
        raise PipelagError(
            f"{args.document} says other numbers than the logs; write them anew: pipelag digest {args.document}"
        )
    if new != text:
        args.document.write_text(new)
    return 0


def digest(scale: Scale, tables: Sequence[str]) -> str:
    """Markdown: counts of verdicts by paper, the claims that fail, and the tables (PAPER.RESULT)."""
    judged = {name: list(judgements(load_paper(name), scale)) for name in papers()}
    failing = {name: [v for v in found if v[1].verdict == WORDS[False]] for name, found in judged.items()}
    lines = [scoreboard(judged), ""]
    for name, found in failing.items():
        if found:
            lines += [f"**What fails of {load_paper(name).short}:**", ""]
            lines += [f"- {title_of(result)}: {v.text}. *{shortened(v.why)}*" for result, v in found] + [""]
    for shown in tables:
        lines += [drawn_table(shown, scale), ""]
    return "\n".join(lines)


def judgements(paper: Paper, scale: Scale) -> Iterator[tuple[str, Verdict]]:
    """Every claim of a paper with the result it belongs to, judged from the logs of the scale."""
    load_results(paper)
    for result in reading_order(paper):
        yield from ((result, verdict) for verdict in verdicts(Context.load(paper, result, scale)))


def scoreboard(judged: dict[str, list[tuple[str, Verdict]]]) -> str:
    """A line per paper."""
    rows = []
    for name, found in judged.items():
        counts: Counter[str] = Counter(verdict.verdict for _, verdict in found)
        rows.append({"paper": load_paper(name).short, "results": len(load_paper(name).results), **counts})
    cols = [Col("paper", "paper"), Col("tables, figures, texts", "results")]
    cols += [Col(word, lambda row, word=word: row.get(word, 0)) for word in WORDS.values()]  # type: ignore[misc]
    return table(rows, cols).markdown()


def shortened(why: str) -> str:
    """The beginning of a long reason."""
    why = " ".join(why.split()).replace("*", "\\*").replace("|", "\\|")
    return why if len(why) <= LONG else why[:LONG].rsplit(" ", 1)[0].rstrip(",;(") + " ..."


def drawn_table(name: str, scale: Scale) -> str:
    """A table of a paper as Markdown."""
    paper_name, _, key = name.partition(".")
    paper = load_paper(paper_name)
    result_of(paper, key)  # refuses one that is not there
    load_results(paper)
    drawn = draw(Context.load(paper, key, scale))
    if drawn.table is None:
        raise PipelagError(f"{name} is no table; the digest takes tables")
    return f"{paper.short}, {title_of(key)}. " + drawn.table.markdown()
