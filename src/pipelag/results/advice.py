"""Rank the methods that could train a model on a cluster: by memory, speed and what each costs in accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor, log10
from typing import TYPE_CHECKING, Any

from pipelag.report.tables import Cell, Col, Table
from pipelag.report.tables import table as tabulated
from pipelag.results.evidence import Evidence, nearest

if TYPE_CHECKING:
    from pipelag.partitioner.advice import Choice  # which loads torch

GB = 1e9


@dataclass(frozen=True)
class Ranked:
    """A choice with the evidence of what its method cost in accuracy; None if the method has no logs."""

    choice: Choice
    evidence: Evidence | None

    @property
    def loss(self) -> float:
        """The loss of accuracy in percentage points, the mean over seeds; infinite without evidence."""
        return self.evidence.loss.mean if self.evidence is not None else float("inf")

    @property
    def worst(self) -> float:
        """The upper end of the loss's 95 % interval; infinite without evidence or without an interval."""
        error = self.evidence.loss.error if self.evidence is not None else None
        return float("inf") if error is None else self.loss + error

    @property
    def throughput(self) -> float:
        """Samples per second, rounded to five digits so that smaller differences count as equal."""
        return float(f"{self.choice.throughput:.5g}")

    def accepted(self, accept: float | None) -> bool:
        """Whether the choice fits into memory and costs at most `accept` percentage points of accuracy.

        A method without staleness computes what sequential training computes, so it needs no evidence. Evidence that
        exists counts nevertheless, because batch norm takes its statistics over a microbatch.
        """
        harmless = self.evidence is None and not self.choice.stale
        return self.choice.usable and (accept is None or harmless or self.loss <= accept)

    def order(self, accept: float | None) -> tuple[Any, ...]:
        """The sort key: accepted choices first, then those that fit, then by falling throughput.

        Ties go to the smallest loss at the upper end of its interval (the smallest mean may be luck), then to the least
        staleness, then to the least memory.
        """
        choice = self.choice
        stalest = max((*choice.staleness, *choice.stale_backward))
        losses = (self.worst, self.loss) if self.evidence is not None or choice.stale else (0.0, 0.0)
        ties = (*losses, stalest, choice.fullest.total(), choice.method.name)
        return not self.accepted(accept), not choice.usable, -self.throughput, *ties


def ranked(
    choices: Iterable[Choice], evidence: Sequence[Evidence], accept: float | None, optimizer: str, model: str
) -> list[Ranked]:
    """The choices in the order of `Ranked.order`, each with the evidence from the most similar runs.

    The first one is the advice if it is accepted.
    """
    rows = [
        Ranked(choice, nearest(evidence, choice.method.name, optimizer, model, len(choice.plan.stages)))
        for choice in choices
    ]
    return sorted(rows, key=lambda row: row.order(accept))


RULE = (
    "Order: methods come first that fit into a GPU's memory (if necessary with recomputation) and lose no more "
    "accuracy than accepted; then the fastest; among equally fast methods, those with the smallest loss at the "
    "worse end of its interval, the least staleness and the least memory. A method without staleness computes the "
    "same as sequential training, so it needs no log."
)


WORDS = (
    "Memory is that of the fullest GPU, and staleness counts the updates that forward passes miss. A loss of accuracy "
    "is the mean over seeds ± half the 95 % interval, measured on another task than yours."
)


def verdict(rows: Sequence[Ranked], accept: float | None, memory: float) -> str:
    """One sentence: which method to use, and why."""
    points = "point" if accept == 1 else "points"
    bound = f"a loss of at most {accept:g} {points}" if accept is not None else "any loss of accuracy"
    if not rows or not rows[0].accepted(accept):
        why = "none fits into a GPU's memory" if not any(row.choice.usable for row in rows) else f"none has {bound}"
        return f"No method can be advised: {why}."
    choice, evidence = rows[0].choice, rows[0].evidence
    recomputing = ", with recomputation" if choice.recompute else ""
    if evidence is not None:
        cost = f"it loses {evidence.text()} points of accuracy in the logs of {evidence.origin()}"
    elif choice.stale:
        cost = "no log says how much accuracy it loses"
    else:
        cost = "it uses no stale weights"
    most = max(choice.updates)
    cost += f"; an update covers up to {most} minibatches, which a smaller --batch can make up for" if most > 1 else ""
    room = "" if memory == float("inf") else f" of {memory / GB:.3g}"
    equal = sum(row.accepted(accept) and row.throughput == rows[0].throughput for row in rows)
    rate = f"{choice.throughput:,.0f}" if choice.throughput >= 1000 else f"{choice.throughput:.4g}"
    others = "" if equal == 1 else f", with {equal - 1} equally fast ones"
    return (
        f"Use {choice.method.name} ({choice.config}{recomputing}): of the methods that fit, with {bound}, "
        f"it is the fastest{others}: {rate} samples per second with {choice.fullest.total() / GB:.3g}{room} GB "
        f"on the fullest GPU, and {cost}."
    )


def short(values: Sequence[int]) -> str:
    """Numbers per stage; of many, the first ones and the last."""
    if len(set(values)) == 1 and len(values) > 4:
        return f"{values[0]} on all"
    if len(values) > 8:
        return f"{', '.join(map(str, values[:3]))} ... {values[-1]}"
    return ", ".join(map(str, values))


def fitting(row: Ranked) -> str:
    """Whether it fits: yes, no, or only with recomputation."""
    return "yes" if row.choice.fits else "with recomputation" if row.choice.fits_recomputing else "no"


def memory(*kinds: str) -> Any:
    """A column's value: the GB that these kinds of memory take on the fullest GPU."""
    return lambda row: sum(getattr(row.choice.fullest, kind) for kind in kinds) / GB


def lost(row: Ranked) -> Cell:
    """The loss of accuracy, or `no log`."""
    return row.evidence.text() if row.evidence is not None else "no log"


RATE = Col("samples/s", lambda row: row.choice.throughput, "{:.1f}")
COLUMNS = [
    Col("method", lambda row: row.choice.method.name),
    Col("plan", lambda row: row.choice.config),
    Col("cut after layers", lambda row: short(row.choice.plan.cuts) or "none"),
    Col("microbatches", lambda row: row.choice.microbatches),
    RATE,
    Col("GB per GPU", memory("weights"), "{:.3g}", "weights"),
    Col("GB per GPU", memory("versions", "remembered"), "{:.3g}", "versions"),
    Col("GB per GPU", memory("gradients"), "{:.3g}", "gradients"),
    Col("GB per GPU", memory("optimizer"), "{:.3g}", "optimizer"),
    Col("GB per GPU", memory("inputs", "activations", "output_gradients"), "{:.3g}", "activations"),
    Col("GB per GPU", lambda row: row.choice.fullest.total() / GB, "{:.3g}", "all"),
    Col("fits", fitting),
    Col("staleness per stage, minibatches", lambda row: short(row.choice.staleness)),
    Col("minibatches per update", lambda row: short(row.choice.updates)),
    Col("loss of accuracy, points", lost),
]


def board(rows: Sequence[Ranked], without: dict[str, str], notes: Sequence[str]) -> Table:
    """The table, with notes on the origin of the losses and on methods that are left out."""
    origins = dict.fromkeys(
        f"{r.choice.method.name} is from {r.evidence.origin()}" for r in rows if r.evidence is not None
    )
    sentences = [RULE, *notes, WORDS]
    sentences += [f"The loss of {origin}." for origin in origins]
    if any(row.evidence is None for row in rows):
        sentences.append("'no log': no log that was read has this method beside training without delay.")
    reasons: dict[str, list[str]] = {}
    for name, why in without.items():
        reasons.setdefault(why.replace(f"the arm '{name}'", "it").replace(f"'{name}'", "it"), []).append(name)
    sentences += [f"Left out: {', '.join(names)}: {why}." for why, names in reasons.items()]
    quickest = max((row.choice.throughput for row in rows), default=1.0)
    places = max(1, 2 - floor(log10(quickest)))  # three digits: a large model may take seconds per sample
    columns = [replace(col, format=f"{{:.{places}f}}") if col is RATE else col for col in COLUMNS]
    return tabulated(rows, columns, "Methods for this model on this cluster", sentences)


def record(row: Ranked) -> dict[str, Any]:
    """A complete row for programs: bytes, seconds, all stages.

    A stage's memory is all that one of its GPUs holds; `gpu` (from 1) says which, where GPUs hold several stages.
    """
    choice, evidence = row.choice, row.evidence
    stages: list[dict[str, Any]] = []
    for number, stage in enumerate(choice.plan.stages):
        holder = choice.holders[number] if choice.holders else number
        stages.append(
            {"stage": number + 1, "first": stage.first, "last": stage.last, "replicas": stage.replicas}
            | ({"gpu": holder + 1} if choice.holders else {})
            | {"staleness": choice.staleness[number], "stale_backward": choice.stale_backward[number]}
            | {"minibatches_per_update": choice.updates[number], "memory": choice.memory[holder].parts()}
        )
    loss: dict[str, Any] | None = None
    if evidence is not None:
        loss = {"points": evidence.loss.mean, "error": evidence.loss.error, "seeds": evidence.loss.seeds}
        loss |= {"diverged": evidence.diverged, "from": evidence.origin(), "runs": list(evidence.runs)}
    return {
        "method": choice.method.name,
        "plan": choice.config,
        "cuts": list(choice.plan.cuts),
        "microbatches": choice.microbatches,
        "recompute": choice.recompute,
        "batch": choice.batch,
        "seconds": choice.seconds,
        "samples_per_second": choice.throughput,
        "fits": choice.fits,
        "fits_recomputing": choice.fits_recomputing,
        "loss_of_accuracy": loss,
        "stages": stages,
    }
