"""Evidence under the sentences of a document.

A sentence that rests on claims is followed by two marks. The first names each claim and the verdict that the sentence
takes it to have; between them stands what the logs say, written anew by `pipelag digest`:

    <!-- evidence: stale_weights.table_2.monotone holds, pipedream.table_1.vgg16 fails -->
    <!-- end of evidence -->

A claim whose verdict is another by now is refused, so that the sentence is written again, not its numbers alone. Where
HTML is shown the lines are folded away under one that counts the verdicts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache

from pipelag.errors import PipelagError, unknown
from pipelag.experiments import load_paper, result_of
from pipelag.experiments.schema import Scale
from pipelag.report.conditions import Notes
from pipelag.report.gather import title_of
from pipelag.results.context import Context
from pipelag.results.loading import load_results
from pipelag.results.verdict import WORDS, Verdict, verdicts

Judged = Callable[[str, str], tuple[Context, dict[str, Verdict]]]
_BLOCK = re.compile(r"(<!-- evidence: (?P<named>[^>]*?) -->\n).*?(<!-- end of evidence -->)", re.S)
BEGIN, END = "<!-- evidence:", "<!-- end of evidence -->"
_FOLD = '<details markdown="1"><summary>What the logs say ({})</summary>'  # markdown: for the site; others leave it out
_PLURAL = {"holds": "hold", "fails": "fail"}
LOGS = 3  # named of a claim's logs; `pipelag list` names all


def fill(text: str, scale: Scale, where: str) -> str:
    """The document with every evidence written anew.

    Raises:
        PipelagError: a mark without the other, an unknown claim, or a verdict that is not the one a sentence rests on.
    """
    if not len(_BLOCK.findall(text)) == text.count(BEGIN) == text.count(END):
        raise PipelagError(f"{where} needs the marks '{BEGIN} PAPER.RESULT.CLAIM holds -->' and '{END}' in this order")
    judged = cache(lambda paper, result: _judged(paper, result, scale))

    def block(match: re.Match[str]) -> str:
        named = list(_named(match["named"], where))
        claims = [_checked(name, verdict, judged, where) for name, verdict in named]
        notes = Notes([verdict for _, verdict in claims])
        lines = [_line(context, verdict, notes) for context, verdict in claims]
        lines += [line for note in notes.lines for line in ("", _escaped(note))]
        return match[1] + "\n".join([_FOLD.format(_counted(named)), "", *lines, "", "</details>"]) + "\n" + match[3]

    return _BLOCK.sub(block, text)


def _named(words: str, where: str) -> Iterator[tuple[str, str]]:
    """`a.b.c holds, d.e.f cannot be judged` -> pairs of a claim and its verdict."""
    for part in words.split(","):
        name, _, verdict = part.strip().partition(" ")
        if name.count(".") != 2 or verdict not in WORDS.values():
            raise PipelagError(
                f"{where}: {part.strip()!r} is not evidence; it should be PAPER.RESULT.CLAIM and one of "
                f"{', '.join(WORDS.values())}"
            )
        yield name, verdict


def _counted(named: list[tuple[str, str]]) -> str:
    """How many claims have which verdict."""
    count = Counter(verdict for _, verdict in named)
    words = [f"{n} {word if n == 1 else _PLURAL.get(word, word)}" for word, n in count.items()]
    return f"{len(named)} claim{'s' * (len(named) > 1)}: {', '.join(words)}"


def _judged(paper_name: str, result: str, scale: Scale) -> tuple[Context, dict[str, Verdict]]:
    """A result's runs and its claims' verdicts."""
    paper = load_paper(paper_name)
    result_of(paper, result)
    load_results(paper)
    context = Context.load(paper, result, scale)
    return context, {verdict.claim: verdict for verdict in verdicts(context)}


def _checked(name: str, verdict: str, judged: Judged, where: str) -> tuple[Context, Verdict]:
    """A claim's runs, and what the logs say of it, which has to be the verdict named."""
    paper, result, claim = name.split(".")
    context, by_claim = judged(paper, result)
    if claim not in by_claim:
        raise unknown(f"claim of {paper}.{result}", claim, by_claim)
    logged = by_claim[claim]
    if logged.verdict != verdict:
        raise PipelagError(
            f"{where} cites {name} with the verdict {verdict!r}, but by the logs it is {logged.verdict!r} "
            f"({logged.why}); rewrite the sentence above the mark"
        )
    return context, logged


def _line(context: Context, verdict: Verdict, notes: Notes) -> str:
    """A claim with what the logs say of it."""
    where = f"{context.paper.short}, {title_of(context.paper, context.name)}"
    return f"- {where}, “{verdict.text}” {verdict.verdict}: {_escaped(notes.why(verdict))} ({_logs(context)})"


def _escaped(text: str) -> str:
    """For Markdown, in one line."""
    return " ".join(text.split()).replace("*", "\\*")


def _logs(context: Context) -> str:
    """The logs of a claim's table or figure."""
    ids = list(dict.fromkeys(item.arm.spec.id for item in context.items if item.log is not None))
    more = f" and {len(ids) - LOGS} more" if len(ids) > LOGS else ""
    return f"the result's logs: {', '.join(f'`{one}`' for one in ids[:LOGS]) or 'none'}{more}"
