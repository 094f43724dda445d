"""The encoder-decoder Transformer (Vaswani et al., 2017), cut as finely as PipeMare does: a layer per weight.

Six encoder and six decoder blocks have 36 + 54 weighted operators with the projections of query, key and value fused,
and with two embeddings and the output projection 93 layers (PipeMare section 4.1). Layers are normalised after the
residual sum, as in fairseq's `transformer_iwslt_de_en`. What crosses a boundary is a tuple: the tensor at work, what
the residual sum needs, the encoder's output, the mask of padding, the target words that the decoder has yet to embed.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from pipelag.data.text import PAD
from pipelag.errors import PipelagError

Tensors = tuple[torch.Tensor, ...]


FIRST = 2  # fairseq counts places from the number of its padding word on


def positions(length: int, size: int, device: torch.device) -> torch.Tensor:
    """Sinusoids (length, size) as fairseq has them: all sines, then all cosines, places counted from 2."""
    half = size // 2
    rate = torch.exp(torch.arange(half, device=device) * (-math.log(10_000.0) / (half - 1)))
    angles = torch.arange(FIRST, FIRST + length, device=device).unsqueeze(1) * rate
    return torch.cat((torch.sin(angles), torch.cos(angles)), 1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, hidden: torch.Tensor | None) -> torch.Tensor:
    """Multi-head attention of (N, T, size) over (N, S, size); `hidden` (N, S) hides padding, none: what comes later."""
    n, t, size = q.shape
    q, k, v = (x.view(n, x.shape[1], heads, size // heads).transpose(1, 2) for x in (q, k, v))
    if hidden is None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden[:, None, None, :])
    return out.transpose(1, 2).reshape(n, t, size)


class Operator(nn.Module):
    """A layer with one weighted module and a label."""

    def __init__(self, label: str, module: nn.Module) -> None:
        super().__init__()
        self.label, self.module = label, module


class Embedding(Operator):
    """Words to vectors with their places: (source, target) -> (x, padding, target); in the decoder (y, x, padding).

    The first works on the source and hands the target on; the second, in the decoder, embeds the target.
    """

    def __init__(
        self, label: str, words: int, size: int, decoder: bool, dropout: float, padding: int | None = PAD
    ) -> None:
        super().__init__(label, nn.Embedding(words, size, padding_idx=padding))
        nn.init.normal_(self.module.weight, std=size**-0.5)  # type: ignore[arg-type]
        self.size, self.decoder, self.dropout = size, decoder, nn.Dropout(dropout)

    def vectors(self, words: torch.Tensor) -> torch.Tensor:
        """(N, T) -> (N, T, size)."""
        x = self.module(words) * math.sqrt(self.size)
        return self.dropout(x + positions(words.shape[1], self.size, words.device))

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        if self.decoder:
            x, hidden, target = value
            return self.vectors(target), x, hidden
        source, target = value
        return self.vectors(source), source == PAD, target


class QKV(Operator):
    """The fused projection: (x, ...) -> (q k v, x, ...)."""

    def __init__(self, label: str, size: int) -> None:
        super().__init__(label, nn.Linear(size, 3 * size))
        nn.init.xavier_uniform_(self.module.weight, gain=2**-0.5)  # type: ignore[arg-type]

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        return self.module(value[0]), *value


class CrossQKV(QKV):
    """Queries of the decoder, keys and values of the encoder, one fused weight: (y, x, ...) -> (q, k v, y, x, ...)."""

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        size, linear = value[0].shape[-1], self.module
        weight, bias = linear.weight, linear.bias
        q = F.linear(value[0], weight[:size], bias[:size])  # type: ignore[index, arg-type]
        kv = F.linear(value[1], weight[size:], bias[size:])  # type: ignore[index, arg-type]
        return q, kv, *value


class Attention(Operator):
    """Attention and its output projection: (q k v, x, ...) -> (attended, x, ...)."""

    def __init__(self, label: str, size: int, heads: int, kind: str) -> None:
        super().__init__(label, nn.Linear(size, size))
        nn.init.xavier_uniform_(self.module.weight)  # type: ignore[arg-type]
        self.heads, self.kind = heads, kind

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        if self.kind == "cross":
            q, kv, *rest = value
            k, v = kv.chunk(2, -1)
        else:
            qkv, *rest = value
            q, k, v = qkv.chunk(3, -1)
        # the encoder's state is (x, padding, target), the decoder's (y, x, padding)
        hidden = {"encoder": rest[1], "cross": rest[-1], "causal": None}[self.kind]
        return self.module(attend(q, k, v, self.heads, hidden)), *rest


class Norm(Operator):
    """The residual sum and its normalisation: (a, x, ...) -> (norm(x + a), ...)."""

    def __init__(self, label: str, size: int, dropout: float) -> None:
        super().__init__(label, nn.LayerNorm(size))
        self.dropout = nn.Dropout(dropout)

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        added, x, *rest = value
        return self.module(x + self.dropout(added)), *rest


class Widen(Operator):
    """The first linear layer: (x, ...) -> (relu(linear x), x, ...)."""

    def __init__(self, label: str, size: int, hidden: int) -> None:
        super().__init__(label, nn.Linear(size, hidden))
        nn.init.xavier_uniform_(self.module.weight)  # type: ignore[arg-type]

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        return F.relu(self.module(value[0])), *value


class Narrow(Operator):
    """The second linear layer: (h, x, ...) -> (linear h, x, ...)."""

    def __init__(self, label: str, size: int, hidden: int) -> None:
        super().__init__(label, nn.Linear(hidden, size))
        nn.init.xavier_uniform_(self.module.weight)  # type: ignore[arg-type]

    def forward(self, value: Tensors) -> Tensors:
        """See the class."""
        return self.module(value[0]), *value[1:]


class Scores(Operator):
    """The output projection: (y, ...) -> scores of all words (N, T, words)."""

    def __init__(self, label: str, size: int, words: int) -> None:
        super().__init__(label, nn.Linear(size, words, bias=False))
        nn.init.normal_(self.module.weight, std=size**-0.5)  # type: ignore[arg-type]

    def forward(self, value: Tensors) -> torch.Tensor:
        """See the class."""
        scores: torch.Tensor = self.module(value[0])
        return scores


def check_size(size: int, heads: int) -> None:
    """Refuse a size that the heads do not divide, or an odd one, of which positions have no sines and cosines."""
    if size % heads or size % 2:
        raise PipelagError(f"the size must be even and divisible by the {heads} heads, not {size}")


def transformer(
    source_words: int = 8848,
    target_words: int = 6632,
    size: int = 512,
    hidden: int = 1024,
    heads: int = 4,
    blocks: int = 6,
    dropout: float = 0.3,
) -> nn.Sequential:
    """A Transformer with `blocks` encoder and `blocks` decoder blocks; takes (source, target), each int64 (N, T).

    The defaults are fairseq's `transformer_iwslt_de_en` with the vocabularies of its IWSLT14 recipe; three embeddings
    of their own, since a weight can belong to one stage only.

    Raises:
        PipelagError: a size that the heads do not divide, or an odd one.
    """
    check_size(size, heads)
    layers: list[nn.Module] = [Embedding("source embedding", source_words, size, False, dropout)]
    for block in range(1, blocks + 1):
        layers += encoder_block(f"encoder {block}", size, hidden, heads, dropout)
    layers.append(Embedding("target embedding", target_words, size, True, dropout))
    for block in range(1, blocks + 1):
        layers += decoder_block(f"decoder {block}", size, hidden, heads, dropout)
    return nn.Sequential(*layers, Scores("output", size, target_words))


def attention(name: str, kind: str, size: int, heads: int, dropout: float) -> list[nn.Module]:
    """Three layers: the fused projection, attention with its output projection, the residual sum normalised."""
    project = CrossQKV if kind == "cross" else QKV
    return [
        project(f"{name} {kind} q k v", size),
        Attention(f"{name} {kind} out", size, heads, kind),
        Norm(f"{name} {kind} norm", size, dropout),
    ]


def feed(name: str, size: int, hidden: int, dropout: float) -> list[nn.Module]:
    """Three layers: two linear ones, the residual sum normalised."""
    return [
        Widen(f"{name} linear 1", size, hidden),
        Narrow(f"{name} linear 2", size, hidden),
        Norm(f"{name} norm", size, dropout),
    ]


def encoder_block(name: str, size: int, hidden: int, heads: int, dropout: float) -> list[nn.Module]:
    """Six layers on (x, padding, ...)."""
    return attention(name, "encoder", size, heads, dropout) + feed(name, size, hidden, dropout)


def decoder_block(name: str, size: int, hidden: int, heads: int, dropout: float) -> list[nn.Module]:
    """Nine layers on (y, x, padding)."""
    own, cross = (attention(name, kind, size, heads, dropout) for kind in ("causal", "cross"))
    return own + cross + feed(name, size, hidden, dropout)
