"""`pipelag report`: make the site of a scale's results from their records, or the typeset reports."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from pipelag.commands.arguments import add_scale
from pipelag.errors import PipelagError
from pipelag.experiments import load_scale
from pipelag.experiments.told import asked_for, beyond
from pipelag.report.gather import gather


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("papers", nargs="*", help="papers to show (default: all of config/config.yaml)")
    add_scale(parser)
    parser.add_argument(
        "--pdf", action="store_true", help="typeset reports instead of the site: one per paper, and one over all"
    )
    parser.add_argument(
        "--typeset-beside", action="store_true", help="link to the typeset reports even if they do not exist yet"
    )


def main(args: argparse.Namespace) -> int:
    """Write figures/<scale>/index.html and the pages under it; with --pdf figures/<scale>/<paper>.pdf and pipelag.pdf.

    Missing or damaged records are named, one sentence each, and left out.
    """
    scale = load_scale(args.scale, args.published)
    folder = Path(scale.figures)
    names = args.papers or asked_for()
    told = beyond(names)
    chapters = gather(names, scale, folder, told)
    entries = [entry for chapter in chapters for entry in chapter.entries]
    if not any(entry.record for entry in entries):
        raise PipelagError(entries[0].trouble if entries else "there is no result to show; name a paper that has some")
    if args.pdf:
        from pipelag.report.typeset import typeset

        written = typeset(scale, chapters, folder, told)
        troubles = [entry.trouble for entry in entries if entry.trouble]
    else:
        from pipelag.report.site import Site

        site = Site(scale, chapters, folder, args.typeset_beside, told)
        written, troubles = [site.write()], site.troubles
    total = sum((chapter.counts for chapter in chapters), Counter[str]())
    print(f"{', '.join(map(str, written))}: {', '.join(f'{n} {word}' for word, n in sorted(total.items()))}")
    for trouble in troubles:
        print(f"left out: {trouble}", file=sys.stderr)
    return 0
