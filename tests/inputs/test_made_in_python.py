"""Specs and clusters that are made in Python are right, or refused in the sentence that a file would be refused in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelag.errors import PipelagError
from pipelag.partitioner.cluster import Cluster, Level
from pipelag.runs.optimizers import OptimizerSpec
from pipelag.runs.spec import ModelSpec, PhaseSpec, RunSpec


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: RunSpec(kind="trian"), "the RunSpec is wrong: unknown kind 'trian' of a run; did you mean 'train'?"),
        (lambda: RunSpec(bach=3), "unknown key 'bach'; did you mean 'batch'?"),
        (
            lambda: RunSpec(kind="count", model={"nam": "lenet5"}),
            "unknown key 'nam' at model.nam; did you mean",
        ),
        (lambda: RunSpec(kind="count", model=ModelSpec(name="lenet5"), seed=-1), "seed is -1; it should be 0 or more"),
        (lambda: RunSpec(), "a run of kind 'train' needs model and data and optimizer and phases"),
        (
            lambda: RunSpec(kind="partition", options={"profile": {"published": None}}),
            "a run of kind 'partition' needs model",
        ),
        (lambda: PhaseSpec(method="gpipe", steps=3, cuts=(3, 2)), "the PhaseSpec is wrong: cuts, the layers"),
        (lambda: OptimizerSpec(lr="0.1"), "the OptimizerSpec is wrong: lr is '0.1'; it should be a number"),
        (lambda: Cluster([]), "a cluster needs at least one level"),
        (lambda: Cluster([{"workers": 4}]), "a cluster's levels should each be a Level.workers, bandwidth., not"),
        (lambda: Cluster((Level(4, 1e9),), memory="16"), "a worker's memory must be above 0 bytes, not '16'"),
        (lambda: Level("4", 1e9), "a level needs 1 or more workers and a bandwidth above 0, not '4' and 1000000000"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence) as refused:
        make()
    assert "\n" not in str(refused.value) and "validation error" not in str(refused.value)


PUBLISHED = {
    "profile": {"published": "vgg16", "batch": 128},
    "cluster": {"levels": [{"workers": 4, "bandwidth": 1e9}]},
}


def test_a_published_profile_stands_for_a_model() -> None:
    assert RunSpec(kind="partition", options=PUBLISHED).data_set == "pipedream_profiles"
