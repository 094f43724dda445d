"""Read and write the files of fairseq-preprocess.

They are `dict.<language>.txt` and `<part>.<source>-<target>.<language>.{bin,idx}`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipelag.compat.fairseq import imported
from pipelag.data.files.compressed import reason
from pipelag.data.text.parallel import END, SPECIAL, UNKNOWN, Corpus, Tokens, joined
from pipelag.errors import PipelagError


def dictionary(words: Sequence[str], counts: Mapping[str, int] | None = None) -> Any:
    """fairseq's Dictionary of one of our vocabularies: fairseq's special words, then ours with the same numbers."""
    imported()
    from fairseq.data import Dictionary

    made = Dictionary()
    for word in words[len(SPECIAL) :]:
        made.add_symbol(word, 1 if counts is None else counts[word])
    return made


def write(data: Corpus, folder: Path, source: str, target: str) -> None:
    """Write a corpus's parts `train` and `test` so that fairseq-train and fairseq-generate can read them.

    Raises:
        PipelagError: fairseq is not installed, or both languages have the same name.
    """
    imported()
    from fairseq.data import indexed_dataset

    if source == target:
        raise PipelagError(f"source and target need different names, not '{source}' twice")
    folder.mkdir(parents=True, exist_ok=True)
    for side, (language, words) in enumerate(((source, data.source_words), (target, data.target_words))):
        counts = Counter(words[token] for pair in data.train for token in pair[side])
        dictionary(words, counts).save(str(folder / f"dict.{language}.txt"))
        for part, pairs in (("train", data.train), ("test", data.test)):
            path = str(folder / f"{part}.{source}-{target}.{language}")
            builder = indexed_dataset.make_builder(f"{path}.bin", impl="mmap", vocab_size=len(words))
            for pair in pairs:
                builder.add_item(torch.tensor([*pair[side], END]))  # numbers from 2 on are the same in both
            builder.finalize(f"{path}.idx")


def read(folder: str, source: str = "de", target: str = "en", tested_on: str = "test") -> Corpus:
    """Read a binarised folder as a corpus; in the references pieces are joined to words, as by fairseq's --remove-bpe.

    An unknown word in a reference is `<<unk>>`, as in fairseq-generate, so that a translation's `<unk>` is not right.

    Raises:
        PipelagError: fairseq is not installed, a file is missing (the message says which, and how to make it) or
            damaged, a dictionary does not belong to the text, or the sides of a part have unequal numbers of sentences.
    """
    imported()
    from fairseq.data import Dictionary

    home = Path(folder)
    names = [home / f"dict.{language}.txt" for language in (source, target)]
    names += [home / f"{stem}.{end}" for stem in _stems(source, target, tested_on) for end in ("bin", "idx")]
    missing = next((path for path in names if not path.is_file()), None)
    if missing is not None:
        raise PipelagError(
            f"{missing} is missing; fairseq-preprocess --source-lang {source} --target-lang {target} --destdir {home} "
            "makes it"
        )
    try:
        dictionaries = [Dictionary.load(str(path)) for path in names[:2]]
        words = [(*SPECIAL, *each.symbols[len(SPECIAL) :]) for each in dictionaries]
        train, test = (_pairs(home, part, source, target, dictionaries) for part in ("train", tested_on))
    except PipelagError:
        raise
    except Exception as error:  # on damaged files fairseq raises what it likes
        raise PipelagError(
            f"{home} does not hold files as fairseq-preprocess writes them ({reason(error)}); binarise the text again"
        ) from error
    unknown = [[token for pair in test for token in pair[side]] for side in (0, 1)]
    return Corpus(
        "fairseq",
        f"{home.name} {source}-{target}",
        f"binarised {_fingerprint(names)}",
        False,
        "binarised by fairseq-preprocess",
        words[0],
        words[1],
        train,
        test,
        tuple(joined("<<unk>>" if token == UNKNOWN else words[1][token] for token in b) for _, b in test),
        0,
        {
            which: round(tokens.count(UNKNOWN) / max(1, len(tokens)), 4)
            for which, tokens in zip(("source", "target"), unknown, strict=True)
        },
    )


def _stems(source: str, target: str, tested_on: str) -> list[str]:
    return [f"{part}.{source}-{target}.{language}" for part in ("train", tested_on) for language in (source, target)]


def _pairs(
    home: Path, part: str, source: str, target: str, dictionaries: Sequence[Any]
) -> tuple[tuple[Tokens, Tokens], ...]:
    from fairseq.data.data_utils import load_indexed_dataset

    sides = []
    for language, words in zip((source, target), dictionaries, strict=True):
        rows = load_indexed_dataset(str(home / f"{part}.{source}-{target}.{language}"), words)
        sides.append([tuple(token for token in row.tolist() if token != END) for row in rows])
        highest = max((token for row in sides[-1] for token in row), default=0)
        if highest >= len(words):
            raise PipelagError(
                f"{home}: {part} in {language} has a word of number {highest:,}, but dict.{language}.txt has only "
                f"{len(words):,} words; binarise all texts with this dictionary (--srcdict, --tgtdict)"
            )
    if len(sides[0]) != len(sides[1]):
        raise PipelagError(f"{home}: {part} has {len(sides[0]):,} sentences in {source}, {len(sides[1]):,} in {target}")
    return tuple(zip(sides[0], sides[1], strict=True))


def _fingerprint(paths: Sequence[Path]) -> str:
    """Twelve hex digits of a hash of the files' contents."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:12]
