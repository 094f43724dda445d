"""Refuses unknown models, data sets and methods when the config is read, not hours later when the run starts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from functools import lru_cache

from pipelag.errors import PipelagError, unknown
from pipelag.runs.spec import RunSpec
from pipelag.typed import check_keywords

# The registry of models loads torch, which reading the config must not; a test holds this list equal to it.
MODELS = (
    *(
        "alexnet",
        "alexnet_imagenet",
        "awd_lm",
        "bert",
        "fairseq_transformer",
        "gnmt",
        "googlenet",
        "inception_v3",
        "inception_v4",
        "lenet5",
        "mask_rcnn",
        "residual_lstm",
        "s2vt",
        "sentiment_transformer",
        "snn",
        "ssd300",
        "torchvision",
        "transformer",
        "vgg16",
        "vgg16_imagenet",
    ),
    *(f"resnet{depth}" for depth in (20, 50, 56, 101, 110, 152, 224, 362)),
)


def check_names(spec: RunSpec, where: str) -> None:
    """Refuse names that no registry has.

    Raises:
        PipelagError: with `where`, the unknown name and the nearest known one.
    """
    from pipelag.data import DATASETS
    from pipelag.methods import METHODS

    if spec.model is not None and not re.fullmatch(r"resnet\d+", spec.model.name):
        _known("model", spec.model.name, models(), where)
    if spec.data is not None:
        _known("data set", spec.data.name, DATASETS, where)
        loader = DATASETS[spec.data.name]
        if callable(loader):  # those that come with pipelag are looked up when they are read: importing them takes time
            try:
                check_keywords(loader, 0, spec.data.options, f"option of data set '{spec.data.name}':")
            except PipelagError as error:
                raise PipelagError(f"{where}: {error}") from error
    for phase in spec.phases:
        _known("method", phase.method, METHODS, where)
        # What a method refuses it refuses of few stages too; deriving the delays of 1,712 would take seconds.
        pipeline = min(len(phase.cuts) + 1, 32), phase.microbatches
        refused = refusal(phase.method, json.dumps(phase.options, sort_keys=True), *pipeline)
        if refused:
            raise PipelagError(f"{where}: {refused}")


@lru_cache(maxsize=4096)
def refusal(method: str, options: str, stages: int, microbatches: int) -> str:
    """Why a method, its options as JSON text, cannot run a pipeline; empty where it can. Many arms ask the same."""
    from pipelag.methods import get

    try:
        get(method, **json.loads(options)).delays(stages, microbatches)
    except PipelagError as error:
        return str(error)
    return ""


def models() -> set[str]:
    """The models that come with pipelag and, where the registry is loaded already, the user's own."""
    registry = sys.modules.get("pipelag.models")
    return {*MODELS, *(registry.MODELS if registry is not None else ())}


def _known(kind: str, name: str, names: Iterable[str], where: str) -> None:
    if name not in names:
        raise PipelagError(f"{where}: {unknown(kind, name, names)}")
