"""PipeOptim's settings, transcribed from section V, against the runs that the paper scale asks for."""

from __future__ import annotations

from typing import Any

import pytest

from pipelag.experiments import Arm, arms, load_paper, load_scale
from pipelag.runs.spec import RunSpec

pytestmark = pytest.mark.usefixtures("in_project")
METHODS = {
    "GPipe": "gpipe",
    "PipeDream": "pipedream",
    "PipeDream-2BW": "pipedream_2bw",
    "SpecTrain": "spectrain_1f1b",
    "XPipe": "xpipe",
    "PipeOptim": "pipeoptim",
}
SGDM = {"name": "sgd", "momentum": 0.9, "weight_decay": 5e-4, "lr": 0.01, "nesterov": False, "dampening": None}
# V-A: "each optimizer was set with the default hyper-parameters": of AdamW the decay that PyTorch has
ADAMW = {"name": "adamw", "lr": 0.001, "weight_decay": 0.01}
ADAM = {"name": "adam", "lr": 0.001, "weight_decay": 0.0}
TINY, CIFAR = 100_000, 50_000  # training images
# V-B: model, data, its training samples, minibatch, optimizer, epochs, epochs after which the rate falls to a tenth
TRAININGS: dict[str, tuple[str, str, int, int, dict[str, Any], int, tuple[int, ...]]] = {
    "figure_3a": ("alexnet_imagenet", "tiny_imagenet", TINY, 128, SGDM, 70, (40, 60)),
    "figure_3b": ("resnet101", "tiny_imagenet", TINY, 64, SGDM, 70, (40, 60)),
    "figure_3c": ("inception_v3", "tiny_imagenet", TINY, 64, SGDM, 70, (40, 60)),
    "figure_4a": ("vgg16", "cifar100", CIFAR, 128, ADAMW, 120, (90,)),
    "figure_4b": ("googlenet", "cifar100", CIFAR, 128, ADAMW, 120, (90,)),
    "figure_4c": ("residual_lstm", "imdb", 25_000, 256, ADAMW, 50, ()),
    "figure_5a": ("residual_lstm", "imdb", 25_000, 256, ADAM, 50, ()),
}
# Table V, in table II's order with GPipe first; the total of GPipe
BATCHES = {
    "figure_6a": ("alexnet_imagenet", "sgd", (5000, 1240, 1260, 1260, 1250, 1260)),
    "figure_6b": ("resnet101", "sgd", (344, 86, 86, 90, 86, 86)),
    "figure_6c": ("inception_v3", "sgd", (336, 84, 84, 84, 84, 84)),
    "figure_6d": ("vgg16", "adamw", (8420, 2120, 2120, None, 2800, 2800)),
    "figure_6e": ("googlenet", "adamw", (920, 290, 300, None, 310, 295)),
    "figure_6f": ("residual_lstm", "adamw", (14000, 3820, 3820, None, 3820, 3820)),
    "figure_6g": ("gnmt", "adam", (520, 136, 140, None, 142, 142)),
    "figure_6h": ("gnmt", "adam", (496, 116, 120, None, 120, 120)),
}


def asked(result: str, scale: str = "paper") -> list[Arm]:
    return arms(load_paper("pipeoptim"), result, load_scale(scale))


def first_seed(result: str, **labels: str) -> dict[str, RunSpec]:
    trained = [a for a in asked(result) if a.seed == 0 and a.spec.kind == "train"]
    return {a.labels["arm"]: a.spec for a in trained if all(a.labels.get(k) == v for k, v in labels.items())}


def check_base(spec: RunSpec, arm: str) -> None:
    """What V-A says of all: four stages, every activation recomputed."""
    (phase,) = spec.phases
    assert phase.method == METHODS[arm] and len(phase.cuts) == 3 and phase.recompute is True
    assert not phase.replicas and not phase.stage_lr and not phase.options


@pytest.mark.parametrize("result", TRAININGS)
def test_trainings_are_section_5b(result: str) -> None:
    model, data, samples, batch, optimizer, epochs, drops = TRAININGS[result]
    specs = first_seed(result)
    assert list(specs) == [arm for arm in METHODS if arm != "SpecTrain" or optimizer is SGDM]
    for arm, spec in specs.items():
        check_base(spec, arm)
        assert spec.model and spec.data and spec.optimizer
        assert (spec.model.name, spec.data.name, spec.batch) == (model, data, batch)
        assert spec.optimizer.model_dump() == spec.optimizer.model_dump() | optimizer
        per_epoch = samples // batch
        assert (spec.steps, spec.evaluate_every) == (epochs * per_epoch, per_epoch)
        course = spec.lr_schedule
        if drops:
            falls = [round(share * spec.steps) for share in course.milestones]
            assert falls == [epoch * per_epoch for epoch in drops] and (course.name, course.gamma) == (
                "milestones",
                0.1,
            )
        else:
            assert (course.name, course.power) == ("polynomial", 1.0)
        # T = 1 of GPipe; PipeDream-2BW needs as many microbatches as stages
        assert spec.phases[0].microbatches == (4 if arm == "PipeDream-2BW" else 1)


@pytest.mark.parametrize(("result", "layers"), [("figure_5b", 8), ("figure_5c", 16)])
def test_translations_are_section_5b(result: str, layers: int) -> None:
    specs = first_seed(result)
    assert list(specs) == [arm for arm in METHODS if arm != "SpecTrain"]
    for arm, spec in specs.items():
        check_base(spec, arm)
        assert spec.model and spec.data and spec.optimizer
        assert (spec.model.name, spec.model.options, spec.data.name) == ("gnmt", {"layers": layers}, "wmt16")
        assert (spec.optimizer.name, spec.optimizer.lr, spec.optimizer.betas) == ("adam", 3e-4, None)
        assert (spec.batch, spec.lr_schedule.name) == (64, "constant") and spec.steps % 8 == 0


def test_images_are_enlarged_to_224_pixels() -> None:
    for result in ("figure_3a", "figure_3b", "figure_3c", "figure_6a", "figure_6b", "figure_6c"):
        for arm in asked(result):
            assert arm.spec.model and arm.spec.model.options["scale"] == 224


def test_vanilla_1f1b_differs_from_pipeoptim_in_its_method_alone() -> None:
    for result, same in (("figure_7a", "figure_4a"), ("figure_7b", "figure_3c"), ("figure_7c", "figure_5a")):
        for activations, recompute in (("recomputed", True), ("kept", False)):
            pair = first_seed(result, activations=activations)
            assert list(pair) == ["PipeOptim", "Vanilla-1F1B"]
            vanilla = pair["Vanilla-1F1B"]
            assert (vanilla.phases[0].method, vanilla.phases[0].recompute) == ("1f1b", recompute)
            as_optim = vanilla.phases[0].model_copy(update={"method": "pipeoptim"})
            assert vanilla.model_copy(update={"phases": (as_optim,)}).id == pair["PipeOptim"].id
        assert first_seed(result, activations="recomputed")["PipeOptim"].id == first_seed(same)["PipeOptim"].id


@pytest.mark.parametrize(
    ("result", "base", "single", "four"), [("figure_9a", "figure_3b", 86, 344), ("figure_10a", "figure_3c", 84, 336)]
)
def test_overall_runs_differ_in_their_minibatches(result: str, base: str, single: int, four: int) -> None:
    usual = first_seed(base)["PipeOptim"]
    sizes = {"GPipe": four, "PipeDream-2BW": four, "SpecTrain": 90 if single == 86 else 84}
    specs = first_seed(result)
    assert list(specs) == list(METHODS)
    for arm, spec in specs.items():
        check_base(spec, arm)
        assert spec.batch == sizes.get(arm, single)
        assert spec.phases[0].microbatches == (1 if arm == "SpecTrain" else spec.batch // single)
        assert (spec.model, spec.data, spec.optimizer) == (usual.model, usual.data, usual.optimizer)
        assert spec.steps == 70 * (TINY // spec.batch) and spec.lr_schedule.milestones == usual.lr_schedule.milestones


@pytest.mark.parametrize("result", BATCHES)
def test_plans_have_the_minibatches_of_table_5(result: str) -> None:
    model, optimizer, batches = BATCHES[result]
    (arm,) = asked(result)
    spec, options = arm.spec, arm.spec.options
    assert spec.model and spec.model.name == model and spec.optimizer and spec.optimizer.name == optimizer
    assert options["profile"]["roofline"] == "p100" and options["cluster"]["levels"][0]["workers"] == 4
    printed = dict(zip(METHODS, batches, strict=True))
    assert list(options["arms"]) == [name for name, batch in printed.items() if batch]
    for name, planned in options["arms"].items():
        assert planned["method"] == METHODS[name] and planned["recompute"] is True
        passes = 4 if name in ("GPipe", "PipeDream-2BW") else 1
        size = (printed[name] or 0) // (4 if name == "GPipe" else 1)
        assert planned["batch"] == passes * size and planned.get("microbatches", 1) == passes


def test_bert_48_has_a_stage_per_gpu_on_1_2_and_3_nodes() -> None:
    runs = asked("figure_8")
    assert [arm.spec.options["workers"] for arm in runs] == [[4], [8], [12]]
    for arm in runs:
        options = arm.spec.options
        assert options["profile"]["inputs"] == [{"shape": [128], "of": "words"}]
        assert all(planned["recompute"] is True for planned in options["arms"].values())
        assert {planned["method"] for planned in options["arms"].values()} == {
            "gpipe",
            "pipedream",
            "pipedream_2bw",
            "1f1b",
            "pipeoptim",
        }


def test_every_scale_has_four_stages_everywhere() -> None:
    for scale in ("quick", "standard", "paper"):
        for result in load_paper("pipeoptim").results:
            for arm in asked(result, scale):
                if arm.spec.kind == "train":
                    assert [len(phase.cuts) for phase in arm.spec.phases] == [3]
