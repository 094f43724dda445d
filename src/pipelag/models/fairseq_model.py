"""fairseq's whole Transformer and generator with our word numbers, and copies of weights between its model and ours."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pipelag.compat.fairseq import imported
from pipelag.data.text.binarised import dictionary
from pipelag.data.text.parallel import BEGIN, END, PAD, SPECIAL
from pipelag.models.operators import whole_weights

# fairseq's dictionary begins with <s>, <pad>, </s>, <unk>; ours with <pad>, <s>, </s>, <unk>.
THEIRS = {PAD: 1, BEGIN: 0}


def numbered(tokens: torch.Tensor) -> torch.Tensor:
    """Convert our word numbers to fairseq's, or fairseq's to ours: the first two are exchanged."""
    return torch.where(tokens < len(THEIRS), len(THEIRS) - 1 - tokens, tokens)


def reordered(values: torch.Tensor, axis: int) -> torch.Tensor:
    """Reorder values along the axis of words from our order to fairseq's, or back."""
    first, second, rest = values.tensor_split([1, 2], axis)
    return torch.cat((second, first, rest), axis)


def transformer(
    source_words: int, target_words: int, arch: str = "transformer_iwslt_de_en", **settings: Any
) -> nn.Module:
    """fairseq's own model of an architecture, over dictionaries of these sizes.

    It is called with the source and the target words so far.
    """
    fairseq = imported()
    sizes = (source_words, target_words)
    dictionaries = [dictionary([*SPECIAL, *(f"w{word}" for word in range(len(SPECIAL), size))]) for size in sizes]
    args = Namespace(arch=arch, **settings)
    configure: Callable[[Namespace], None] = fairseq.models.ARCH_CONFIG_REGISTRY[arch]
    configure(args)
    task = Namespace(source_dictionary=dictionaries[0], target_dictionary=dictionaries[1])
    model: nn.Module = fairseq.models.transformer.TransformerModel.build_model(args, task)
    return model


def scores(model: nn.Module, source: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """fairseq's scores (N, T, words) for our word numbers."""
    source, given = numbered(source), numbered(given)
    lengths = (source != THEIRS[PAD]).sum(1)
    return reordered(model(source, lengths, given)[0], -1)


@torch.no_grad()
def generate(
    model: nn.Module, source: torch.Tensor, beam: int = 5, longest: int = 200, lenpen: float = 1.0
) -> list[list[int]]:
    """Translate source sentences (n, S) with fairseq's SequenceGenerator; word numbers are ours.

    Other settings of the generator are its defaults. `pipelag.runs.text_metrics.search` gives the same with the same
    weights. Translations begin with <s>, as in our training; fairseq's own begin with </s>. Where the model's scores
    are not finite, the translation is empty.
    """
    imported()
    from fairseq.sequence_generator import SequenceGenerator

    begun = scores(model, source, torch.full((len(source), 1), BEGIN, device=source.device))
    sound = begun.isfinite().flatten(1).all(1)
    if not sound.all():  # the generator would not terminate
        translations = iter(generate(model, source[sound], beam, longest, lenpen) if sound.any() else [])
        return [next(translations) if each else [] for each in sound.tolist()]
    tokens = numbered(source)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": (tokens != THEIRS[PAD]).sum(1)}}
    words = model.decoder.dictionary  # type: ignore[union-attr]
    writer = SequenceGenerator([model], words, beam_size=beam, max_len_b=longest, len_penalty=lenpen)
    hypotheses = writer.generate([model], sample, bos_token=THEIRS[BEGIN])
    model.decoder.set_beam_size(1)  # type: ignore[union-attr, operator]  # else its attention folds later minibatches
    best = [numbered(each[0]["tokens"]).tolist() if each else [] for each in hypotheses]
    return [[token for token in tokens if token != END] for tokens in best]


def operators_of(encoder_blocks: int, decoder_blocks: int) -> list[tuple[str, ...]]:
    """fairseq's names of the modules with weights, by our layers in order; one of ours has three projections."""

    def attention(name: str, kind: str) -> list[tuple[str, ...]]:
        projections = tuple(f"{name}.{kind}.{which}_proj" for which in "qkv")
        return [projections, (f"{name}.{kind}.out_proj",), (f"{name}.{kind}_layer_norm",)]

    def feed(name: str) -> list[tuple[str, ...]]:
        return [(f"{name}.{part}",) for part in ("fc1", "fc2", "final_layer_norm")]

    names: list[tuple[str, ...]] = [("encoder.embed_tokens",)]
    for name in (f"encoder.layers.{block}" for block in range(encoder_blocks)):
        names += attention(name, "self_attn") + feed(name)
    names.append(("decoder.embed_tokens",))
    for name in (f"decoder.layers.{block}" for block in range(decoder_blocks)):
        names += attention(name, "self_attn") + attention(name, "encoder_attn") + feed(name)
    return [*names, ("decoder.output_projection",)]


def _of_words(names: tuple[str, ...]) -> bool:
    """Whether a weight has a row for each word."""
    return names[0].endswith(("embed_tokens", "output_projection"))


def blocks_of(model: nn.Module) -> tuple[int, int]:
    """The numbers of blocks of fairseq's encoder and decoder."""
    return len(model.encoder.layers), len(model.decoder.layers)  # type: ignore[arg-type, union-attr]


@torch.no_grad()
def weights_from(theirs: nn.Module, ours: nn.Sequential) -> None:
    """Copy a fairseq Transformer's weights into a `pipelag.models.transformer` of the same shape."""
    for layer, names in zip(ours, operators_of(*blocks_of(theirs)), strict=True):
        modules = [theirs.get_submodule(name) for name in names]
        for name, parameter in layer.module.named_parameters():  # type: ignore[union-attr]
            value = torch.cat([getattr(module, name) for module in modules])
            parameter.copy_(reordered(value, 0) if _of_words(names) else value)


@torch.no_grad()
def weights_into(theirs: nn.Module, row: nn.Sequential, renumbered: bool = True) -> None:
    """Copy the weights of a row of layers into a fairseq Transformer of the same shape.

    Args:
        row: from `pipelag.models.transformer`, split or not, or from `pipelag.models.fairseq_layers`.
        renumbered: whether the row's words have our numbers, as the former's do; the latter's have fairseq's.
    """
    for parameters, names in zip(whole_weights(row), operators_of(*blocks_of(theirs)), strict=True):
        for name, value in parameters.items():
            value = value.T if names[0].endswith("embed_tokens") else value
            value = reordered(value, 0) if renumbered and _of_words(names) else value
            for module, part in zip(names, value.chunk(len(names)), strict=True):
                getattr(theirs.get_submodule(module), name).copy_(part)
