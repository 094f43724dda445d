"""Multi30k, a small real translation set of captions in German and English (task 1, test set 2016)."""

from __future__ import annotations

import re
from pathlib import Path

from pipelag.data.files.compressed import decompressed
from pipelag.data.files.fetch import fetch
from pipelag.data.text.parallel import Corpus, corpus, pairs_of
from pipelag.data.text.parallel_layouts import text_of
from pipelag.errors import PipelagError

WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


def tokens(line: str) -> list[str]:
    """Lower-cased words and punctuation marks."""
    return WORD.findall(line.lower())


def lines(files: dict[str, Path], part: str, language: str) -> list[str]:
    """The lines of one part ("train" or "test") in one language."""
    paths = [path for name, path in files.items() if name.startswith(part) and name.endswith(f".{language}.gz")]
    if not paths:
        there = sorted({name.removesuffix(".gz").rpartition(".")[2] for name in files if name.startswith(part)})
        raise PipelagError(
            f"the release of multi30k has no {part} text in '{language}'; it has {' and '.join(there) or 'none at all'}"
        )
    return text_of(decompressed(paths[0]), str(paths[0]))


def multi30k(
    least_count: int = 3, most_tokens: int = 50, source: str = "de", target: str = "en", test: int | None = None
) -> Corpus:
    """Multi30k as a corpus, German to English by default.

    Args:
        least_count: rarer words become `<unk>`.
        most_tokens: training pairs with a longer side are dropped and counted.
        test: use only so many test sentences.

    Raises:
        PipelagError: as `fetch` and `corpus`; the release lacks a language, or `test` is not from 1 to what it has.
    """
    release = fetch("multi30k")
    files = {path.name: path for path in release.paths}
    train = pairs_of(lines(files, "train", source), lines(files, "train", target), "Multi30k, train")
    tested = pairs_of(lines(files, "test", source), lines(files, "test", target), "Multi30k, test")
    if test is not None and not 1 <= test <= len(tested):
        raise PipelagError(
            f"'multi30k' has {len(tested):,} sentences to test on; choose test from 1 to {len(tested)}, not {test}"
        )
    return corpus(
        "multi30k",
        f"Multi30k {source}-{target}",
        train,
        tested[:test],
        str(release),
        release.official,
        release.note,
        tokens,
        most_tokens,
        least_count,
    )
