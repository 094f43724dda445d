"""Our Transformer against fairseq's with the same weights. Needs fairseq 0.12.2 (see `pipelag.compat.fairseq`)."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from pipelag import models
from pipelag.compat import fairseq as adapter
from pipelag.data.text import BEGIN, END, PAD
from pipelag.errors import PipelagError

installed = importlib.util.find_spec("fairseq") is not None


@pytest.mark.skipif(not installed, reason="fairseq is not installed")
@pytest.mark.parametrize("size", ["small", "transformer_iwslt_de_en"])
def test_same_weights_give_the_same_scores(size: str) -> None:
    torch.manual_seed(0)
    small = {
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
           {"embed_dim": 32, "ffn_embed_dim": 64, "attention_heads": 4, "layers": 2}.items()},
    } if size == "small" else {}  # fmt: skip
    theirs = adapter.transformer(40, 37, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, **small).eval()
    shape = {"size": 32, "hidden": 64, "heads": 4, "blocks": 2} if small else {}
    ours = models.build("transformer", source_words=40, target_words=37, dropout=0.0, **shape).eval()
    adapter.weights_from(theirs, ours)
    source = torch.tensor([[5, 9, 31, 12, END], [7, 30, END, PAD, PAD]])
    given = torch.tensor([[BEGIN, 8, 36, 4], [BEGIN, 20, 4, 11]])
    with torch.no_grad():
        torch.testing.assert_close(ours((source, given)), adapter.scores(theirs, source, given), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(installed, reason="fairseq is installed")
def test_without_fairseq_it_says_what_to_do() -> None:
    with pytest.raises(PipelagError, match="with pip below 24.1, or use pipelag's own"):
        adapter.imported()
