"""fairseq 0.12.2, with which PipeMare trains its Transformer: importing it today; its model, dictionary and generator;
its weights in our model. Its binarised data are in `pipelag.compat.binarised`.

fairseq and the hydra it pins have dataclasses whose default values are dataclasses, which Python 3.11 refuses because
they are not hashable: while both are imported, `imported` gives dataclasses without a hash that of `object`.

`make env` builds it, before torch is there, or its extension fails to build (`workflow/envs/fairseq*.lock`); without
a C++ compiler it is left out. Where it is missing, `pipelag.models.transformer` is the same network and
`pipelag.runs.text.search` the same search; with fairseq, `weights_from` loads its parameters, and tests compare scores
and translations (`pytest -p no:hydra_pytest`: hydra's own plugin is imported before anything of ours can help it).
"""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn

from pipelag.data.text import BEGIN, END, PAD, SPECIAL
from pipelag.errors import PipelagError

# fairseq's dictionary begins with <s>, <pad>, </s>, <unk>; ours with <pad>, <s>, </s>, <unk>.
THEIRS = {PAD: 1, BEGIN: 0}


def imported() -> Any:
    """The module `fairseq`, with its models; raises `PipelagError` where it is not installed."""
    plain = dataclasses.dataclass

    @wraps(plain)
    def hashable(cls: type | None = None, **options: Any) -> Any:
        def made(target: type) -> type:
            found: Any = plain(target, **options)
            if found.__hash__ is None:
                found.__hash__ = object.__hash__
            return found  # type: ignore[no-any-return]

        return made if cls is None else made(cls)

    dataclasses.dataclass = hashable  # type: ignore[assignment]
    try:
        import fairseq
        import fairseq.models.transformer
    except ImportError as error:
        raise PipelagError(
            f"fairseq cannot be imported ({error}); install a C++ compiler and make the environment anew (make env), "
            "or use pipelag's own model 'transformer', which is the same network"
        ) from error
    finally:
        dataclasses.dataclass = plain
    return fairseq


def numbered(tokens: torch.Tensor) -> torch.Tensor:
    """Our word numbers as fairseq's."""
    out = tokens.clone()
    for ours, theirs in THEIRS.items():
        out[tokens == ours] = theirs
    return out


def dictionary(words: Sequence[str], counts: Mapping[str, int] | None = None) -> Any:
    """fairseq's Dictionary of a vocabulary of ours, the special words first; the other words keep their numbers."""
    imported()
    from fairseq.data import Dictionary

    made = Dictionary()
    for word in words[len(SPECIAL) :]:
        made.add_symbol(word, 1 if counts is None else counts[word])
    return made


def transformer(
    source_words: int, target_words: int, arch: str = "transformer_iwslt_de_en", **settings: Any
) -> nn.Module:
    """fairseq's own model of an architecture, over dictionaries of these sizes; called with (source, target before)."""
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
    found: torch.Tensor = model(source, lengths, given)[0]
    order = torch.arange(found.shape[-1])
    for ours, theirs in THEIRS.items():
        order[ours] = theirs
    return found[..., order]


@torch.no_grad()
def generate(model: nn.Module, source: torch.Tensor, beam: int = 5, longest: int = 200) -> list[list[int]]:
    """What fairseq's SequenceGenerator, else with its defaults, writes for (n, S) source sentences of our numbers.

    `pipelag.runs.text.search` writes the same with the same weights. Sentences begin with <s>, as ours do in training;
    fairseq's own begin with </s>.
    """
    imported()
    from fairseq.sequence_generator import SequenceGenerator

    tokens = numbered(source)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": (tokens != THEIRS[PAD]).sum(1)}}
    writer = SequenceGenerator([model], model.decoder.dictionary, beam_size=beam, max_len_b=longest)  # type: ignore[union-attr]
    found = writer.generate([model], sample, bos_token=THEIRS[BEGIN])
    ours = {theirs: own for own, theirs in THEIRS.items()}
    best = [translations[0]["tokens"].tolist() for translations in found]
    return [[ours.get(token, token) for token in tokens if token != END] for tokens in best]


@torch.no_grad()
def weights_from(theirs: nn.Module, ours: nn.Sequential) -> None:
    """Copy a fairseq Transformer's weights into `pipelag.models.transformer`'s layers of the same shape."""
    layers, state = iter(ours), {name: value.detach() for name, value in theirs.state_dict().items()}

    def put(**values: torch.Tensor) -> None:
        module = next(layers).module
        for name, value in values.items():
            getattr(module, name).copy_(value)

    def words(value: torch.Tensor) -> torch.Tensor:
        out = value.clone()
        for own, other in THEIRS.items():
            out[own] = value[other]
        return out

    def pair(name: str) -> dict[str, torch.Tensor]:
        return {"weight": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def attention(name: str, norm: str) -> None:
        fused = [pair(f"{name}.{which}_proj") for which in "qkv"]
        put(weight=torch.cat([p["weight"] for p in fused]), bias=torch.cat([p["bias"] for p in fused]))
        put(**pair(f"{name}.out_proj"))
        put(**pair(norm))

    blocks = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("encoder.layers."))
    put(weight=words(state["encoder.embed_tokens.weight"]))
    for block in range(blocks):
        name = f"encoder.layers.{block}"
        attention(f"{name}.self_attn", f"{name}.self_attn_layer_norm")
        for part in ("fc1", "fc2", "final_layer_norm"):
            put(**pair(f"{name}.{part}"))
    put(weight=words(state["decoder.embed_tokens.weight"]))
    for block in range(blocks):
        name = f"decoder.layers.{block}"
        attention(f"{name}.self_attn", f"{name}.self_attn_layer_norm")
        attention(f"{name}.encoder_attn", f"{name}.encoder_attn_layer_norm")
        for part in ("fc1", "fc2", "final_layer_norm"):
            put(**pair(f"{name}.{part}"))
    put(weight=words(state["decoder.output_projection.weight"]))
