"""Table V: the largest minibatch that fits into a GPU, counted stage by stage; and the memory of the weights."""

from __future__ import annotations

from typing import Any

from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact
from pipelag.results.pipeoptim.throughput import ARMS, GPIPE, OPTIM, PIPEDREAM, TWO_BW, arm_rows
from pipelag.results.plans import by_model
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipeoptim"
EXCEPTION = "GNMT-16"  # the one model for which table V has a larger microbatch of GPipe than minibatch of PipeOptim
LARGE_WEIGHTS = ("AlexNet", "GNMT-8", "GNMT-16")
GB = 1e9
Row = dict[str, Any]


def samples(row: Row) -> int | None:
    """Samples of an arm's largest pass; None where it has no logged value."""
    largest = row.get("largest") or {}
    return largest.get("samples")


def weight_bytes(row: Row) -> list[float]:
    """Bytes that all versions of the weights take on each GPU."""
    return [stage["memory"]["weights"] + stage["memory"]["versions"] for stage in row["stages"]]


@drawing(PAPER, "table_5")
def table_5(context: Context) -> Drawn:
    """Two rows per model, ours and the paper's, and what fills the fullest GPU."""
    printed = {row["model"]: row for row in context.result.reported}
    logs, rows = by_model(context), []
    for model in context.values("model"):
        arms = arm_rows(logs.get(model))
        optimizer = context.select(model=model)[0].arm.labels["optimizer"]
        ours: Row = {"model": model, "optimizer": optimizer, "whose": "ours"}
        ours |= {name: samples(arm) for name, arm in arms.items()}
        if OPTIM in arms:
            largest = arms[OPTIM]["largest"]
            ours["full"] = f"GPU {largest['stage'] - 1}, {largest['part']}"
        rows += [ours, {**printed[model], "optimizer": optimizer, "whose": "paper"}]
    cols = [Col("model", "model"), Col("optimizer", "optimizer"), Col("", "whose")]
    cols += [Col(name, name, "{:,d}", "samples of a pass") for name in ARMS]
    cols += [Col("fullest GPU under PipeOptim, and what fills it", "full")]
    notes = [
        "Counted: weights, versions, gradients, optimizer state, inputs of passes under way (recomputation keeps no "
        "more) and the activations of one pass; not the workspaces of libraries and what an allocator loses.",
        "GPipe sends 4 microbatches of this size, PipeDream-2BW sums 4 for an update.",
    ]
    pairs = [(ours, printed[ours["model"]]) for ours in rows if ours["whose"] == "ours"]
    if shares := [ours[arm] / paper[arm] for ours, paper in pairs for arm in ARMS if ours.get(arm) and arm in paper]:
        notes.append(
            f"Ours are {min(shares):.1f} to {max(shares):.0f} times the paper's counts, so that only orders within a "
            "model are compared."
        )
    return Drawn.tabled(context, rows, cols, notes, rule_by="model")


def largest(context: Context, first: str, second: str) -> dict[str, tuple[int, int]]:
    """Samples of the largest passes of two approaches, by model.

    Raises:
        NotLogged: a model has no value for one of them.
    """
    pairs = {}
    for model in context.values("model"):
        arms = arm_rows(log_of(context, model=model))
        pair = [samples(arms[name]) if name in arms else None for name in (first, second)]
        if pair[0] is None or pair[1] is None:
            raise NotLogged(f"the largest minibatches of {first} and {second} for {model} have no logged value")
        pairs[model] = pair[0], pair[1]
    return pairs


def listed(pairs: dict[str, tuple[int, int]]) -> str:
    """Samples of two approaches by model, in words."""
    return ", ".join(f"{model} {a:,} and {b:,}" for model, (a, b) in pairs.items())


@judge(PAPER, "table_5", "above_pipedream")
def above_pipedream(context: Context) -> Finding:
    """Holds if PipeOptim's largest minibatch is at least PipeDream's for every model.

    They are equal where activations alone decide.
    """
    pairs = largest(context, OPTIM, PIPEDREAM)
    return exact(all(a >= b for a, b in pairs.values()), f"{OPTIM} and {PIPEDREAM}: {listed(pairs)}")


@judge(PAPER, "table_5", "slightly_larger")
def slightly_larger(context: Context) -> Finding:
    """Holds if PipeOptim and PipeDream-2BW allow larger minibatches than PipeDream for each model that the claim names.

    These are the three models whose weights are large beside their activations.
    """
    pairs = {arm: largest(context, arm, PIPEDREAM) for arm in (OPTIM, TWO_BW)}
    chosen = {arm: {model: by_model[model] for model in LARGE_WEIGHTS} for arm, by_model in pairs.items()}
    why = "; ".join(f"{arm} and {PIPEDREAM}: {listed(by_model)}" for arm, by_model in chosen.items())
    return exact(all(a > b for by_model in chosen.values() for a, b in by_model.values()), why)


@judge(PAPER, "table_5", "gpipe_smaller")
def gpipe_smaller(context: Context) -> Finding:
    """Holds if GPipe's microbatch is smaller than PipeOptim's minibatch for more than half of the models.

    Equal is not smaller. This is how "most cases" is read: in table V it is smaller for five of eight models.
    """
    pairs = largest(context, GPIPE, OPTIM)
    fewer = sum(a < b for a, b in pairs.values())
    why = f"smaller in {fewer} of {len(pairs)} models; {GPIPE} and {OPTIM}: {listed(pairs)}"
    return exact(fewer > len(pairs) / 2, why)


@judge(PAPER, "table_5", "gnmt16_excepted")
def gnmt16_excepted(context: Context) -> Finding:
    """Holds if GPipe's microbatch is larger than PipeOptim's minibatch for GNMT-16."""
    pairs = {EXCEPTION: largest(context, GPIPE, OPTIM)[EXCEPTION]}
    return exact(pairs[EXCEPTION][0] > pairs[EXCEPTION][1], f"{GPIPE} and {OPTIM}: {listed(pairs)}")


@judge(PAPER, "table_5", "weight_memory")
def weight_memory(context: Context) -> Finding:
    """Holds if PipeDream's weights take more memory than PipeDream-2BW's and than PipeOptim's, for every model.

    The memory is summed over all GPUs. A single GPU would not do: on the last, where some models have most of their
    weights, PipeDream keeps one version.
    """
    texts, holds = [], True
    for model in context.values("model"):
        arms = arm_rows(log_of(context, model=model))
        missing = next((name for name in (PIPEDREAM, TWO_BW, OPTIM) if name not in arms), None)
        if missing:
            raise NotLogged(f"{missing} of {model} has no logged value")
        stashed, doubled, predicted = (sum(weight_bytes(arms[name])) / GB for name in (PIPEDREAM, TWO_BW, OPTIM))
        holds = holds and stashed > doubled and stashed > predicted
        texts.append(f"{model} {stashed:.3f}, {doubled:.3f}, {predicted:.3f}")
    why = f"GB of weights on all GPUs under {PIPEDREAM}, {TWO_BW}, {OPTIM}: {'; '.join(texts)}"
    return exact(holds, why)
