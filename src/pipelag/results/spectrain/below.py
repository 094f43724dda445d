"""Notes below tables and figures of trained runs.

They tell sizes and learning rates beside the paper's, the updates that passes miss, and which runs do not learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelag.results.context import Context
from pipelag.results.judging import listing
from pipelag.results.learning import learns_nothing
from pipelag.results.logs import Item
from pipelag.runs.spec import RunSpec

FULL = {"width": 1}  # default options of the paper's networks
PREDICTING = "SpecTrain"


def trained(context: Context) -> list[Item]:
    """The training runs that have a log."""
    return [item for item in context.logged(what="training") if item.arm.spec.kind == "train"]


def beside_paper(context: Context) -> dict[str, tuple[RunSpec, RunSpec]]:
    """The specs of one of a network's runs, ours and the paper scale's, by model."""
    models = dict.fromkeys(item.arm.labels["model"] for item in trained(context))
    pairs = {model: context.beside_full(what="training", model=model) for model in models}
    return {model: runs[0] for model, runs in pairs.items() if runs}


def sizes(context: Context) -> str:
    """A sentence on the options in which our networks differ from the paper's; empty if none does."""
    printed = context.paper.results["table_1"].reported["sizes"]
    networks = []
    for model, (spec, theirs) in beside_paper(context).items():
        assert spec.model is not None and theirs.model is not None
        full: dict[str, Any] = FULL | theirs.model.options
        other = {key: value for key, value in spec.model.options.items() if full.get(key) != value}
        if other:
            known = [f"{key} {full[key]}" for key in other if key in full]
            paper = ", ".join([*known, *([printed[model]] if model in printed else [])])
            ours = ", ".join(f"{key} {value}" for key, value in other.items())
            networks.append(f"{model} {ours}" + (f" (in full {paper})" if paper else ""))
    return f"Networks: {'; '.join(networks)}." if networks else ""


def rates(context: Context) -> str:
    """A sentence on our learning rates and how many times the paper's they are; empty if they are the paper's."""
    words = ", ".join(f"{model} {rate:g} ({times})" for model, (rate, times) in faster(context).items())
    return f"Rates, the same for all schemes (in brackets how many times the paper's): {words}." if words else ""


def faster(context: Context) -> dict[str, tuple[float, str]]:
    """Our learning rates that differ from the paper's, and their multiple of it, by model."""
    by_model = {}
    for model, (spec, theirs) in beside_paper(context).items():
        assert spec.optimizer is not None and theirs.optimizer is not None
        ours, printed = spec.optimizer.lr, theirs.optimizer.lr
        if ours != printed:
            by_model[model] = (ours, f"{ours / printed:.3g}")
    return by_model


def gone(context: Context) -> str:
    """A sentence on the arms that diverge at rates other than the paper's; empty if there are none."""
    lost: dict[str, dict[str, None]] = {}
    for item in trained(context):
        if item.log is not None and item.log.diverged_at is not None:
            lost.setdefault(item.arm.labels["arm"], {})[item.arm.labels["model"]] = None
    times = faster(context)
    arms = [
        f"{arm} on "
        + ", ".join(f"{model} at {times[model][1]} times the paper's" for model in models if model in times)
        for arm, models in lost.items()
        if any(model in times for model in models)
    ]
    return f"The paper's own rates were not trained: what diverges is {'; '.join(arms)}." if arms else ""


def missed(context: Context, named: bool = True) -> str:
    """A sentence on the updates that passes miss under each scheme, GPU by GPU; empty without logs.

    named: whether to name the schemes' methods.
    """
    delays: dict[str, dict[str, str]] = {}
    for item in trained(context):
        for phase in item.log.summary.get("phases", ()) if item.log is not None else ():
            if any(phase["forward_delays"]) or any(phase["backward_delays"]):
                delays.setdefault(delays_of(phase), {})[item.arm.labels["arm"]] = phase["method"]
    arms = []
    for delayed, methods in delays.items():
        names = ", ".join(f"{arm} ({method})" if named else arm for arm, method in methods.items())
        arms.append(f"{names} {delayed}" + (f", which {PREDICTING} predicts" if PREDICTING in methods else ""))
    return f"Updates that passes miss, stage by stage: {'; '.join(arms)}." if arms else ""


def delays_of(logged: Mapping[str, Any]) -> str:
    """The delays of a log's or a phase's passes, stage by stage, in words."""
    forward, backward = (listing(logged[f"{side}_delays"]) for side in ("forward", "backward"))
    if forward == backward:
        return forward
    return f"{forward} (in the backward {backward if any(logged['backward_delays']) else 'none'})"


def below_tables(context: Context) -> list[str]:
    """The notes below tables: all of these sentences that are not empty."""
    return [sentence for sentence in (sizes(context), rates(context), gone(context), missed(context)) if sentence]


def below_figures(context: Context) -> list[str]:
    """The notes below figures: only those needed to read curves and bars. Table 1 has sizes, rates and methods."""
    return [sentence for sentence in (gone(context), missed(context, named=False)) if sentence]


def not_learning(context: Context, model: str, arm: str) -> str:
    """The number of an arm's runs that learn nothing, in a few words for a table's cell; empty if all learn."""
    logs = context.logs(what="training", model=model, arm=arm)
    lost = sum(map(learns_nothing, logs))
    return f" ({lost} of {len(logs)} {'does' if lost == 1 else 'do'} not learn)" if lost else ""
