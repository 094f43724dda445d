"""How weights begin: the spread that each network's paper, or the implementation that it follows, gives them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from math import sqrt
from typing import Any

import pytest
import torch
from torch import nn

from pipelag import models
from pipelag.data.text.parallel import PAD
from pipelag.errors import PipelagError
from pipelag.models.transformer import QKV, Attention, Embedding, Narrow, Scores, Widen


def weights(model: nn.Module, kind: type[nn.Module]) -> Iterator[torch.Tensor]:
    """Those large enough for their spread to be known to some per cent."""
    for module in model.modules():
        if isinstance(module, kind) and module.weight.numel() >= 10_000:  # type: ignore[union-attr, operator]
            yield module.weight.detach()  # type: ignore[union-attr, operator, misc]


def inputs(weight: torch.Tensor) -> int:
    return weight[0].numel()


def outputs(weight: torch.Tensor) -> int:
    return weight.numel() // weight.shape[1]


CASES: dict[str, tuple[str, dict[str, Any], type[nn.Module], Callable[[torch.Tensor], float]]] = {
    # Klambauer et al., 2017: variance 1/n
    "snn": ("snn", {"width": 0.125, "layers": 4}, nn.Linear, lambda w: 1 / sqrt(inputs(w))),
    # He et al., 2015: variance 2/n, of the inputs, or as torchvision has it of the outputs
    "alexnet": ("alexnet", {"width": 0.25}, nn.Conv2d, lambda w: sqrt(2 / inputs(w))),
    "alexnet, linear": ("alexnet", {"width": 0.25}, nn.Linear, lambda w: sqrt(2 / inputs(w))),
    "resnet": ("resnet20", {"width": 2.0}, nn.Conv2d, lambda w: sqrt(2 / inputs(w))),
    "vgg16": ("vgg16", {"width": 0.5}, nn.Conv2d, lambda w: sqrt(2 / outputs(w))),
    "resnet50": ("resnet50", {"width": 0.5, "blocks": (1, 1)}, nn.Conv2d, lambda w: sqrt(2 / outputs(w))),
    "inception_v4": ("inception_v4", {"width": 0.25, "blocks": (1, 1, 1)}, nn.Conv2d, lambda w: sqrt(2 / outputs(w))),
    # Devlin et al., 2019: 0.02
    "bert": ("bert", {"blocks": 1, "size": 64, "hidden": 256, "words": 500}, nn.Linear, lambda w: 0.02),
    "bert, embeddings": ("bert", {"blocks": 1, "size": 64, "hidden": 256, "words": 500}, nn.Embedding, lambda w: 0.02),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_have_the_spread_that_is_meant(case: str) -> None:
    name, options, kind, spread = CASES[case]
    found = list(weights(models.build(name, seed=0, **options), kind))
    assert found
    for weight in found:
        assert float(weight.std()) == pytest.approx(spread(weight), rel=0.05)
        assert abs(float(weight.mean())) < 0.05 * spread(weight)


@pytest.mark.parametrize(
    ("name", "kinds"), [("snn", (nn.Linear,)), ("alexnet", (nn.Linear, nn.Conv2d)), ("bert", (nn.Linear,))]
)
def test_biases_begin_at_zero(name: str, kinds: tuple[type[nn.Module], ...]) -> None:
    small = {"snn": {"width": 0.01, "layers": 3}, "alexnet": {"width": 0.1}, "bert": {"blocks": 1, "size": 16}}[name]
    modules = [m for m in models.build(name, seed=0, **small).modules() if isinstance(m, kinds)]  # type: ignore[arg-type]
    assert modules and all(not m.bias.any() for m in modules)  # type: ignore[operator, union-attr]


def test_berts_padding_is_nothing() -> None:
    words = models.build("bert", seed=0, blocks=1, size=16)[0].words
    assert not words.weight[PAD].any() and words.weight[PAD + 1].any()  # type: ignore[index, union-attr, operator]


def test_a_transformers_words_are_as_long_as_its_places() -> None:
    """Embeddings and the output projection of variance 1/size, as in fairseq; scaled by the root of the size."""
    model = models.build("transformer", seed=0, source_words=400, target_words=300, size=64, hidden=64, blocks=1)
    found = [layer for layer in model if isinstance(layer, (Embedding, Scores))]
    assert len(found) == 3
    for layer in found:
        assert float(layer.module.weight.detach().std()) == pytest.approx(64**-0.5, rel=0.05)  # type: ignore[union-attr, operator, arg-type]


def test_a_transformers_products_begin_in_the_ranges_that_the_page_of_models_tells() -> None:
    """Xavier's, of the fused projections narrower by the root of 2 than fairseq's three, whose gain is 1 / root 2."""
    size, hidden = 64, 96
    words = {"source_words": 20, "target_words": 20}
    ours = models.build("transformer", seed=0, size=size, hidden=hidden, blocks=1, **words)
    fairseqs = sqrt(6 / (2 * size)) / sqrt(2)
    bounds = {QKV: fairseqs / sqrt(2), Attention: sqrt(6 / (2 * size)), Widen: sqrt(6 / (size + hidden))}
    bounds[Narrow] = bounds[Widen]
    for layer in ours:
        for kind, bound in bounds.items():
            if isinstance(layer, kind):
                assert float(layer.module.weight.detach().abs().max()) == pytest.approx(bound, rel=0.02)  # type: ignore[union-attr, operator, arg-type]
    if importlib.util.find_spec("fairseq") is not None:
        theirs = models.build("fairseq_transformer", seed=0, size=size, hidden=hidden, blocks=1, **words)
        assert float(theirs[1].module.q_proj.weight.detach().abs().max()) == pytest.approx(fairseqs, rel=0.02)  # type: ignore[union-attr, operator, arg-type]


def test_snn_normalises_itself_between_its_layers() -> None:
    """SELU behind every layer but the last, so that values keep a mean of 0 and a variance of 1."""
    model = models.build("snn", seed=0, width=0.125, layers=8)
    assert [sum(isinstance(part, nn.SELU) for part in layer) for layer in model] == [1] * 7 + [0]
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    behind = model[:7](x)
    assert abs(float(behind.mean())) < 0.2 and 0.6 < float(behind.var()) < 1.4


def test_vggs_dropout_grows_towards_the_end() -> None:
    """Liu and Deng, 2015: 0.3 after the first convolution, 0.4 between those of a group, 0.5 around linear layers."""
    for scale in (1.0, 0.5):
        rates = [m.p for m in models.build("vgg16", width=0.1, dropout=scale).modules() if isinstance(m, nn.Dropout)]
        assert rates == pytest.approx([scale * rate for rate in (0.3, *[0.4] * 7, 0.5, 0.5)])


def test_weights_that_this_machine_has_no_room_for_are_refused_before_they_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(models, "machine_memory", lambda: 1000)
        with pytest.raises(PipelagError, match="model 'lenet5' with these options has more than .* GiB of weights"):
            models.build("lenet5")
        with torch.device("meta"):
            models.build("lenet5")  # which takes none

    def greedy(**options: Any) -> nn.Sequential:
        raise MemoryError

    monkeypatch.setitem(models.MODELS, "greedy", greedy)
    with pytest.raises(
        PipelagError, match="model 'greedy' with these options does not fit into memory; make it smaller"
    ):
        models.build("greedy")
    monkeypatch.setitem(models.MODELS, "lone", lambda **options: nn.Linear(1, 1))
    with pytest.raises(PipelagError, match="model 'lone' returns a Linear; it should return an nn.Sequential"):
        models.build("lone")


@pytest.mark.parametrize(("kept", "fits"), [("tied", True), ("replaced", True), ("apart", False)])
def test_weights_are_counted_once_and_those_that_are_gone_not(
    kept: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of 400 bytes where there is room for 1,000."""

    def made(**options: Any) -> nn.Sequential:
        model = nn.Sequential(nn.Linear(10, 10, bias=False))
        for number in range(4):
            layer = nn.Linear(10, 10, bias=False)
            if kept == "tied":
                layer.weight = model[0].weight
            if kept == "replaced":
                model[0] = layer
            else:
                model.add_module(str(number + 1), layer)
        return model

    monkeypatch.setitem(models.MODELS, "made", made)
    monkeypatch.setattr(models, "machine_memory", lambda: 1000)
    with nullcontext() if fits else pytest.raises(PipelagError, match="model 'made' with these options has more than"):
        models.build("made")
