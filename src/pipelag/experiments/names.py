"""Refuse unknown models, data sets and methods when the config is read, not hours later when the run starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pipelag.catalogue import HOMES, check_model, check_options, layers_in
from pipelag.errors import PipelagError, unknown
from pipelag.runs.spec import RunSpec
from pipelag.typed import check_keywords

MOST_DERIVED = 256  # stages, whose delays take a tenth of a second


def check_names(spec: RunSpec, where: str) -> None:
    """Refuse a spec with a name that no registry has, or options, cuts or a method that cannot be.

    Raises:
        PipelagError: begins with `where`; for an unknown name it gives the nearest known one.
    """
    from pipelag.methods import METHODS, random_for_real

    try:
        if spec.model is not None:
            check_model(spec.model.name, spec.model.options, models())
            check_cuts(spec)
        if spec.data is not None:
            check_data(spec.data.name, spec.data.options)
    except PipelagError as error:
        raise PipelagError(f"{where}: {error}") from error
    for phase in spec.phases:
        _known("method", phase.method, METHODS, where)
        if spec.executor == "real" and METHODS[phase.method].random is not None:
            raise PipelagError(f"{where}: {random_for_real(phase.method)}")
        options = json.dumps(phase.options, sort_keys=True)
        refused = refusal(phase.method, options, phase.stages, phase.microbatches)
        if refused:
            raise PipelagError(f"{where}: {refused}")


def check_cuts(spec: RunSpec) -> None:
    """Refuse cuts beyond the last layer, for models whose number of layers is known."""
    assert spec.model is not None
    layers = layers_in(spec.model.name, spec.model.options)
    for phase in spec.phases:
        if layers is not None and phase.cuts and phase.cuts[-1] >= layers:
            raise PipelagError(
                f"a cut after layer {phase.cuts[-1]} leaves an empty stage: '{spec.model.name}' has {layers} layers; "
                f"cuts lie between 1 and {layers - 1}"
            )


def check_data(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown data set, or options that it does not take."""
    from pipelag.data import DATASETS

    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    loader, kind = DATASETS[name], f"option of data set '{name}'"
    if isinstance(loader, str):  # comes with pipelag: its options are checked without an import, which takes time
        check_options(loader, options, kind)
    else:
        check_keywords(loader, 0, options, f"{kind}:")


@lru_cache(maxsize=4096)
def refusal(method: str, options: str, stages: int, microbatches: int) -> str:
    """Why a method cannot run a pipeline; empty if it can. Cached, as many arms ask the same.

    Deriving the delays of 1,712 stages takes seconds, so `MOST_DERIVED` stages are tried first. If these are refused,
    the pipeline's own number may still divide as the method needs it.

    options: the method's options as JSON text.
    """
    from pipelag.methods import get

    refused = ""
    for count in dict.fromkeys((min(stages, MOST_DERIVED), stages)):
        try:
            get(method, **json.loads(options)).delays(count, microbatches)
        except PipelagError as error:
            refused = str(error)
        else:
            return ""
    return refused


def models() -> set[str]:
    """The models that come with pipelag and, if the registry is loaded already, the user's own."""
    registry = sys.modules.get("pipelag.models")
    return {*HOMES, *(registry.MODELS if registry is not None else ())}


def _known(kind: str, name: str, names: Iterable[str], where: str) -> None:
    if name not in names:
        raise PipelagError(f"{where}: {unknown(kind, name, names)}")
