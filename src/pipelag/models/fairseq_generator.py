"""Translate with fairseq's own SequenceGenerator and a network that a pipeline trains, fairseq's or ours.

The generator decodes step by step with fairseq's model, so the trained weights are copied into a fairseq model of the
same shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pipelag.errors import PipelagError
from pipelag.models.fairseq_model import generate, transformer, weights_into
from pipelag.models.operators import Operator, whole_weights
from pipelag.models.transformer import Embedding
from pipelag.randomness import preserved_randomness

MODELS = ("transformer", "fairseq_transformer")  # the models whose weights fairseq's model takes


def same_shape(row: nn.Sequential) -> nn.Module:
    """A fairseq Transformer of the same shape as a row of layers, without dropout.

    Raises:
        PipelagError: the row is no Transformer of fairseq's form.
    """
    operators = [each for each in row if isinstance(each, Operator) and each.number == 0]
    sides = [place for place, each in enumerate(operators) if each.label.startswith(("source emb", "target emb"))]
    if len(sides) != 2 or sides[0] != 0:
        raise PipelagError(f"fairseq's generator works only with the models {' and '.join(MODELS)}")
    sizes = [list(each["weight"].shape) for each in whole_weights(row)]
    heads = next(each.heads for each in operators if hasattr(each, "heads"))
    settings: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    blocks = (sides[1] - 1) // 6, (len(operators) - sides[1] - 2) // 9
    for side, layers in zip(("encoder", "decoder"), blocks, strict=True):
        shape = {"embed_dim": sizes[0][0], "ffn_embed_dim": sizes[4][0], "attention_heads": heads, "layers": layers}
        settings |= {f"{side}_{name}": value for name, value in shape.items()}
    with preserved_randomness():
        return transformer(sizes[0][1], sizes[sides[1]][1], **settings).eval()


@dataclass
class Generator:
    """Translates like `pipelag.runs.text_metrics.search`; keeps fairseq's model from call to call."""

    whole: nn.Module | None = field(default=None, repr=False)

    def __call__(
        self, row: nn.Module, source: torch.Tensor, beam: int = 1, longest: int = 200, lenpen: float = 1.0
    ) -> list[list[int]]:
        """Translate source sentences (n, S) with the row's current weights; word numbers are ours."""
        assert isinstance(row, nn.Sequential)
        if self.whole is None:
            self.whole = same_shape(row).to(source.device)
        weights_into(self.whole, row, renumbered=isinstance(row[0], Embedding))
        return generate(self.whole, source, beam, longest, lenpen)
