"""Every setting of a spec reaches what it is of: the data, the model, the optimizer, the rate, the run's id."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from pipelag import data, methods
from pipelag.data.images.batches import Batches
from pipelag.data.text.parallel import PAD
from pipelag.errors import PipelagError
from pipelag.library.simulated_checkpoint import settings_of
from pipelag.runs import text_metrics
from pipelag.runs.carry_out import carry_out, carry_out_together
from pipelag.runs.kinds.train_simulated import phases_of
from pipelag.runs.objectives import LOSSES
from pipelag.runs.optimizers import OPTIMIZERS, OptimizerSpec, factory
from pipelag.runs.rates import LRScheduleSpec
from pipelag.runs.rates import factor as rate_of
from pipelag.runs.spec import RunSpec
from pipelag.runs.tasks import Task, open_task
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase

CPU = torch.device("cpu")
SHAPES = {"train": 40, "test": 12}
SPEC: dict[str, Any] = {
    "model": {"name": "alexnet", "options": {"width": 0.06}},
    "data": {"name": "shapes", "options": SHAPES},
    "batch": 8,
    "optimizer": {"lr": 0.1},
    "phases": [{"method": "sequential", "steps": 4}],
}
TRANSLATION: dict[str, Any] = {
    "model": {"name": "transformer", "options": {"blocks": 1, "size": 16, "hidden": 16, "heads": 2}},
    "data": {"name": "phrases", "options": {"train": 60, "test": 10}},
}


def opened(**changes: Any) -> Task:
    return open_task(RunSpec.model_validate(SPEC | changes), CPU)


def seen_when_tested(task: Task) -> torch.Tensor:
    """The images that a model sees when it is measured."""
    seen: list[torch.Tensor] = []

    class Looking(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(images)
            return torch.zeros(len(images), 10)

    task.measure(Looking())
    return torch.cat(seen)


@pytest.mark.parametrize("augment", [False, True, "crop"])
def test_images_to_train_on_are_augmented_as_the_spec_says_and_those_to_test_on_never(augment: bool | str) -> None:
    images = data.load("shapes", **SHAPES)
    task = opened(data=SPEC["data"] | {"augment": augment}, seed=3)
    assert torch.equal(task.batches.inputs(2), Batches(images, 8, 3, augment).inputs(2))
    mean, std = (value.view(-1, 1, 1) for value in (images.mean, images.std))
    torch.testing.assert_close(seen_when_tested(task), (images.test_images / 255 - mean) / std, rtol=0, atol=1e-4)


def test_images_that_are_not_standardised_lie_between_0_and_1_to_test_on_too() -> None:
    images, task = data.load("shapes", **SHAPES), opened(options={"standardise": False})
    torch.testing.assert_close(seen_when_tested(task), images.test_images / 255)
    expected = images.train_images[Batches(images, 8, 0).indices(1)] / 255
    torch.testing.assert_close(task.batches.inputs(1), expected)


def test_a_seed_is_of_the_order_of_the_samples_and_of_the_first_weights() -> None:
    one, two, again = (opened(seed=seed) for seed in (1, 2, 1))
    orders = [task.batches.targets(0).tolist() + task.batches.targets(1).tolist() for task in (one, two, again)]
    assert orders[0] == orders[2] != orders[1]
    weights = [
        next(task.model(RunSpec.model_validate(SPEC | {"seed": seed}), CPU).parameters())
        for task, seed in ((one, 1), (two, 2), (again, 1))
    ]
    assert torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[1])


LANGUAGE: dict[str, Any] = {
    "model": {"name": "awd_lm", "options": {"size": 8}},
    "data": {"name": "grammar", "options": {"train": 200, "test": 20}},
}
OPINIONS: dict[str, Any] = {
    "model": {"name": "snn", "options": {"layers": 3, "width": 0.1}},
    "data": {"name": "opinions", "options": {"train": 60, "test": 10}},
}


@pytest.mark.parametrize(
    "kind",
    [TRANSLATION, TRANSLATION | {"options": {"tokens": 400}}, LANGUAGE, OPINIONS],
    ids=["text", "tokens", "language", "labelled"],
)
def test_texts_come_in_another_order_with_another_seed(kind: dict[str, Any]) -> None:
    def seen(seed: int) -> list[Any]:
        task = opened(**kind, seed=seed)
        return [leaf.tolist() for t in range(3) for leaf in tree_leaves(task.batches[t])]

    assert seen(1) == seen(1) != seen(2)


def test_images_in_folders_come_in_another_order_with_another_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "val"):
        for number in range(8):
            path = tmp_path / "imagenet" / part / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(path)
    monkeypatch.setenv("PIPELAG_MIRROR", str(tmp_path))
    folders = {"data": {"name": "imagenet", "options": {"size": 8}}, "batch": 4}
    one, two, again = (opened(**folders, seed=seed).batches.inputs(0) for seed in (1, 2, 1))
    assert torch.equal(one, again) and not torch.equal(one, two)


@pytest.mark.parametrize("tokens", [None, 400])
def test_label_smoothing_is_of_the_loss_that_trains(tokens: int | None) -> None:
    for smoothing in (0.0, 0.2):
        task = opened(**TRANSLATION, options={"label_smoothing": smoothing, "tokens": tokens})
        targets = task.batches.targets(0)
        words = targets[0] if isinstance(targets, tuple) else targets
        size = task.shape["target_words"]
        scores = torch.randn(*words.shape, size, generator=torch.Generator().manual_seed(0))
        expected = F.cross_entropy(scores.flatten(0, 1), words.flatten(), ignore_index=PAD, label_smoothing=smoothing)
        assert float(task.loss(scores, targets)) == pytest.approx(float(expected), rel=1e-5)


def test_beam_and_length_penalty_are_those_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which writes ten words more than twice the source's at most."""
    asked: list[tuple[int, int, float]] = []

    def search(model: Any, source: torch.Tensor, beam: int, longest: int, lenpen: float) -> list[list[int]]:
        asked.append((beam, longest - 2 * source.shape[1], lenpen))
        return [[] for _ in source]

    monkeypatch.setattr(text_metrics, "search", search)
    task = opened(**TRANSLATION, options={"beam": 3, "lenpen": 0.6})
    task.measure(task.model(RunSpec.model_validate(SPEC | TRANSLATION), CPU))
    assert asked == [(3, 10, 0.6)]


def test_a_stretch_of_running_text_is_as_long_as_the_spec_says() -> None:
    grammar = {"name": "grammar", "options": {"train": 300, "test": 30}}
    task = opened(model={"name": "awd_lm"}, data=grammar, options={"length": 9})
    assert task.batches.inputs(0).shape == (8, 9)
    lengths: list[int] = []

    class Looking(nn.Module):
        def forward(self, words: torch.Tensor) -> torch.Tensor:
            lengths.append(words.shape[1])
            return torch.zeros(*words.shape, task.shape["words"])

    task.measure(Looking())
    assert set(lengths) == {9}


def test_a_loss_of_ones_own_is_the_one_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "mine", lambda output, target: output.sum())
    assert opened(options={"loss": "mine"}).loss is LOSSES["mine"]


def test_every_setting_of_an_optimizer_is_one_of_its_groups() -> None:
    values = {
        "momentum": 0.7, "weight_decay": 0.03, "nesterov": True, "dampening": 0.4, "betas": (0.6, 0.8), "eps": 0.02,
        "trust": 0.05,
    }  # fmt: skip
    kinds = {"sgd": "SGD", "caffe_sgd": "CaffeSGD", "lars": "LARS", "adam": "Adam", "adamw": "AdamW", "nadam": "NAdam"}
    for name, kind in kinds.items():
        for setting in OPTIMIZERS[name].settings:
            given = {setting: values[setting]} | ({"momentum": 0.7} if setting in ("nesterov", "dampening") else {})
            made = factory(OptimizerSpec(name=name, lr=0.2, **given))([nn.Parameter(torch.ones(2, 2))])
            (group,) = made.param_groups
            assert type(made).__name__ == kind and {key: group[key] for key in given} == given and group["lr"] == 0.2


@pytest.mark.parametrize(
    ("spec", "factors"),
    [
        ({"name": "inv", "gamma": 0.5, "power": 2.0}, {0: 1.0, 1: 1.5**-2, 6: 4.0**-2}),
        # fairseq counts steps from 1: the rate rises to the base at step 4, and falls from step 5 on
        ({"name": "inverse_sqrt", "warmup": 4}, {0: 0.25, 2: 0.75, 3: 1.0, 4: (4 / 5) ** 0.5, 15: 0.5}),
        ({"name": "polynomial", "power": 2.0, "horizon": 80}, {0: 1.0, 40: 0.25, 80: 0.0, 90: 0.0}),
        ({"name": "milestones", "milestones": [0.25, 0.5], "horizon": 80}, {19: 1.0, 20: 0.1, 39: 0.1, 40: 0.01}),
        ({"name": "polynomial", "power": 1.0, "warmup": 4}, {0: 0.25, 1: 0.5 * 19 / 20, 10: 0.5}),
    ],
    ids=lambda value: value.get("name") if "name" in value else "",
)
def test_a_rate_is_what_its_formula_says(spec: dict[str, Any], factors: dict[int, float]) -> None:
    course = rate_of(LRScheduleSpec.model_validate(spec), 20)
    assert {step: course(step) for step in factors} == pytest.approx(factors)


@pytest.mark.parametrize("name", ["sgd", "caffe_sgd", "lars", "adam", "adamw", "nadam"])
def test_vectors_without_decay_stay_in_their_stage_with_its_rate(name: str) -> None:
    settings = {"name": name, "lr": 0.1, "weight_decay": 0.3, "options": {"decay_vectors": False}}
    stages = [[nn.Parameter(torch.ones(shape)) for shape in ((2,), (2, 2), ())] for _ in range(2)]
    groups = [{"params": stages[0], "stage": 1, "lr": 0.5}, {"params": stages[1], "stage": 2}]
    made = factory(OptimizerSpec.model_validate(settings))(groups).param_groups
    seen = [(group["stage"], group["lr"], group["weight_decay"], len(group["params"])) for group in made]
    assert seen == [(1, 0.5, 0.3, 1), (1, 0.5, 0.0, 2), (2, 0.1, 0.3, 1), (2, 0.1, 0.0, 2)]


PHASE = {"method": "pipedream", "steps": 4, "cuts": [2]}
WHOLE: dict[str, Any] = SPEC | {"phases": [PHASE]}
CHANGES: list[dict[str, Any]] = [
    {"model": {"name": "alexnet", "options": {"width": 0.07}}},
    {"data": SPEC["data"] | {"augment": True}},
    {"data": SPEC["data"] | {"augment": "crop"}},
    {"data": {"name": "shapes", "options": SHAPES | {"train": 48}}},
    {"batch": 4},
    {"evaluate_every": 2},
    {"seed": 1},
    {"executor": "real", "workers": 2},
    {"options": {"grouped": True}},
    {"options": {"save_model": True}},
    *({"optimizer": {"lr": 0.1} | more} for more in (
        {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}, {"name": "caffe_sgd"},
        {"momentum": 0.9, "dampening": 0.9}, {"options": {"decay_vectors": False}}, {"name": "lars"},
        {"name": "lars", "trust": 0.01}, {"name": "adam"}, {"name": "adam", "betas": [0.8, 0.9]},
        {"name": "adam", "eps": 0.1}, {"lr": 0.2},
    )),
    *({"lr_schedule": more} for more in (
        {"name": "cosine"}, {"warmup": 2}, {"name": "cosine", "horizon": 9},
        {"name": "milestones", "milestones": [0.5]},
        {"name": "milestones", "milestones": [0.5], "gamma": 0.2}, {"name": "polynomial"},
        {"name": "polynomial", "power": 2.0},
    )),
    *({"phases": [PHASE | more]} for more in (
        {"method": "stale_weights"}, {"steps": 5}, {"cuts": [3]}, {"stage_lr": {"1": 0.2}}, {"microbatches": 2},
        {"recompute": True}, {"recompute": 2}, {"replicas": [2, 1]}, {"method": "pipemare"},
        {"method": "pipemare", "options": {"annealing": 2}},
    )),
    {"phases": [PHASE, PHASE]},
]  # fmt: skip


def test_specs_that_differ_in_anything_have_different_ids() -> None:
    ids = [RunSpec.model_validate(WHOLE | change).id for change in ({}, *CHANGES)]
    twice = [CHANGES[number - 1] for number, name in enumerate(ids) if ids.count(name) > 1]
    assert not twice


def test_what_stands_there_by_default_may_be_said_and_changes_no_id() -> None:
    said = WHOLE | {
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "dampening": None, "betas": None, "options": {}},
        "lr_schedule": {"name": "constant", "options": {}},
        "phases": [PHASE | {"microbatches": 1, "recompute": False, "replicas": [], "options": {}}],
        "evaluate_every": 0,
        "workers": 1,
    }
    assert RunSpec.model_validate(said).id == RunSpec.model_validate(WHOLE).id


def test_a_method_that_means_something_else_than_it_did_gives_its_runs_other_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids, of_others = [], RunSpec.model_validate(SPEC).id
    for revision in (1, 2, 3):
        monkeypatch.setitem(methods.METHODS, "pipedream", replace(methods.METHODS["pipedream"], revision=revision))
        ids.append(RunSpec.model_validate(WHOLE).id)
    assert len(set(ids)) == 3 and RunSpec.model_validate(SPEC).id == of_others


@pytest.mark.parametrize("option", [{"discrepancy": {"every": 2}}, {"grouped": True}])
def test_what_only_the_simulated_executor_does_is_refused_of_the_real_one(option: dict[str, Any]) -> None:
    RunSpec.model_validate(SPEC | {"options": option})
    with pytest.raises(ValueError, match=f"options.{next(iter(option))} is for the simulated executor; leave it out"):
        RunSpec.model_validate(SPEC | {"options": option, "executor": "real"})


def test_a_speed_run_asks_for_real_workers() -> None:
    phases = [{"method": "pipedream", "steps": 12, "cuts": [2]}]
    speed = {"kind": "speed", "model": {"name": "lenet5"}, "data": {"name": "digits"}, "optimizer": {"lr": 0.1}}
    with pytest.raises(ValueError, match="a run of kind 'speed' measures real workers; set executor: real"):
        RunSpec(**speed, phases=phases, workers=2)  # type: ignore[arg-type]


def test_distances_over_replicas_are_refused_before_any_phase_is_trained(tmp_path: Path) -> None:
    phases = [*SPEC["phases"], {"method": "pipedream", "steps": 2, "cuts": [2], "replicas": [2, 1]}]
    spec = RunSpec.model_validate(SPEC | {"phases": phases, "options": {"discrepancy": {}}, "evaluate_every": 1})
    with pytest.raises(PipelagError, match="options.discrepancy needs one worker per stage"):
        carry_out(spec, tmp_path / "run", "cpu", 1)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == ["id"]


def test_every_setting_of_a_phase_is_one_of_the_phase_that_is_trained() -> None:
    settings = {"steps": 6, "cuts": [2, 4], "stage_lr": {"1": 0.2}, "microbatches": 2, "recompute": 2}
    first = {"method": "pipemare", "options": {"annealing": 3, "decay": 0.5}} | settings
    second = {"method": "pipedream", "steps": 4, "cuts": [3], "replicas": [2, 1], "recompute": True}
    one, two = phases_of(RunSpec.model_validate(SPEC | {"phases": [first, second]}))
    assert settings_of(one.method, 3) == settings_of(methods.get("pipemare", annealing=3, decay=0.5), 3)
    assert replace(one, method=two.method) == Phase(two.method, 6, (2, 4), {1: 0.2}, 2, 2)
    assert two == Phase(methods.get("pipedream"), 4, (3,), recompute=True, replicas=(2, 1))


@pytest.mark.parametrize("split", [False, True])
def test_a_profile_has_a_row_for_each_layer_and_the_threads_of_its_options(tmp_path: Path, split: bool) -> None:
    options = {"repeats": 1, "threads": 2, "split": split}
    spec = RunSpec.model_validate({key: SPEC[key] for key in ("model", "data", "batch")} | {"kind": "profile"})
    summary = carry_out(spec.model_copy(update={"options": options}), tmp_path, "cpu", 1)
    layers = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    model = opened().model(RunSpec.model_validate(SPEC), CPU)
    assert [row["layer"] for row in layers] == [*range(1, len(model) + 1)]
    assert [row["weight_bytes"] for row in layers] == [
        4 * sum(p.numel() for p in layer.parameters()) for layer in model
    ]
    assert layers[-1]["output_bytes"] == 8 * 10 * 4  # minibatch, classes, float32
    assert all((row["weight_ms"] is not None) == split for row in layers)
    assert summary["total_ms"] == pytest.approx(sum(row["forward_ms"] + row["backward_ms"] for row in layers))
    assert json.loads((tmp_path / "environment.json").read_text())["threads"] == 2


def test_a_study_with_momentum_is_of_the_papers_polynomial(tmp_path: Path) -> None:
    """PipeMare B.2: x^(tau+1) - (1 + beta) x^tau + beta x^(tau-1) + alpha lambda."""
    options = {"study": "radius", "forward": 3, "momentum": 0.9, "curvature": 2.0, "alphas": [0.01, 0.2, 3]}
    carry_out(RunSpec.model_validate({"kind": "theory", "options": options}), tmp_path, "cpu", 1)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        roots = np.roots([1, -1.9, 0.9, 0, row["alpha"] * 2.0])
        assert row["radius"] == pytest.approx(np.abs(roots).max())
    assert [row["alpha"] for row in rows] == pytest.approx([0.01, 0.105, 0.2])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("word 1:2\n", "in LIBSVM's format: could not convert"),
        ("1 1:2\n1 1:3\n", "targets that differ"),
    ],
)
def test_a_file_that_is_no_regression_set_is_refused(text: str | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "set"
    if text is not None:
        path.write_text(text)
    options = {"study": "regression", "alphas": [0.1, 1.0, 2], "taus": [0], "steps": 2, "file": str(path)}
    with pytest.raises(PipelagError, match=f"'{path}' is not a regression set.*{why}"):
        carry_out(RunSpec.model_validate({"kind": "theory", "options": options}), tmp_path / "run", "cpu", 1)


@pytest.mark.parametrize("backward", [{}, {"backward": 3}])
def test_a_correction_where_there_is_nothing_to_correct_is_refused(backward: dict[str, int]) -> None:
    options = {"study": "radius", "forward": 3, "D": "theory", "alphas": [0.01, 0.2, 3], **backward}
    with pytest.raises(ValueError, match="D is of T2, which corrects a backward that is less late than its forward"):
        RunSpec.model_validate({"kind": "theory", "options": options})


def test_a_run_computes_with_as_many_threads_as_its_log_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, step = set[int](), SimulatedTraining.step

    def looked(training: SimulatedTraining, *batch: Any) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return step(training, *batch)

    monkeypatch.setattr(SimulatedTraining, "step", looked)
    spec = RunSpec.model_validate(SPEC)
    carry_out(spec, tmp_path / "alone", "cpu", 3)
    assert seen == {3} == {json.loads((tmp_path / "alone/environment.json").read_text())["threads"]}
    carry_out_together([(spec, tmp_path / "one"), (spec, tmp_path / "two")], "cpu", 2)
    assert seen == {3, 2} and json.loads((tmp_path / "two/environment.json").read_text())["threads"] == 2
