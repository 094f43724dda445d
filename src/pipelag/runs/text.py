"""Measuring models of text: beam search and BLEU by sacrebleu, perplexity, and the loss that trains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from pipelag.data.language import RunningText
from pipelag.data.text import BEGIN, END, PAD, Corpus, padded

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def token_loss(smoothing: float = 0.0) -> Loss:
    """Mean cross-entropy over the words of (N, T, words) scores that are no padding, with label smoothing."""

    def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=smoothing)

    return loss


def word_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all words of (N, T, words) scores."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


@dataclass
class LanguageTest:
    """The test text of a language model, in stretches of `length` words, `batch` at a time."""

    data: RunningText
    device: torch.device
    length: int
    batch: int = 20

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        """Perplexity, word accuracy (%) and cross-entropy of the next word."""
        model.eval()
        stretches = (len(self.data.test) - 1) // self.length
        given = self.data.test[: stretches * self.length].view(stretches, self.length)
        wanted = self.data.test[1 : stretches * self.length + 1].view(stretches, self.length)
        right, loss = 0, 0.0
        for inputs, targets in zip(given.split(self.batch), wanted.split(self.batch), strict=True):
            scores = model(inputs.to(self.device))
            right += int((scores.argmax(-1) == targets.to(self.device)).sum())
            loss += float(word_loss(scores, targets.to(self.device))) * targets.numel()
        model.train()
        mean = loss / wanted.numel()
        return {
            "perplexity": math.exp(min(mean, 50.0)),
            "accuracy": round(100.0 * right / wanted.numel(), 4),
            "test_loss": mean,
        }


@dataclass
class TranslationTest:
    """The test set of a corpus. `beam`: hypotheses kept per sentence; 1 is greedy search."""

    data: Corpus
    device: torch.device
    beam: int = 1
    batch: int = 100

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(source, target in, target out), each int64 (n, longest)."""
        for start in range(0, len(self.data.test), self.batch):
            pairs = self.data.test[start : start + self.batch]
            source = padded([(*a, END) for a, _ in pairs])
            given = padded([(BEGIN, *b) for _, b in pairs])
            wanted = padded([(*b, END) for _, b in pairs])
            yield source.to(self.device), given.to(self.device), wanted.to(self.device)

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        """BLEU of what the model writes, its word accuracy (%) and cross-entropy when it is given the true words."""
        import sacrebleu

        model.eval()
        right = total = 0
        loss = 0.0
        written: list[str] = []
        for source, given, wanted in self:
            scores = model((source, given))
            words = wanted != PAD
            right += int(((scores.argmax(-1) == wanted) & words).sum())
            total += int(words.sum())
            loss += float(F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=PAD, reduction="sum"))
            longest = int(source.shape[1] * 2 + 10)
            written += [self.data.sentence(tokens) for tokens in search(model, source, self.beam, longest)]
        model.train()
        bleu = sacrebleu.corpus_bleu(written, [list(self.data.references)], tokenize="none", force=True)
        return {
            "bleu": round(bleu.score, 4),
            "accuracy": round(100.0 * right / total, 4),
            "test_loss": loss / total,
        }


@torch.no_grad()
def search(model: nn.Module, source: torch.Tensor, beam: int = 1, longest: int = 200) -> list[list[int]]:
    """Translate (n, S) source sentences; returns token numbers without begin and end.

    Beam search over summed log-probabilities, divided by the length at the end; the whole model runs for every word.
    """
    count, device = source.shape[0], source.device
    source = source.repeat_interleave(beam, 0)
    words = torch.full((count * beam, 1), BEGIN, device=device)
    totals = torch.full((count, beam), float("-inf"), device=device)
    totals[:, 0] = 0.0  # all hypotheses begin alike: the first word is chosen from one of them
    done = torch.zeros(count, beam, dtype=torch.bool, device=device)
    lengths = torch.ones(count, beam, device=device)
    for _ in range(longest):
        scores = F.log_softmax(model((source, words))[:, -1].float(), -1).view(count, beam, -1)
        scores = scores.nan_to_num(nan=-1e9)  # a diverged model still writes something
        size = scores.shape[-1]
        ended = torch.full_like(scores, float("-inf"))
        ended[..., PAD] = 0.0  # a finished hypothesis goes on as it is
        scores = torch.where(done.unsqueeze(-1), ended, scores)
        totals, chosen = (totals.unsqueeze(-1) + scores).view(count, -1).topk(beam, -1)
        parent, word = chosen // size, chosen % size
        rows = (torch.arange(count, device=device).unsqueeze(1) * beam + parent).flatten()
        words = torch.cat((words[rows], word.flatten().unsqueeze(1)), 1)
        done, lengths = done.gather(1, parent), lengths.gather(1, parent)
        lengths = lengths + (~done).float()
        done = done | (word == END)
        if bool(done.all()):
            break
    best = (totals / lengths).argmax(1)
    found = words.view(count, beam, -1)[torch.arange(count, device=device), best]
    return [[token for token in row[1:] if token not in (END, PAD)] for row in found.tolist()]
