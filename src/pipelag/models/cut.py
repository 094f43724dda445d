"""Cut a model into stages. A cut p is "after layer p", counted from 1, as in the papers' placement vectors (PPV)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from pipelag.errors import PipelagError, a

Model = nn.Sequential | Sequence[nn.Module]


def layers_of(model: Model) -> list[nn.Module]:
    """The model's layers in order.

    Raises:
        PipelagError: the model is not a sequence of layers, or does more than call its layers.
    """
    if isinstance(model, nn.Sequential):
        _refuse_more(model)
    if isinstance(model, (nn.Sequential, nn.ModuleList, list, tuple)):
        return list(model)
    raise PipelagError(
        f"{a(type(model).__name__)} cannot be cut: give the model as an nn.Sequential, or a list of layers, each "
        "taking what the one before returns; pipelag.linearise(model) turns most branching models into one"
    )


def _refuse_more(model: nn.Sequential) -> None:
    """Refuse a Sequential that does more than call its layers, because a pipeline calls only these."""
    kind, more = type(model).__name__, ""
    if type(model).forward is not nn.Sequential.forward or "forward" in vars(model):
        more = "a forward of its own"
    elif type(model).__call__ is not nn.Module.__call__:
        more = "a __call__ of its own"
    elif any(getattr(model, name) for name in HOOKS):
        more = "hooks on the whole model"
    elif any(True for _ in model.parameters(recurse=False)) or any(True for _ in model.buffers(recurse=False)):
        more = "parameters or buffers outside its layers"
    if more:
        raise PipelagError(
            f"the {kind} has {more}, which a pipeline of its layers would ignore; move this into a layer"
        )


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def layer_numbers(model: Model) -> list[tuple[int, int]]:
    """The first and the last layer number of each child.

    A child counts as one layer, unless its attribute `pipeline_layers` says how many it has: it then is a block of
    several layers that cannot be cut inside.

    Raises:
        PipelagError: the model is not a sequence of layers, or a `pipeline_layers` is not a positive int.
    """
    counts = []
    for child in layers_of(model):
        size = getattr(child, "pipeline_layers", 1)
        if not isinstance(size, int) or size < 1:
            raise PipelagError(
                f"'{name_of(child)}' has pipeline_layers {size!r}; it should be a whole number from 1 on"
            )
        counts.append(size)
    return [(end - count + 1, end) for count, end in zip(counts, accumulate(counts), strict=True)]


def layer_count(model: Model) -> int:
    """The number of the model's layers."""
    numbers = layer_numbers(model)
    return numbers[-1][1] if numbers else 0


def check_cuts(cuts: Sequence[int], numbers: list[tuple[int, int]], names: Sequence[str]) -> None:
    """Refuse cuts that are not increasing, out of range, or inside a child that cannot be cut."""
    total = numbers[-1][1] if numbers else 0
    for before, after in pairwise(cuts):
        if after <= before:
            raise PipelagError(f"the cuts {list(cuts)} must increase strictly, but {after} follows {before}")
    for cut in cuts:
        if not 1 <= cut < total:
            raise PipelagError(
                f"a cut after layer {cut} leaves an empty stage: the model has {total} layers, so cuts lie between 1 "
                f"and {total - 1}"
            )
        for (first, last), name in zip(numbers, names, strict=True):
            if first <= cut < last:
                near = [str(place) for place in (first - 1, last) if 1 <= place < total]
                raise PipelagError(
                    f"cut {cut} lies inside '{name}' (layers {first}-{last}), which cannot be cut; the nearest places "
                    f"are {' and '.join(near) or 'none'}"
                )


def name_of(layer: nn.Module) -> str:
    """A layer's label or, without one, the name of its class."""
    return str(getattr(layer, "label", type(layer).__name__))


def refuse_tied(pieces: Sequence[nn.Sequential]) -> None:
    """Refuse a parameter, or a normalisation's statistics, that two stages share.

    Each stage would update its own copy, at a different time. Other buffers (tables of angles, masks) may be shared,
    because they do not change.
    """
    owners: dict[int, tuple[int, str]] = {}
    for stage, piece in enumerate(pieces, start=1):
        for layer in piece:
            norms = [part for part in layer.modules() if isinstance(part, _NormBase)]
            for tensor in (*layer.parameters(), *(buffer for norm in norms for buffer in norm.buffers())):
                first, name = owners.setdefault(id(tensor), (stage, name_of(layer)))
                if first == stage:
                    continue
                pair, shape = f"(layers '{name}' and '{name_of(layer)}')", list(tensor.shape)
                if not isinstance(tensor, nn.Parameter):
                    raise PipelagError(
                        f"stages {first} and {stage} share a buffer of shape {shape} {pair}, but each stage would "
                        "change its own copy; move the cut, or give each layer its own buffer"
                    )
                raise PipelagError(
                    f"stages {first} and {stage} share a parameter of shape {shape} {pair}; a weight can belong to one "
                    "stage only: move the cut, carry the weight along (pipelag.linearise(model, inputs={...}, "
                    "carry_tied=True)), or untie the layers (layer.weight = "
                    "torch.nn.Parameter(layer.weight.detach().clone()); in transformers a config with "
                    "tie_word_embeddings=False)"
                )
    _refuse_overlaps(pieces)


def _refuse_overlaps(pieces: Sequence[nn.Sequential]) -> None:
    """Refuse two parameters over the same memory, because stages move their weights into buffers of their own."""
    parameters: dict[int, tuple[int, int, str, nn.Parameter]] = {}
    for stage, piece in enumerate(pieces, start=1):
        for name, p in piece.named_parameters():
            if not isinstance(p, nn.parameter.UninitializedParameter) and p.numel() and not p.is_meta:
                parameters.setdefault(id(p), (p.data_ptr(), stage, name, p))
    spans = sorted(parameters.values(), key=lambda entry: (str(entry[3].device), entry[0]))
    for (start, stage, _, p), (begin, other, _, q) in pairwise(spans):
        size = 1 + sum((length - 1) * stride for length, stride in zip(p.shape, p.stride(), strict=True))
        if begin < start + size * p.element_size() and p.device == q.device:
            raise PipelagError(
                f"two parameters, of shapes {list(p.shape)} in stage {stage} and {list(q.shape)} in stage {other}, "
                "share memory; give each its own (.clone()), or make them one nn.Parameter within a stage"
            )


def stages(model: Model, cuts: Sequence[int]) -> list[nn.Sequential]:
    """The stages between the cuts, sharing the model's layers.

    Raises:
        PipelagError: cuts that do not fit, or a parameter that two stages share.
    """
    children, numbers = layers_of(model), layer_numbers(model)
    check_cuts(cuts, numbers, [name_of(child) for child in children])
    ends = {last: position + 1 for position, (_, last) in enumerate(numbers)}
    bounds = [0, *(ends[cut] for cut in cuts), len(children)]
    pieces = [nn.Sequential(*children[a:b]) for a, b in pairwise(bounds)]
    refuse_tied(pieces)
    return pieces


def weights_of(module: nn.Module) -> int:
    """The number of weights without biases and normalisation, as in StaleWeights' percentages (table 3, figure 6).

    These are the parameters with two or more dimensions: kernels and matrices.
    """
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)


def stale_percent(model: Model, cuts: Sequence[int]) -> float:
    """The percentage of stale weights, those of all stages but the last (StaleWeights section 3)."""
    counts = [weights_of(piece) for piece in stages(model, cuts)]
    return 100.0 * sum(counts[:-1]) / max(1, sum(counts))
