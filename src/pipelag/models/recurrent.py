"""PipeDream's recurrent networks, a layer per LSTM: GNMT, AWD-LM and S2VT (section 5.1).

Token and feature inputs go in as the tuple that the first layer takes; what later layers need travels along in the
tuple, as it does between workers.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

Pair = tuple[torch.Tensor, torch.Tensor]

# Said once in every process, and nothing to be done about it: torch's other implementation is used.
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


class Embed(nn.Module):
    """Looks up the words of the first (or `place`-th) input."""

    def __init__(self, label: str, words: int, size: int, place: int = 0) -> None:
        super().__init__()
        self.label, self.place = label, place
        self.embedding = nn.Embedding(words, size)

    def forward(self, value: Any) -> Any:
        """Replaces that input by its vectors."""
        if isinstance(value, torch.Tensor):
            return self.embedding(value)
        return tuple(self.embedding(v) if i == self.place else v for i, v in enumerate(value))


class Recurrent(nn.Module):
    """An LSTM over the first tensor of a tuple; `residual` adds its input; `joined` feeds the second tensor too.

    memory: so many cells, projected onto `size` outputs; none: `size` of them.
    """

    def __init__(
        self,
        label: str,
        into: int,
        size: int,
        residual: bool = False,
        joined: bool = False,
        both: bool = False,
        memory: int | None = None,
    ) -> None:
        super().__init__()
        self.label, self.residual, self.joined = label, residual, joined
        projected = memory is not None and memory != size
        self.lstm = nn.LSTM(
            into,
            memory if memory is not None else size,
            batch_first=True,
            bidirectional=both,
            proj_size=size if projected else 0,
        )

    def forward(self, value: Any) -> Any:
        """The sequence of hidden states, with what travels along."""
        first, *rest = (value,) if isinstance(value, torch.Tensor) else value
        given = torch.cat((first, rest[0]), -1) if self.joined else first
        out = self.lstm(given)[0]
        out = out + first if self.residual else out
        return (out, *rest) if rest else out


class AttentionStart(nn.Module):
    """GNMT's first decoder layer: (encoded, target words) -> (states, what they attend to).

    The scores are dot products of projected states and encodings (Luong et al., 2015); GNMT's own are additive.
    """

    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        self.label = "decoder 1 with attention"
        self.embedding = nn.Embedding(words, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.query = nn.Linear(size, size, bias=False)
        self.key = nn.Linear(size, size, bias=False)

    def forward(self, value: Pair) -> Pair:
        """The decoder's states and the context of each."""
        encoded, target = value
        states = self.lstm(self.embedding(target))[0]
        context = nn.functional.scaled_dot_product_attention(self.query(states), self.key(encoded), encoded)
        return states, context


class Words(nn.Module):
    """The linear layer over the vocabulary, on the first tensor."""

    def __init__(self, into: int, words: int) -> None:
        super().__init__()
        self.label = f"linear {into}-{words}"
        self.linear = nn.Linear(into, words)

    def forward(self, value: Any) -> torch.Tensor:
        """Scores of all words at every place."""
        scores: torch.Tensor = self.linear(value if isinstance(value, torch.Tensor) else value[0])
        return scores


def gnmt(layers: int = 8, size: int = 1024, words: int = 32320) -> nn.Sequential:
    """GNMT with `layers` LSTMs, half of them in the encoder, the first of which goes both ways (Wu et al., 2016).

    Takes (source words, target words), each (N, T).
    """
    half = layers // 2
    stack: list[nn.Module] = [
        Embed(f"embedding {words}", words, size),
        Recurrent("encoder 1, both ways", size, size, both=True),
        Recurrent("encoder 2", 2 * size, size),
    ]
    stack += [Recurrent(f"encoder {i}", size, size, residual=True) for i in range(3, half + 1)]
    stack.append(AttentionStart(words, size))
    stack += [Recurrent(f"decoder {i}", 2 * size, size, residual=i > 2, joined=True) for i in range(2, half + 1)]
    return nn.Sequential(*stack, Words(size, words))


def awd_lm(layers: int = 6, size: int = 1270, words: int = 10000) -> nn.Sequential:
    """A language model of LSTMs, as PipeDream trains: six layers and 0.41 GB (section 5.2).

    The paper gives no width; this one's has that weight. Its embeddings are not tied: they lie on different workers.
    """
    stack: list[nn.Module] = [Embed(f"embedding {words}", words, size)]
    stack += [Recurrent(f"lstm {i}", size, size) for i in range(1, layers + 1)]
    return nn.Sequential(*stack, Words(size, words))


class Captioned(nn.Module):
    """S2VT's second LSTM reads the frames' states beside the caption's words."""

    def __init__(self, words: int, embedding: int, size: int) -> None:
        super().__init__()
        self.label = "lstm 2, words"
        self.embedding = nn.Embedding(words, embedding)
        self.lstm = nn.LSTM(embedding + size, size, batch_first=True)

    def forward(self, value: Pair) -> torch.Tensor:
        """Hidden states (N, T, size)."""
        states, target = value
        hidden: torch.Tensor = self.lstm(torch.cat((self.embedding(target), states), -1))[0]
        return hidden


class Frames(nn.Module):
    """The linear map of frame features, beside which the caption travels."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.label = f"linear {features}-{size}"
        self.linear = nn.Linear(features, size)

    def forward(self, value: Pair) -> Pair:
        """(mapped frames, caption)."""
        return self.linear(value[0]), value[1]


def s2vt(features: int = 4096, embedding: int = 500, size: int = 1000, words: int = 46167) -> nn.Sequential:
    """S2VT (Venugopalan et al., 2015) on extracted frame features. Takes (features (N, T, 4096), words (N, T))."""
    return nn.Sequential(
        Frames(features, embedding),
        Recurrent("lstm 1, frames", embedding, size),
        Captioned(words, embedding, size),
        Words(size, words),
    )
