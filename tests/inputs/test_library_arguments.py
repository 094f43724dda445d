"""The library beside `train`: what schedules, the timed executor, plans and profiles are given is right or refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pipelag
from pipelag.errors import PipelagError
from pipelag.models.linearise import linearise
from pipelag.timing.layers import LayerTime, Profile, balanced_cuts

ANY: Any = pipelag  # what a caller gives in spite of the annotations
PROFILE = Profile(tuple(LayerTime(f"layer {n}", 1.0, 2.0, 100, 100) for n in range(4)))
CLUSTER = pipelag.Cluster.of({"levels": [{"workers": 2, "bandwidth": 1e9}]})
SCHEDULE = pipelag.schedule("1f1b", stages=2, minibatches=8)
NAN = float("nan")
MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ANY.delays("1f1b"), "the schedule is '1f1b'; it should be a pipelag.Schedule"),
    (lambda: ANY.check("1f1b"), "the schedule is '1f1b'; it should be a pipelag.Schedule"),
    (lambda: ANY.time("1f1b", PROFILE, cuts=(2,)), "the schedule is '1f1b'"),
    (
        lambda: ANY.time(SCHEDULE, PROFILE, CLUSTER, cuts=(2,)),
        r"topology is Cluster.*; it should be a pipelag.Topology",
    ),
    (lambda: ANY.time(SCHEDULE, 3, cuts=(2,)), "costs is 3; it should be a pipelag.Profile, or a list"),
    (
        lambda: ANY.time(SCHEDULE, ANY.uniform(2), cuts=(1,)),
        "cuts are given, but the list of stage costs is already cut",
    ),
    (lambda: ANY.time(SCHEDULE, [1.0, 2.0]), "cost 1 is 1.0; it should be a pipelag.StageCost"),
    (lambda: ANY.partition(PROFILE, 4), "the cluster is 4; it should be a pipelag.Cluster"),
    (lambda: ANY.partition([1, 2], CLUSTER), r"the profile is \[1, 2\]; it should be a pipelag.Profile"),
    (lambda: ANY.partition(PROFILE, CLUSTER, straight="no"), "straight is 'no'; it should be True or False"),
    (lambda: ANY.partition(PROFILE, CLUSTER, data_parallel=3), "data_parallel is 3; it should be True or False"),
    (lambda: ANY.partition(PROFILE, CLUSTER, hierarchical=1), "hierarchical is 1; it should be True, False or None"),
    (lambda: balanced_cuts(ANY.uniform(2), stages=2), "the profile is .* it should be a pipelag.Profile"),
    (lambda: ANY.balanced_cuts(PROFILE, stages="2"), "4 layers can be cut into 1 to 4 stages, not '2'"),
    (lambda: ANY.Topology(bandwidth="1e9"), "a link needs a bandwidth above 0 .* not '1e9' and 0.0"),
    (lambda: ANY.Topology(NAN), "a link needs a bandwidth above 0 .* not nan and 0.0"),
    (lambda: ANY.Topology(1.0, NAN), "a latency from 0 on .* not 1.0 and nan"),
    (lambda: ANY.Topology(1.0, shared="no"), "a link's shared is 'no'; it should be True or False"),
    (lambda: ANY.uniform(2, output_byte=3), "unknown cost 'output_byte' of a stage; did you mean 'output_bytes'"),
    (lambda: ANY.uniform(2, forward=NAN), "a stage's forward is nan; it should be a number from 0 on"),
    (lambda: ANY.uniform(2, backward=-1.0), "a stage's backward is -1.0; it should be a number from 0 on"),
    (lambda: ANY.uniform(0), "the number of stages is 0; it should be a whole number from 1 on"),
    (lambda: ANY.linearise(3), "the model is 3; it should be an nn.Module"),
    (lambda: ANY.linearise(MODEL, crossing="a"), "crossing is 'a'; it should be a whole number from 1 on"),
    (lambda: ANY.linearise(MODEL, inputs={"input": torch.ones(1, 8)}), "the example 'input' has one sample; give two"),
    (lambda: ANY.Cluster.load(3), "the cluster's file is 3; it should be a path"),
    (lambda: ANY.profile(MODEL, torch.zeros(0, 8)), "the batch has no samples"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=[sentence[:50] for _, sentence in REFUSED])
def test_what_does_not_fit_is_refused_in_a_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        call()


def test_what_fits_is_taken() -> None:
    assert pipelag.time(SCHEDULE, PROFILE, pipelag.Topology(1e9), cuts=(2,)).throughput > 0
    assert pipelag.partition(PROFILE, CLUSTER, straight=True, hierarchical=None).config == "straight"
    assert len(linearise(MODEL)) >= 2
    assert len(pipelag.uniform(np.int64(3))) == 3 and balanced_cuts(PROFILE, np.int64(2)) == (2,)


def test_names_complete_before_they_are_loaded() -> None:
    assert set(pipelag.__all__) <= set(dir(pipelag)) and "timing" in dir(pipelag)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("1f1b", {"stages": np.int64(3), "minibatches": np.int32(8), "microbatches": np.int8(2)}),
        ("pipemare", {"stages": np.int64(3), "minibatches": np.int32(8), "microbatches": np.int8(2)}),  # of a method
        ("1f1b_rr", {"stages": 2, "minibatches": 8, "replicas": np.array([2, 1])}),
        ("1f1b_rr", {"stages": 2, "minibatches": 8, "replicas": [np.int64(2), 1]}),
    ],
)
def test_numbers_of_numpy_make_the_same_schedule(name: str, options: dict[str, Any]) -> None:
    plain = {key: (2, 1) if key == "replicas" else int(value) for key, value in options.items()}
    made = pipelag.schedule(name, **options)
    assert made == pipelag.schedule(name, **plain) and type(made.stages) is int


@pytest.mark.skipif(sys.version_info < (3, 14), reason="such a module ends in a NameError of its own before 3.14")
def test_annotations_that_only_type_checkers_resolve_need_no_quotes(tmp_path: Path) -> None:
    """Python evaluates them on demand from 3.14 on; here they are an optimizer's."""
    (tmp_path / "mine.py").write_text(
        """if True:
        import pipelag, torch

        class Mine(torch.optim.SGD):
            def step(self, closure: Closure | None = None) -> Loss:
                return super().step(closure)

        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        batches = [(torch.ones(1, 2), torch.tensor([1]))] * 2
        pipelag.train(model, batches, cuts=(1,), optimizer=lambda weights: Mine(weights, lr=0.1))
        """
    )
    done = subprocess.run([sys.executable, str(tmp_path / "mine.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
