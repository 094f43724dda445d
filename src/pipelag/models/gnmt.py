"""GNMT (Wu et al., 2016), one layer per LSTM, as PipeDream profiles and PipeOptim trains it (sections 5.1 and V-A).

Both papers run NVIDIA's implementation, which this follows: the encoder's first LSTM is bidirectional; residual
connections begin at the third LSTM of each side; every LSTM of the decoder reads the context to which its first one
attends; dropout acts on an LSTM's input. Ours differs in three points. Attention scores are dot products of projected
states and encodings (Luong et al., 2015), where NVIDIA's are additive. Each side has its own embedding, because a
weight must be on one worker; NVIDIA's sides share one. Initial weights are PyTorch's; NVIDIA's are uniform within 0.1.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pipelag.data.text.parallel import PAD
from pipelag.errors import PipelagError
from pipelag.models.attention import dot_product_attention
from pipelag.models.recurrent import Embed, Recurrent, Words, states

Tensors = tuple[torch.Tensor, ...]
DROPOUT = 0.2  # NVIDIA's; PipeOptim gives none


class Source(Embed):
    """The embedding of the source: (source, target) -> (x, padding, target)."""

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        source, target = value
        return self.embedding(source), source == PAD, target


class TwoWays(Recurrent):
    """A bidirectional LSTM: (x, padding, target) -> (states of both directions, padding, target).

    The backward direction begins at a sentence's last word, not in the padding after it.
    """

    def __init__(self, label: str, into: int, size: int, dropout: float) -> None:
        super().__init__(label, into, size, both=True, dropout=dropout)

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        x, padding, target = value
        if padding.is_meta:  # only shapes matter, so take sentences without padding
            return states(self.lstm, self.dropout(x)), padding, target
        lengths = (~padding).sum(1).cpu()
        packed = pack_padded_sequence(self.dropout(x), lengths, batch_first=True, enforce_sorted=False)
        out = pad_packed_sequence(states(self.lstm, packed), batch_first=True, total_length=x.shape[1])[0]
        return out, padding, target


class AttentionStart(nn.Module):
    """The decoder's first layer: (encoded, target words) -> (states, the context of each).

    With (encoded, padding, target words) no state attends to padding.
    """

    reads_target = True  # `pipelag.runs.text_metrics.search` encodes a sentence once, up to this layer

    def __init__(self, words: int, size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.label = "decoder 1 with attention"
        self.embedding = nn.Embedding(words, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.query = nn.Linear(size, size, bias=False)
        self.key = nn.Linear(size, size, bias=False)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        encoded, *padding, target = value
        hidden = states(self.lstm, self.dropout(self.embedding(target)))
        seen = ~padding[0][:, None, :] if padding else None
        context = dot_product_attention(self.query(hidden), self.key(encoded), encoded, attn_mask=seen)
        return hidden, context


def gnmt(
    layers: int = 8,
    size: int = 1024,
    words: int = 32320,
    source_words: int | None = None,
    target_words: int | None = None,
    dropout: float | None = None,
) -> nn.Sequential:
    """GNMT (translation) with `layers` LSTMs, half of them in the encoder.

    It takes (source, target) words, each int64 (N, T).

    Args:
        size: of vectors and states.
        words: the vocabulary of either language, for profiles. Every position is then taken for a word, and there is no
            dropout by default.
        source_words, target_words: in place of `words`, the vocabularies of a corpus (`pipelag.data.text.parallel`)
            with padded minibatches. The result for a sentence does not depend on the padding after it.
        dropout: the rate for the input of every LSTM; None: 0.2 with a corpus, otherwise 0.

    Raises:
        PipelagError: an odd number of layers or fewer than 4, or a vocabulary for one side only.
    """
    if layers < 4 or layers % 2:
        raise PipelagError(
            f"GNMT needs an even number of LSTMs, at least 4 (half of them in the encoder), not {layers}"
        )
    if (source_words is None) != (target_words is None):
        raise PipelagError("GNMT needs both source_words and target_words, or words for both sides of a profile")
    half, rate = layers // 2, dropout or 0.0
    stack: list[nn.Module]
    if source_words is None or target_words is None:
        source_words = target_words = words
        stack = [
            Embed(f"embedding {words}", words, size),
            Recurrent("encoder 1, both ways", size, size, both=True, dropout=rate),
        ]
    else:
        rate = DROPOUT if dropout is None else dropout
        stack = [
            Source(f"embedding {source_words}", source_words, size),
            TwoWays("encoder 1, both ways", size, size, rate),
        ]
    stack.append(Recurrent("encoder 2", 2 * size, size, dropout=rate))
    stack += [Recurrent(f"encoder {i}", size, size, residual=True, dropout=rate) for i in range(3, half + 1)]
    stack.append(AttentionStart(target_words, size, rate))
    stack += [
        Recurrent(f"decoder {i}", 2 * size, size, residual=i > 2, joined=True, dropout=rate) for i in range(2, half + 1)
    ]
    return nn.Sequential(*stack, Words(size, target_words))
