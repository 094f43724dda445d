"""IMDb's 50,000 positive and negative reviews (Maas et al., 2011), as SpecTrain and PipeOptim train on them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelag.data.files.archives import members
from pipelag.data.files.compressed import decompressed, utf8
from pipelag.data.files.decoded_cache import decoded_once
from pipelag.data.files.fetch import data_folder, fetch, only
from pipelag.data.text.labelled import Example, LabelledText, numbered
from pipelag.errors import PipelagError, unknown

CLASSES = ("negative", "positive")
_WORD = re.compile(r"\w+(?:'\w+)*")
_BREAK = re.compile(r"<br\s*/?>")
_REVIEW = re.compile(r"(?:^|/)(train|test)/(neg|pos)/(\d+)_\d+\.txt$")
_FORM = 1  # version of what is kept; with another number, the reviews are read again
Review = tuple[int, int, str]  # its number in the release, its label, its text
Parts = dict[str, list[Review]]


def tokens(text: str) -> list[str]:
    """Lower-cased words, without punctuation and HTML line breaks."""
    return _WORD.findall(_BREAK.sub(" ", text.lower()))


def imdb(
    length: int = 20, most_words: int | None = 10_000, least_count: int = 1, last: bool = False, test: int | None = None
) -> LabelledText:
    """25,000 reviews to train and 25,000 to test on; by default the first 20 words of each (SpecTrain, section 4.1).

    Neither paper states the size of its vocabulary; the code that SpecTrain's authors published takes the 10,000 most
    frequent words. The numbered texts are kept in the data folder for the next run.

    Args:
        length, most_words, least_count, last: see `pipelag.data.text.labelled.numbered`.
        test: use only so many test reviews, half of them positive. (All accuracies of SpecTrain's table 1 are
            multiples of 1/9,984.)

    Raises:
        PipelagError: as `fetch`; or the layout is unknown, a file does not have it, or `test` is more than there are.
    """
    release = fetch("imdb")
    if release.layout not in LAYOUTS:
        raise unknown(f"layout of imdb in {release.origin}:", release.layout, LAYOUTS)
    key = f"{release.fingerprint}-{_FORM}-{length}-{most_words}-{least_count}{'-last' if last else ''}"

    def make() -> dict[str, object]:
        parts = LAYOUTS[release.layout](release.paths)
        # The same order for every layout: by number, and of one number the negative review first.
        split: dict[str, list[Example]] = {
            part: [(tokens(text), label) for _, label, text in sorted(reviews)] for part, reviews in parts.items()
        }
        return numbered("imdb", split["train"], split["test"], length, least_count, most_words, last)

    fields = decoded_once(data_folder() / "imdb" / f"words-{key}.pt", release.title, make)
    if test is not None:
        if not 1 <= test <= len(fields["test"]):
            raise PipelagError(
                f"'imdb' has {len(fields['test']):,} reviews to test on; choose test from 1 to {len(fields['test'])}, "
                f"not {test}"
            )
        fields |= {part: fields[part][:test] for part in ("test", "test_labels")}
    return LabelledText("imdb", release.title, str(release), release.official, release.note, classes=CLASSES, **fields)


def aclimdb_tar(paths: Sequence[Path]) -> Parts:
    """The archive as published: `aclImdb/<part>/<neg or pos>/<number>_<rating>.txt`."""
    archive = only(paths, "aclimdb-tar")
    parts: Parts = {"train": [], "test": []}
    for name, content in members(archive, wanted=lambda name: _REVIEW.search(name) is not None):
        match = _REVIEW.search(name)
        assert match is not None
        parts[match[1]].append((int(match[3]), int(match[2] == "pos"), utf8(content, name)))
    return _complete(parts, paths)


def jsonl_xz(paths: Sequence[Path]) -> Parts:
    """`train.jsonl.xz` and `test.jsonl.xz`: one object per line with `text`, `label` (1: positive) and `id`."""
    parts: Parts = {"train": [], "test": []}
    for path in paths:
        part = path.name.partition(".")[0]
        if part not in parts:
            raise PipelagError(f"layout jsonl-xz takes the files train.jsonl.xz and test.jsonl.xz, not {path.name}")
        lines = io.StringIO(utf8(decompressed(path), str(path)), newline=None)
        try:
            for line in lines:
                row = json.loads(line)
                parts[part].append((int(row["id"]), int(row["label"]), str(row["text"])))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise PipelagError(
                f"{path}, line {len(parts[part]) + 1}: it should be a review with text, label and id "
                f"({type(error).__name__}: {error})"
            ) from error
    return _complete(parts, paths)


def _complete(parts: Parts, paths: Sequence[Path]) -> Parts:
    for part, reviews in parts.items():
        labels = {label for _, label, _ in reviews}
        if labels != {0, 1}:
            raise PipelagError(
                f"{', '.join(path.name for path in paths)}: {len(reviews):,} reviews to {part} with labels "
                f"{sorted(labels)}; there should be negative (0) and positive (1) ones"
            )
    return parts


LAYOUTS: dict[str, Callable[[Sequence[Path]], Parts]] = {"aclimdb-tar": aclimdb_tar, "jsonl-xz": jsonl_xz}
