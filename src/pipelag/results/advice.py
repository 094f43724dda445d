"""Which method for a model on a cluster: choices beside what their methods cost in accuracy, ordered, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelag.partitioner.advice import Choice
from pipelag.report.tables import Cell, Col, Table
from pipelag.report.tables import table as tabulated
from pipelag.results.evidence import Evidence, nearest

GB = 1e9


@dataclass(frozen=True)
class Ranked:
    """A choice, and what its method cost in accuracy where it was trained; None where no log says."""

    choice: Choice
    evidence: Evidence | None

    @property
    def loss(self) -> float:
        """Percentage points, by the mean over seeds; infinite where no log says."""
        return self.evidence.loss.mean if self.evidence is not None else float("inf")

    def accepted(self, accept: float | None) -> bool:
        """Whether it fits and costs no more accuracy than that.

        A method without staleness computes what sequential training does, and needs no log.
        """
        harmless = self.evidence is None and not self.choice.stale
        return self.choice.usable and (accept is None or harmless or self.loss <= accept)

    def order(self, accept: float | None) -> tuple[Any, ...]:
        """What is accepted first, then what fits; the quickest first; of equally quick ones the least loss, the least
        staleness, the least memory.
        """
        one = self.choice
        pace = -float(f"{one.throughput:.5g}")
        oldest = max((*one.staleness, *one.stale_backward))
        held = one.fullest.total()
        loss = self.loss if self.evidence is not None or one.stale else 0.0
        return not self.accepted(accept), not one.usable, pace, loss, oldest, held, one.method.name


def ranked(
    found: Iterable[Choice], evidence: Sequence[Evidence], accept: float | None, optimizer: str, model: str
) -> list[Ranked]:
    """The choices, the advised first (where any is accepted), each with the evidence that is most like it."""
    rows = [Ranked(one, nearest(evidence, one.method.name, optimizer, model, len(one.plan.stages))) for one in found]
    return sorted(rows, key=lambda row: row.order(accept))


RULE = (
    "Order: what fits into a GPU's memory (with recomputation where it is needed) and costs no more accuracy than is "
    "accepted comes first; within that the quickest; of equally quick ones the least logged loss, the least staleness, "
    "the least memory. A method without staleness computes what sequential training does, so it needs no log."
)


WORDS = (
    "Memory: of the fullest GPU; staleness: what forwards miss; a loss of accuracy is the mean over seeds and half the "
    "95 % interval, of other work than yours."
)


def verdict(rows: Sequence[Ranked], accept: float | None, memory: float) -> str:
    """One sentence: what to use, and why."""
    bound = f"a loss of at most {accept:g} points" if accept is not None else "any loss of accuracy"
    if not rows or not rows[0].accepted(accept):
        why = "none fits into a GPU's memory" if not any(row.choice.usable for row in rows) else f"none has {bound}"
        return f"None can be advised: {why}."
    one, evidence = rows[0].choice, rows[0].evidence
    again = ", recomputing" if one.recompute else ""
    if evidence is not None:
        cost = f"its loss of accuracy is {evidence.text()} points by the logs of {evidence.origin()}"
    elif one.stale:
        cost = "what it costs in accuracy no log says"
    else:
        cost = "nothing in it is stale"
    most = max(one.updates)
    cost += f"; an update is of up to {most} minibatches, which a smaller --batch makes up for" if most > 1 else ""
    room = "" if memory == float("inf") else f" of {memory / GB:.3g}"
    equal = sum(row.accepted(accept) and row.order(accept)[2] == rows[0].order(accept)[2] for row in rows)
    rate = f"{one.throughput:,.0f}" if one.throughput >= 1000 else f"{one.throughput:.4g}"
    than = "" if equal == 1 else f", with {equal - 1} equally quick ones"
    return (
        f"I would use {one.method.name} ({one.config}{again}): of the methods that fit, with {bound}, it is the "
        f"quickest{than}, {rate} samples per second with {one.fullest.total() / GB:.3g}{room} GB "
        f"on the fullest GPU, and {cost}."
    )


def short(values: Sequence[int]) -> str:
    """Numbers per stage; many as their first and last."""
    if len(set(values)) == 1 and len(values) > 4:
        return f"{values[0]} on all"
    if len(values) > 8:
        return f"{', '.join(map(str, values[:3]))} ... {values[-1]}"
    return ", ".join(map(str, values))


def fitting(row: Ranked) -> str:
    """Whether it fits, in a word or three."""
    return "yes" if row.choice.fits else "recomputing" if row.choice.fits_recomputing else "no"


def memory(*kinds: str) -> Any:
    """GB of these kinds on the fullest GPU."""
    return lambda row: sum(getattr(row.choice.fullest, kind) for kind in kinds) / GB


def lost(row: Ranked) -> Cell:
    """The loss of accuracy, or that no log says."""
    return row.evidence.text() if row.evidence is not None else "no log"


COLUMNS = [
    Col("method", lambda row: row.choice.method.name),
    Col("plan", lambda row: row.choice.config),
    Col("cut after layers", lambda row: short(row.choice.plan.cuts) or "none"),
    Col("microbatches", lambda row: row.choice.microbatches),
    Col("samples/s", lambda row: row.choice.throughput, "{:.1f}"),
    Col("GB a GPU", memory("weights"), "{:.3g}", "weights,"),
    Col("GB a GPU", memory("versions", "remembered"), "{:.3g}", "versions,"),
    Col("GB a GPU", memory("gradients"), "{:.3g}", "gradients,"),
    Col("GB a GPU", memory("optimizer"), "{:.3g}", "optimizer,"),
    Col("GB a GPU", memory("inputs", "activations"), "{:.3g}", "activations,"),
    Col("GB a GPU", lambda row: row.choice.fullest.total() / GB, "{:.3g}", "all,"),
    Col("fits", fitting),
    Col("staleness by stage, minibatches", lambda row: short(row.choice.staleness)),
    Col("minibatches an update", lambda row: short(row.choice.updates)),
    Col("loss of accuracy, points", lost),
]


def board(rows: Sequence[Ranked], without: dict[str, str], notes: Sequence[str]) -> Table:
    """The table, with where its losses are from and what is not in it."""
    origins = dict.fromkeys(f"{r.choice.method.name}: {r.evidence.origin()}" for r in rows if r.evidence is not None)
    said = [RULE, *notes]
    said.append(WORDS)
    said += [f"Loss of {origin}." for origin in origins]
    if any(row.evidence is None for row in rows):
        said.append("'no log': no log of the results asked for has this method beside training without delay.")
    reasons: dict[str, list[str]] = {}
    for name, why in without.items():
        reasons.setdefault(why.replace(f"the arm '{name}'", "it").replace(f"'{name}'", "it"), []).append(name)
    said += [f"Left out: {', '.join(names)}: {why}." for why, names in reasons.items()]
    return tabulated(rows, COLUMNS, "Methods for this model on this cluster", said)


def record(row: Ranked) -> dict[str, Any]:
    """A row in full, for programs: bytes, seconds, all stages."""
    one, evidence = row.choice, row.evidence
    stages = []
    for number, (stage, held) in enumerate(zip(one.plan.stages, one.memory, strict=True)):
        parts = held.parts()
        stages.append(
            {"stage": number + 1, "first": stage.first, "last": stage.last, "replicas": stage.replicas}
            | {"staleness": one.staleness[number], "stale_backward": one.stale_backward[number]}
            | {"minibatches_per_update": one.updates[number], "memory": parts}
        )
    loss: dict[str, Any] | None = None
    if evidence is not None:
        loss = {"points": evidence.loss.mean, "error": evidence.loss.error, "seeds": evidence.loss.seeds}
        loss |= {"diverged": evidence.diverged, "from": evidence.origin(), "runs": list(evidence.runs)}
    return {
        "method": one.method.name,
        "plan": one.config,
        "cuts": list(one.plan.cuts),
        "microbatches": one.microbatches,
        "recompute": one.recompute,
        "batch": one.batch,
        "seconds": one.seconds,
        "samples_per_second": one.throughput,
        "fits": one.fits,
        "fits_recomputing": one.fits_recomputing,
        "loss_of_accuracy": loss,
        "stages": stages,
    }
