"""The stale-weights paper's settings, copied from its text, against the runs of the paper scale, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from pipelag.experiments import Arm
from pipelag.runs.spec import RunSpec
from tests.experiments.sheet import at_paper_scale

pytestmark = pytest.mark.usefixtures("in_project")
SEEDS = [0, 1, 2]  # the paper does not say how many


def runs(result: str, **labels: str) -> list[Arm]:
    """A result's runs at the paper scale that have these labels."""
    return at_paper_scale("stale_weights", result, **labels)


def one(result: str, **labels: str) -> RunSpec:
    """The spec of an arm, which its seeds share; all seeds are there."""
    matching = runs(result, **labels)
    assert [arm.seed for arm in matching] == SEEDS, labels
    assert len({arm.spec.model_copy(update={"seed": 0}).canonical() for arm in matching}) == 1
    return matching[0].spec


def settings(spec: RunSpec) -> dict[str, Any]:
    """What appendix A and B give of a training run."""
    assert spec.model is not None and spec.data is not None and spec.optimizer is not None
    optimizer, schedule = spec.optimizer, spec.lr_schedule
    return {
        "model": spec.model.name,
        "model options": spec.model.options,
        "data": spec.data.name,
        "data options": spec.data.options,
        "batch": spec.batch,
        "iterations": spec.steps,
        "test every": spec.evaluate_every,
        "solver": optimizer.name,
        "nesterov": optimizer.nesterov,
        "momentum": optimizer.momentum,
        "weight decay": optimizer.weight_decay,
        "rate": optimizer.lr,
        "policy": schedule.name,
        "falls by": schedule.gamma,
        "falls at": schedule.milestones,
        "warm-up": schedule.warmup,
        "microbatches": {phase.microbatches for phase in spec.phases},
        "executor": spec.executor,
    }


# Appendix A. Caffe's gamma and power for `inv` and where AlexNet's and ResNet's rates fall are not stated.
SIMULATED: dict[str, dict[str, Any]] = {
    "LeNet-5": {
        "model": "lenet5",
        "data": "mnist",
        "batch": 100,
        "iterations": 30_000,
        "test every": 30_000 // 300,  # "300 tests"
        "nesterov": False,
        "weight decay": 0.0005,
        "rate": 0.01,
        "policy": "inv",  # "inverse learning policy"
        "falls by": 0.0001,
        "falls at": (),
    },
    "AlexNet": {
        "model": "alexnet",
        "data": "cifar10",
        "batch": 100,
        "iterations": 250_000,
        "test every": 500,  # "one test is performed every epoch"
        "nesterov": True,
        "weight decay": 0.004,
        "rate": 0.001,
        "policy": "milestones",
        "falls by": 0.1,  # "decreased by 10x twice"
        "falls at": (0.5, 0.75),
    },
    "VGG-16": {
        "model": "vgg16",
        "data": "cifar10",
        "batch": 100,
        "iterations": 250_000,
        "test every": 500,
        "nesterov": True,
        "weight decay": 0.0005,
        "rate": 0.1,
        "policy": "milestones",
        "falls by": 0.5,  # "decreased by half every 50 epochs", of 250,000 x 100 / 50,000 = 500
        "falls at": tuple(epoch / 500 for epoch in range(50, 500, 50)),
    },
    "ResNet-20": {
        "model": "resnet20",
        "data": "cifar10",
        "batch": 128,
        "iterations": 100_000,
        "test every": 100,
        "nesterov": False,
        "weight decay": 0.0001,
        "rate": 0.1,  # non-pipelined; 0.01 pipelined
        "policy": "milestones",
        "falls by": 0.1,
        "falls at": (0.5, 0.75),
    },
}
for _each in SIMULATED.values():  # section 5: simulated in Caffe, in one process
    _each |= {"model options": {}, "data options": {}, "solver": "caffe_sgd", "momentum": 0.9, "warm-up": 0}
    _each |= {"microbatches": {1}, "executor": "simulated"}

# Table 1.
VECTORS = {
    "LeNet-5": {"4-stage": (1,), "6-stage": (1, 2), "8-stage": (1, 2, 3), "10-stage": (1, 2, 3, 4)},
    "AlexNet": {"4-stage": (1,), "6-stage": (1, 2), "8-stage": (1, 2, 3)},
    "VGG-16": {"4-stage": (2,), "6-stage": (2, 4), "8-stage": (2, 4, 7), "10-stage": (2, 4, 7, 10)},
    "ResNet-20": {"4-stage": (7,), "6-stage": (7, 13), "8-stage": (7, 13, 19)},
}


@pytest.mark.parametrize("model", SIMULATED)
def test_table_2_trains_as_appendix_a_says(model: str) -> None:
    names = list(dict.fromkeys(arm.labels["arm"] for arm in runs("table_2", model=model)))
    assert names == ["non-pipelined", *VECTORS[model]]
    for name in names:
        spec = one("table_2", model=model, arm=name)
        pipelined = name != "non-pipelined"
        # "a learning rate starting at 0.1 and 0.01 for non-pipelined and pipelined training respectively"
        rate = 0.01 if model == "ResNet-20" and pipelined else SIMULATED[model]["rate"]
        assert settings(spec) == SIMULATED[model] | {"rate": rate}
        (phase,) = spec.phases
        assert phase.method == ("stale_weights" if pipelined else "sequential")
        assert phase.cuts == VECTORS[model].get(name, ()) and not phase.stage_lr and not phase.options
        assert spec.lr_schedule.horizon in (None, spec.steps)


def test_the_inverse_policy_has_the_power_of_caffes_example() -> None:
    assert one("table_2", model="LeNet-5", arm="4-stage").lr_schedule.power == 0.75


@pytest.mark.parametrize("figure", ["figure_5a", "figure_5b", "figure_5c", "figure_5d", "table_1"])
def test_figure_5_and_table_1_are_of_table_2s_runs(figure: str) -> None:
    trained = {arm.spec.id for arm in runs(figure) if arm.spec.kind == "train"}
    model = dict(zip("abcd", SIMULATED, strict=True)).get(figure[-1])
    assert trained == {arm.spec.id for arm in runs("table_2", **({"model": model} if model else {}))}


def test_table_3_adds_a_register_after_every_two_layers() -> None:
    """Section 6.3: 8 stages by PPV (3,5,7), then one more register after every 2 layers after layer 7."""
    base = SIMULATED["ResNet-20"]
    assert settings(one("table_3", arm="non-pipelined")) == base
    for stages in (8, 10, 12, 14, 16, 18, 20):
        spec = one("table_3", arm=str(stages))
        assert settings(spec) == base | {"rate": 0.01}
        assert spec.phases[0].cuts == tuple(range(3, stages, 2)) and len(spec.phases[0].cuts) == stages // 2 - 1


def test_figure_6_slides_one_register_over_the_same_places() -> None:
    """Section 6.3: from the beginning of the network to its end; the places are those of table 3."""
    for p in range(3, 20, 2):
        spec = one("figure_6", curve="Sliding Stage", arm=f"register after {p}")
        assert settings(spec) == SIMULATED["ResNet-20"] | {"rate": 0.01}
        assert spec.phases[0].cuts == (p,) and spec.phases[0].method == "stale_weights"
    many = {arm.spec.id for arm in runs("figure_6", curve="Increasing Stages")}
    assert many == {a.spec.id for a in runs("table_3") if a.labels["arm"].isdigit()}


@pytest.mark.parametrize("result", ["table_4", "figure_7"])
@pytest.mark.parametrize(
    ("arm", "phases", "rate"),
    [
        ("Baseline 30k", [("sequential", 30_000, (), {})], 0.1),
        ("Pipelined 30k", [("stale_weights", 30_000, (5, 12, 17), {})], 0.01),
        ("20k+10k hybrid", [("stale_weights", 20_000, (5, 12, 17), 0.01), ("sequential", 10_000, (), {})], 0.1),
        ("20k+20k hybrid", [("stale_weights", 20_000, (5, 12, 17), 0.01), ("sequential", 20_000, (), {})], 0.1),
    ],
)
def test_table_4_switches_after_20000_iterations(result: str, arm: str, phases: list[Any], rate: float) -> None:
    """Section 6.4 and table 4; rates as in appendix A."""
    spec = one(result, arm=arm)
    total = sum(steps for _, steps, _, _ in phases)
    assert settings(spec) == SIMULATED["ResNet-20"] | {"iterations": total, "rate": rate}
    for phase, (method, steps, cuts, rates) in zip(spec.phases, phases, strict=True):
        assert (phase.method, phase.steps, phase.cuts) == (method, steps, cuts)
        assert phase.stage_lr == (dict.fromkeys(range(1, 5), rates) if rates else {})
    assert spec.lr_schedule.horizon == 30_000


# Table 5 (register after the first group of residual functions) and table 7 (the rate of BKS2).
REAL = {20: (7, 0.1), 56: (19, 0.01), 110: (37, 0.001), 224: (75, 0.001), 362: (121, 0.001)}
STEPS = 200 * (50_000 // 128)  # appendix B: 200 epochs


@pytest.mark.parametrize("depth", REAL)
def test_table_5_trains_as_appendix_b_says(depth: int) -> None:
    cut, bks2 = REAL[depth]
    stale = {} if bks2 == 0.1 else {1: bks2}
    arms_ = {
        "non-pipelined": [("sequential", STEPS, (), {})],
        "pipelined": [("stale_weights", STEPS, (cut,), stale)],
        "hybrid": [("stale_weights", STEPS // 2, (cut,), stale), ("sequential", STEPS // 2, (), {})],
    }
    for arm, phases in arms_.items():
        spec = one("table_5", model=f"ResNet-{depth}", kind="train", arm=arm)
        expected = SIMULATED["ResNet-20"] | {
            "model": f"resnet{depth}",
            "iterations": STEPS,
            "test every": STEPS // 200,
            "solver": "sgd",  # PyTorch's
            "rate": 0.1,
            "falls at": (100 / 200, 150 / 200),  # "decreased by a factor of 10 twice (at epoch 100 and 150)"
        }
        assert settings(spec) == expected
        assert [(p.method, p.steps, p.cuts, p.stage_lr) for p in spec.phases] == phases
    if depth > 20:  # beside the paper's arms: one rate in both partitions
        (phase,) = one("table_7", model=f"ResNet-{depth}", arm="one rate").phases
        assert phase.cuts == (cut,) and not phase.stage_lr


@pytest.mark.parametrize("depth", REAL)
def test_table_5_times_and_table_6_counts_the_same_pipelines(depth: int) -> None:
    """Section 6.5: 2 GPUs, one forward and one backward stage on each; section 6.6: minibatches of 128."""
    (timed,) = runs("table_5", model=f"ResNet-{depth}", kind="speed")
    spec = timed.spec
    assert spec.model is not None and spec.data is not None and spec.optimizer is not None
    assert (spec.model.name, spec.model.options, spec.data.name) == (f"resnet{depth}", {}, "cifar10")
    assert (spec.executor, spec.workers, spec.batch) == ("real", 2, 128)
    assert [(p.method, p.cuts) for p in spec.phases] == [("stale_weights", (REAL[depth][0],))]
    assert (spec.optimizer.name, spec.optimizer.momentum, spec.optimizer.weight_decay) == ("sgd", 0.9, 0.0001)
    (counted,) = runs("table_6", model=f"ResNet-{depth}")
    assert counted.spec.options["cuts"] == [REAL[depth][0]] and counted.spec.batch == 128


def test_the_comparison_with_pipedream_counts_vgg_16() -> None:
    """Section 6.7: a 4-stage pipeline; minibatches of 128 on CIFAR-10, of 32 on ImageNet."""
    for data, batch, size in (("CIFAR-10", 128, 32), ("ImageNet", 32, 224)):
        (counted,) = runs("text_memory_vs_pipedream", dataset=data)
        spec = counted.spec
        assert spec.model is not None and spec.model.name == "vgg16" and spec.batch == batch
        assert spec.options == {"sample_shape": [3, size, size], "cuts": [2]}


def test_the_comparison_with_gpipe_times_the_same_partitions() -> None:
    """Section 6.7: ResNet-110 on 2 GPUs; GPipe on 2 and on 4 partitions."""
    ours, *gpipe = [arm.spec for arm in runs("text_vs_gpipe_speedup") if arm.spec.kind == "speed"]
    assert {spec.phases[0].method for spec in gpipe} == {"gpipe"}
    for spec in gpipe:
        same = spec.model_copy(update={"phases": ours.phases})
        assert same == ours and spec.phases[0].cuts == ours.phases[0].cuts == (37,)
    partitions = {len(arm.spec.phases[0].cuts) + 1 for arm in runs("text_vs_gpipe_speedup", kind="schedule")}
    assert partitions == {2, 4}


def test_the_profile_is_of_resnet_20_at_the_papers_minibatch() -> None:
    """Section 6.3."""
    (arm,) = runs("text_early_layers_runtime")
    assert arm.spec.model is not None and arm.spec.data is not None
    assert (arm.spec.model.name, arm.spec.data.name, arm.spec.batch) == ("resnet20", "cifar10", 128)


def test_the_figures_schedules_are_the_papers() -> None:
    """Figures 1 and 2: 8 layers on 4 accelerators; figures 3 and 4: K = 1, 5 minibatches, 3 accelerators."""
    for figure in ("figure_1", "figure_2"):
        (arm,) = runs(figure)
        assert (arm.spec.phases[0].method, arm.spec.phases[0].cuts) == ("sequential", (2, 4, 6))
    (arm,) = runs("figure_3")
    assert (arm.spec.phases[0].method, len(arm.spec.phases[0].cuts), arm.spec.steps) == ("stale_weights", 1, 5)
    assert arm.spec.options == {"form": "2K+1"} and arm.spec.id in {a.spec.id for a in runs("figure_4")}
