"""fairseq's own Transformer as a row of layers. Building it imports fairseq 0.12.2; importing this module does not."""

from __future__ import annotations

from typing import Any

from torch import nn

from pipelag.errors import PipelagError, unknown
from pipelag.models.transformer import check_size, transformer

# fairseq's settings that tie weights to one another.
SHARED: dict[str, dict[str, Any]] = {
    "none": {},
    "decoder": {"share_decoder_input_output_embed": True},
    "all": {"share_all_embeddings": True},
}
STARTS = ("fairseq", "pipelag")


def fairseq_transformer(
    source_words: int = 8848,
    target_words: int = 6632,
    size: int = 512,
    hidden: int = 1024,
    heads: int = 4,
    blocks: int = 6,
    decoder_blocks: int | None = None,
    dropout: float = 0.3,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    shared: str = "none",
    split: int = 1,
    start: str = "fairseq",
) -> nn.Sequential:
    """fairseq's `transformer_iwslt_de_en`, with its defaults; takes (source, target), each int64 (N, T).

    Args:
        blocks: of the encoder, and of the decoder unless `decoder_blocks` is given.
        shared: which embeddings are one weight. "none": all three are separate. "decoder": the target's and the
            output's are one (--share-decoder-input-output-embed). "all": all are one (--share-all-embeddings, one
            dictionary). A weight belongs to one stage, so a cut that would separate shared embeddings is refused.
        split: the number of parts of every weight, each a layer; the network stays the same.
        start: the initial weights. "fairseq": fairseq's. "pipelag": those of `pipelag.models.transformer` with the same
            random numbers.

    Raises:
        PipelagError: fairseq is not installed; the size is odd, or the heads do not divide it; a weight has fewer
            outputs than parts, or is shared and to be split; "all" with two vocabularies; "pipelag" for a network that
            `pipelag.models.transformer` cannot be.
    """
    check_size(size, heads)
    deep = decoder_blocks or blocks
    if shared not in SHARED:
        raise unknown("way to share embeddings", shared, SHARED)
    if start not in STARTS:
        raise unknown("start of the weights", start, STARTS)
    if not 1 <= split <= min(size, hidden, target_words):
        raise PipelagError(f"a weight of {min(size, hidden, target_words)} outputs cannot be split into {split} parts")
    if split > 1 and shared != "none":
        raise PipelagError("a shared embedding cannot be split; leave out split, or set shared: none")
    if shared == "all" and source_words != target_words:
        raise PipelagError(
            f"shared: all needs one dictionary for both sides, not {source_words:,} and {target_words:,} words; "
            "set shared: decoder, or none"
        )
    if start == "pipelag" and (shared != "none" or deep != blocks):
        raise PipelagError(
            "start: pipelag needs the same number of blocks on both sides and no shared embeddings, as in pipelag's "
            "transformer"
        )
    ours = transformer(source_words, target_words, size, hidden, heads, blocks) if start == "pipelag" else None
    from pipelag.models import fairseq_layers, fairseq_model

    settings: dict[str, Any] = {}
    for side, count in (("encoder", blocks), ("decoder", deep)):
        shape = {"embed_dim": size, "ffn_embed_dim": hidden, "attention_heads": heads, "layers": count}
        settings |= {f"{side}_{name}": value for name, value in shape.items()}
    settings |= {"dropout": dropout, "attention_dropout": attention_dropout, "activation_dropout": activation_dropout}
    whole = fairseq_model.transformer(source_words, target_words, **settings, **SHARED[shared])
    if ours is not None:
        fairseq_model.weights_into(whole, ours)
    return fairseq_layers.row(whole, split)
