"""SpecTrain's two networks that judge a text (section 4.1): a residual LSTM and a Transformer, a class for each text.

Both take word numbers, int64 (N, T), padded in front, so that the last place is the text's last word.
"""

from __future__ import annotations

import torch
from torch import nn

from pipelag.data.text.labelled import PAD
from pipelag.errors import PipelagError
from pipelag.models.layers import Layer
from pipelag.models.operators import Operator, Tensors
from pipelag.models.recurrent import Recurrent
from pipelag.models.transformer import Embedding, check_size, decoder_block, encoder_block


class State(nn.Module):
    """(N, T, size) -> (N, size), the state after the last word, or the mean of all states."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x.mean(1) if self.mean else x[:, -1]


def residual_lstm(
    layers: int = 8, size: int = 512, memory: int = 1024, words: int = 10_000, classes: int = 2, mean: bool = False
) -> nn.Sequential:
    """An embedding, `layers` LSTMs each of which adds its input to what it gives, and a classifier of the last state.

    As SpecTrain's authors have it in the code they published: the LSTM's output is projected, then its input added
    (Kim et al., 2017, add it before the output gate).

    Args:
        size: of the embedding and of every LSTM's output; memory: cells of an LSTM, projected onto `size` (no
            projection where they are equal).
        mean: classify the mean of all states, as that code does; the paper does not say. With momentum SGD on IMDb it
            learns much sooner; Adam does with either.

    Raises:
        PipelagError: fewer memory cells than outputs, or no layer.
    """
    if layers < 1 or memory < size:
        raise PipelagError(
            f"a residual LSTM needs at least 1 layer and at least as many memory cells as outputs, not {layers} "
            f"layers and {memory} cells for {size} outputs"
        )
    return nn.Sequential(
        Layer(f"embedding {words}", nn.Embedding(words, size, padding_idx=PAD)),
        *(Recurrent(f"lstm {i}", size, size, residual=True, memory=memory) for i in range(1, layers + 1)),
        Layer(f"linear {size}-{classes}", State(mean), nn.Linear(size, classes)),
    )


class TextEmbedding(Embedding):
    """The words of a text as vectors with their places: (N, T) -> (x, padding)."""

    def __init__(self, label: str, words: int, size: int, dropout: float) -> None:
        super().__init__(label, words, size, False, dropout, PAD)

    def forward(self, value: torch.Tensor) -> Tensors:  # type: ignore[override]
        """See the class."""
        return self.vectors(value), value == PAD


class Begin(Embedding):
    """The one word that the decoder is given: (x, padding) -> (y, x, padding), y (N, 1, size)."""

    def __init__(self, label: str, size: int, dropout: float) -> None:
        super().__init__(label, 1, size, True, dropout, None)

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        x, hidden = value
        return self.vectors(torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)), x, hidden


class Judgement(Operator):
    """The scores of the classes at the decoder's one place: (y, ...) -> (N, classes)."""

    def __init__(self, label: str, size: int, classes: int) -> None:
        super().__init__(label, nn.Linear(size, classes))

    def forward(self, value: Tensors) -> torch.Tensor:
        """See the class."""
        scores: torch.Tensor = self.module(value[0][:, 0])
        return scores


def sentiment_transformer(
    size: int = 512,
    hidden: int = 512,
    heads: int = 8,
    blocks: int = 6,
    dropout: float = 0.1,
    words: int = 10_000,
    classes: int = 2,
) -> nn.Sequential:
    """The encoder-decoder Transformer as a classifier, cut by weight as `transformer` is.

    SpecTrain gives 6 encoder and 6 decoder blocks, 8 heads and 512 hidden units, and says that other parameters are
    the original's; it does not say how the decoder is fed. Here the class is a translation of one word: the encoder
    reads the text, the decoder is given the word that begins a sentence and nothing else, and its output there is
    scored by class. So its blocks work on one place, where self-attention sees only itself: the queries and keys of
    that layer have no effect and gradients of zero.

    Raises:
        PipelagError: a size that the heads do not divide, or an odd one.
    """
    check_size(size, heads)
    layers: list[nn.Module] = [TextEmbedding("embedding", words, size, dropout)]
    for block in range(1, blocks + 1):
        layers += encoder_block(f"encoder {block}", size, hidden, heads, dropout)
    layers.append(Begin("begin", size, dropout))
    for block in range(1, blocks + 1):
        layers += decoder_block(f"decoder {block}", size, hidden, heads, dropout)
    return nn.Sequential(*layers, Judgement(f"linear {size}-{classes}", size, classes))
