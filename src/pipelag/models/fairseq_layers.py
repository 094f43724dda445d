"""fairseq's Transformer as a row of layers that a pipeline can train, with fairseq's own modules and arithmetic.

fairseq's `TransformerModel.build_model` makes the network, and `row` takes it apart into the layers of
`pipelag.models.transformer`: one layer per weight, with the three projections of an attention as one weight. What
fairseq's forward does between two modules belongs to the same layer as in `pipelag.models.transformer`. Tensors between
layers are (T, N, size), as in fairseq. Word numbers and scores are in our order, in which the first two words of
fairseq's are exchanged.

Every encoder block of fairseq 0.12.2 has a second set of parameters (`in_proj_weight`, `fc1_weight` and others), copies
for a fast path in evaluation. Training does not touch them, and the row leaves them out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pipelag.compat.fairseq import imported
from pipelag.models.attention import dot_product_attention
from pipelag.models.fairseq_model import blocks_of, numbered, operators_of, reordered
from pipelag.models.operators import Operator, Tensors, parts_of, piece, share

imported()  # so that a process that unpickles layers finds fairseq's modules


class Embedding(Operator):
    """fairseq's embedding of one side's words and their positions.

    In the encoder: (source, target) -> (x, padding, target). In the decoder: (x, padding, target) -> (y, x, padding,
    padding of the target).
    """

    def __init__(self, label: str, side: Any, decoder: bool) -> None:
        super().__init__(label, side.embed_tokens)
        self.positions, self.dropout = side.embed_positions, side.dropout_module
        self.positions._float_tensor.zero_()  # a buffer that fairseq leaves uninitialised, and checkpoints keep
        self.scale: float = side.embed_scale
        self.padding: int = side.padding_idx
        self.decoder = decoder

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """This side's words in fairseq's numbers."""
        words = numbered(value[2] if self.decoder else value[0])
        return words, (words, *value)

    def finish(self, product: Tensors, rest: Tensors) -> Tensors:
        """See the class. As in fairseq, the source's vectors are zero where it is padding."""
        words, *value = rest
        hidden = words.eq(self.padding)
        x = self.scale * product[0]
        if not words.is_meta:  # fairseq's positions would move to the meta device and not come back
            x = x + self.positions(words)
        x = self.dropout(x)
        if self.decoder:
            return x.transpose(0, 1), value[0], value[1], hidden
        x = x * (1 - hidden.unsqueeze(-1).type_as(x))
        return x.transpose(0, 1), hidden, value[1]


class Projections(nn.Module):
    """fairseq's projections to queries, keys and values as one weight, as PipeMare counts them (section 4.1)."""

    def __init__(self, q_proj: nn.Linear, k_proj: nn.Linear, v_proj: nn.Linear) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = q_proj, k_proj, v_proj


class Project(Operator):
    """The projections of an attention: (y, ...) -> (q, k, v, y, ...).

    A part has its share of the queries, of the keys and of the values.

    kind: "encoder" and "causal" project y; "cross", in the decoder, projects the encoder's output to keys and values.
    """

    width = 3

    def __init__(self, label: str, projections: Projections, kind: str) -> None:
        super().__init__(label, projections)
        self.kind = kind

    def product(self, given: torch.Tensor, rest: Tensors) -> Tensors:
        """See the class; `rest` is (y, x, ...) in the decoder."""
        seen = rest[1] if self.kind == "cross" else given
        projections: Any = self.module
        return projections.q_proj(given), projections.k_proj(seen), projections.v_proj(seen)

    def join(self, products: Tensors) -> Tensors:
        """Join the parts' queries, their keys, and their values."""
        if len(products) == self.width:
            return products
        return tuple(torch.cat(products[which :: self.width], -1) for which in range(self.width))

    def part(self, number: int, of: int) -> nn.Module:
        """See the class."""
        return Projections(*(piece(each, share(range(each.out_features), number, of)) for each in self._linear()))  # type: ignore[arg-type]

    def rows(self, number: int, of: int) -> list[int]:
        """See the class."""
        size = self._linear()[0].out_features
        return [row for start in (0, size, 2 * size) for row in share(range(start, start + size), number, of)]

    def weights(self) -> dict[str, torch.Tensor]:
        """The weight and the bias: rows of the queries first, then of the keys, then of the values."""
        return {
            name: torch.cat([getattr(each, name).detach() for each in self._linear()]) for name in ("weight", "bias")
        }

    def _linear(self) -> list[nn.Linear]:
        projections: Any = self.module
        return [projections.q_proj, projections.k_proj, projections.v_proj]


class Attention(Operator):
    """Attention and its output projection: (q, k, v, y, ...) -> (attended, y, ...)."""

    def __init__(self, label: str, attention: Any, kind: str) -> None:
        super().__init__(label, attention.out_proj)
        self.heads, self.dropout, self.kind = attention.num_heads, attention.dropout_module, kind

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The result of attention over all heads."""
        q, k, v, *rest = value
        # The encoder's state is (x, padding, target), the decoder's (y, x, padding, padding of the target).
        hidden = rest[{"encoder": 1, "cross": 2, "causal": 3}[self.kind]]
        if self.kind == "cross":
            return attend_cross(q, k, v, self.heads, hidden, self.dropout), tuple(rest)
        rate = self.dropout.p if self.training else 0.0
        return attend_self(q, k, v, self.heads, hidden, self.kind == "causal", rate), tuple(rest)


def attend_self(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, hidden: torch.Tensor, causal: bool, dropout: float
) -> torch.Tensor:
    """Self-attention of (T, N, size) without projections, as in torch's `multi_head_attention_forward` (fairseq's).

    hidden: (N, T), the padding. causal: whether later positions are hidden too.
    """
    t, n, size = q.shape
    q, k, v = (x.reshape(t, n * heads, -1).transpose(0, 1).view(n, heads, t, -1) for x in (q, k, v))
    seen = ~hidden[:, None, None, :]
    if causal:
        seen = seen & torch.ones(t, t, dtype=torch.bool, device=hidden.device).tril()
    out = dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
    return out.permute(2, 0, 1, 3).reshape(t, n, size)


def attend_cross(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, hidden: torch.Tensor, dropout: nn.Module
) -> torch.Tensor:
    """The decoder's attention to the encoder, which fairseq computes itself, with the softmax in float32.

    q: (T, N, size); k, v: (S, N, size); hidden: (N, S), the padding.
    """
    from fairseq import utils

    (t, n, size), s = q.shape, len(k)
    q, k, v = (x.reshape(len(x), n * heads, -1).transpose(0, 1) for x in (q * (size // heads) ** -0.5, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).view(n, heads, t, s)
    weights = weights.masked_fill(hidden[:, None, None, :], float("-inf")).view(n * heads, t, s)
    probabilities: torch.Tensor = dropout(utils.softmax(weights, dim=-1).type_as(weights))
    return torch.bmm(probabilities, v).transpose(0, 1).reshape(t, n, size)


class Norm(Operator):
    """The residual sum and its normalisation: (a, y, ...) -> (norm(y + a), ...)."""

    def __init__(self, label: str, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__(label, norm)
        self.dropout = dropout

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The residual sum."""
        added, x, *rest = value
        return x + self.dropout(added), tuple(rest)


class Widen(Operator):
    """The first linear layer: (y, ...) -> (relu(linear y), y, ...)."""

    def __init__(self, label: str, block: Any) -> None:
        super().__init__(label, block.fc1)
        self.activation, self.dropout = block.activation_fn, block.activation_dropout_module

    def finish(self, product: Tensors, rest: Tensors) -> Tensors:
        """See the class."""
        return self.dropout(self.activation(product[0])), *rest


class Narrow(Operator):
    """The second linear layer: (h, y, ...) -> (linear h, y, ...)."""

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The widened tensor, and the rest."""
        return value[0], value[1:]


class Scores(Operator):
    """The output projection: (y, ...) -> scores of all words (N, T, words), in our order."""

    def prepare(self, value: Tensors) -> tuple[torch.Tensor, Tensors]:
        """The decoder's output only."""
        return value[0].transpose(0, 1), ()

    def finish(self, product: Tensors, rest: Tensors) -> torch.Tensor:
        """See the class."""
        return reordered(product[0], -1)


def row(model: Any, split: int = 1) -> nn.Sequential:
    """fairseq's model as a row of layers that hold its modules; takes (source, target), int64 (N, T), in our numbers.

    Args:
        model: from `pipelag.models.fairseq_model.transformer`, normalised after the residual sum.
        split: the number of parts of every weight, each a layer with its own parameters; the function stays the same.
    """
    layers: list[Operator] = [Embedding("source embedding", model.encoder, False)]
    for number, block in enumerate(model.encoder.layers, start=1):
        layers += _attention(f"encoder {number}", "encoder", block, block.self_attn, block.self_attn_layer_norm)
        layers += _feed(f"encoder {number}", block)
    layers.append(Embedding("target embedding", model.decoder, True))
    for number, block in enumerate(model.decoder.layers, start=1):
        layers += _attention(f"decoder {number}", "causal", block, block.self_attn, block.self_attn_layer_norm)
        layers += _attention(f"decoder {number}", "cross", block, block.encoder_attn, block.encoder_attn_layer_norm)
        layers += _feed(f"decoder {number}", block)
    layers.append(Scores("output", model.decoder.output_projection))
    assert len(layers) == len(operators_of(*blocks_of(model)))
    return nn.Sequential(*(part for layer in layers for part in parts_of(layer, split)))


def _attention(name: str, kind: str, block: Any, attention: Any, norm: nn.Module) -> list[Operator]:
    projections = Projections(attention.q_proj, attention.k_proj, attention.v_proj)
    return [
        Project(f"{name} {kind} q k v", projections, kind),
        Attention(f"{name} {kind} out", attention, kind),
        Norm(f"{name} {kind} norm", norm, block.dropout_module),
    ]


def _feed(name: str, block: Any) -> list[Operator]:
    return [
        Widen(f"{name} linear 1", block),
        Narrow(f"{name} linear 2", block.fc2),
        Norm(f"{name} norm", block.final_layer_norm, block.dropout_module),
    ]
