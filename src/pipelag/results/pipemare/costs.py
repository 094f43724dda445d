"""What a pipeline costs by PipeMare's formulas (appendix A.1): utilisation and memory, over our models' weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from pipelag.results.logs import Context

Rows = Sequence[Mapping[str, Any]]


def gpipe_utilisation(stages: int, microbatches: float) -> float:
    """N / (N + P - 1) (appendix A.1)."""
    return microbatches / (microbatches + stages - 1)


def warmed_up(utilisation: float, synchronous: int, asynchronous: int) -> float:
    """(E_async + E_sync) / (E_async + E_sync / Util_sync): utilisation with synchronous warm-up epochs (section 4)."""
    return (asynchronous + synchronous) / (asynchronous + synchronous / utilisation)


def stage_weights(rows: Rows, stages: int) -> list[int]:
    """Parameters per stage: the layers in topological order, dealt out evenly over the stages (section 4.1)."""
    layers = [row["parameters"] for row in rows]
    bounds = [round(i * len(layers) / stages) for i in range(stages + 1)]
    return [sum(layers[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def memory_over_gpipe(method: str, rows: Rows, stages: int, microbatches: float, copies: int) -> float:
    """Weights, gradients and optimizer state (`copies` of W) with what a method adds, over that of GPipe.

    PipeDream adds sum_i |w_i| ceil((2(P-i)+1)/N) (appendix A.1), PipeMare's T2 one copy.
    """
    if method == "GPipe":
        return 1.0
    if method != "PipeDream":
        return (copies + 1) / copies
    weights = stage_weights(rows, stages)
    stashed = sum(w * ceil((2 * (stages - i) + 1) / microbatches) for i, w in enumerate(weights, start=1))
    return (copies + stashed / sum(weights)) / copies


def utilisation_of(row: Mapping[str, Any]) -> float:
    """By the formulas, of a row of table 2."""
    alone = gpipe_utilisation(row["P"], row["N"])
    if row["method"] == "GPipe":
        return alone
    if row["method"] == "PipeMareW":
        return warmed_up(alone, *row["epochs"])
    return 1.0


def weights_of(context: Context, dataset: str) -> Rows | None:
    """The layers of the model that a data set is trained with; None where they have no log."""
    log = context.log(dataset=dataset, arm="weights")
    return log.rows if log else None


def memory_of(context: Context, row: Mapping[str, Any]) -> float | None:
    """Over GPipe's; PipeDream's needs the model's weights."""
    rows = weights_of(context, row["dataset"])
    if row["method"] == "PipeDream" and rows is None:
        return None
    return memory_over_gpipe(row["method"], rows or [], row["P"], row["N"], row["copies"])
