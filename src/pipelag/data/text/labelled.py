"""Labelled texts of a fixed length, with words as numbers, and their minibatches by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipelag.data.checks import check_counts, check_int64, check_labels, check_range, check_some
from pipelag.data.minibatches import Shuffled
from pipelag.data.release import Released
from pipelag.errors import PipelagError

PAD, UNKNOWN = range(2)
SPECIAL = ("<pad>", "<unk>")
_ORDER = 5  # the stream of random numbers for the order of texts
Example = tuple[Sequence[str], int]  # a text's words and its label


@dataclass(frozen=True)
class LabelledText(Released):
    """A set of texts with labels, in memory. Short texts are padded at the front, so the last place is always a word.

    Args:
        name, title, release, official, note: see `Released`.
        words: the vocabulary, the two special words first. classes: the labels' names.
        train, test: int64 (N, length), word numbers. train_labels, test_labels: int64 (N,), from 0.
        unknown: the share of words in the test texts that are not in the vocabulary.

    Raises:
        PipelagError: a tensor has another type or shape, a part is empty, or a label or a word number is out of range.
    """

    words: tuple[str, ...]
    classes: tuple[str, ...]
    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor
    unknown: float

    def __post_init__(self) -> None:
        for part, texts, labels in (
            ("train", self.train, self.train_labels),
            ("test", self.test, self.test_labels),
        ):
            check_int64(self.name, part, texts, "(N, length)")
            check_some(self.name, f"{part} texts", texts)
            check_range(self.name, f"the words in {part}", texts, len(self.words), "words")
            check_labels(self.name, part, labels, len(texts), "text", len(self.classes))

    def summary(self) -> dict[str, Any]:
        """The entry of a run's summary about its data."""
        return self.described(
            train=len(self.train),
            test=len(self.test),
            classes=len(self.classes),
            vocabulary=len(self.words),
            length=self.train.shape[1],
            unknown=self.unknown,
        )


def numbered(
    name: str,
    train: Sequence[Example],
    test: Sequence[Example],
    length: int,
    least_count: int = 1,
    most_words: int | None = None,
    last: bool = False,
) -> dict[str, Any]:
    """The vocabulary and the tensors of a `LabelledText`, as its fields by name.

    Args:
        length: words of a text. Longer texts keep their first words, or with `last` their last ones.
        least_count: words that occur less often than this in the training texts, before they are cut, become `<unk>`.
        most_words: the most words in the vocabulary, special words included; rarer ones become `<unk>`.

    Raises:
        PipelagError: there is no text to train or to test on, the length is below 1, or the vocabulary has no words.
    """
    if length < 1 or not train or not test:
        raise PipelagError(
            f"'{name}' needs texts to train and to test on and a length of 1 or more, not {len(train):,} and "
            f"{len(test):,} texts and length {length}"
        )
    check_counts(name, most_words=most_words)
    counts = Counter(word for text, _ in train for word in text)
    often = sorted((w for w, n in counts.items() if n >= least_count), key=lambda word: (-counts[word], word))
    words = (*SPECIAL, *often)[:most_words]
    if len(words) <= len(SPECIAL):
        raise PipelagError(f"'{name}' is left without words; choose a smaller least_count or a larger most_words")
    numbers = {word: number for number, word in enumerate(words) if number >= len(SPECIAL)}

    def rows(examples: Sequence[Example]) -> torch.Tensor:
        out = torch.full((len(examples), length), PAD)
        for row, (text, _) in enumerate(examples):
            shortened = text[-length:] if last else text[:length]
            tokens = [numbers.get(word, UNKNOWN) for word in shortened] or [UNKNOWN]
            out[row, -len(tokens) :] = torch.tensor(tokens)
        return out

    tested = rows(test)
    return {
        "words": words,
        "train": rows(train),
        "train_labels": torch.tensor([label for _, label in train]),
        "test": tested,
        "test_labels": torch.tensor([label for _, label in test]),
        "unknown": round(int((tested == UNKNOWN).sum()) / int((tested != PAD).sum()), 4),
    }


class LabelledBatches(Shuffled):
    """Training minibatches: `batches[t] -> (words, labels)`, int64 (batch, length) and (batch,).

    Minibatch t depends on the seed and t only.

    Raises:
        PipelagError: the training set is smaller than a minibatch.
    """

    def __init__(self, data: LabelledText, batch: int, seed: int, device: torch.device | str = "cpu") -> None:
        place = torch.device(device)
        super().__init__(data.name, len(data.train), batch, seed, _ORDER, place, "texts")
        self.train, self.labels = data.train.to(place), data.train_labels.to(place)

    def inputs(self, t: int) -> torch.Tensor:
        """int64 (batch, length)."""
        return self.train.index_select(0, self.indices(t))

    def targets(self, t: int) -> torch.Tensor:
        """int64 (batch,)."""
        return self.labels.index_select(0, self.indices(t))


class LabelledEvaluation:
    """The test texts, in order, in minibatches of (words, labels); the last one may be smaller."""

    def __init__(self, data: LabelledText, device: torch.device | str = "cpu", batch: int = 500) -> None:
        self.device, self.batch = torch.device(device), batch
        self.texts, self.labels = data.test.to(self.device), data.test_labels.to(self.device)

    @property
    def samples(self) -> int:
        """The number of test texts."""
        return len(self.texts)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Minibatches of int64 (n, length) and (n,)."""
        return zip(self.texts.split(self.batch), self.labels.split(self.batch), strict=True)
