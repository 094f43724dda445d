"""Parallel text as token numbers: vocabularies, a filter that counts what it drops, and minibatches by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch

from pipelag.data.checks import check_range, check_some
from pipelag.data.minibatches import Shuffled
from pipelag.data.release import Released
from pipelag.errors import PipelagError
from pipelag.tensors import sent

PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
Pair = tuple[str, str]
Tokens = tuple[int, ...]
_ORDER = 3  # the stream of random numbers for the order of sentences


@dataclass(frozen=True)
class Corpus(Released):
    """A translation set in memory.

    Args:
        name, title, release, official, note: see `Released`.
        source_words, target_words: the vocabularies, the four special words first.
        train, test: (source, target) token numbers, without begin and end.
        references: the test set's target sentences in words, for BLEU.
        dropped: the number of training pairs left out because a side was empty or too long, or by the set's clean-up.
        unknown: for "source" and "target", the share of tokens in the test set that are not in the vocabulary.

    Raises:
        PipelagError: a part is empty, a token is not in its vocabulary, a vocabulary does not begin with the special
            words, or there is not one reference for each test pair.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    train: tuple[tuple[Tokens, Tokens], ...]
    test: tuple[tuple[Tokens, Tokens], ...]
    references: tuple[str, ...]
    dropped: int = 0
    unknown: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for side, (which, words) in enumerate((("source", self.source_words), ("target", self.target_words))):
            if tuple(words[: len(SPECIAL)]) != SPECIAL:
                raise PipelagError(f"{which}_words of '{self.name}' should begin with {', '.join(SPECIAL)}")
            for part, pairs in (("train", self.train), ("test", self.test)):
                check_some(self.name, f"{part} pairs", pairs)
                tokens = set(chain.from_iterable(pair[side] for pair in pairs))
                check_range(self.name, f"the {which} tokens in {part}", tokens, len(words), "words")
        if len(self.references) != len(self.test):
            raise PipelagError(
                f"'{self.name}' has {len(self.references):,} references for {len(self.test):,} test pairs; it needs "
                "one for each"
            )

    def summary(self) -> dict[str, Any]:
        """The entry of a run's summary about its data."""
        return self.described(
            train=len(self.train),
            test=len(self.test),
            dropped=self.dropped,
            vocabulary=[len(self.source_words), len(self.target_words)],
            unknown=self.unknown,
        )

    def sentence(self, tokens: Sequence[int]) -> str:
        """Target token numbers as words."""
        return joined(self.target_words[token] for token in tokens)


def joined(pieces: Iterable[str]) -> str:
    """Words separated by spaces; a piece that ends in @@ is joined to the next one (as by --remove-bpe)."""
    return (" ".join(pieces) + " ").replace("@@ ", "").rstrip(" ")


def pairs_of(source: Sequence[str], target: Sequence[str], what: str) -> list[Pair]:
    """Pair source and target lines; raises `PipelagError` if their numbers differ."""
    if len(source) != len(target):
        raise PipelagError(
            f"{what}: {len(source):,} source lines and {len(target):,} target lines; line n of one must translate line "
            "n of the other"
        )
    return list(zip(source, target, strict=True))


def corpus(
    name: str,
    title: str,
    train: Sequence[Pair],
    test: Sequence[Pair],
    release: str = "generated",
    official: bool = True,
    note: str = "",
    tokenise: Callable[[str], list[str]] = str.split,
    most_tokens: int = 100,
    least_count: int = 1,
    most_unknown: float = 0.2,
    shared: bool = False,
    dropped: int = 0,
) -> Corpus:
    """Build vocabularies from the training text and number all sentences.

    Args:
        most_tokens: pairs with a longer side (or an empty one) are dropped from training and counted.
        least_count: rarer words become `<unk>`.
        most_unknown: the largest share of unknown words that a test set may have.
        shared: build one vocabulary of both sides (fairseq's joined dictionary).
        dropped: the number of pairs that were left out before.

    Raises:
        PipelagError: no training pair is left, or too many words of the test set are unknown.
    """
    split = [(tokenise(a), tokenise(b)) for a, b in train]
    usable = [(a, b) for a, b in split if a and b and len(a) <= most_tokens and len(b) <= most_tokens]
    if not usable:
        raise PipelagError(
            f"'{name}' has no training pair left: all {len(train):,} have an empty side or more than {most_tokens} "
            "tokens; allow longer sentences"
        )
    if shared:
        words = [_vocabulary((side for pair in usable for side in pair), least_count)] * 2
    else:
        words = [_vocabulary((pair[side] for pair in usable), least_count) for side in (0, 1)]
    numbers = tuple({word: i for i, word in enumerate(side) if i >= len(SPECIAL)} for side in words)

    def numbered(tokens: Sequence[str], side: int) -> Tokens:
        return tuple(numbers[side].get(token, UNKNOWN) for token in tokens)

    tested = [(tokenise(a), tokenise(b)) for a, b in test]
    unknown = {}
    for side, which in enumerate(("source", "target")):
        tokens = [token for pair in tested for token in numbered(pair[side], side)]
        unknown[which] = round(tokens.count(UNKNOWN) / max(1, len(tokens)), 4)
        if unknown[which] > most_unknown:
            raise PipelagError(
                f"'{name}': {100 * unknown[which]:.0f} % of the test set's {which} words are unknown, more than "
                f"{100 * most_unknown:.0f} %; lower least_count, or take training and test text of the same kind"
            )
    return Corpus(
        name,
        title,
        release,
        official,
        note,
        words[0],
        words[1],
        tuple((numbered(a, 0), numbered(b, 1)) for a, b in usable),
        tuple((numbered(a, 0), numbered(b, 1)) for a, b in tested),
        tuple(joined(b) for _, b in tested),
        dropped + len(train) - len(usable),
        unknown,
    )


def _vocabulary(sentences: Iterator[list[str]], least: int) -> tuple[str, ...]:
    counts = Counter(word for sentence in sentences for word in sentence)
    return (
        *SPECIAL,
        *sorted({w for w, count in counts.items() if count >= least} - {*SPECIAL}, key=lambda w: (-counts[w], w)),
    )


def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """int64 (N, longest): the rows, filled up with `PAD`."""
    longest = max(map(len, rows))
    filled = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.from_numpy(np.array(filled, dtype=np.int64))  # torch.tensor takes 25 times as long


class TextBatches(Shuffled):
    """Training minibatches: `batches[t] -> ((source, target in), target out)`, each int64 (batch, longest).

    Minibatch t depends on the seed and t only. "target in" is the target after `<s>`; "target out" is the target
    followed by `</s>`.
    """

    uneven = True

    def __init__(self, data: Corpus, batch: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(data.name, len(data.train), batch, seed, _ORDER, torch.device("cpu"), "pairs")
        self.data, self.device = data, torch.device(device)

    def pairs(self, t: int) -> list[tuple[Tokens, Tokens]]:
        """The sentences of minibatch `t`."""
        return [self.data.train[i] for i in self.indices(t).tolist()]

    def inputs(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(source, target in)."""
        pairs = self.pairs(t)
        given = padded([(BEGIN, *target) for _, target in pairs])
        return sent(padded([(*source, END) for source, _ in pairs]), self.device), sent(given, self.device)

    def targets(self, t: int) -> torch.Tensor:
        """Target out."""
        return sent(padded([(*target, END) for _, target in self.pairs(t)]), self.device)
