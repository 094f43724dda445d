"""`pipelag digest`: what a scale's logs say, written into a document between two marks, so that none of it is typed.

The document holds `<!-- digest -->` and `<!-- end of digest -->`; what stands between them is written anew: how many
claims of each paper hold, every claim that fails with the numbers it fails by, and the tables that are asked for. A
document that begins it with `<!-- digest: brief -->` gets a line per paper, with the results in which claims fail, and
one with `<!-- digest: at_scale.table_1 at_scale.table_3 -->` these tables alone. What stands between other marks is the
evidence of single sentences (`pipelag.commands.evidence`).
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pipelag.commands import evidence
from pipelag.commands.arguments import add_scale
from pipelag.errors import PipelagError
from pipelag.experiments import load_paper, load_scale, papers, result_of
from pipelag.experiments.schema import Paper, Scale, reading_order
from pipelag.files import read_text, write_whole
from pipelag.report.gather import title_of
from pipelag.report.tables import Col, table
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from pipelag.results.multiplicity import RATE, least_surprising
from pipelag.results.verdict import WORDS, Verdict, verdicts

BEGIN, BRIEF, END = "<!-- digest -->", "<!-- digest: brief -->", "<!-- end of digest -->"
BEGINS = re.compile(r"<!-- digest(?:: ([\w. ]+))? -->")  # brief, or tables
SHOWN = ("stale_weights.table_2", "pipedream.table_1")
ON_TRAININGS, THEIRS, FAILED = "by training", "of these the paper's", "fails by training"
IN_SHORT = {"table": "Table{} {}", "figure": "Figure{} {}", "text": "the text"}  # kinds of a paper's own results
COUNTS = [
    Col(word, lambda row, word=word: row.get(word, 0))  # type: ignore[misc]
    for word in (WORDS[True], ON_TRAININGS, THEIRS, WORDS[False], FAILED, WORDS[None])
]
LONG = 260  # characters of a reason; the page has all of it


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "document", type=Path, help="a Markdown file with the marks <!-- digest --> and <!-- end of digest -->"
    )
    add_scale(parser, default="published")
    parser.add_argument(
        "--tables",
        nargs="*",
        metavar="PAPER.RESULT",
        help="tables to write too (default: stale_weights.table_2 and pipedream.table_1)",
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the document differs from the logs"
    )


def main(args: argparse.Namespace) -> int:
    """Write the digest, or with --check compare it."""
    text = read_text(args.document, "a Markdown file")
    scale = load_scale(args.scale, args.published)
    tables = SHOWN if args.tables is None else args.tables
    new = evidence.fill(text, scale, str(args.document))
    begins = list(BEGINS.finditer(new))
    if args.tables is not None and (begins or evidence.BEGIN in text) and not any(mark[1] is None for mark in begins):
        raise PipelagError(
            f"--tables applies to the mark {BEGIN}, which {args.document} does not have: its marks say what to write; "
            "leave --tables out"
        )
    if begins or evidence.BEGIN not in text:
        if len(begins) != 1 or new.count(END) != 1 or new.index(END) < begins[0].end():
            raise PipelagError(
                f"{args.document} needs the marks {BEGIN} (or {BRIEF}) and {END}, exactly once each and in this order"
            )
        before, after = new[: begins[0].start()], new[new.index(END) + len(END) :]
        new = f"{before}{begins[0][0]}\n\n{content_of(begins[0][1], tables, scale)}\n{END}{after}"
    if args.check and new != text:
        raise PipelagError(f"{args.document} does not say what the logs say; update it: pipelag digest {args.document}")
    if new != text:
        write_whole(args.document, new)
    return 0


def content_of(asked: str | None, tables: Sequence[str], scale: Scale) -> str:
    """What stands after a mark: `brief`, named tables alone, or (no word) the whole digest with `tables`."""
    if asked == "brief":
        return brief(scale)
    for name in asked.split() if asked else tables:
        paper, _, key = name.partition(".")
        result_of(load_paper(paper), key)  # refuses one that is not there
    if asked:
        return "\n".join(drawn_table(name, scale) + "\n" for name in asked.split())
    return digest(scale, tables)


def digest(scale: Scale, tables: Sequence[str]) -> str:
    """Markdown: counts of verdicts by paper, the claims that fail, and the tables (PAPER.RESULT)."""
    judged = {name: list(judgements(load_paper(name), scale)) for name in claiming()}
    failing = {name: [v for v in pairs if v[1].verdict == WORDS[False]] for name, pairs in judged.items()}
    lines = [scoreboard(judged, scale), "", *corrected(judged), ""]
    for name, pairs in failing.items():
        if pairs:
            paper = load_paper(name)
            lines += [f"**{paper.short}: claims that fail**", ""]
            lines += [
                f"- {title_of(paper, result)}{', ours' * v.own}: {v.text.removesuffix('.')}. *{shortened(v.why)}*"
                for result, v in pairs
            ] + [""]
    for table_name in tables:
        lines += [drawn_table(table_name, scale), ""]
    return "\n".join(lines)


def brief(scale: Scale) -> str:
    """Markdown: counts of verdicts by paper, and the results in which claims fail."""
    rows = []
    for name in claiming():
        pairs = list(judgements(load_paper(name), scale))
        counts = counted(load_paper(name), pairs)
        failing = dict.fromkeys(result for result, verdict in pairs if verdict.verdict == WORDS[False])
        titles = {result: title_of(load_paper(name), result) for result in failing}
        rows.append({"paper": load_paper(name).short, **counts, "where": in_short(list(failing), titles) or "–"})
    return table(rows, [Col("paper", "paper"), *COUNTS, Col("what fails is in", "where")]).markdown()


def claiming() -> list[str]:
    """The papers that claim something."""
    return [name for name in papers() if any(result.claims for result in load_paper(name).results.values())]


def in_short(results: Sequence[str], titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """`table_1`, `table_3`, `figure_10`, `text_x` -> "Tables 1, 3; Figure 10; the text"; others by their titles."""
    kinds: dict[str, list[str]] = {}
    for result in results:
        kind, _, rest = result.partition("_")
        kinds.setdefault(kind if kind in IN_SHORT else titles.get(result, result), []).append(rest)
    return "; ".join(
        IN_SHORT[kind].format("s" * (len(rest) > 1), ", ".join(rest)) if kind in IN_SHORT else kind
        for kind, rest in kinds.items()
    )


def judgements(paper: Paper, scale: Scale) -> Iterator[tuple[str, Verdict]]:
    """Every claim of a paper with the result it belongs to, judged from the logs of the scale."""
    load_results(paper)
    for result in reading_order(paper):
        yield from ((result, verdict) for verdict in verdicts(Context.load(paper, result, scale)))


def scoreboard(judged: dict[str, list[tuple[str, Verdict]]], scale: Scale) -> str:
    """A line per paper."""
    rows = []
    for name, pairs in judged.items():
        paper = load_paper(name)
        rows.append({"paper": paper.short, "results": len(paper.results), **counted(paper, pairs)})
    return table(rows, [Col("paper", "paper"), Col("tables, figures, texts", "results"), *COUNTS]).markdown()


def corrected(judged: Mapping[str, list[tuple[str, Verdict]]]) -> list[str]:
    """Markdown: of the claims that tests over seeds judge, those that hold, before and after a correction for their
    number, paper by paper; and which hold only before."""
    rows, only = [], []
    for name, pairs in judged.items():
        tested = [(result, verdict, verdict.p) for result, verdict in pairs if verdict.p is not None]
        bound = least_surprising([p for _, _, p in tested])
        holding = [each for each in tested if each[1].verdict == WORDS[True]]
        paper = load_paper(name)
        lost = [f"{title_of(paper, result)} `{verdict.claim}`" for result, verdict, p in holding if p > bound]
        if tested:
            counts = {"tested": len(tested), "holds": len(holding), "left": len(holding) - len(lost)}
            rows.append({"paper": paper.short, **counts})
        if lost:
            only.append(f"- {paper.short}: {', '.join(lost)}.")
    if not rows:
        return []
    columns = [
        Col("paper", "paper"),
        Col("tested over seeds", "tested"),
        Col("hold", "holds"),
        Col("hold, corrected", "left"),
    ]
    return [
        "Claims that are tested over several seeds, each at the 5 % level, and how many of them still hold after a",
        f"correction for multiple testing (Benjamini and Hochberg, false discovery rate {100 * RATE:g} %, per paper):",
        "",
        table(rows, columns).markdown(),
        *(["", "**Claims that hold only without this correction:**", "", *only] if only else []),
    ]


def counted(paper: Paper, pairs: Sequence[tuple[str, Verdict]]) -> dict[str, int]:
    """How many of a paper's claims have each verdict; of those that hold or fail, how many are about trained networks.

    And how many of these that hold the paper makes: all of the leaderboard's are ours.
    """
    holding = [verdict for _, verdict in pairs if verdict.verdict == WORDS[True] and verdict.learnt]
    theirs = [verdict for verdict in holding if paper.citation is not None and not verdict.own]
    failing = sum(verdict.verdict == WORDS[False] and verdict.learnt for _, verdict in pairs)
    ours = {ON_TRAININGS: len(holding), THEIRS: len(theirs), FAILED: failing}
    return Counter(v.verdict for _, v in pairs) | ours


def shortened(why: str) -> str:
    """The beginning of a long reason."""
    why = " ".join(why.split()).replace("*", "\\*").replace("|", "\\|")
    return why if len(why) <= LONG else why[:LONG].rsplit(" ", 1)[0].rstrip(",;(") + " ..."


def drawn_table(name: str, scale: Scale) -> str:
    """A table of a paper as Markdown."""
    paper_name, _, key = name.partition(".")
    paper = load_paper(paper_name)
    load_results(paper)
    drawn = draw(Context.load(paper, key, scale))
    if drawn.table is None:
        raise PipelagError(f"{name} is not a table; the digest takes tables only")
    return f"{paper.short}, {title_of(paper, key)}. " + drawn.table.markdown()
