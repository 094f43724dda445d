"""Minibatches of sentences limited by their number of tokens, as by fairseq's --max-tokens."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pipelag.data.minibatches import Minibatches
from pipelag.data.text.parallel import BEGIN, END, Corpus, Tokens, padded
from pipelag.errors import PipelagError
from pipelag.randomness import mix
from pipelag.tensors import sent

_ORDER = 4  # the stream of random numbers for the order of sentences and of minibatches
Numbers = npt.NDArray[np.int64]


class TokenBatches(Minibatches):
    """Training minibatches of sentences of similar length, with at most `tokens` tokens, padding included.

    `batches[t] -> ((source, target in), (target out, share))`: as `TextBatches`, and float32 (sentences,) `share`, 1
    over the minibatch's mean number of words in a target sentence, for `pipelag.runs.text_metrics.shared_token_loss`.

    Pairs are sorted by the length of their longer side, with its end, the longest first. A minibatch takes as many of
    the next ones as fit: their number times the longest length is at most `tokens`. The number is a multiple of
    `multiple`, so that a minibatch can be split into so many equal microbatches, each of at most tokens / multiple
    tokens. In each epoch the seed shuffles the sentences of equal length, and the order of the minibatches. The number
    of minibatches and their lengths are the same in all epochs. Fewer than `multiple` of the shortest sentences are
    left over in each.

    Raises:
        PipelagError: the longest sentence does not fit (the message says which limit it needs), or there are too few
            sentences for one minibatch.
    """

    uneven = True

    def __init__(
        self, data: Corpus, tokens: int, seed: int, multiple: int = 1, device: torch.device | str = "cpu"
    ) -> None:
        self.data, self.tokens, self.seed, self.multiple = data, tokens, seed, multiple
        self.device = torch.device(device)
        self.lengths: Numbers = np.array([1 + max(len(a), len(b)) for a, b in data.train], np.int64)
        longest = int(self.lengths.max(initial=0))
        if multiple < 1 or longest * multiple > tokens:
            raise PipelagError(
                f"the longest training sentence of '{data.name}' has {longest} tokens with its end, more than the "
                f"{tokens // max(1, multiple)} that fit into each of the {multiple} parts of a minibatch of {tokens:,} "
                f"tokens; allow {longest * multiple:,} tokens, or drop long sentences (most_pieces, most_tokens)"
            )
        falling = np.sort(self.lengths)[::-1]
        self.bounds = [0]  # where minibatches begin and end among the sentences sorted by length, the longest first
        while len(falling) - self.bounds[-1] >= multiple:
            start = self.bounds[-1]
            fit = tokens // (int(falling[start]) * multiple)
            self.bounds.append(start + min(fit, (len(falling) - start) // multiple) * multiple)
        if len(self.bounds) < 2:
            raise PipelagError(
                f"a minibatch needs at least {multiple} sentences, and '{data.name}' has only {len(falling)}"
            )
        self.arranged = lru_cache(maxsize=2)(self._arranged)

    def __len__(self) -> int:
        """Minibatches per epoch."""
        return len(self.bounds) - 1

    def summary(self) -> dict[str, Any]:
        """Minibatches per epoch, their mean number of target words (ends included), sentences left over per epoch."""
        words = sum(len(b) + 1 for _, b in self.data.train)
        left = len(self.lengths) - self.bounds[-1]
        return {"minibatches": len(self), "words_per_minibatch": round(words / len(self), 1), "left_over": left}

    def pairs(self, t: int) -> list[tuple[Tokens, Tokens]]:
        """The sentences of minibatch `t`."""
        epoch, place = divmod(t, len(self))
        order, minibatches = self.arranged(epoch)
        number = int(minibatches[place])
        return [self.data.train[i] for i in order[self.bounds[number] : self.bounds[number + 1]]]

    def inputs(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(source, target in), each int64 (sentences, longest)."""
        pairs = self.pairs(t)
        source, given = padded([(*a, END) for a, _ in pairs]), padded([(BEGIN, *b) for _, b in pairs])
        return sent(source, self.device), sent(given, self.device)

    def targets(self, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(target out, share): int64 (sentences, longest), float32 (sentences,)."""
        sentences = [(*b, END) for _, b in self.pairs(t)]
        share = torch.full((len(sentences),), len(sentences) / sum(map(len, sentences)))
        return sent(padded(sentences), self.device), sent(share, self.device)

    def _arranged(self, epoch: int) -> tuple[Numbers, Numbers]:
        """The order of the sentences (the longest first, equal lengths shuffled), and that of the minibatches."""
        generator = np.random.default_rng(mix(self.seed, _ORDER, epoch))
        shuffled = generator.permutation(len(self.lengths))
        order = shuffled[np.argsort(-self.lengths[shuffled], kind="stable")]
        return order, generator.permutation(len(self))
