"""SpecTrain's settings, transcribed from section 4.1, against the runs that the paper scale asks for."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.experiments import Arm
from pipelag.models import build
from pipelag.models.sentiment import sentiment_transformer
from pipelag.runs.spec import RunSpec
from tests.experiments.sheet import at_paper_scale

pytestmark = pytest.mark.usefixtures("in_project")
BATCH, MOMENTUM, STEPS, EVERY, GPUS = 128, 0.9, 5000, 20, 4  # "batch size 128", gamma 0.9; section 4.4: 5000, every 20
# Section 4.1: "2e-3, 2e-2, and 1e-3", "1e-3 and 5e-5", "5e-3"; what is trained on what.
MODELS: dict[str, dict[str, Any]] = {
    "VGG16": {"name": "vgg16", "data": "cifar10", "lr": 2e-3},
    "ResNet-152": {"name": "resnet152", "data": "cifar10", "lr": 2e-2},
    "Inception v4": {"name": "inception_v4", "data": "cifar10", "lr": 1e-3},
    "SNN": {"name": "snn", "data": "cifar10", "lr": 1e-3},
    "Transformer": {"name": "sentiment_transformer", "data": "imdb", "lr": 5e-5},
    "Residual LSTM": {"name": "residual_lstm", "data": "imdb", "lr": 5e-3},
}
LAYERS = {"VGG16": 16, "ResNet-152": 311, "Inception v4": 150, "SNN": 32, "Transformer": 93, "Residual LSTM": 10}
METHODS = {
    "Data P.": "sequential",
    "Vanilla DualPipe": "dualpipe",
    "PipeDream": "pipedream_vertical_sync",
    "PipeDream, stashing": "pipedream",
    "SpecTrain": "spectrain",
}


def all_of(result: str, **labels: str) -> list[Arm]:
    """The runs of a result at the paper scale with these labels."""
    return at_paper_scale("spectrain", result, **labels)


def check_training(spec: RunSpec, model: str, method: str) -> None:
    """Everything that section 4.1 says of a network."""
    printed = MODELS[model]
    assert spec.model and spec.data and spec.optimizer
    assert (spec.model.name, spec.data.name, spec.optimizer.lr) == (printed["name"], printed["data"], printed["lr"])
    assert (spec.optimizer.name, spec.optimizer.momentum, spec.optimizer.weight_decay) == ("sgd", MOMENTUM, 0.0)
    assert spec.optimizer.dampening is None and spec.lr_schedule.name == "constant" and not spec.lr_schedule.warmup
    assert (spec.batch, spec.steps, spec.evaluate_every, spec.data.augment) == (BATCH, STEPS, EVERY, False)
    (phase,) = spec.phases
    assert (phase.method, phase.options, phase.microbatches) == (method, {}, 1) and not phase.recompute
    assert len(phase.cuts) == GPUS - 1 and all(a < b for a, b in pairwise((0, *phase.cuts, LAYERS[model])))
    if printed["data"] == "imdb":
        assert spec.data.options["length"] == 20  # "truncated to 20 words"; of the LSTM by figures 3 and 10
        assert spec.data.options["test"] == 78 * BATCH  # by table 1, whose accuracies are multiples of 1/9,984


@pytest.mark.parametrize("model", list(MODELS))
def test_table_1(model: str) -> None:
    trained = all_of("table_1", model=model)
    assert {(arm.labels["arm"], arm.seed) for arm in trained} == {(a, seed) for a in METHODS for seed in (0, 1, 2)}
    for arm in trained:
        check_training(arm.spec, model, METHODS[arm.labels["arm"]])
    assert len({arm.spec.phases[0].cuts for arm in trained}) == 1


def test_the_networks_have_the_printed_sizes() -> None:
    with torch.device("meta"):
        networks = {}
        for model in MODELS:
            spec = all_of("table_1", model=model)[0].spec
            assert spec.model
            networks[model] = build(spec.model.name, **spec.model.options)
    assert len(networks["SNN"]) == LAYERS["SNN"]  # "32 fully-connected layers with 2048 hidden units"
    assert {layer.out_features for layer in networks["SNN"].modules() if isinstance(layer, nn.Linear)} == {2048, 10}
    lstms = [layer for layer in networks["Residual LSTM"].modules() if isinstance(layer, nn.LSTM)]
    # "8 layers ... with 512 embedding units, 512 output units, and 1024 memory units"
    assert [(one.input_size, one.hidden_size, one.proj_size) for one in lstms] == [(512, 1024, 512)] * 8
    # "6 blocks in both encoder and decoder with 8 heads and 512 hidden units in fully-connected layers"
    defaults = {name: value.default for name, value in inspect.signature(sentiment_transformer).parameters.items()}
    assert [defaults[name] for name in ("blocks", "heads", "hidden")] == [6, 8, 512]
    assert len(networks["Transformer"]) == LAYERS["Transformer"]


def test_figures_of_one_network_use_table_1s_runs() -> None:
    table = {arm.spec.id for arm in all_of("table_1", model="Transformer")}
    assert {arm.spec.id for arm in all_of("figure_12")} == table
    assert {arm.labels["arm"] for arm in all_of("figure_5")} == {"Data P.", "Vanilla DualPipe"}
    assert {arm.spec.id for arm in all_of("figure_5")} < table
    assert {arm.spec.id for arm in all_of("text_headline_accuracy")} == {arm.spec.id for arm in all_of("table_1")}


def test_figure_9() -> None:
    for arm in all_of("figure_9"):
        check_training(arm.spec, "SNN", arm.spec.phases[0].method)
        assert arm.spec.options == {"discrepancy": {"horizons": [1, 2, 3], "every": 1}}  # "s = 1, s = 2 and s = 3"
    methods = {arm.labels["arm"]: arm.spec.phases[0].method for arm in all_of("figure_9")}
    assert methods["SpecTrain"] == "spectrain"


@pytest.mark.parametrize("model", list(MODELS))
def test_the_plans(model: str) -> None:
    (spec,) = {arm.spec.id: arm.spec for arm in all_of("figure_10", model=model)}.values()
    trained = all_of("table_1", model=model)[0].spec
    assert spec.model and spec.optimizer and trained.model
    assert (spec.model.name, spec.batch, spec.optimizer) == (trained.model.name, BATCH, trained.optimizer)
    assert {**spec.model.options, "classes": 10} == {**trained.model.options, "classes": 10}
    options = spec.options
    assert (options["profile"]["roofline"], options["workers"]) == ("p40", [2, 4])  # figure 10
    assert options["cluster"] == {"levels": [{"workers": GPUS, "bandwidth": 12e9}]}  # PCIe 3.0 x16
    (one,) = options["profile"]["inputs"]
    texts = {"shape": [20], "of": "words"}
    assert one == (texts if MODELS[model]["data"] == "imdb" else {"shape": [3, 32, 32]})
    timed = options["arms"]
    assert timed["Data P."] == {
        "method": "bsp",
        "gather": "server",
    }  # section 2.2: "aggregated at the parameter server"
    assert timed["PipeDream"] == {"method": METHODS["PipeDream"], "clock": "lockstep"}
    assert timed["DualPipe"] == {"method": METHODS["SpecTrain"], "clock": "lockstep"}  # algorithm 1: lines 10 and 13
