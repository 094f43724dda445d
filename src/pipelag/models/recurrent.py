"""PipeDream's recurrent networks, one layer per LSTM: AWD-LM and S2VT (section 5.1), and the parts of GNMT (`gnmt`).

The first layer takes the model's inputs (tokens, features) as a tuple. What later layers need goes along in the tuple,
as it does between workers.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

Pair = tuple[torch.Tensor, torch.Tensor]

# This warning comes once per process and needs no action: torch uses its other implementation.
warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")


def states(lstm: nn.LSTM, value: Any) -> Any:
    """An LSTM's hidden states for a sequence, packed or (N, T, into).

    cuDNN is not used, because it works on a copy of the weights: its backward would read the forward's weights,
    whatever the pipeline has since loaded into the parameters. torch's own LSTM reads the parameters in both passes.
    """
    if lstm.weight_ih_l0.is_cuda:
        with torch.backends.cudnn.flags(enabled=False):
            return lstm(value)[0]
    return lstm(value)[0]


class Embed(nn.Module):
    """The embedding of the words in the first input."""

    def __init__(self, label: str, words: int, size: int) -> None:
        super().__init__()
        self.label = label
        self.embedding = nn.Embedding(words, size)

    def forward(self, value: Any) -> Any:
        """Replace the first input by its vectors."""
        return self.embedding(value) if isinstance(value, torch.Tensor) else (self.embedding(value[0]), *value[1:])


class Recurrent(nn.Module):
    """An LSTM over the first tensor of a tuple.

    residual: add the first tensor to the output.
    joined: the LSTM also reads the second tensor.
    both: the LSTM is bidirectional.
    memory: the number of cells, projected to `size` outputs; None: `size` cells.
    dropout: the rate for the LSTM's input.
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
        """The sequence of hidden states, and the tensors that go along."""
        first, *rest = (value,) if isinstance(value, torch.Tensor) else value
        given = torch.cat((first, rest[0]), -1) if self.joined else first
        out = states(self.lstm, self.dropout(given))
        out = out + first if self.residual else out
        return (out, *rest) if rest else out


class Words(nn.Module):
    """The output projection, on the first tensor."""

    by_place = True  # it works on each position separately (`pipelag.runs.text_metrics.search`)

    def __init__(self, into: int, words: int) -> None:
        super().__init__()
        self.label = f"linear {into}-{words}"
        self.linear = nn.Linear(into, words)

    def forward(self, value: Any) -> torch.Tensor:
        """The scores of all words at every position."""
        scores: torch.Tensor = self.linear(value if isinstance(value, torch.Tensor) else value[0])
        return scores


def awd_lm(layers: int = 6, size: int = 1270, words: int = 10000) -> nn.Sequential:
    """A language model of LSTMs, as PipeDream trains one: six layers and 0.41 GB (section 5.2).

    The paper gives no width; the default here makes that size. The embedding and the output projection are not tied,
    because they are on different workers.
    """
    stack: list[nn.Module] = [Embed(f"embedding {words}", words, size)]
    stack += [Recurrent(f"lstm {i}", size, size) for i in range(1, layers + 1)]
    return nn.Sequential(*stack, Words(size, words))


class Captioned(nn.Module):
    """S2VT's second LSTM, which reads the frames' states and the caption's words."""

    def __init__(self, words: int, embedding: int, size: int) -> None:
        super().__init__()
        self.label = "lstm 2, words"
        self.embedding = nn.Embedding(words, embedding)
        self.lstm = nn.LSTM(embedding + size, size, batch_first=True)

    def forward(self, value: Pair) -> torch.Tensor:
        """The hidden states (N, T, size)."""
        frames, target = value
        hidden: torch.Tensor = states(self.lstm, torch.cat((self.embedding(target), frames), -1))
        return hidden


class Frames(nn.Module):
    """The linear map of frame features; the caption goes along."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.label = f"linear {features}-{size}"
        self.linear = nn.Linear(features, size)

    def forward(self, value: Pair) -> Pair:
        """(mapped frames, caption)."""
        return self.linear(value[0]), value[1]


def s2vt(features: int = 4096, embedding: int = 500, size: int = 1000, words: int = 46167) -> nn.Sequential:
    """S2VT (Venugopalan et al., 2015) on extracted frame features; takes (features (N, T, 4096), words (N, T))."""
    return nn.Sequential(
        Frames(features, embedding),
        Recurrent("lstm 1, frames", embedding, size),
        Captioned(words, embedding, size),
        Words(size, words),
    )
