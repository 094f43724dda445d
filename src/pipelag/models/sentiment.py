"""SpecTrain's two networks for sentiment classification (section 4.1): a residual LSTM and a Transformer.

Both take word numbers, int64 (N, T), padded in front, so that the last position is the text's last word, and score the
text's classes.
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
    """The state after the last word, or the mean of all states: (N, T, size) -> (N, size)."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x.mean(1) if self.mean else x[:, -1]


def residual_lstm(
    layers: int = 8, size: int = 512, memory: int = 1024, words: int = 10_000, classes: int = 2, mean: bool = False
) -> nn.Sequential:
    """A text classifier: an embedding, `layers` residual LSTMs, and a classifier of the last state.

    As in the code that SpecTrain's authors published, an LSTM's output is projected and then its input is added (Kim et
    al., 2017, add the input before the output gate).

    Args:
        size: of the embedding and of every LSTM's output.
        memory: the number of an LSTM's cells, projected to `size` (not projected if they are equal).
        mean: classify the mean of all states, as the published code does; the paper does not say. With momentum SGD on
            IMDb the model learns much sooner with the mean; with Adam it learns as soon with either.

    Raises:
        PipelagError: fewer cells than outputs, or no layer.
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
    """The embedding of a text's words and their positions: (N, T) -> (x, padding)."""

    def __init__(self, label: str, words: int, size: int, dropout: float) -> None:
        super().__init__(label, words, size, False, dropout, PAD)

    def forward(self, value: torch.Tensor) -> Tensors:  # type: ignore[override]
        """See the class."""
        return self.vectors(value), value == PAD


class Begin(Embedding):
    """The embedding of the decoder's single input word: (x, padding) -> (y, x, padding), y (N, 1, size)."""

    def __init__(self, label: str, size: int, dropout: float) -> None:
        super().__init__(label, 1, size, True, dropout, None)

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        x, hidden = value
        return self.vectors(torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)), x, hidden


class Judgement(Operator):
    """The scores of the classes at the decoder's single position: (y, ...) -> (N, classes)."""

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
    """The encoder-decoder Transformer as a text classifier, with one layer per weight as in `transformer`.

    SpecTrain gives 6 encoder and 6 decoder blocks, 8 heads and 512 hidden units, and says that other parameters are
    the original's; it does not say what the decoder reads. Here the class is like a translation of one word: the
    encoder reads the text, the decoder reads only the word that begins a sentence, and its output there is scored by
    class. So the decoder's blocks work on one position, which attends only to itself in self-attention; the queries and
    keys of that layer have no effect, and their gradients are zero.

    Raises:
        PipelagError: the size is odd, or the heads do not divide it.
    """
    check_size(size, heads)
    layers: list[nn.Module] = [TextEmbedding("embedding", words, size, dropout)]
    for block in range(1, blocks + 1):
        layers += encoder_block(f"encoder {block}", size, hidden, heads, dropout)
    layers.append(Begin("begin", size, dropout))
    for block in range(1, blocks + 1):
        layers += decoder_block(f"decoder {block}", size, hidden, heads, dropout)
    return nn.Sequential(*layers, Judgement(f"linear {size}-{classes}", size, classes))
