"""PipeMare's hyper-parameters, transcribed from the paper, against the runs that the paper scale asks for."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from pipelag.experiments import arms, load_paper, load_scale
from pipelag.runs.spec import RunSpec

pytestmark = pytest.mark.usefixtures("in_project")
SEEDS = [0, 1, 2]  # section 4.1: "three different random seeds"

# Table 6. 50,000 and 1,281,167 images in minibatches of 64 and 256, the last one left out: 781 and 5,004 an epoch.
CIFAR10 = {
    "model": ("resnet50", {}),
    "data": "cifar10",
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0005},
    "drops": (80 / 200, 160 / 200),
    "epochs": 200,
    "per_epoch": 781,
    "batch": 64,
    "microbatches": 64 // 8,
    "stages": 107,  # section 4.1
}
IMAGENET = {
    "model": ("resnet50", {"form": "imagenet", "classes": 1000}),
    "data": "imagenet",
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0001},
    "drops": (30 / 100, 60 / 100, 90 / 100),
    "epochs": 100,
    "per_epoch": 5004,
    "batch": 256,
    "microbatches": 256 // 16,
    "stages": 107,  # table 5
}
# Table 7. C.1: 12k minibatches in 10 epochs of IWSLT14, 16k in 4 epochs of WMT; fairseq's code, its generator too.
ADAMW = {"name": "adamw", "betas": (0.9, 0.98)}
IWSLT14 = {
    "model": ("fairseq_transformer", {}),  # whose defaults are fairseq's, a dropout of 0.3 among them
    "data": "iwslt14",
    "optimizer": ADAMW | {"lr": 5e-4, "weight_decay": 1e-4},
    "epochs": 60,
    "per_epoch": 1200,
    "warmup": 8000,
    "microbatches": 19,
    "stages": 93,  # section 4.1
    "options": {"label_smoothing": 0.1, "beam": 5, "generator": "fairseq", "tokens": 19 * 245},
}
WMT17 = {
    "model": ("fairseq_transformer", {"hidden": 2048, "heads": 8, "dropout": 0.1}),
    "data": "wmt17",
    "optimizer": ADAMW | {"lr": 7e-4, "weight_decay": 0.0},
    "epochs": 80,
    "per_epoch": 4000,
    "warmup": 8000,
    "microbatches": 25,
    "stages": 91,  # table 5
    # 25 microbatches of at most 1,792 tokens would be 44,800; 34,000 with padding make the printed 29,000 on average.
    "options": {"label_smoothing": 0.1, "beam": 5, "generator": "fairseq", "tokens": 34000},
}
TASKS = {"images": CIFAR10, "ImageNet": IMAGENET, "translation": IWSLT14, "WMT17": WMT17}

# Tables 8 and 9, and sections 3.1 and C.1: epochs of annealing (T1, T1+T2, after warm-up) and of warm-up; D.
K = {"images": 20, "translation": 30}  # a quarter of 80 epochs; 5 x 8,000 minibatches are 33, of the grid 30
K2 = {"images": 20, "ImageNet": 10, "translation": 30, "WMT17": 4}
K1 = {"ImageNet": 10, "translation": 10, "WMT17": 4}
W = {"ImageNet": 30, "translation": 10, "WMT17": 4}
D = {"images": 0.5, "ImageNet": 0.5, "translation": 0.1, "WMT17": 0.1}


def specs(result: str, scale: str = "paper", **labels: str) -> dict[str, RunSpec]:
    """The training runs of a result at a scale, by arm; each in three seeds that differ in nothing else."""
    by_arm: dict[str, dict[int, RunSpec]] = {}
    for arm in arms(load_paper("pipemare"), result, load_scale(scale)):
        if arm.spec.kind == "train" and all(arm.labels.get(key) == value for key, value in labels.items()):
            by_arm.setdefault(arm.labels["arm"], {})[arm.seed] = arm.spec
    assert by_arm, (result, labels)
    for by_seed in by_arm.values():
        assert sorted(by_seed) == SEEDS
        assert len({spec.model_copy(update={"seed": 0}).canonical() for spec in by_seed.values()}) == 1
        assert all(spec.seed == seed for seed, spec in by_seed.items())
    return {arm: by_seed[0] for arm, by_seed in by_arm.items()}


def check_base(spec: RunSpec, task: str, stages: int | None = None, **model: Any) -> None:
    """Everything that the tables print of a task, whatever the method."""
    printed = TASKS[task]
    assert spec.model and spec.data and spec.optimizer
    name, options = printed["model"]
    assert (spec.model.name, spec.model.options) == (model.pop("name", name), options | model)
    assert spec.data.name == printed["data"]
    assert spec.optimizer.model_dump() == spec.optimizer.model_dump() | printed["optimizer"]
    assert spec.steps == printed["epochs"] * printed["per_epoch"] and spec.evaluate_every == printed["per_epoch"]
    for phase in spec.phases:
        assert len(phase.cuts) + 1 == (stages or printed["stages"]) and not phase.stage_lr and not phase.replicas
        if not phase.method.startswith("hogwild"):
            assert phase.microbatches == printed["microbatches"]
    schedule = spec.lr_schedule
    if "drops" in printed:
        assert (schedule.name, schedule.milestones, schedule.gamma) == ("milestones", printed["drops"], 0.1)
        assert schedule.horizon == spec.steps and spec.batch == printed["batch"] and spec.data.augment
    else:
        assert (schedule.name, schedule.warmup) == ("inverse_sqrt", printed["warmup"])
        assert spec.options == printed["options"]
        assert spec.batch == printed["microbatches"]  # sentences come in multiples of the microbatches


def epochs(task: str, count: int) -> int:
    """Epochs as minibatches."""
    return count * TASKS[task]["per_epoch"]


def settings(spec: RunSpec) -> list[tuple[str, int, dict[str, Any]]]:
    """(method, minibatches, settings) of the phases."""
    return [(phase.method, phase.steps, phase.options) for phase in spec.phases]


def plain(task: str, method: str, **options: Any) -> list[tuple[str, int, dict[str, Any]]]:
    """A run of one phase."""
    return [(method, epochs(task, TASKS[task]["epochs"]), options)]


def t1(task: str, count: int | None = None) -> list[tuple[str, int, dict[str, Any]]]:
    """T1 alone."""
    return plain(task, "pipemare_t1", annealing=epochs(task, count or K[task]))


def t1_t2(task: str, decay: float | None = None, count: int | None = None) -> list[tuple[str, int, dict[str, Any]]]:
    """Both."""
    return plain(task, "pipemare", annealing=epochs(task, count or K2[task]), decay=decay or D[task])


def warmed_up(task: str, warm: int | None = None, count: int | None = None) -> list[tuple[str, int, dict[str, Any]]]:
    """Synchronous warm-up epochs, then both."""
    first, remaining = warm or W[task], TASKS[task]["epochs"] - (warm or W[task])
    both = {"annealing": epochs(task, count or K1[task]), "decay": D[task]}
    return [("gpipe", epochs(task, first), {}), ("pipemare", epochs(task, remaining), both)]


@pytest.mark.parametrize("task", ["images", "translation"])
def test_table_3(task: str) -> None:
    runs = specs("table_3", task=task)
    for spec in runs.values():
        check_base(spec, task)
    expected = {
        "Sync": plain(task, "gpipe"),
        "neither": plain(task, "pipemare_naive"),
        "T1": t1(task),
        "T2": plain(task, "pipemare_t2", decay=D[task]),
        "T1+T2": t1_t2(task),
    }
    expected |= {"T1+T2+W": warmed_up(task)} if task == "translation" else {}
    assert {arm: settings(spec) for arm, spec in runs.items()} == expected


@pytest.mark.parametrize(("result", "split"), [("table_3", {}), ("figure_8", {"split": "2"})])
def test_fairseqs_network_and_generator_translate_at_the_standard_scale_too(result: str, split: dict[str, str]) -> None:
    """The quick scale and the published results are of our own, which need no fairseq."""
    for arm, spec in specs(result, "standard", task="translation", **split).items():
        assert spec.model and spec.data and (spec.model.name, spec.data.name) == ("fairseq_transformer", "multi30k")
        assert spec.model.options == ({} if arm == "Sync" else {key: int(value) for key, value in split.items()})
        assert (spec.options["generator"], spec.options["beam"]) == ("fairseq", 5)
    for scale in ("quick", "published"):
        every = arms(load_paper("pipemare"), result, load_scale(scale))
        ours = [arm.spec for arm in every if arm.labels.get("task") == "translation"]
        assert {spec.model.name for spec in ours if spec.model} == {"transformer"}
        assert all(spec.model and "generator" not in spec.options for spec in ours)


@pytest.mark.parametrize("task", list(TASKS))
def test_table_2_and_figure_11(task: str) -> None:
    runs = specs("table_2", task=task)
    for spec in runs.values():
        check_base(spec, task)
    assert settings(runs["Sync"]) == plain(task, "gpipe")
    assert settings(runs["PipeDream"]) == plain(task, "pipedream_cycle")
    assert settings(runs["T1+T2"]) == t1_t2(task)
    if task != "images":  # no warm-up on CIFAR10
        assert settings(runs["T1+T2+W"]) == warmed_up(task)
    if task in ("ImageNet", "WMT17"):
        assert {arm: s.id for arm, s in specs("figure_11", task=task).items()} == {a: s.id for a, s in runs.items()}


@pytest.mark.parametrize(
    ("result", "task", "stages", "method"),
    [
        ("figure_2", "images", [27, 54, 107], t1_t2("images")),  # the paper prints no x-values: chosen up to 107
        ("figure_3", "translation", [23, 47, 93], t1_t2("translation")),  # and up to 93
    ],
)
def test_figures_2_and_3(result: str, task: str, stages: list[int], method: list[Any]) -> None:
    names = {27: "resnet50_few", 54: "resnet50_some", 107: "resnet50"}
    names |= {23: "transformer_few", 47: "transformer_some", 93: "transformer"}
    for count in stages:
        runs = specs(result, task=task, setup=names[count])
        for spec in runs.values():
            check_base(spec, task, count)
        assert settings(runs["GPipe"]) == plain(task, "gpipe")
        assert settings(runs["PipeDream"]) == plain(task, "pipedream_cycle")
        assert settings(runs["PipeMare"]) == method
        if result == "figure_3":
            assert settings(runs["PipeMareW"]) == warmed_up(task)


def test_figure_4() -> None:
    runs = specs("figure_4")
    check_base(
        runs.pop("no discrepancy, many more stages"), "images", 1712, split=16
    )  # 16 parts of each of 107 weights
    for spec in runs.values():
        check_base(spec, "images")
    assert settings(runs["no discrepancy"]) == plain("images", "pipedream_cycle")
    assert settings(runs["neither"]) == plain("images", "pipemare_naive")


def test_figures_7_and_8() -> None:
    for task, stages in (("images", 214), ("translation", 186)):  # the captions
        whole, split = specs("figure_7", task=task), specs("figure_8", task=task, split="2")
        assert list(whole) == ["Sync", "T1", "T1+T2"] + ["T1+T2+W"] * (task == "translation")
        assert list(split) == list(whole) and split["Sync"] == whole["Sync"]
        for arm, spec in split.items():
            if arm != "Sync":
                check_base(spec, task, stages, split=2)
                assert settings(spec) == settings(whole[arm])


def test_figure_12() -> None:
    runs = specs("figure_12")
    for spec in runs.values():
        check_base(spec, "images", 150, name="resnet152")  # its caption; all else as for ResNet-50
        (phase,) = spec.phases
        sizes = {b - a for a, b in zip((0, *phase.cuts), (*phase.cuts, 311), strict=True)}
        assert sizes == {2, 3}  # "split these model weights evenly over P pipeline stages" (section 4.1)
    assert [settings(spec) for spec in runs.values()] == [plain("images", "gpipe"), t1("images"), t1_t2("images")]


def test_figures_13_14_and_15_and_table_8() -> None:
    """The grids of table 8: annealing, then D, then warm-up, each with the best of the ones before; annealing again."""
    grids = {"images": (10, 20, 40, 80, 160), "translation": (15, 30, 60)}
    for task, grid in grids.items():
        runs = specs("figure_13", task=task)
        assert settings(runs.pop("Sync")) == plain(task, "gpipe")  # what K is to match, says the caption
        assert {arm: settings(s) for arm, s in runs.items()} == {
            f"K = {count}/{TASKS[task]['epochs']}": t1(task, count) for count in grid
        }
    # figure 14's caption speaks of 0.5 for the Transformer too
    decays = {"images": (0.1, 0.5, 0.9), "translation": (0.01, 0.1, 0.2, 0.5)}
    for task, values in decays.items():
        runs = specs("figure_14", task=task)
        assert {arm: settings(s) for arm, s in runs.items()} == {
            "Sync": plain(task, "gpipe"),
            "no correction": t1(task),
            **{f"D = {value}": t1_t2(task, value) for value in values},
        }
    runs = specs("figure_15")
    assert settings(runs.pop("Sync")) == plain("translation", "gpipe")
    assert {arm: settings(s) for arm, s in runs.items()} == {
        f"W = {warm}/60": warmed_up("translation", warm) for warm in (3, 5, 10)
    }
    runs = specs("table_8")
    annealings = {"images": (10, 20, 40), "translation": (15, 20, 30)}
    for task, counts in annealings.items():
        for count in counts:
            assert settings(specs("table_8", task=task)[f"K with T2 = {count}/{TASKS[task]['epochs']}"]) == t1_t2(
                task, count=count
            )
    for count in (1, 10, 20):
        assert settings(runs[f"K after W = {count}/60"]) == warmed_up("translation", count=count)


def test_figures_17_and_18() -> None:
    """Checkpoints {2, 4, 17} and {2, 12, 31} (D.2), as segments of one length: 17 of 107 stages come out as 16."""
    for result, task, checkpoints in (("figure_17", "images", (2, 4, 16)), ("figure_18", "translation", (2, 12, 31))):
        stages = TASKS[task]["stages"]
        for name, count in zip(("few", "some", "many"), checkpoints, strict=True):
            runs = specs(result, checkpoints=name)
            assert list(runs) == ["T1", "T1+T2"] + ["T1+T2+W"] * (task == "translation")
            without = specs(result, checkpoints="none")
            for arm, spec in runs.items():
                check_base(spec, task)
                assert ceil(stages / int(spec.phases[-1].recompute)) == count
                assert settings(spec) == settings(without[arm])
                assert all(not phase.recompute for phase in spec.phases[:-1])


def test_figure_19() -> None:
    """Appendix E: as many stages, and the annealing of T1 alone; delays by PipeMare's N, a minibatch in one piece."""
    for task in ("images", "translation"):
        runs = specs("figure_19", task=task)
        for spec in runs.values():
            check_base(spec, task)
        micro = TASKS[task]["microbatches"]
        assert settings(runs["Sync"]) == plain(task, "gpipe")
        assert settings(runs["Hogwild"]) == plain(task, "hogwild", microbatches=micro)
        annealing = epochs(task, K[task])
        assert settings(runs["Hogwild+T1"]) == plain(task, "hogwild_t1", microbatches=micro, annealing=annealing)


def test_the_theory_is_computed_with_the_printed_numbers() -> None:
    options = {
        name: [arm.spec.options for arm in arms(load_paper("pipemare"), name, load_scale("paper"))]
        for name in ("figure_5a", "figure_5b", "figure_6a", "figure_6b", "figure_9", "figure_10", "figure_16")
    }
    assert all(each["alpha"] == 0.2 for each in options["figure_5a"])  # section 3.1
    assert {0, 7, 8, 10} <= {each["forward"] for each in options["figure_5a"]}
    (regression,) = options["figure_5b"]
    assert (regression["data"], regression["steps"]) == ("cpusmall", 10**6)
    assert all((each["forward"], each["backward"]) == (10, 6) for each in options["figure_6a"])
    assert sorted({each["delta"] for each in options["figure_6a"]}) == [0, 3, 5]
    plain_, t2, none = options["figure_6b"]
    assert (t2["forward"], t2["backward"], t2["delta"], t2["D"]) == (10, 6, 5, 0.1)
    assert (plain_["delta"], "D" in plain_, "backward" in none) == (5, False, False)
    assert options["figure_9"] == [{"study": "caching", "stages": [16], "segment": 4}]
    pair = options["figure_10"][:2]
    assert all((each["forward"], each["backward"], each["deltas"][:2]) == (40, 10, [-100, 100]) for each in pair)
    blue = options["figure_16"][0]
    assert {key: blue[key] for key in ("delta", "phi", "forward", "backward", "recompute")} == {
        "delta": 10,
        "phi": -5,
        "forward": 10,
        "backward": 1,
        "recompute": 4,
    }
