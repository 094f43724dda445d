"""Running text for language models: words as numbers, minibatches by number, and a grammar for the quick scale."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipelag.data.checks import check_counts, check_int64, check_range, check_some
from pipelag.data.files.compressed import decompressed, utf8
from pipelag.data.minibatches import Minibatches
from pipelag.data.release import Released
from pipelag.errors import PipelagError
from pipelag.tensors import sent

END, UNKNOWN = "<eos>", "<unk>"


@dataclass(frozen=True)
class RunningText(Released):
    """A language-modelling set: int64 streams of word numbers, with `<eos>` at the end of every line.

    Args:
        name, title, release, official, note: see `Released`.
        words: the vocabulary, from the training text.
        train, test: int64 (words,).

    Raises:
        PipelagError: a tensor has another type or shape, is empty, or has a number that is not in the vocabulary.
    """

    words: tuple[str, ...]
    train: torch.Tensor
    test: torch.Tensor

    def __post_init__(self) -> None:
        for part, stream in (("train", self.train), ("test", self.test)):
            check_int64(self.name, part, stream, "(words,)")
            check_some(self.name, f"{part} words", stream)
            check_range(self.name, f"the words in {part}", stream, len(self.words), "words")

    def summary(self) -> dict[str, Any]:
        """The entry of a run's summary about its data."""
        return self.described(train=len(self.train), test=len(self.test), vocabulary=len(self.words))


def running_text(name: str, title: str, train: Sequence[str], test: Sequence[str], **about: Any) -> RunningText:
    """Number the words of lines. Test words that are not in the training text become `<unk>`.

    Raises:
        PipelagError: there are no words, or a test word is unknown and the training text has no `<unk>`.
    """
    counts = Counter(word for line in train for word in [*line.split(), END])
    if len(counts) < 2:
        raise PipelagError(f"'{name}' has no words to train on")
    words = tuple(sorted(counts, key=lambda word: (-counts[word], word)))
    numbers = {word: i for i, word in enumerate(words)}

    def numbered(lines: Sequence[str]) -> torch.Tensor:
        stream = []
        for line in lines:
            for word in [*line.split(), END]:
                if word not in numbers and UNKNOWN not in numbers:
                    raise PipelagError(
                        f"'{name}': the test text's word '{word}' is not in the training text; take more training text"
                    )
                stream.append(numbers.get(word, numbers.get(UNKNOWN, 0)))
        return torch.tensor(stream, dtype=torch.int64)

    about = {"release": "generated", "official": True, "note": "", **about}
    return RunningText(name, title, words=words, train=numbered(train), test=numbered(test), **about)


class LanguageBatches(Minibatches):
    """Minibatches of a stream cut into `batch` parallel rows: minibatch t is the t-th `length` words of every row.

    `batches[t] -> (words, the words after them)`, each int64 (batch, length). Each epoch begins a few words into the
    rows, as many as the seed and the epoch determine, so that the rows are cut at other places.
    """

    def __init__(
        self, data: RunningText, batch: int, length: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        rows = (len(data.train) - length - 1) // max(1, batch)
        if batch < 1 or length < 1 or rows < length:
            raise PipelagError(
                f"'{data.name}' has {len(data.train):,} words, too few for a batch of {batch} rows and stretches of "
                f"{length} words"
            )
        self.data, self.batch, self.length, self.seed, self.device = data, batch, length, seed, torch.device(device)
        self.row = rows

    def __len__(self) -> int:
        """Minibatches per epoch."""
        return self.row // self.length

    def _stretch(self, t: int, ahead: int) -> torch.Tensor:
        epoch, place = divmod(t, len(self))
        start = random.Random(f"{self.seed} {epoch}").randrange(self.length) + place * self.length + ahead
        at = torch.arange(self.batch).unsqueeze(1) * self.row + torch.arange(start, start + self.length)
        return sent(self.data.train[at], self.device)

    def inputs(self, t: int) -> torch.Tensor:
        """int64 (batch, length)."""
        return self._stretch(t, 0)

    def targets(self, t: int) -> torch.Tensor:
        """int64 (batch, length): the inputs shifted by one word."""
        return self._stretch(t, 1)


def grammar(train: int = 6000, test: int = 400, seed: int = 0) -> RunningText:
    """Sentences of a small generated grammar, in which the verb agrees with a subject some words before it.

    Args:
        train, test: sentences in each part.

    Raises:
        PipelagError: a part has no sentence, or a word of the test text is not in the training text.
    """
    check_counts("grammar", train=train, test=test)
    rng = random.Random(seed)
    nouns = [f"noun{i}" for i in range(40)]
    adjectives, places = [f"adj{i}" for i in range(20)], [f"place{i}" for i in range(15)]
    verbs = [f"verb{i}" for i in range(20)]

    def phrase(depth: int = 0) -> tuple[list[str], int, bool]:
        noun, many = rng.randrange(len(nouns)), rng.random() < 0.5
        words = ["the", *([adjectives[(noun + rng.randrange(3)) % 20]] if rng.random() < 0.5 else [])]
        words.append(nouns[noun] + ("s" if many else ""))
        if depth == 0 and rng.random() < 0.4:  # more words between the subject and its verb
            words += ["near", *phrase(1)[0]]
        return words, noun, many

    def sentence() -> str:
        subject, noun, many = phrase()
        verb = verbs[(noun * 7 + rng.randrange(2)) % len(verbs)] + ("" if many else "s")
        rest = phrase(1)[0] if rng.random() < 0.6 else ["in", places[noun % 15]]
        return " ".join([*subject, verb, *rest])

    lines = [sentence() for _ in range(train + test)]
    return running_text("grammar", "a small grammar", lines[:train], lines[train:], note="generated")


def penn_treebank() -> RunningText:
    """The Penn Treebank in Mikolov's form. Its validation text is the test set, as in PipeDream (section 5.1)."""
    from pipelag.data.files.fetch import fetch

    release = fetch("ptb")
    files = {path.name.removesuffix(".gz"): path for path in release.paths}

    def lines(part: str) -> list[str]:
        if f"ptb.{part}.txt" not in files:
            raise PipelagError(f"the release in {release.origin} has no ptb.{part}.txt; fetch ptb again")
        return _text(files[f"ptb.{part}.txt"]).splitlines()

    about = {"release": str(release), "official": release.official, "note": release.note}
    return running_text("ptb", "Penn Treebank", lines("train"), lines("valid"), **about)


def _text(path: Path) -> str:
    return utf8(decompressed(path) if path.suffix == ".gz" else path.read_bytes(), str(path))
