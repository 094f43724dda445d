"""PipeDream's set-ups, transcribed from the paper, against the runs of the paper scale, field by field.

What the paper does not say (epochs, milestones, momentum, weight decay, rates under LARS) is what config/papers says in
its comments; of that only what must be equal between arms is held here.
"""

from __future__ import annotations

import pytest

from pipelag.experiments import Arm
from pipelag.runs.spec import RunSpec
from tests.experiments.sheet import at_paper_scale

pytestmark = pytest.mark.usefixtures("in_project")
# Section 5.1: "a per-GPU minibatch size of 64 per GPU for VGG-16, 256 for AlexNet, 128 for ResNet-50 (e.g., BS = 1024
# for 8 GPUs), 64 for GNMT, 80 for S2VT, and batch size of 80 for LM".
PER_GPU = {"VGG-16": 64, "AlexNet": 256, "ResNet-50": 128, "GNMT-8": 64, "GNMT-16": 64, "S2VT": 80}
# Table 2 and section 5.1: GPUs per server, Gbps between servers.
CLUSTERS = {"A": (4, 10), "B": (8, 25), "C": (1, 40)}
# Table 1: "# Servers x # GPUs per server (Cluster)".
TABLE_1 = [
    ("VGG-16", "4x4 (A)"),
    ("VGG-16", "2x8 (B)"),
    ("ResNet-50", "4x4 (A)"),
    ("ResNet-50", "2x8 (B)"),
    ("AlexNet", "4x4 (A)"),
    ("AlexNet", "2x8 (B)"),
    ("GNMT-16", "1x4 (A)"),
    ("GNMT-16", "4x4 (A)"),
    ("GNMT-16", "2x8 (B)"),
    ("GNMT-8", "1x4 (A)"),
    ("GNMT-8", "3x4 (A)"),
    ("GNMT-8", "2x8 (B)"),
    ("AWD-LM", "1x4 (A)"),
    ("S2VT", "4x1 (C)"),
]
# The networks: section 5.1, "Models"; figures 1 and 12 and section 5.2 name their layers.
MODELS = {
    "VGG-16": ("vgg16_imagenet", {}),
    "AlexNet": ("alexnet_imagenet", {}),
    "ResNet-50": ("resnet50", {"form": "imagenet", "classes": 1000}),
    "GNMT-8": ("gnmt", {"layers": 8}),
    "GNMT-16": ("gnmt", {"layers": 16}),
    "AWD-LM": ("awd_lm", {}),
    "S2VT": ("s2vt", {}),
}
SEEDS = {0, 1, 2}  # the paper does not say how many runs a curve is from
IMAGENET = 1_281_167  # ILSVRC 2012, the training images
EPOCHS = 90  # as config/papers says; the paper does not


def runs(result: str, **labels: str) -> list[Arm]:
    """A result's runs at the paper scale with these labels."""
    return at_paper_scale("pipedream", result, **labels)


def spec(result: str, **labels: str) -> RunSpec:
    """The one run with these labels, whatever its seed; all three seeds are asked for where it trains."""
    matching = runs(result, **labels)
    assert matching, labels
    if matching[0].spec.kind == "train":
        assert {arm.seed for arm in matching} == SEEDS
        assert {arm.spec.seed for arm in matching} == SEEDS
    alike = {arm.spec.model_copy(update={"seed": 0}).canonical() for arm in matching}
    assert len(alike) == 1, labels
    return matching[0].spec


def epochs(value: int, batch: int, samples: int) -> float:
    """Steps in epochs of whole minibatches."""
    return value / (samples // batch)


def assert_one_schedule(a: RunSpec, b: RunSpec, samples: int | None) -> None:
    """Section 5.1: "We use the same learning rate schedules for PipeDream and data-parallel training", in epochs."""
    assert a.optimizer == b.optimizer
    assert (a.lr_schedule.name, a.lr_schedule.gamma) == (b.lr_schedule.name, b.lr_schedule.gamma)
    assert a.lr_schedule.milestones == b.lr_schedule.milestones
    assert not a.phases[0].stage_lr and not b.phases[0].stage_lr
    for run in (a, b):
        assert run.lr_schedule.horizon == run.steps
    if samples is not None:
        for key in ("warmup", "horizon"):
            in_epochs = [epochs(getattr(run.lr_schedule, key), run.batch, samples) for run in (a, b)]
            assert in_epochs[0] == pytest.approx(in_epochs[1], rel=1e-3), key


def test_vgg16_on_imagenet() -> None:
    """Sections 5.1 and 5.2, figures 10 and 11, table 1: 16 GPUs, 64 images on each, SGD from 0.01, 15-1."""
    piped, alone = (spec("figure_11", model="VGG-16", arm=arm) for arm in ("PipeDream", "data parallelism"))
    for run, batch, method in ((piped, 64, "pipedream"), (alone, 16 * 64, "sequential")):
        assert run.kind == "train" and run.model is not None and run.data is not None and run.optimizer is not None
        assert (run.model.name, run.model.options) == MODELS["VGG-16"]
        assert (run.data.name, run.data.augment, run.data.options) == ("imagenet", True, {})
        assert (run.batch, run.optimizer.name, run.optimizer.lr) == (batch, "sgd", 0.01)
        assert epochs(run.steps, batch, IMAGENET) == EPOCHS and epochs(run.evaluate_every, batch, IMAGENET) == 1
        assert [phase.method for phase in run.phases] == [method] and run.phases[0].microbatches == 1
    # "VGG-16's convolutional layers are replicated, while the large fully connected layers are not": 13 of 16 layers
    assert (piped.phases[0].cuts, piped.phases[0].replicas) == ((13,), (15, 1))
    assert (alone.phases[0].cuts, alone.phases[0].replicas) == ((), ())
    assert_one_schedule(piped, alone, IMAGENET)
    assert epochs(piped.lr_schedule.warmup, 64, IMAGENET) == 5
    assert {arm.spec.id for arm in runs("figure_10") if arm.spec.kind == "train"} == {
        arm.spec.id for arm in runs("figure_11", model="VGG-16")
    }


def test_gnmt16_on_wmt16() -> None:
    """Sections 5.1 and 5.2, figure 11: 16 GPUs, 64 sentences on each, Adam from 0.0003, a straight pipeline."""
    piped, alone = (spec("figure_11", model="GNMT-16", arm=arm) for arm in ("PipeDream", "data parallelism"))
    for run, batch, method in ((piped, 64, "pipedream"), (alone, 16 * 64, "sequential")):
        assert run.kind == "train" and run.model is not None and run.data is not None and run.optimizer is not None
        assert (run.model.name, run.model.options) == MODELS["GNMT-16"]
        assert (run.data.name, run.batch) == ("wmt16", batch)
        assert (run.optimizer.name, run.optimizer.lr, run.optimizer.momentum) == ("adam", 0.0003, 0.0)
        assert [phase.method for phase in run.phases] == [method]
    assert len(piped.phases[0].cuts) == 16 - 1 and piped.phases[0].replicas == ()
    assert alone.phases[0].cuts == ()
    assert_one_schedule(piped, alone, None)
    assert piped.steps / alone.steps == piped.lr_schedule.warmup / alone.lr_schedule.warmup == 16


def test_the_language_model_on_the_penn_treebank() -> None:
    """Sections 5.1 and 5.2: six LSTM layers, SGD from 30, "batch size of 80", one server of four, straight."""
    labels = {"model": "AWD-LM", "what": "training"}
    piped, alone = (spec("table_1", arm=arm, **labels) for arm in ("PipeDream", "data parallelism"))
    for run, method in ((piped, "pipedream"), (alone, "sequential")):
        assert run.model is not None and run.data is not None and run.optimizer is not None
        assert (run.model.name, run.model.options) == MODELS["AWD-LM"]
        assert (run.data.name, run.batch, run.optimizer.name, run.optimizer.lr) == ("ptb", 80, "sgd", 30.0)
        assert [phase.method for phase in run.phases] == [method]
    assert len(piped.phases[0].cuts) == 4 - 1 and piped.phases[0].replicas == ()
    assert alone.phases[0].cuts == () and piped.steps == alone.steps
    assert_one_schedule(piped, alone, None)
    # In all: 20 on each of data parallelism's GPUs, 80 in a pipeline; and the other reading, 80 on each.
    assert [arm.spec.batch for arm in runs("table_1", model="AWD-LM", what="plan")] == [20, 80]


def test_large_minibatches_with_lars() -> None:
    """Section 5.2, figure 13: VGG-16, minibatches of 1024, 4096 and 8192, 8 servers of Cluster-C."""
    for size in (1024, 4096, 8192):
        run = spec("figure_13", arm=f"LARS {size}", what="training")
        assert run.model is not None and run.data is not None and run.optimizer is not None
        assert (run.model.name, run.data.name, run.batch, run.optimizer.name) == (
            "vgg16_imagenet",
            "imagenet",
            size,
            "lars",
        )
        assert epochs(run.steps, size, IMAGENET) == EPOCHS
        time = spec("figure_13", arm=f"LARS {size}", what="time")
        assert time.batch == size // 8 and time.options["data_parallel_over"] == [8]
        assert_cluster(time, 8, "C", 1)
        assert time.options["device"] == "titan_x"
    piped = spec("figure_13", arm="PipeDream", what="training")
    assert piped.batch == 64 and piped.phases[0].replicas == (7, 1) and piped.phases[0].cuts == (13,)
    assert piped.optimizer == spec("figure_11", model="VGG-16", arm="PipeDream").optimizer
    timed = spec("figure_13", arm="PipeDream", what="time")
    assert timed.options["given"] == {"7-1": {"replicas": [7, 1], "cuts": ["linear"]}}


def test_asynchronous_data_parallelism() -> None:
    """Section 5.2: VGG-16 on 4 Cluster-B servers. A simulated stage is a worker: 16 of the 32, which its text says."""
    run = spec("text_asp", arm="ASP")
    same = spec("figure_11", model="VGG-16", arm="PipeDream")
    assert (run.model, run.data, run.batch, run.optimizer, run.lr_schedule, run.steps) == (
        same.model,
        same.data,
        same.batch,
        same.optimizer,
        same.lr_schedule,
        same.steps,
    )
    assert [phase.method for phase in run.phases] == ["asp"] and len(run.phases[0].cuts) == 15
    assert_cluster(spec("text_asp", what="plan"), 4, "B", 8)


def assert_cluster(run: RunSpec, servers: int, cluster: str, gpus: int) -> None:
    """The levels that a plan is made for."""
    per_server, gbps = CLUSTERS[cluster]
    assert gpus == per_server
    levels = run.options["cluster"]["levels"]
    sizes = [level["workers"] for level in levels]
    if servers > 1:
        assert levels[-1]["bandwidth"] * 8 == gbps * 1e9
    assert sizes == [size for size in (gpus, servers) if size > 1]


@pytest.mark.parametrize(("model", "servers"), TABLE_1)
def test_table_1_plans_every_model_for_its_cluster(model: str, servers: str) -> None:
    plans = runs("table_1", what="plan", model=model, servers=servers)
    assert plans
    counts, _, cluster = servers.partition(" ")
    number, _, gpus = counts.partition("x")
    for arm in plans:
        run = arm.spec
        assert run.kind == "partition" and run.model is not None and run.options["compare"] is True
        assert (run.model.name, run.model.options) == MODELS[model]
        assert model == "AWD-LM" or run.batch == PER_GPU[model]
        assert_cluster(run, int(number), cluster.strip("()"), int(gpus))
        published = "published" in run.options["profile"]
        assert published == (model not in ("AWD-LM", "S2VT"))  # of which the authors published none
        device = run.options["profile"]["roofline"]
        assert device == ("titan_x" if cluster == "(C)" else "v100")


def test_table_1_has_no_other_rows() -> None:
    rows = {(arm.labels["model"], arm.labels["servers"]) for arm in runs("table_1", what="plan")}
    assert rows == set(TABLE_1)


@pytest.mark.parametrize(("model", "scale"), [("GNMT-8", 256), ("SSD", 64), ("Mask R-CNN", 64)])
def test_table_3_counts_its_gpus(model: str, scale: int) -> None:
    """Table 3; "the same code", which is half precision."""
    for arm in ("Cluster-B", "MLPerf"):
        assert spec("table_3", model=model, precision="fp16", arm=arm).options["data_parallel_over"] == [scale]


def test_figure_1_and_12_over_the_papers_servers() -> None:
    """Section 2.1: 8 1080Ti over PCIe and 25 Gbps, 4 V100 and 10 Gbps, 8 V100 with NVLink and 25 Gbps; to 32 GPUs."""
    servers = {
        "8x 1080Ti, PCIe, 25 Gbps": ([8, 4], 25, "1080ti"),
        "4x V100, PCIe, 10 Gbps": ([4, 4], 10, None),
        "8x V100, NVLink, 25 Gbps": ([8, 2], 25, None),
    }
    for arm in [*runs("figure_1"), *runs("figure_12")]:
        sizes, gbps, device = servers[arm.labels["arm"]]
        levels = arm.spec.options["cluster"]["levels"]
        assert [level["workers"] for level in levels] == sizes and levels[-1]["bandwidth"] * 8 == gbps * 1e9
        assert arm.spec.options["data_parallel_over"] == [1, 2, 4, 8, 16, 32]
        assert arm.spec.options.get("device") == device
    assert {arm.labels["arm"] for arm in runs("figure_1")} == set(servers)
    assert len({arm.labels["model"] for arm in runs("figure_1")}) == 5
    for precision in ("fp32", "fp16"):
        for arm in runs("figure_12", precision=precision):
            assert arm.spec.model is not None and (arm.spec.model.name, arm.spec.model.options) == MODELS["GNMT-8"]
            assert arm.spec.options["profile"].get("precision", "fp32") == precision


def test_schedules_are_drawn_for_the_papers_workers() -> None:
    """Figures 2, 4 and 9: 4 workers, a backward of two forwards; 3: m = 4; 8: two replicas of two units, one of one."""
    for result in ("figure_2", "figure_3", "figure_4", "figure_5", "figure_9"):
        for arm in runs(result):
            costs = arm.spec.options["costs"]
            assert len(arm.spec.phases[0].cuts) == 3 and (costs["forward"], costs["backward"]) == (1, 2)
    assert spec("figure_3", arm="4").phases[0].microbatches == 4
    two = spec("figure_8", arm="1F1B-RR")
    assert two.options["replicas"] == [2, 1]
    assert two.options["costs"] == [{"forward": 2, "backward": 2}, {"forward": 1, "backward": 1}]


def test_four_gpus_of_cluster_a() -> None:
    """Figures 14a, 16, 17 and 18 (sections 5.3 and 5.5): 4 V100s of Cluster-A; depths none, 2, 4 and 7."""
    for result in ("figure_14a", "figure_14b", "figure_16", "figure_17", "figure_18a", "figure_18b"):
        for arm in runs(result):
            assert_cluster(arm.spec, 1, "A", 4)
    run = spec("figure_18a", arm="plan")
    assert run.model is not None and (run.model.name, run.model.options) == MODELS["GNMT-8"]
    assert run.batch == PER_GPU["GNMT-8"] and run.options["depths"] == [1, 2, 4, 7]
    assert {arm.labels["model"] for arm in runs("figure_17")} == {"GNMT-8", "GNMT-16", "VGG-16", "ResNet-50"}


def test_gpipe_partitions_gnmt16_over_16_gpus() -> None:
    """Section 5.4: Cluster-A and Cluster-B; 16 GB of memory (section 5.1)."""
    for arm, servers, cluster, gpus in (("Cluster-A", 4, "A", 4), ("Cluster-B", 2, "B", 8)):
        run = spec("text_gpipe_comparison", arm=arm)
        assert run.model is not None and (run.model.name, run.model.options) == MODELS["GNMT-16"]
        assert_cluster(run, servers, cluster, gpus)
        assert run.options["gpipe"] == {"memory": 16e9}


def test_figure_7_is_two_servers_of_four() -> None:
    """Figure 7: m_1 = 4, m_2 = 2, B_1 > B_2."""
    run = spec("figure_7", arm="plan")
    assert [level["workers"] for level in run.options["cluster"]["levels"]] == [4, 2]


def test_figure_15_is_of_vgg16_on_16_workers() -> None:
    """Figure 15 (section 5.5)."""
    run = spec("figure_15", panel="timed")
    assert run.model is not None and run.model.name == "vgg16_imagenet" and run.options["sweep"] is True
    assert_cluster(run, 4, "A", 4)
