"""The study at scale on a GPT small enough to be counted by hand, and networks between two rooflines."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipelag import models
from pipelag.errors import PipelagError
from pipelag.models.gpt import GPT
from pipelag.partitioner.layouts import Machine
from pipelag.theory.at_scale import Network, gpt_profiles, network_profiles, numbers_of, study
from pipelag.timing.loss import with_loss
from pipelag.timing.roofline import roofline
from pipelag.timing.sheets import data_sheet

BLOCKS, W, VOCABULARY, WORDS, BATCH, GPUS = 2, 64, 100, 16, 8, 4
SIZES = {"blocks": BLOCKS, "width": W, "heads": 4, "vocabulary": VOCABULARY, "context": WORDS}
OPTIONS: dict[str, Any] = {
    "model": {"gpt": SIZES},
    "batch": BATCH,
    "gpus": [GPUS],
    "sheet": "h100_bf16",
    "efficiency": 0.5,
    "machine": {"server": 4, "inside": 450e9, "between": 50e9, "ports": 4, "latency": 5e-6},
}
PARAMETERS = (VOCABULARY + WORDS) * W + BLOCKS * (12 * W**2 + 13 * W) + 2 * W + W * VOCABULARY


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(study(OPTIONS, 0))


def test_a_gpts_products_run_at_the_share_of_the_sheets_rate(rows: list[dict[str, Any]]) -> None:
    products = BLOCKS * 24 * W**2 + 2 * W * VOCABULARY  # of a word; twice as many in the backward
    scores = BLOCKS * 4 * WORDS * W  # and 2.5 times as many, for they are made again
    assert rows[0]["parameters"] == PARAMETERS
    assert rows[0]["seconds"] == pytest.approx(WORDS * (3 * products + 3.5 * scores) / (0.5 * 989.4e12))
    for row in rows[1:]:
        assert row["ideal"] == pytest.approx(BATCH * rows[0]["seconds"] / GPUS)


def test_a_parameter_takes_18_bytes_and_the_activations_come_on_top(rows: list[dict[str, Any]]) -> None:
    """The weight in bfloat16, gradient, master and Adam's two moments in float32."""
    row = next(row for row in rows if row.get("method") == "data parallelism")
    kept = sum(layer.kept_bytes for layer in GPT(**SIZES).layers(row["samples"]))  # type: ignore[arg-type]
    assert row["stages"] == 1 and row["memory"] == 18 * PARAMETERS + kept
    assert row["replicas"] * row["microbatches"] * row["samples"] == BATCH


def test_adam_moves_seven_numbers_of_a_parameter() -> None:
    """Weight, gradient and both moments are read, and all but the gradient written; T2 follows one number more."""
    for name in (None, "gpipe", "pipedream", "pipedream_2bw"):  # versions change by moving pointers
        assert numbers_of(name, True).moved == (7 * 4,) * 3
    assert numbers_of(None, True).gradient == 4
    assert (numbers_of(None, True).state, numbers_of(None, False).state) == (4 + 8, 8)
    assert (numbers_of("pipedream", True).state, numbers_of("pipemare_t2", True).state) == (12, 12 + 4)


def test_a_prediction_reads_weights_and_moments_and_writes_weights_but_not_on_the_last_stage_of_pipeoptim() -> None:
    """PipeOptim predicts by the update: weight and both moments are read, the prediction written. The last stage reads
    no late weights. SpecTrain predicts by the velocity: one prediction on the first stage, another for the backward
    on the others, from the same weight and velocity.
    """
    assert numbers_of("pipeoptim", True).moved == (4 * (7 + 4), 4 * (7 + 4), 4 * 7)
    first, inner, last = numbers_of("spectrain", True).moved
    assert first == 4 * (7 + 4) and inner == last == 4 * (7 + 6)


def test_late_is_what_forwards_miss_and_the_gap_what_their_backwards_do_not(rows: list[dict[str, Any]]) -> None:
    by_method = {row["method"]: row for row in rows[1:]}
    for name in ("data parallelism", "GPipe", "1F1B with flush"):
        assert (by_method[name]["late"], by_method[name]["gap"], by_method[name]["copies"]) == (0, 0, 1)
    dream, mare = by_method["PipeDream"], by_method["PipeMare T2"]
    assert dream["late"] > 0 == dream["gap"] and dream["copies"] == 1 + dream["late"]  # it stashes
    assert mare["gap"] == mare["late"] > 0


def test_a_networks_profile_is_the_rooflines_of_any_number_of_samples() -> None:
    made = network_profiles(Network.model_validate({"name": "lenet5", "inputs": [{"shape": [1, 28, 28]}]}), "v100")
    with torch.device("meta"):
        model = with_loss(models.build("lenet5"))
        for samples in (1, 6, 16, 40):
            layers = roofline(model, torch.empty(samples, 1, 28, 28), "v100").layers
            for ours, theirs in zip(made(samples).layers, layers, strict=True):
                assert (ours.output_bytes, ours.kept_bytes, ours.weight_bytes) == (
                    theirs.output_bytes,
                    theirs.kept_bytes,
                    theirs.weight_bytes,
                )


def test_what_has_no_layout_says_what_cannot_be_divided() -> None:
    """Four layers, or so; of 1 and 7 GPUs no pipeline, of 3 replicas no share of 8 samples, of 16 not even one each."""
    why = {
        (row["method"], row["gpus"]): row.get("why")
        for row in study(OPTIONS | {"gpus": [1, 7, 3, 16]}, 0)
        if row["what"] == "method"
    }
    layers = len(GPT(**SIZES).layers(1))
    for gpus, words in ((1, "one GPU"), (7, "7 GPUs")):
        stages = f"{words} cannot be divided into pipelines of 2 to {layers} stages, a layer each at least"
        assert why["PipeDream", gpus] == stages
    assert why["data parallelism", 1] is None
    unequal = "a minibatch of 8 samples cannot be divided equally over the replicas of any pipeline"
    assert why["data parallelism", 3] == unequal and why["PipeDream", 3] is None
    assert why["data parallelism", 16] == "a minibatch has too few samples for so many replicas"


def test_gpus_that_share_a_layer_wait_for_each_others_activations() -> None:
    """Of 4 GPUs each sends three quarters of all activations, in as many steps as halve four to one."""
    machine = Machine(data_sheet("h100_bf16"), **OPTIONS["machine"])
    alone, shared = (gpt_profiles(GPT(**SIZES), machine, OPTIONS["efficiency"])(2, gpus).layers for gpus in (1, 4))
    each = 3 / 4 * (2 * WORDS * W * 2) / 450e9 + 2 * 5e-6
    for one, part, times in zip(alone, shared, (1, 2, 2, 2, 2, 1), strict=True):
        for name in ("forward_ms", "backward_ms"):
            waiting = getattr(part, name) - getattr(one, name) / 4
            assert waiting == pytest.approx(1e3 * times * each, rel=1e-3)  # the vocabulary does not divide evenly
        assert part.weight_ms == pytest.approx((one.weight_ms or 0.0) / 4, rel=1e-2)


def test_a_study_may_share_layers_and_state() -> None:
    small = OPTIONS | {"tensor": [1, 2], "sharded": True, "gpus": [4]}
    rows = {row["method"]: row for row in study(small, 0) if row["what"] == "method"}
    assert all("tensor" in row and "sharded" in row for row in rows.values())
    for row in rows.values():
        assert row["workers"] * row["tensor"] * row["replicas"] == 4
    alone = {row["method"]: row for row in study(OPTIONS, 0) if row["what"] == "method"}
    assert all(rows[name]["timed"] <= 1.05 * alone[name]["timed"] for name in alone)  # it may choose as before
    assert {row["ideal"] for row in rows.values()} == {row["ideal"] for row in alone.values()}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"tensor": [3]}, "tensor has 3, which does not divide the 4 GPUs of a server equally"),
        ({"tensor": [1, 4], "model": {"gpt": SIZES | {"heads": 2}}}, "4 GPUs cannot share 2 heads equally"),
        (
            {"tensor": [1, 2], "model": {"name": "lenet5", "inputs": [{"shape": [1, 28, 28]}]}},
            r"tensor is \[1, 2\], but only a GPT's layers can be shared; leave tensor out",
        ),
        ({"model": {}}, "the setting 'name' of the model is missing"),
        ({"model": {"gpt": SIZES, "name": "lenet5"}}, "unknown setting 'name' of the model; the keys are gpt"),
        ({"model": {"gpt": SIZES | {"blocks": 0}}}, "the setting 'gpt.blocks' of the model is 0; it should be 1 or"),
        ({"model": {"gpt": SIZES | {"heads": 3}}}, "a width of .* cannot be divided into 3 equal heads"),
        (
            {"model": {"name": "lenet5", "inputs": [{"shape": [3, 28, 28]}]}},
            r"model 'lenet5' cannot take inputs of the shapes \[\[3, 28, 28\]\]",
        ),
    ],
)
def test_what_cannot_be_shared_or_built_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        list(study(OPTIONS | changed, 0))


def test_products_run_at_the_peak_rate_unless_told_otherwise() -> None:
    told = next(study(OPTIONS | {"efficiency": 1.0}, 0))
    assert next(study({name: value for name, value in OPTIONS.items() if name != "efficiency"}, 0)) == told
