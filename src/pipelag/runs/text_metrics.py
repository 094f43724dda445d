"""The losses and metrics of models of text: cross-entropies, perplexity, and beam search with sacrebleu's BLEU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from pipelag.data.text.language import RunningText
from pipelag.data.text.parallel import BEGIN, END, PAD, Corpus, padded
from pipelag.errors import PipelagError
from pipelag.runs.objectives import Means

RESAMPLES = 100  # bootstrap samples of the test set; they give BLEU's standard error to within 7 %
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SharedLoss = Callable[[torch.Tensor, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]
# (model, source sentences, beam, most words, length penalty) -> translations, such as `search`
Writer = Callable[[nn.Module, torch.Tensor, int, int, float], list[list[int]]]


def token_loss(smoothing: float = 0.0) -> Loss:
    """The loss of translation: mean cross-entropy of (N, T, words) scores over the target words, without padding.

    smoothing: label smoothing, as `torch.nn.functional.cross_entropy` has it.
    """

    def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(*_words(scores, targets), ignore_index=PAD, label_smoothing=smoothing)

    return loss


def shared_token_loss(smoothing: float = 0.0) -> SharedLoss:
    """`token_loss` for microbatches whose targets come with a share (`pipelag.data.text.tokens.TokenBatches`).

    Every word of a minibatch weighs the same: the mean of the losses of its equal microbatches is the mean over all its
    words, even if the microbatches have different numbers of words. Label smoothing is that of fairseq in PipeMare's
    time: weight 1 - s on the target word, and s spread evenly over all words.
    """

    def loss(scores: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        words, share = targets
        total = F.cross_entropy(*_words(scores, words), ignore_index=PAD, label_smoothing=smoothing, reduction="sum")
        return total / len(words) * share[0]

    return loss


def _words(scores: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (places, words) and target words. On a CPU, places of padding are dropped.

    Padding is half of most minibatches, and its scores cost the loss and its backward as much as those of words. A GPU
    keeps the padding: dropping it would have the host wait for the number of words.
    """
    scores, targets = scores.flatten(0, 1), targets.flatten()
    if not scores.is_cpu:
        return scores, targets
    words = targets != PAD
    return scores[words], targets[words]


def word_loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all words of (N, T, words) scores."""
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def masked_word_loss(
    output: tuple[torch.Tensor, torch.Tensor], targets: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """BERT's loss: the mean cross-entropy of the masked words plus that of whether one sentence follows the other.

    Args:
        output: scores of words (N, T, words) and of the order of the sentences (N, 2).
        targets: int64 (N, T), the masked words, and `PAD` where none was masked (at least one must be); int64 (N,), the
            order.
    """
    (scores, order), (words, follows) = output, targets
    masked = F.cross_entropy(*_words(scores, words), ignore_index=PAD)
    return masked + F.cross_entropy(order, follows)


@dataclass
class LanguageTest:
    """The test text of a language model, in stretches of `length` words, `batch` at a time.

    Raises:
        PipelagError: a text shorter than a stretch.
    """

    data: RunningText
    device: torch.device
    length: int
    batch: int = 20
    metrics: Sequence[str] = ()

    def __post_init__(self) -> None:
        if len(self.data.test) <= self.length:  # the last word is a target only
            raise PipelagError(
                f"the test text of '{self.data.name}' has {len(self.data.test):,} words, too few for a stretch of "
                f"{self.length}; choose a shorter length"
            )

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        """Perplexity, word accuracy (%) and cross-entropy of the next word."""
        model.eval()
        stretches = (len(self.data.test) - 1) // self.length
        before = self.data.test[: stretches * self.length].view(stretches, self.length)
        after = self.data.test[1 : stretches * self.length + 1].view(stretches, self.length)
        right, loss, means = 0, 0.0, Means(self.metrics)
        for inputs, words in zip(before.split(self.batch), after.split(self.batch), strict=True):
            scores, targets = model(inputs.to(self.device)), words.to(self.device)
            right += int((scores.argmax(-1) == targets).sum())
            loss += float(word_loss(scores, targets)) * targets.numel()
            means.add(scores, targets)
        model.train()
        mean = loss / after.numel()
        return {
            "perplexity": math.exp(min(mean, 50.0)),
            "accuracy": round(100.0 * right / after.numel(), 4),
            "test_loss": mean,
            **means.by_name(),
        }


@dataclass
class TranslationTest:
    """The test set of a corpus, `batch` sentences at a time.

    beam: hypotheses kept per sentence; 1 is greedy search. As in fairseq, it is at most the number of words other than
    padding.
    lenpen: see `search`.
    write: what translates; None: `search`.
    metrics: the names of further metrics (`pipelag.runs.objectives`).
    written: the translations that were measured last.
    """

    data: Corpus
    device: torch.device
    beam: int = 1
    batch: int = 100
    lenpen: float = 1.0
    write: Writer | None = None
    metrics: Sequence[str] = ()
    written: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(source, target in, target out), each int64 (n, longest)."""
        for start in range(0, len(self.data.test), self.batch):
            pairs = self.data.test[start : start + self.batch]
            source = padded([(*a, END) for a, _ in pairs])
            target_in = padded([(BEGIN, *b) for _, b in pairs])
            target_out = padded([(*b, END) for _, b in pairs])
            yield source.to(self.device), target_in.to(self.device), target_out.to(self.device)

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        """BLEU and its standard error of what the model writes; word accuracy (%) and cross-entropy on the true words.

        BLEU is of words as the data set splits them. It is smoothed as by sacrebleu's default where no four words in a
        row are right. Its standard error is sacrebleu's bootstrap over the test set. For accuracy and cross-entropy the
        model is given the true words before each word.
        """
        from sacrebleu.metrics.bleu import BLEU

        model.eval()
        write, beam = self.write or search, min(self.beam, len(self.data.target_words) - 1)
        right = total = 0
        loss, means = 0.0, Means(self.metrics)
        self.written = []
        for source, target_in, target_out in self:
            scores = model((source, target_in))
            words = target_out != PAD
            right += int(((scores.argmax(-1) == target_out) & words).sum())
            total += int(words.sum())
            loss += float(
                F.cross_entropy(scores.flatten(0, 1), target_out.flatten(), ignore_index=PAD, reduction="sum")
            )
            means.add(scores, target_out, words)
            longest = int(source.shape[1] * 2 + 10)
            translations = write(model, source, beam, longest, self.lenpen)
            self.written += [self.data.sentence(tokens) for tokens in translations]
        model.train()
        scorer = BLEU(tokenize="none", force=True)
        bleu: Any = scorer.corpus_score(self.written, [list(self.data.references)], n_bootstrap=RESAMPLES)
        return {
            "bleu": round(bleu.score, 4),
            "bleu_error": round(bleu._ci / 1.96, 4),
            "accuracy": round(100.0 * right / total, 4),
            "test_loss": loss / total,
            **means.by_name(),
        }


@torch.no_grad()
def search(
    model: nn.Module, source: torch.Tensor, beam: int = 1, longest: int = 200, lenpen: float = 1.0
) -> list[list[int]]:
    """Translate (n, S) source sentences by beam search; returns token numbers without begin and end.

    The search is that of fairseq's SequenceGenerator with its defaults. Each step takes the best 2 * `beam`
    continuations of a sentence. Those among the best `beam` that end are translations; the best `beam` of those that do
    not end go on. A sentence is done when it has `beam` translations, or after `longest` words. The result is the
    translation with the highest score: the sum of log-probabilities of its words and its end, divided by their number
    to the power `lenpen` (below 1, shorter ones win more often). No translation is empty, and none contains padding.

    The layers before the first that reads the target run once, the others for every word.
    """
    device = source.device
    encoder, decoder = by_target(model)
    alive = list(range(len(source)))  # the sentence in each row that is not done
    words = torch.full((len(source) * beam, 1), BEGIN, device=device)
    totals = torch.zeros(len(source), 1, device=device)  # one: at first all hypotheses of a sentence are the same
    translations: list[list[tuple[float, list[int]]]] = [[] for _ in alive]
    *encoded, _ = through(encoder, (source, words[: len(source)]))
    for step in range(longest + 1):
        rows = torch.tensor(alive, device=device).repeat_interleave(beam)
        logits = of_last_word(decoder, (*(part[rows] for part in encoded), words)).float()
        scores = F.log_softmax(logits, -1).nan_to_num(nan=-1e9)  # a diverged model still writes something
        scores[:, PAD] = float("-inf")
        if step == longest:
            scores[:, :END] = scores[:, END + 1 :] = float("-inf")
        elif step == 0:
            scores[:, END] = float("-inf")
        size = scores.shape[-1]
        scores = totals.unsqueeze(-1) + scores.view(len(alive), beam, size)[:, : totals.shape[1]]
        best, place = scores.flatten(1).topk(min(2 * beam, scores[0].numel() - 1), -1)
        parent, word = place // size, place % size
        ended = (word == END) & best.isfinite()
        written = words.view(len(alive), beam, -1)
        for row, rank in ended[:, :beam].nonzero().tolist():
            if len(translations[alive[row]]) < beam:
                tokens = written[row, parent[row, rank], 1:].tolist()
                translations[alive[row]].append((float(best[row, rank]) / (step + 1) ** lenpen, tokens))
        left = [row for row, number in enumerate(alive) if len(translations[number]) < beam and step < longest]
        if not left:
            break
        rows_left = torch.tensor(left, device=device)
        going = ended[rows_left].int().argsort(dim=1, stable=True)[:, :beam]  # the best that do not end, best first
        parent, word, totals = (value[rows_left].gather(1, going) for value in (parent, word, best))
        words = written[rows_left.unsqueeze(1), parent].flatten(0, 1)
        words = torch.cat((words, word.view(-1, 1)), 1)
        alive = [alive[row] for row in left]
    return [max(candidates, key=lambda scored: scored[0])[1] for candidates in translations]


def by_target(model: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """A model's layers in two: those that only pass the target's words on, and those from the first that reads them.

    That first layer has the attribute `reads_target`. If no layer has it, all layers count as reading the target.
    """
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    first = next((place for place, layer in enumerate(layers) if getattr(layer, "reads_target", False)), 0)
    return layers[:first], layers[first:]


def of_last_word(decoder: Sequence[nn.Module], value: Any) -> torch.Tensor:
    """The scores (n, words) of the word that follows the last one.

    A last layer whose attribute `by_place` says that it treats each place separately gets the last place only: the
    product with the vocabulary is most of a small decoder's work.
    """
    *before, last = decoder
    value = through(before, value)
    if getattr(last, "by_place", False):
        value = value[:, -1:] if isinstance(value, torch.Tensor) else (value[0][:, -1:], *value[1:])
    scores: torch.Tensor = last(value)[:, -1]
    return scores


def through(layers: Sequence[nn.Module], value: Any) -> Any:
    """The value after it has passed through the layers in turn."""
    for layer in layers:
        value = layer(value)
    return value
