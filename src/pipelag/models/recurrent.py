"""PipeDream's recurrent networks, a layer per LSTM: AWD-LM and S2VT (section 5.1), and the parts of GNMT (`gnmt`).

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


def states(lstm: nn.LSTM, value: Any) -> Any:
    """What an LSTM makes of a sequence, packed or (N, T, into): its hidden states.

    Not by cuDNN, which works on a copy of the weights: its backward would read those of the forward, whatever the
    pipeline has put into the parameters by then. torch's own LSTM reads the parameters in both.
    """
    if lstm.weight_ih_l0.is_cuda:
        with torch.backends.cudnn.flags(enabled=False):
            return lstm(value)[0]
    return lstm(value)[0]


class Embed(nn.Module):
    """Looks up the words of the first input."""

    def __init__(self, label: str, words: int, size: int) -> None:
        super().__init__()
        self.label = label
        self.embedding = nn.Embedding(words, size)

    def forward(self, value: Any) -> Any:
        """Replaces that input by its vectors."""
        return self.embedding(value) if isinstance(value, torch.Tensor) else (self.embedding(value[0]), *value[1:])


class Recurrent(nn.Module):
    """An LSTM over the first tensor of a tuple; `residual` adds its input; `joined` feeds the second tensor too.

    memory: so many cells, projected onto `size` outputs; none: `size` of them. dropout: of what the LSTM reads.
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
        dropout: float = 0.0,
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
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, value: Any) -> Any:
        """The sequence of hidden states, with what travels along."""
        first, *rest = (value,) if isinstance(value, torch.Tensor) else value
        given = torch.cat((first, rest[0]), -1) if self.joined else first
        out = states(self.lstm, self.dropout(given))
        out = out + first if self.residual else out
        return (out, *rest) if rest else out


class Words(nn.Module):
    """The linear layer over the vocabulary, on the first tensor."""

    by_place = True  # the tensor's places are independent (`pipelag.runs.text_metrics.search`)

    def __init__(self, into: int, words: int) -> None:
        super().__init__()
        self.label = f"linear {into}-{words}"
        self.linear = nn.Linear(into, words)

    def forward(self, value: Any) -> torch.Tensor:
        """Scores of all words at every place."""
        scores: torch.Tensor = self.linear(value if isinstance(value, torch.Tensor) else value[0])
        return scores


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
        frames, target = value
        hidden: torch.Tensor = states(self.lstm, torch.cat((self.embedding(target), frames), -1))
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
