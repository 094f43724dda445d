"""Runs of kind `timeline`: lay a schedule out in time, and log when each worker does what with which weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.methods.reads import Predict
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.kinds.options import TimelineOptions
from pipelag.runs.spec import PhaseSpec, RunSpec
from pipelag.schedules import Schedule, check, schedule
from pipelag.schedules.actions import Action
from pipelag.schedules.delays import update_cycles
from pipelag.schedules.replicated import check_replicas
from pipelag.timing.costs import StageCost, Topology
from pipelag.timing.lockstep import CLOCKS
from pipelag.timing.timed import Timing
from pipelag.timing.trace import row_of, transfer_rows, write_trace
from pipelag.typed import check_keywords


def lay_out(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Log one row per action of the spec's single phase; the summary has length, utilisation and delays.

    Options:
        form: "K+1" (the default): one worker per stage. "2K+1": the accelerators of the stale-weights paper, where the
            forward and the backward of a stage have one each, except those of the last stage, which share one.
        costs: time units of a pass: {forward, backward} for all stages, or a list with one per stage (each with any
            field of `StageCost`). With costs the timed executor determines when each action happens. Without them the
            schedule's own clock does, in cycles.
        topology: the links (`Topology`); with costs only.
        clock: with costs, "free" (the default), or "lockstep": all workers begin every time unit together.
        replicas: workers per stage, for 1F1B-RR (PipeDream, section 3.2); with costs only. Each replica goes on without
            waiting for the others, as in the paper's figure 8, but an update is by a round of all of them. So the rows
            of replicas name no versions.
    """
    if len(spec.phases) > 1:
        raise PipelagError(
            f"a timeline shows one phase, but the run has {len(spec.phases)}; give each phase a run of its own"
        )
    (phase,) = spec.phases
    if phase.replicas:
        raise PipelagError("a timeline takes its replicas from options.replicas; give them there, not in the phase")
    if phase.recompute:
        raise PipelagError(
            "a timeline does not recompute; leave recompute out, and add the forward's time to the backward's costs"
        )
    if phase.stage_lr:
        raise PipelagError("a timeline trains nothing; leave stage_lr out")
    method = methods.get(phase.method, **phase.options)
    if method.random is not None:
        raise PipelagError(
            f"method '{method.name}' draws its delays at random, so no timeline can show which weights passes read; "
            "take a method whose schedule makes its delays, such as pipemare"
        )
    stages = phase.stages
    options = spec.asked(TimelineOptions)
    plan = plan_of(method, phase, stages, options)
    check(plan)
    folder = RunFolder(out, spec)
    folder.rewind(0)
    summary: dict[str, Any] = {"status": "finished"}
    if options.costs is not None:
        timing = CLOCKS[options.clock](plan, costs_of(options.costs, stages), topology_of(options.topology))
        rows = timed_rows(timing, method)
        summary |= {
            "makespan": timing.makespan,
            "period": timing.steady_period,
            "utilisation": timing.utilisation,
            "bubble": timing.bubble,
        }
    else:
        rows = rows_of(plan, method)
        busy = len({(row["worker"], row["start"]) for row in rows})
        summary |= {
            "cycles": plan.length,
            "busy_cycles": busy,
            "utilisation": busy / (plan.length * len(plan.workers)),
        }
    for row in rows:
        folder.log(row)
    write_trace(rows, out / "trace.json")
    summary |= {
        "workers": len(plan.workers),
        "minibatches": plan.minibatches,
        "microbatches": plan.microbatches,
        "stages": stages,
    }
    lags = method.delays(stages, phase.microbatches, options.replicas)
    summary |= {
        "forward_delays": list(lags.forward),
        "backward_delays": list(lags.backward),
        "weight_copies": list(method.weight_copies(stages, phase.microbatches, options.replicas)),
    }
    folder.finish(summary, environment("cpu", 1))
    return summary


def plan_of(method: Method, phase: PhaseSpec, stages: int, options: TimelineOptions) -> Schedule:
    """The schedule to lay out."""
    if options.form == "2K+1":
        if method.name != "stale_weights":
            raise PipelagError(f"the form 2K+1 belongs to the method stale_weights, not to '{method.name}'; use K+1")
        if phase.microbatches > 1 or options.replicas:
            raise PipelagError(
                "the form 2K+1 has whole minibatches and no replicas; leave microbatches and replicas out"
            )
        return schedule("cycle", stages=stages, minibatches=phase.steps, colocated=False)
    if options.replicas:
        if method.name not in ("pipedream", "1f1b"):
            raise PipelagError(f"replicas belong to PipeDream's 1F1B-RR, not to '{method.name}'; use pipedream")
        if phase.microbatches > 1:
            raise PipelagError("the replicas of 1F1B-RR take whole minibatches; leave microbatches out")
        check_replicas(options.replicas, stages, phase.steps)
        return schedule("1f1b_rr", stages=stages, minibatches=phase.steps, replicas=options.replicas)
    return method.schedule(stages, phase.steps, phase.microbatches)


def costs_of(value: Any, stages: int) -> list[StageCost]:
    """The stages' costs from a config.

    Raises:
        PipelagError: a key that is no field of `StageCost`, or no pass that takes any time.
    """
    per_stage = value if isinstance(value, list) else [value] * stages
    for costs in per_stage:
        check_keywords(StageCost, 0, list(costs), "cost of a stage")
    stage_costs = [StageCost(**costs) for costs in per_stage]
    if not any(cost.forward + cost.backward for cost in stage_costs):
        raise PipelagError("with these costs no pass takes any time; give a forward or a backward a cost above 0")
    return stage_costs


def topology_of(content: dict[str, Any]) -> Topology:
    """The links from a config."""
    check_keywords(Topology, 0, list(content), "setting of a topology")
    return Topology(**content)


def timed_rows(timing: Timing, method: Method) -> list[dict[str, Any]]:
    """One row per pass and per message, in the order of time."""
    plan = timing.schedule
    read = Readings(plan, method, clocked=False)
    rows: list[dict[str, Any]] = [
        read.row(span.worker, span.action, span.start, span.end) for span in timing.spans if span.action.kind != "U"
    ]
    rows += transfer_rows(timing)
    return sorted(rows, key=lambda row: (row["start"], row["worker"]))


def rows_of(plan: Schedule, method: Method) -> list[dict[str, Any]]:
    """One row per pass: cycle, worker, and the weight versions read and written; refuses a schedule without a clock."""
    if plan.cycles is None:
        raise PipelagError(
            f"the schedule '{plan.name}' has no clock, so its passes have no cycles; give the timeline costs "
            "(seconds of each stage) to time it with"
        )
    read = Readings(plan, method, clocked=True)
    return [
        read.row(worker, action, cycle, cycle + 1)
        for worker, (actions, cycles) in enumerate(zip(plan.workers, plan.cycles, strict=True))
        for action, cycle in zip(actions, cycles, strict=True)
        if action.kind != "U"
    ]


class Readings:
    """The log lines of a schedule's passes, with the weights that each pass reads.

    `reads`: the version of the stage's own weights, counted in updates. `ahead`: how many updates (in SpecTrain's
    DualPipe: time units) a prediction looks beyond that version.

    On a clock a line also has `units`, [first, last]: the time units at whose start the stage's weights had that
    version (SpecTrain, section 3.2: W_u are the weights at unit u). `unit` is the one of these that a figure names. For
    live weights it is the present unit; for weights that are kept it is the unit in which the minibatch entered the
    pipeline, moved into `units` if it lies outside. A prediction adds `ahead` to it.
    """

    def __init__(self, plan: Schedule, method: Method, clocked: bool) -> None:
        self.plan, self.method, self.clocked = plan, method, clocked
        self.lags = method.delays(plan.stages, plan.microbatches)
        self.updates = update_cycles(plan) if clocked else {}
        self.entered = {}
        if clocked:
            assert plan.cycles is not None
            self.entered = {
                action.number: cycle
                for row, cycles in zip(plan.workers, plan.cycles, strict=True)
                for action, cycle in zip(row, cycles, strict=True)
                if (action.kind, action.stage) == ("F", 1)
            }

    def row(self, worker: int, action: Action, start: float, end: float) -> dict[str, Any]:
        """The log line of a forward or a backward, or of the gradients of the weights apart from it."""
        kind, stage, m = action
        forward, per = kind == "F", self.plan.microbatches
        completes = "W" if self.plan.splits(stage) else "B"
        if len(self.plan.replicas[stage - 1]) > 1:
            return row_of(worker, action, start, end, per)
        minibatch, j = divmod(m, per)
        delay = (self.lags.forward_lags if forward else self.lags.backward_lags)[stage - 1][j]
        reads = self.method.forward_reads if forward else self.method.backward_reads
        ahead = self.method.amounts(kind, stage, self.plan.stages, self.lags)[j] if isinstance(reads, Predict) else 0.0
        row = row_of(worker, action, start, end, per) | {
            "reads": max(0, minibatch - delay),
            "writes": None if kind != completes or j < per - 1 else minibatch + 1,
            "delay": delay,
            "ahead": ahead,
            "stashed": not forward and reads == "stashed",
        }
        if self.clocked:
            first, last = self.units(stage, row["reads"])
            unit = self.entered[m] if self.method.held is not None or row["stashed"] else start
            row |= {"units": [first, last], "unit": max(first, min(last, unit)) + ahead}
        return row

    def units(self, stage: int, version: int) -> tuple[int, int]:
        """The first and the last time unit at whose start a stage's weights have this version."""
        updates = self.updates[stage]
        first = updates[version - 1] + 1 if version else 0
        return first, updates[version] if version < len(updates) else max(self.plan.length, first)
