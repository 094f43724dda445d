"""Layouts of parallel text: read a release's files, as the publisher lays them out, into pairs of raw lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

from pipelag.data.files.archives import members
from pipelag.data.files.compressed import decompressed, utf8
from pipelag.data.files.fetch import Release, only
from pipelag.data.text.parallel import Pair, pairs_of
from pipelag.errors import PipelagError, unknown

_TAGS = re.compile(r"<(url|talkid|keywords)>")  # lines at a talk's head that are not sentences
_TITLES = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r"<seg id=\"\d+\">\s*(.*?)\s*</seg>")
IWSLT14_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
# The training texts of WMT's news task, by their paths in the archives.
WMT16_TEXTS = ("training/europarl-v7", "commoncrawl", "training-parallel-nc-v11/news-commentary-v11")
WMT17_TEXTS = ("training/europarl-v7", "commoncrawl", "training/news-commentary-v12")


@dataclass(frozen=True)
class Parts:
    """Pairs (source, target) to train and to test on, untokenised."""

    train: list[Pair]
    test: list[Pair]


def parts(release: Release, source: str, target: str) -> Parts:
    """The texts of a release in two languages ("de", "en").

    Raises:
        PipelagError: the layout is unknown, a text is missing (the message says which, and what to do) or damaged, or
            two texts have unequal numbers of lines.
    """
    if release.layout not in LAYOUTS:
        raise unknown(f"layout of {release.dataset} in {release.origin}:", release.layout, LAYOUTS)
    return LAYOUTS[release.layout](release, source, target)


def plain_parts(release: Release, source: str, target: str) -> Parts:
    """Files `train.<language>.gz` and `test.<language>.gz`, one sentence per line."""
    files = {path.name: path for path in release.paths}
    need = [f"{part}.{language}.gz" for part in ("train", "test") for language in (source, target)]
    missing = [name for name in need if name not in files]
    if missing:
        what = "training text" if missing[0].startswith("train") else "test text"
        raise PipelagError(
            f"{release.title}: the release in {release.origin} holds no {what} ({missing[0]} is missing; there are "
            f"{', '.join(sorted(files))}); put the publisher's archives into a folder that PIPELAG_MIRROR names first, "
            "or take the data set 'tatoeba' or 'multi30k'"
        )
    texts = [text_of(decompressed(files[name]), name) for name in need]
    train = pairs_of(texts[0], texts[1], f"{release.title}, train")
    return Parts(train, pairs_of(texts[2], texts[3], f"{release.title}, test"))


def iwslt14_parts(release: Release, source: str, target: str) -> Parts:
    """WIT3's de-en.tgz, read as by fairseq's prepare-iwslt14.sh: tagged lines to train on, five sets to test on."""
    names = {f"de-en/train.tags.de-en.{language}": (language, 0) for language in (source, target)}
    for place, test in enumerate(IWSLT14_TESTS, start=1):
        names |= {f"de-en/IWSLT14.{test}.de-en.{language}.xml": (language, place) for language in (source, target)}
    files = contents(release, names)
    texts = {}
    for name, (language, place) in names.items():
        lines = text_of(files[name], name)
        if place:
            texts[language, place] = segments(lines)
        else:
            texts[language, 0] = [_TITLES.sub("", line).strip() for line in lines if not _TAGS.search(line)]
    paired = [
        pairs_of(texts[source, place], texts[target, place], f"{release.title}, {'test' if place else 'train'}")
        for place in range(1 + len(IWSLT14_TESTS))
    ]
    return Parts(paired[0], [pair for test in paired[1:] for pair in test])


def wmt_parts(texts: Sequence[str], release: Release, source: str, target: str) -> Parts:
    """The archives of WMT's news task: `texts` to train on, newstest2014 to test on."""
    names = [f"{text}.de-en.{language}" for text in texts for language in (source, target)]
    tests = [rf"newstest2014-deen-(?:src|ref)\.{language}\.sgm$" for language in (source, target)]
    files = contents(release, names, tests)
    train: list[Pair] = []
    for text in texts:
        sides = [text_of(files.pop(f"{text}.de-en.{language}"), text) for language in (source, target)]
        train += pairs_of(sides[0], sides[1], f"{release.title}, {text}")
    sides = [segments(text_of(files[pattern], pattern)) for pattern in tests]
    return Parts(train, pairs_of(sides[0], sides[1], f"{release.title}, newstest2014"))


LAYOUTS: dict[str, Callable[[Release, str, str], Parts]] = {
    "parallel-text-gz": plain_parts,
    "iwslt14-tgz": iwslt14_parts,
    "wmt16-tgz": partial(wmt_parts, WMT16_TEXTS),
    "wmt17-tgz": partial(wmt_parts, WMT17_TEXTS),
}


def english_german(release: Release) -> list[Pair]:
    """Pairs of an Anki list, "English TAB German": the publisher's zip, or the list alone as .tsv.xz."""
    if release.layout == "anki-zip":
        content = contents(release, (), (r"(?:^|/)deu\.txt$",))[r"(?:^|/)deu\.txt$"]
    elif release.layout == "tsv-xz":
        content = decompressed(only(release.paths, "tsv-xz"))
    else:
        raise unknown(f"layout of {release.dataset} in {release.origin}:", release.layout, ("anki-zip", "tsv-xz"))
    rows = [line.split("\t") for line in text_of(content, release.title)]
    short = next((number for number, row in enumerate(rows, start=1) if len(row) < 2), None)
    if short is not None:
        raise PipelagError(f"{release.title}, line {short:,}: English and German should be separated by a tab")
    return [(row[0].strip(), row[1].strip()) for row in rows]


def segments(lines: Iterable[str]) -> list[str]:
    """The sentences in NIST's SGML as fairseq takes them: one per line, with typographic apostrophes made plain."""
    matches = (_SEGMENT.search(line) for line in lines if "<seg id" in line)
    return [match[1].replace("\u2019", "'") for match in matches if match]


def contents(release: Release, names: Iterable[str], patterns: Sequence[str] = ()) -> dict[str, bytes]:
    """The contents of members of the release's archives, by their name or by the pattern that their name matches.

    Raises:
        PipelagError: an archive is unsafe or broken (see `pipelag.data.files.archives`), or a member is missing.
    """
    asked = set(names)
    files: dict[str, bytes] = {}

    def key_of(name: str) -> str | None:
        plain = PurePosixPath(name).as_posix()  # some archives write ./name
        return plain if plain in asked else next((p for p in patterns if re.search(p, plain)), None)

    for archive in release.paths:
        for name, content in members(archive, wanted=lambda name: key_of(name) is not None):
            files.setdefault(key_of(name) or name, content)
    missing = sorted(asked.union(patterns) - set(files))
    if missing:
        raise PipelagError(
            f"{release.title}: {', '.join(path.name for path in release.paths)} in {release.origin} should hold "
            f"{missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "") + "; fetch the set again"
        )
    return files


def text_of(content: bytes, name: str) -> list[str]:
    """The lines of UTF-8 text, split at line feeds only: U+2028 and the like occur within sentences."""
    lines = utf8(content, name).split("\n")
    return [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
