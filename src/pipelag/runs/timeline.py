"""Runs of kind `timeline`: lay a schedule out in clock cycles and log who does what, reading and writing what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.spec import RunSpec
from pipelag.schedules import Schedule, check, delays, schedule


def lay_out(spec: RunSpec, out: Path) -> dict[str, Any]:
    """Log one row per action of the spec's single phase; the summary has length, utilisation and delays.

    `options.form`: "2K+1" draws the paper's accelerators, with the forward and the backward of a stage apart;
    "K+1" (the default) one worker per stage.
    """
    (phase,) = spec.phases
    form = spec.options.get("form", "K+1")
    stages = len(phase.cuts) + 1
    method = methods.get(phase.method)
    if form == "2K+1":
        if method.name != "stale_weights":
            raise PipelagError(f"the form 2K+1 belongs to the method stale_weights, not to '{method.name}'; use K+1")
        plan = schedule("cycle", stages=stages, minibatches=phase.steps, colocated=False)
    elif form == "K+1":
        plan = method.schedule(stages, phase.steps)
    else:
        raise PipelagError(f"unknown form '{form}' of a timeline; the forms are 2K+1 and K+1")
    check(plan)
    folder = RunFolder(out, spec)
    folder.rewind(0)
    rows = rows_of(plan)
    for row in rows:
        folder.log(row)
    lags = delays(plan)
    busy = len({(row["worker"], row["start"]) for row in rows})
    summary = {
        "status": "finished",
        "cycles": plan.length,
        "workers": len(plan.workers),
        "minibatches": plan.minibatches,
        "stages": stages,
        "busy_cycles": busy,
        "utilisation": busy / (plan.length * len(plan.workers)),
        "forward_delays": list(lags.forward),
        "backward_delays": list(lags.backward),
    }
    folder.finish(summary, environment("cpu", 1))
    return summary


def rows_of(plan: Schedule) -> list[dict[str, Any]]:
    """One row per forward and backward: cycle, worker, and the weight versions read and written."""
    lags = delays(plan)
    assert plan.cycles is not None
    rows = []
    for worker, (actions, cycles) in enumerate(zip(plan.workers, plan.cycles, strict=True)):
        for (kind, stage, m), cycle in zip(actions, cycles, strict=True):
            if kind == "U":
                continue
            forward = kind == "F"
            read = (lags.forward_versions if forward else lags.backward_versions)[stage - 1][m]
            rows.append(
                {
                    "worker": worker,
                    "start": cycle,
                    "end": cycle + 1,
                    "kind": kind,
                    "stage": stage,
                    "minibatch": m,
                    "reads": read,
                    "writes": None if forward else m + 1,
                    "delay": (lags.forward if forward else lags.backward)[stage - 1],
                }
            )
    return rows
