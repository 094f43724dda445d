"""What a run of a kind that needs no training may be asked: refused in a sentence before it computes anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelag.commands.run import read_spec
from pipelag.errors import PipelagError
from pipelag.runs.carry_out import carry_out
from pipelag.runs.kinds import speed

LENET: dict[str, Any] = {"kind": "count", "model": {"name": "lenet5"}}
PHASE: dict[str, Any] = {"method": "gpipe", "steps": 2, "cuts": [1, 2], "microbatches": 4}
TIMELINE: dict[str, Any] = {"kind": "timeline", "phases": [PHASE]}
CLUSTER: dict[str, Any] = {"levels": [{"workers": 4, "bandwidth": 1e9}]}
UNIT = {"forward": 1, "backward": 1}
INPUT = {"shape": [3, 32, 32]}


def theory(study: str, **options: Any) -> dict[str, Any]:
    return {"kind": "theory", "options": {"study": study, **options}}


def planned(*inputs: dict[str, Any]) -> dict[str, Any]:
    options = {"profile": {"roofline": "v100", "inputs": list(inputs)}, "cluster": CLUSTER}
    return {"kind": "partition", "model": {"name": "vgg16"}, "batch": 8, "options": options}


def planned_with(**more: Any) -> dict[str, Any]:
    spec = planned(INPUT)
    return spec | {"options": spec["options"] | more}


def trained(data: dict[str, Any], **options: Any) -> dict[str, Any]:
    spec = {"kind": "train", "model": {"name": "lenet5"}, "data": data, "batch": 8, "optimizer": {"lr": 0.1}}
    return spec | {"phases": [{"method": "sequential", "steps": 1}], "evaluate_every": 1, "options": options}


FEW = {"options": {"train": 32, "test": 8}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (theory("lemmas", taus=[10**7], deltas=[1.0], betas=[0.5]), "'taus.0' of a theory run is 10000000"),
    (theory("lemmas", taus=[], deltas=[], betas=[]), "'taus'"),
    (theory("trajectories", forward=5, alpha=0.1, steps=10**9), "1,000,000,000 steps of 1 runs are more than"),
    (theory("trajectories", forward=5, alpha=0.1, steps=10, runs=10**9), "'runs' of a theory run is 1000000000"),
    (theory("trajectories", forward=5, alpha=-0.1, steps=10), "'alpha' of a theory run is -0.1"),
    (theory("trajectories", forward=2, backward=5, alpha=0.1, steps=10), "no older than its forward's"),
    (theory("radius", forward=2, backward=5, alphas=[0.0, 0.3, 5]), "no older than its forward's"),
    (theory("radius", forward=5, alphas=[0.0, 0.3, 0]), "'alphas.2' of a theory run is 0"),
    (theory("radius", forward=5, alphas=[0.0, 0.3, 10**9]), "'alphas.2' of a theory run is 1000000000"),
    (theory("radius", forward=10**6, alphas=[0.0, 0.3, 2]), "'forward' of a theory run is 1000000"),
    (theory("stable_over_pairs", most=10**5, deltas=[0.0]), "'most' of a theory run is 100000"),
    (theory("stable_over_pairs", most=3, deltas=[]), "'deltas'"),
    (theory("regression", alphas=[-1.0, 1.0, 3], taus=[1], steps=10), "first, last, how many], should be above 0"),
    (theory("regression", alphas=[0.0, 1.0, 3], taus=[1], steps=10), "first, last, how many], should be above 0"),
    (theory("regression", alphas=[0.1, 1.0, 3], taus=[-1], steps=10), "'taus.0' of a theory run is -1"),
    (theory("regression", alphas=[0.1, 1.0, 3], taus=[1], steps=10, data="a", file="b"), "leave one of them out"),
    (
        theory("stable_over_pairs", most=3, deltas=[1e308]),
        "'deltas.0' of a theory run is 1e+308; it should be",
    ),
    (theory("radius", forward=5, phi=-1e308, alphas=[0.0, 0.3, 5]), "'phi' of a theory run is -1e+308"),
    (theory("pipelines", pipelines=[[0, 1]]), "'pipelines.0.0' of a theory run is 0"),
    (theory("pipelines", pipelines=[[1, 2, 3]]), "'pipelines.0"),
    (theory("pipelines", pipelines=[[10**6, 10**6]]), "'pipelines.0.0' of a theory run is 1000000"),
    (theory("caching", stages=[-3], segment=2), "'stages.0' of a theory run is -3"),
    (theory("segments", pipelines=[[3, 0]]), "'pipelines.0.1' of a theory run is 0"),
    (theory("decays", gaps=[0], backward=[0]), "'gaps.0' of a theory run is 0"),
    (theory("decays", gaps=[1], backward=[]), "'backward'"),
    (theory("stable_over_delta", forward=2, deltas=[0, 5, 2], delta=3.0), "this study goes over deltas, [first"),
    (theory("compute", model="resnet50"), "a model takes either numbers or words"),
    (theory("compute", model="resnet50", words=5), "model 'resnet50' cannot take 5 words"),
    (theory("predictions", optimizer="adam", horizons=[0]), "'horizons.0' of a theory run is 0"),
    (theory("copies", optimizer="sgd") | {"phases": [PHASE]}, "a run of kind 'theory' has no phases; leave it out"),
    (LENET | {"options": {"sample_shape": []}}, "'sample_shape'"),
    (LENET | {"options": {"sample_shape": [1, -28, 28]}}, "'sample_shape.1' of a count run is -28"),
    (LENET | {"options": {"sample_shape": [1, 4, 4]}}, "model 'lenet5' cannot take images of 1x4x4"),
    (
        LENET | {"model": {"name": "torchvision", "options": {"network": "googlenet", "aux_logit": False}}},
        "torchvision's network 'googlenet' does not take the options aux_logit",
    ),
    (
        LENET | {"options": {"sample_shape": [1, 28, 28], "cuts": [99]}},
        "a cut after layer 99 leaves an empty last stage",
    ),
    (LENET | {"options": {"sample_shape": [1, 28, 28], "cuts": [3, 1]}}, "should increase, not be [3, 1]"),
    (LENET | {"executor": "real", "workers": 7}, "a run of kind 'count' has no executor"),
    (LENET | {"optimizer": {"lr": 0.1}}, "a run of kind 'count' has no optimizer"),
    (TIMELINE | {"phases": [PHASE, PHASE]}, "a timeline shows one phase, but the run has 2"),
    (TIMELINE | {"options": {"costs": {"forward": 0, "backward": 0}}}, "no pass takes any time"),
    (TIMELINE | {"model": {"name": "lenet5"}}, "a run of kind 'timeline' has no model"),
    (
        TIMELINE | {"options": {"costs": {"forward": None, "backward": 1}}},
        "a stage's forward is None; it should be",
    ),
    (TIMELINE | {"options": {"costs": UNIT | {"update": None}}}, "a stage's update is None; it should be a number"),
    (TIMELINE | {"options": {"costs": {"forward": 1e308, "backward": 1}}}, "a stage's forward is 1e+308; it should be"),
    (TIMELINE | {"options": {"costs": UNIT, "topology": {"bandwidth": 1e-320}}}, "a link needs a bandwidth"),
    (TIMELINE | {"options": {"costs": UNIT, "topology": {"latency": 1e308}}}, "a link needs a bandwidth"),
    (TIMELINE | {"phases": [PHASE | {"stage_lr": {"1": 0.5}}]}, "a timeline trains nothing; leave stage_lr out"),
    (TIMELINE | {"options": {"costs": {"forward": 1}, "replicas": [10**6, 1, 1]}}, "'replicas.0' of a timeline run is"),
    (trained({"name": "digits"}, tokens=400), "option 'tokens' is for parallel text, but 'digits' holds images"),
    (trained({"name": "digits"}, length=9), "option 'length' is for running text, but 'digits' holds images"),
    (trained({"name": "phrases"} | FEW, standardise=False), "is for images, but 'phrases' holds parallel text"),
    (trained({"name": "opinions"} | FEW, beam=2), "is for parallel text, but 'opinions' holds labelled text"),
    (
        trained({"name": "opinions", "augment": True} | FEW),
        "augment: true is for images, but 'opinions' holds labelled",
    ),
    (
        trained({"name": "phrases", "augment": "crop"} | FEW),
        "augment: crop is for images, but 'phrases' holds parallel",
    ),
    (
        TIMELINE | {"phases": [PHASE | {"method": "hogwild", "microbatches": 1}]},
        "method 'hogwild' draws its delays at random, so no timeline can show",
    ),
    *(
        (
            planned_with(**{name: value}),
            f"{name} is for the plan's arms, and there are none; give arms, or leave {name}",
        )
        for name, value in (("cuts", [2]), ("workers", [2]), ("memory", 5.0), ("moving", "free"))
    ),
    (planned(), "a roofline's profile needs inputs"),
    (planned(INPUT, INPUT), "model 'vgg16' cannot take the profile's inputs"),
]


@pytest.mark.parametrize(
    ("spec", "sentence"), REFUSED, ids=[f"{n}-{sentence[:30]}" for n, (_, sentence) in enumerate(REFUSED)]
)
def test_a_run_that_cannot_be_is_refused_at_once(spec: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PipelagError) as refusal:
        carry_out(read_spec(json.dumps(spec), None), tmp_path, "cpu", 1)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize(("kind", "device"), [(LENET, "cdua"), (TIMELINE, "gpu:0"), (TIMELINE, "cuda:x")])
def test_a_device_that_is_none_is_refused_where_none_is_used(kind: dict[str, Any], device: str, tmp_path: Path) -> None:
    with pytest.raises(PipelagError, match=f"^unknown device '{device}'; the devices are auto, cpu, cuda and cuda:N$"):
        carry_out(read_spec(json.dumps(kind), None), tmp_path, device, 1)


@pytest.mark.parametrize(
    ("phase", "sentence"),
    [
        ({"steps": 10}, "^blocks of 10 steps are too short for a pipeline that takes 5 steps to fill; use .* of 11 or"),
        ({"steps": 20, "replicas": [2, 1, 1]}, r"^the replicas \[2, 1, 1\] need 4 workers, not 3"),
        ({"steps": 20, "method": "hogwild"}, "method 'hogwild' draws its delays at random"),
    ],
)
def test_a_speed_run_is_refused_before_workers_open_the_data(
    phase: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "everywhere", lambda *args, **more: pytest.fail("workers were started"))
    spec = trained({"name": "digits"}) | {"kind": "speed", "executor": "real", "workers": 3, "evaluate_every": 0}
    spec |= {"phases": [{"method": "pipedream", "cuts": [1, 2], **phase}]}
    with pytest.raises(PipelagError, match=sentence):
        carry_out(read_spec(json.dumps(spec), None), tmp_path, "cpu", 1)


def test_a_model_of_ones_own_keeps_its_traceback() -> None:
    from pipelag.models.taking import taking

    with pytest.raises(ZeroDivisionError), taking("lenet5", "images"):
        _ = 1 / 0
    with pytest.raises(IndexError), taking("their_model", "images"):
        _ = [][0]
    sentence = "model 'lenet5' cannot take images: list index out of range"
    with pytest.raises(PipelagError, match=sentence), taking("lenet5", "images"):
        _ = [][0]
