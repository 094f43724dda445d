"""BERT (Devlin et al., 2019), pre-trained on masked words and the order of two sentences, with one layer per weight.

PipeOptim times BERT-48 (section V-E): BERT-large's sizes and 48 blocks. A weight must be on one worker, so the output
projection has a weight of its own, whereas the original shares the embedding's. This makes 669,790,012 parameters.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from pipelag.data.text.parallel import PAD
from pipelag.errors import PipelagError
from pipelag.models.operators import Operator, Tensors
from pipelag.models.transformer import Narrow, Norm, Widen, attention, check_size

STD, EPSILON = 0.02, 1e-12  # of the initial weights, and of the normalisation, as in the original


class Embeddings(nn.Module):
    """Words, positions and segments as vectors: words, or (words, segments), int64 (N, T) -> (x, padding).

    Words without segments all belong to the first segment.
    """

    def __init__(self, words: int, size: int, length: int, segments: int, dropout: float) -> None:
        super().__init__()
        self.label, self.length = f"embedding {words}", length
        self.words = nn.Embedding(words, size, padding_idx=PAD)
        self.places, self.segments = nn.Embedding(length, size), nn.Embedding(segments, size)
        self.norm, self.dropout = nn.LayerNorm(size), nn.Dropout(dropout)

    def forward(self, value: torch.Tensor | Tensors) -> Tensors:
        """See the class.

        Raises:
            PipelagError: a text with more words than there are positions.
        """
        words, segments = value if isinstance(value, tuple) else (value, torch.zeros_like(value))
        if words.shape[1] > self.length:
            raise PipelagError(f"this BERT reads up to {self.length} words at a time, not {words.shape[1]}")
        places = self.places(torch.arange(words.shape[1], device=words.device))
        return self.dropout(self.norm(self.words(words) + places + self.segments(segments))), words == PAD


class WidenGelu(Widen):
    """The first linear layer, with BERT's activation: (x, ...) -> (gelu(linear x), x, ...)."""

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        return F.gelu(self.module(value[0])), *value


class Pooler(Operator):
    """The pooler, which represents a text by its first position: (x, padding) -> (x, pooled), pooled (N, size)."""

    def __init__(self, size: int) -> None:
        super().__init__("pooler", nn.Linear(size, size))

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        return value[0], torch.tanh(self.module(value[0][:, 0]))


class NextSentence(Operator):
    """Scores whether the second segment follows the first in the text: (x, pooled) -> (x, scores (N, 2))."""

    def __init__(self, size: int) -> None:
        super().__init__("next sentence", nn.Linear(size, 2))

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        return value[0], self.module(value[1])


class Transform(Operator):
    """The linear layer before the output projection: (x, order) -> (norm(gelu(linear x)), order)."""

    def __init__(self, size: int) -> None:
        super().__init__("masked words, linear", nn.Linear(size, size))
        self.norm = nn.LayerNorm(size)

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        return self.norm(F.gelu(self.module(value[0]))), value[1]


class MaskedWords(Operator):
    """The scores of all words at every position: (x, order) -> (scores (N, T, words), order (N, 2))."""

    def __init__(self, size: int, words: int) -> None:
        super().__init__(f"linear {size}-{words}", nn.Linear(size, words))

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        return self.module(value[0]), value[1]


def bert(
    blocks: int = 48,
    size: int = 1024,
    heads: int = 16,
    hidden: int = 4096,
    words: int = 30522,
    length: int = 512,
    segments: int = 2,
    dropout: float = 0.1,
) -> nn.Sequential:
    """A BERT of `blocks` blocks; takes words, or (words, segments), int64 (N, T); scores words and their texts' order.

    The loss is `pipelag.runs.text_metrics.masked_word_loss`. The model differs from the original in two points: it
    scores words at every position, not only at masked ones, and it has no dropout of attention weights.

    Args:
        length: the largest number of words in a text; positions have learned vectors.

    Raises:
        PipelagError: a size that the heads do not divide, or an odd one.
    """
    check_size(size, heads)
    layers: list[nn.Module] = [Embeddings(words, size, length, segments, dropout)]
    for block in range(1, blocks + 1):
        name = f"block {block}"
        layers += attention(name, "encoder", size, heads, dropout)
        layers += [WidenGelu(f"{name} linear 1", size, hidden), Narrow(f"{name} linear 2", size, hidden)]
        layers.append(Norm(f"{name} norm", size, dropout))
    model = nn.Sequential(*layers, Pooler(size), NextSentence(size), Transform(size), MaskedWords(size, words))
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=STD)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
        if isinstance(module, nn.LayerNorm):
            module.eps = EPSILON
    return model
