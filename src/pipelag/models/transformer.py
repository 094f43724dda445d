"""The encoder-decoder Transformer (Vaswani et al., 2017), with one layer per weight as in PipeMare.

With the projections of query, key and value fused, six encoder and six decoder blocks have 36 + 54 weighted operators.
With two embeddings and the output projection these make 93 layers (PipeMare section 4.1). Layers are normalised after
the residual sum, as in fairseq's `transformer_iwslt_de_en`. A tuple crosses each boundary: the tensor at work, what the
residual sum needs, the encoder's output, the padding mask, and the target words that the decoder has yet to embed.
`split` cuts every weight into equal parts of its outputs, each a layer: 186 for split = 2 (PipeMare Figure 8).
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from pipelag.data.text.parallel import PAD
from pipelag.errors import PipelagError
from pipelag.models.attention import dot_product_attention
from pipelag.models.operators import Operator, Tensors, outputs_of, parts_of, share

FIRST = 2  # the first position: fairseq counts positions from the number after its padding word


def positions(length: int, size: int, device: torch.device) -> torch.Tensor:
    """The sinusoids of positions, (length, size), as in fairseq: all sines, then all cosines, positions from 2 on."""
    half = size // 2
    rate = torch.exp(torch.arange(half, device=device) * (-math.log(10_000.0) / (half - 1)))
    angles = torch.arange(FIRST, FIRST + length, device=device).unsqueeze(1) * rate
    return torch.cat((torch.sin(angles), torch.cos(angles)), 1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, hidden: torch.Tensor | None) -> torch.Tensor:
    """Multi-head attention of (N, T, size) over (N, S, size).

    hidden: (N, S), the padding, to which nothing attends; None: no position attends to later ones.
    """
    n, t, size = q.shape
    q, k, v = (x.view(n, x.shape[1], heads, size // heads).transpose(1, 2) for x in (q, k, v))
    if hidden is None:
        out = dot_product_attention(q, k, v, is_causal=True)
    else:
        out = dot_product_attention(q, k, v, attn_mask=~hidden[:, None, None, :])
    return out.transpose(1, 2).reshape(n, t, size)


class Embedding(Operator):
    """The embedding of words and their positions.

    In the encoder it embeds the source and passes the target on: (source, target) -> (x, padding, target). In the
    decoder it embeds the target: (x, padding, target) -> (y, x, padding).
    """

    def __init__(
        self, label: str, words: int, size: int, decoder: bool, dropout: float, padding: int | None = PAD
    ) -> None:
        super().__init__(label, nn.Embedding(words, size, padding_idx=padding))
        nn.init.normal_(self.module.weight, std=size**-0.5)  # type: ignore[arg-type]
        self.size, self.decoder, self.dropout = size, decoder, nn.Dropout(dropout)
        self.reads_target = decoder  # `pipelag.runs.text_metrics.search` encodes a sentence once, up to this layer

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The words of this side."""
        if self.decoder:
            x, hidden, target = value
            return target, (x, hidden)
        return value[0], value

    def vectors(self, words: torch.Tensor) -> torch.Tensor:
        """The vectors of words and their positions: (N, T) -> (N, T, size)."""
        return self.placed(self.module(words))

    def placed(self, x: torch.Tensor) -> torch.Tensor:
        """The vectors of words scaled, with those of their positions added."""
        vectors: torch.Tensor = self.dropout(x * math.sqrt(self.size) + positions(x.shape[1], self.size, x.device))
        return vectors

    def finish(self, product: Tensors, rest: Tensors) -> Tensors:
        """See the class."""
        if self.decoder:
            return self.placed(*product), *rest
        source, target = rest
        return self.placed(*product), source == PAD, target


class QKV(Operator):
    """The fused projection to queries, keys and values: (x, ...) -> (q k v, x, ...)."""

    def __init__(self, label: str, size: int) -> None:
        super().__init__(label, nn.Linear(size, 3 * size))
        nn.init.xavier_uniform_(self.module.weight, gain=2**-0.5)  # type: ignore[arg-type]


class CrossQKV(QKV):
    """Queries from the decoder, keys and values from the encoder, one fused weight: (y, x, ...) -> (q, k v, y, x, ...).

    A part has its share of the queries, of the keys and of the values.
    """

    width = 2

    def product(self, given: torch.Tensor, rest: Tensors) -> Tensors:
        """See the class; `rest` is (y, x, ...)."""
        linear = self.module
        weight, bias = linear.weight, linear.bias
        size = len(bias) // 3  # type: ignore[arg-type]
        q = F.linear(given, weight[:size], bias[:size])  # type: ignore[index, arg-type]
        return q, F.linear(rest[1], weight[size:], bias[size:])  # type: ignore[index, arg-type]

    def join(self, products: Tensors) -> Tensors:
        """Join the parts' queries, their keys, and their values."""
        if len(products) == self.width:
            return products
        keys, values = zip(*(kv.chunk(2, -1) for kv in products[1::2]), strict=True)
        return torch.cat(products[::2], -1), torch.cat((*keys, *values), -1)

    def rows(self, number: int, of: int) -> list[int]:
        """See the class."""
        size = outputs_of(self.module) // 3
        return [row for start in (0, size, 2 * size) for row in share(range(start, start + size), number, of)]


class Attention(Operator):
    """Attention and its output projection: (q k v, x, ...) -> (attended, x, ...)."""

    def __init__(self, label: str, size: int, heads: int, kind: str) -> None:
        super().__init__(label, nn.Linear(size, size))
        nn.init.xavier_uniform_(self.module.weight)  # type: ignore[arg-type]
        self.heads, self.kind = heads, kind

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The result of attention over all heads."""
        if self.kind == "cross":
            q, kv, *rest = value
            k, v = kv.chunk(2, -1)
        else:
            qkv, *rest = value
            q, k, v = qkv.chunk(3, -1)
        # The encoder's state is (x, padding, target), the decoder's (y, x, padding).
        hidden = {"encoder": rest[1], "cross": rest[-1], "causal": None}[self.kind]
        return attend(q, k, v, self.heads, hidden), tuple(rest)


class Norm(Operator):
    """The residual sum and its normalisation: (a, x, ...) -> (norm(x + a), ...)."""

    def __init__(self, label: str, size: int, dropout: float) -> None:
        super().__init__(label, nn.LayerNorm(size))
        self.dropout = nn.Dropout(dropout)

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The residual sum."""
        added, x, *rest = value
        return x + self.dropout(added), tuple(rest)


class Widen(Operator):
    """The first linear layer: (x, ...) -> (relu(linear x), x, ...)."""

    def __init__(self, label: str, size: int, hidden: int) -> None:
        super().__init__(label, nn.Linear(size, hidden))
        nn.init.xavier_uniform_(self.module.weight)  # type: ignore[arg-type]

    def finish(self, product: Tensors, rest: Tensors) -> Tensors:
        """See the class."""
        return F.relu(product[0]), *rest


class Narrow(Operator):
    """The second linear layer: (h, x, ...) -> (linear h, x, ...)."""

    def __init__(self, label: str, size: int, hidden: int) -> None:
        super().__init__(label, nn.Linear(hidden, size))
        nn.init.xavier_uniform_(self.module.weight)  # type: ignore[arg-type]

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The widened tensor, and the rest."""
        return value[0], value[1:]


class Scores(Operator):
    """The output projection: (y, ...) -> scores of all words (N, T, words)."""

    def __init__(self, label: str, size: int, words: int) -> None:
        super().__init__(label, nn.Linear(size, words, bias=False))
        nn.init.normal_(self.module.weight, std=size**-0.5)  # type: ignore[arg-type]

    @property
    def by_place(self) -> bool:
        """Whether the layer works on each position of its first tensor separately; its parts do not count as such.

        See `pipelag.runs.text_metrics.search`.
        """
        return self.of == 1

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The decoder's output only."""
        return value[0], ()

    def finish(self, product: Tensors, rest: Tensors) -> torch.Tensor:
        """See the class."""
        return product[0]


def check_size(size: int, heads: int) -> None:
    """Refuse a size that the heads do not divide, or for which `positions` has no sines and cosines: odd, or 2."""
    if size % heads or size % 2 or size < 4:
        raise PipelagError(f"the size must be even, 4 or more, and divisible by the {heads} heads, not {size}")


def transformer(
    source_words: int = 8848,
    target_words: int = 6632,
    size: int = 512,
    hidden: int = 1024,
    heads: int = 4,
    blocks: int = 6,
    dropout: float = 0.3,
    split: int = 1,
) -> nn.Sequential:
    """A Transformer with `blocks` encoder and `blocks` decoder blocks; takes (source, target), each int64 (N, T).

    The defaults are those of fairseq's `transformer_iwslt_de_en` with the vocabularies of its IWSLT14 recipe. The two
    embeddings and the output projection share no weights, because a weight can belong to one stage only.

    Args:
        split: the number of parts of every weight, each a layer; the network stays the same.

    Raises:
        PipelagError: the size is odd, or the heads do not divide it; a weight has fewer outputs than parts.
    """
    check_size(size, heads)
    if not 1 <= split <= min(size, hidden, target_words):
        raise PipelagError(f"a weight of {min(size, hidden, target_words)} outputs cannot be split into {split} parts")
    layers: list[Operator] = [Embedding("source embedding", source_words, size, False, dropout)]
    for block in range(1, blocks + 1):
        layers += encoder_block(f"encoder {block}", size, hidden, heads, dropout)
    layers.append(Embedding("target embedding", target_words, size, True, dropout))
    for block in range(1, blocks + 1):
        layers += decoder_block(f"decoder {block}", size, hidden, heads, dropout)
    layers.append(Scores("output", size, target_words))
    return nn.Sequential(*(part for layer in layers for part in parts_of(layer, split)))


def attention(name: str, kind: str, size: int, heads: int, dropout: float) -> list[Operator]:
    """Three layers: the fused projection, attention with its output projection, the normalised residual sum."""
    project = CrossQKV if kind == "cross" else QKV
    return [
        project(f"{name} {kind} q k v", size),
        Attention(f"{name} {kind} out", size, heads, kind),
        Norm(f"{name} {kind} norm", size, dropout),
    ]


def feed(name: str, size: int, hidden: int, dropout: float) -> list[Operator]:
    """Three layers: two linear layers and the normalised residual sum."""
    return [
        Widen(f"{name} linear 1", size, hidden),
        Narrow(f"{name} linear 2", size, hidden),
        Norm(f"{name} norm", size, dropout),
    ]


def encoder_block(name: str, size: int, hidden: int, heads: int, dropout: float) -> list[Operator]:
    """The six layers of an encoder block, on (x, padding, ...)."""
    return attention(name, "encoder", size, heads, dropout) + feed(name, size, hidden, dropout)


def decoder_block(name: str, size: int, hidden: int, heads: int, dropout: float) -> list[Operator]:
    """The nine layers of a decoder block, on (y, x, padding)."""
    causal, cross = (attention(name, kind, size, heads, dropout) for kind in ("causal", "cross"))
    return causal + cross + feed(name, size, hidden, dropout)
