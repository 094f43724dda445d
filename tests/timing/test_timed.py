"""The timed executor against formulas, and against a naive reference that relaxes start times until nothing moves."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pipelag
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, get
from pipelag.schedules import SCHEDULES, Schedule, schedule
from pipelag.schedules.actions import Action
from pipelag.schedules.check import inputs_of
from pipelag.schedules.replicated import Replicated, one_f_one_b_rounds
from pipelag.schedules.virtual import Interleaved, bidirectional
from pipelag.timing import sweep
from pipelag.timing.costs import StageCost, Topology, uniform
from pipelag.timing.events import Clockwork
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.profile import profile
from pipelag.timing.timed import time_schedule
from pipelag.timing.trace import trace_events, write_trace
from pipelag.timing.wiring import Wiring
from tests.toy import parts_of

NAMES = ["1f1b", "1f1b_flush", "gpipe", "cycle", "sequential"]


def random_costs(stages: int, seed: int) -> list[StageCost]:
    draw = random.Random(seed)
    return [
        StageCost(draw.uniform(0.5, 3), draw.uniform(0.5, 5), draw.uniform(0, 1), draw.uniform(0, 2), 3.0, 7.0)
        for _ in range(stages)
    ]


def naive(plan: Schedule, costs: list[StageCost], topology: Topology) -> dict[Action, float]:
    """Start times as the least solution of: after the action before on the worker, after every input has arrived.

    Messages of a link leave in the order of their making, each after the one before has arrived; overlapping links.
    """
    at = {action: worker for worker, action in plan}
    cost = {
        a: {"F": costs[a.stage - 1].forward, "B": costs[a.stage - 1].backward, "U": costs[a.stage - 1].update}[a.kind]
        for a in at
    }
    start = dict.fromkeys(at, 0.0)
    moved = True
    while moved:
        moved = False
        arrives: dict[Action, float] = {}
        for worker, row in enumerate(plan.workers):
            for kind, step in (("F", 1), ("B", -1)):
                free = 0.0
                for a in (a for a in row if a.kind == kind):
                    size = costs[a.stage - 1 if kind == "F" else a.stage - 2].output_bytes
                    after = Action(kind, a.stage + step, a.number)  # type: ignore[arg-type]
                    if after in at and at[after] != worker:
                        free = max(free, start[a] + cost[a]) + topology.seconds(size)
                        arrives[a] = free
        for row in plan.workers:
            earlier = 0.0
            for a in row:
                needs = [
                    arrives.get(i, start[i] + cost[i]) if at[i] != at[a] else start[i] + cost[i]
                    for i in inputs_of(a, plan)
                ]
                when = max([earlier, *needs])
                if when > start[a] + 1e-12:
                    start[a], moved = when, True
                earlier = start[a] + cost[a]
    return start


def test_of_a_schedule_that_takes_no_time_nothing_is_told_per_second() -> None:
    timing = time_schedule(schedule("1f1b", stages=2, minibatches=4), uniform(2, 0.0, 0.0))
    assert timing.makespan == 0
    for name in ("utilisation", "bubble", "throughput"):
        with pytest.raises(PipelagError, match="'1f1b' takes no time with these costs"):
            getattr(timing, name)


@given(
    name=st.sampled_from(NAMES),
    stages=st.integers(1, 5),
    minibatches=st.integers(1, 5),
    microbatches=st.integers(1, 3),
    seed=st.integers(0, 99),
    links=st.booleans(),
    wide=st.sampled_from([1, 3, 64]),
)
def test_start_times_equal_the_naive_reference(
    name: str, stages: int, minibatches: int, microbatches: int, seed: int, links: bool, wide: int
) -> None:
    plan = schedule(name, stages=stages, minibatches=minibatches, microbatches=microbatches)
    costs = random_costs(stages, seed)
    topology = Topology(bandwidth=1.5, latency=0.1) if links else Topology()
    with patch.object(sweep, "WIDE", wide):  # few workers at once too as arrays
        timing = time_schedule(plan, costs, topology)
    expected = naive(plan, costs, topology)
    assert {span.action: span.start for span in timing.spans} == pytest.approx(expected, rel=1e-12, abs=1e-12)


PLANS = {
    **{name: lambda s, n, _, name=name: schedule(name, stages=s, minibatches=n) for name in (*NAMES, "pipemare")},
    "apart": lambda s, n, _: schedule("cycle", stages=s, minibatches=n, colocated=False),
    "segments": lambda s, n, _: schedule("pipemare", stages=s, minibatches=n, segment=2),
    "both ways": lambda s, n, _: bidirectional(2 * s, n, 4),
    "interleaved": lambda s, n, _: Interleaved(2)(2 * s, n, 2 * s),
    "whole models": lambda s, n, _: schedule("asp", stages=s, minibatches=n, workers=3),
    "rounds": lambda s, n, replicas: one_f_one_b_rounds(s, 6 * n, replicas[:s]),
    "dealt": lambda s, n, replicas: Replicated(SCHEDULES["gpipe"], replicas[:s])(s, 6 * n, 2),
}


@given(
    name=st.sampled_from(sorted(PLANS)),
    stages=st.integers(1, 4),
    minibatches=st.integers(1, 4),
    replicas=st.tuples(*[st.integers(1, 3)] * 4),
    seed=st.integers(0, 99),
    overlap=st.booleans(),
    wide=st.sampled_from([1, 2, 64]),
)
def test_the_sweep_equals_the_event_loop_to_the_bit(
    name: str, stages: int, minibatches: int, replicas: tuple[int, ...], seed: int, overlap: bool, wide: int
) -> None:
    plan = PLANS[name](stages, minibatches, replicas)
    wiring = Wiring(plan, random_costs(plan.stages, seed), Topology(1.5, 0.1, overlap=overlap))
    with patch.object(sweep, "WIDE", wide):
        swept = sweep.Sweep(wiring).run()
    served = Clockwork(wiring).run()
    assert all(np.array_equal(one, other) for one, other in zip(swept, served, strict=True))


def test_a_large_schedule_takes_at_most_100_bytes_an_action() -> None:
    """Built, timed over links, and asked for all that a table shows."""
    time_schedule(schedule("1f1b", stages=2, minibatches=2), uniform(2))  # modules loaded
    tracemalloc.start()
    plan = schedule("1f1b", stages=96, minibatches=400)
    timing = time_schedule(plan, uniform(96, output_bytes=1.0, kept_bytes=1.0), Topology(bandwidth=9.0))
    assert timing.makespan > 0 and timing.throughput > 0 and timing.peak_memory[0] == 96
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 100 * sum(map(len, plan.workers))


@given(
    name=st.sampled_from(NAMES),
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 3),
    seed=st.integers(0, 99),
    shared=st.booleans(),
    overlap=st.booleans(),
)
def test_what_any_machine_must_respect(
    name: str, stages: int, microbatches: int, seed: int, shared: bool, overlap: bool
) -> None:
    """One action at a time per worker, inputs first, memory never negative and empty at the end, links one by one."""
    plan = schedule(name, stages=stages, minibatches=4, microbatches=microbatches)
    timing = time_schedule(plan, random_costs(stages, seed), Topology(1.5, 0.1, shared, overlap))
    ends = {span.action: span.end for span in timing.spans}
    assert len(ends) == sum(map(len, plan.workers))
    for span in timing.spans:
        assert all(ends[i] <= span.start + 1e-9 for i in inputs_of(span.action, plan))
    for worker in range(len(plan.workers)):
        spans = [span for span in timing.spans if span.worker == worker]
        assert all(a.end <= b.start + 1e-9 for a, b in zip(spans[:-1], spans[1:], strict=True))
        sizes = [size for _, size in timing.memory[worker]]
        assert min(sizes) >= 7.0 - 1e-9
        assert sizes[-1] == pytest.approx(7.0)  # the weights alone
    if shared:
        sent = sorted(timing.transfers, key=lambda t: t.start)
        assert all(a.end <= b.start + 1e-9 for a, b in zip(sent[:-1], sent[1:], strict=True))
    assert 0 < timing.utilisation <= 1 + 1e-12  # a sum of spans over a period: rounded


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (4, 4), (4, 16), (8, 2)])
def test_gpipe_utilisation_is_the_formula(stages: int, microbatches: int) -> None:
    """N/(N+P-1), PipeMare section 2; asynchronous pipelines are busy all the time once full."""
    plan = schedule("gpipe", stages=stages, minibatches=5, microbatches=microbatches)
    assert time_schedule(plan, uniform(stages)).utilisation == pytest.approx(microbatches / (microbatches + stages - 1))
    plan = schedule("1f1b", stages=stages, minibatches=40)
    timing = time_schedule(plan, uniform(stages))
    assert timing.steady_period == pytest.approx(3.0)
    assert timing.throughput == pytest.approx(1 / 3)


def test_1f1b_keeps_fewer_activations_than_gpipe() -> None:
    costs = uniform(4, kept_bytes=1.0)
    peaks = {
        name: time_schedule(schedule(name, stages=4, minibatches=2, microbatches=8), costs).peak_memory
        for name in ("gpipe", "1f1b_flush")
    }
    assert peaks["gpipe"] == (8, 8, 8, 8)
    assert peaks["1f1b_flush"] == (4, 3, 2, 1)


def test_sending_without_overlap_takes_longer_and_a_slow_link_limits() -> None:
    plan = schedule("1f1b", stages=3, minibatches=30)
    costs = uniform(3, output_bytes=1.0)
    free, fast, held = (
        time_schedule(plan, costs, topology)
        for topology in (Topology(), Topology(bandwidth=10), Topology(bandwidth=10, overlap=False))
    )
    assert free.makespan < fast.makespan < held.makespan
    slow = time_schedule(plan, costs, Topology(bandwidth=0.1))
    assert slow.steady_period > 10  # a message takes 10


def test_versions_count_in_the_memory() -> None:
    plan = pipelag.schedule("pipedream", stages=4, minibatches=12)
    timing = pipelag.time(plan, uniform(4, weight_bytes=10.0), method="pipedream")
    assert timing.peak_memory == (40, 30, 20, 10)


def test_costs_and_schedules_that_do_not_fit_are_refused() -> None:
    plan = schedule("1f1b", stages=3, minibatches=2)
    with pytest.raises(PipelagError, match="the schedule has 3 stages, but there are costs for 2"):
        time_schedule(plan, uniform(2))
    with pytest.raises(PipelagError, match="a stage's backward is inf; it should be a number from 0 on"):
        uniform(2, backward=float("inf"))
    with pytest.raises(PipelagError, match="a stage's forward is -1.0; it should be a number from 0 on"):
        StageCost(-1.0, 1.0)
    with pytest.raises(PipelagError, match="bandwidth above 0"):
        Topology(bandwidth=0)
    stuck = Schedule("stuck", 2, 1, ((Action("B", 1, 0), Action("F", 1, 0)), (Action("F", 2, 0), Action("B", 2, 0))))
    with pytest.raises(PipelagError, match="deadlocks"):
        time_schedule(stuck, uniform(2))
    with pytest.raises(PipelagError, match="replicas is .* should give each of the 2 stages"):
        schedule("1f1b_rr", stages=2, minibatches=2, replicas=(1,))


def test_what_cannot_be_profiled_is_refused_or_says_where() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    with pytest.raises(RuntimeError) as raised:
        profile(model, torch.randn(4, 9))
    assert raised.value.__notes__ == ["while profiling: layer 1 (Linear), input [4, 9]"]
    batch = torch.randn(4, 8)
    for call, sentence in (
        (lambda: profile(model, "x"), "the batch is a str; it should be the model's input, a tensor or a tuple"),
        (lambda: profile(model, [batch]), "the batch is a list"),
        (lambda: profile(model[0], batch), "a Linear cannot be cut"),  # type: ignore[arg-type]
        (lambda: profile([], batch), "the model has no layers"),
        (lambda: profile([torch.relu], batch), "layer 1 of the model is .* should be an nn.Module"),  # type: ignore[list-item]
        (lambda: profile(model, batch, repeats=0), "repeats is 0; it should be a whole number from 1"),
    ):
        with pytest.raises(PipelagError, match=sentence):
            call()


def test_a_profile_counts_bytes_and_can_be_cut_and_timed() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    timed = profile(model, torch.randn(32, 8), repeats=2)
    assert [layer.output_bytes for layer in timed.layers] == [32 * 16 * 4, 32 * 16 * 4, 32 * 4 * 4]
    assert [layer.weight_bytes for layer in timed.layers] == [(8 * 16 + 16) * 4, 0, (16 * 4 + 4) * 4]
    one, two = timed.cut((1,))
    assert one.output_bytes == 32 * 16 * 4
    assert two.weight_bytes == (16 * 4 + 4) * 4
    half = timed.cut((1,), microbatches=2)[0]
    assert half.forward == pytest.approx(one.forward / 2)
    timing = pipelag.time(pipelag.schedule("1f1b", stages=2, minibatches=20), timed, cuts=(1,))
    slowest = max(cost.forward + cost.backward for cost in (one, two))
    assert timing.steady_period == pytest.approx(slowest, rel=1e-6)
    with pytest.raises(PipelagError, match="must increase strictly"):
        timed.cut((2, 2))


def test_what_has_no_gradient_hands_none_down() -> None:
    """Layers without weights in front, and one that lets no gradient through."""

    class Cut(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.detach()

    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), Cut(), nn.Linear(8, 2))
    timed = profile(model, torch.randn(4, 3, 2, 2), repeats=1, warmup=0)
    assert [layer.output_bytes for layer in timed.layers] == [4 * 12 * 4, 4 * 8 * 4, 4 * 8 * 4, 4 * 2 * 4]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"cuts": 1}, "the cuts 1 must increase strictly and lie between 1 and 2"),
        ({"cuts": (1.5,)}, r"the cuts \[1.5\] must increase strictly"),
        ({"cuts": (1,), "microbatches": 0}, "microbatches is 0; it should be a whole number from 1 on"),
        ({"cuts": (1,), "update_ms": [1.0]}, r"update_ms is \[1.0\]; it should be a time for each of the 2 stages"),
        ({"cuts": (1,), "update_ms": 1.0}, "update_ms is 1.0; it should be a time for each of the 2 stages"),
    ],
)
def test_cuts_that_cannot_be_are_refused(asked: dict[str, Any], sentence: str) -> None:
    times = Profile(tuple(LayerTime(number, "layer", 1.0, 2.0) for number in (1, 2, 3)))
    with pytest.raises(PipelagError, match=sentence):
        times.cut(**asked)


@pytest.mark.parametrize("factor", [0, -1.0, float("nan"), "2"])
def test_no_device_is_infinitely_fast_nor_a_minibatch_empty(factor: Any) -> None:
    times = Profile((LayerTime(1, "layer", 1.0, 2.0),))
    for change in (times.faster, times.scaled):
        with pytest.raises(PipelagError, match=r"a profile's factor is .*; it should be a number above 0"):
            change(factor)


def test_every_method_has_a_schedule_that_can_be_timed() -> None:
    for name, method in METHODS.items():
        stages, copies = 4, parts_of(name)
        plan = method.schedule(stages, 6, copies)
        timing = time_schedule(plan, uniform(stages))
        assert timing.makespan > 0
        assert len(get(name).weight_copies(stages, copies)) == stages


def test_traces_open_in_chrome(tmp_path: Path) -> None:
    rows = [
        {"worker": 0, "start": 0.0, "end": 1e-3, "kind": "F", "stage": 1, "minibatch": 0, "reads": 0, "writes": None},
        {"worker": 1, "start": 1e-3, "end": 3e-3, "kind": "B", "stage": 2, "minibatch": 0, "reads": 0, "writes": 1},
    ]
    write_trace(rows, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events == trace_events(rows)
    boxes = [event for event in events if event["ph"] == "X"]
    assert [(box["name"], box["ts"], box["dur"], box["tid"]) for box in boxes] == [
        ("1F0", 0.0, 1000.0, 0),
        ("2B0", 1000.0, 2000.0, 1),
    ]


def test_the_command_draws_schedules_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipelag.__main__ import main

    for end in ("pdf", "svg", "png", "json"):
        out = tmp_path / f"plan.{end}"
        assert main(["timeline", "gpipe", "--microbatches", "3", "--transfer", "0.2", "--out", str(out)]) == 0
        assert out.stat().st_size > 1000
    (tmp_path / "run").mkdir()
    shutil.copy(tmp_path / "plan.json", tmp_path / "run" / "trace.json")
    assert main(["timeline", str(tmp_path / "run"), "--out", str(tmp_path / "run.svg")]) == 0
    assert main(["timeline", str(tmp_path), "--out", str(tmp_path / "x.svg")]) == 2
    assert main(["timeline", "1f1c", "--out", str(tmp_path / "x.svg")]) == 2
    assert main(["timeline", "1f1b", "--out", str(tmp_path / "x.doc")]) == 2
    errors = capsys.readouterr().err
    assert main(["timeline", str(tmp_path / "none"), "--out", str(tmp_path / "x.svg")]) == 2
    assert f"there is no folder '{tmp_path / 'none'}'" in capsys.readouterr().err
    assert main(["timeline", "", "--out", str(tmp_path / "x.svg")]) == 2  # a shell's variable that is not set
    assert "there is no folder ''; give the folder of a run, or a schedule" in capsys.readouterr().err
    assert "has no trace.json" in errors
    assert "unknown schedule or method '1f1c'; did you mean '1f1b'?" in errors
    assert "must end in .pdf, .svg, .png or .json" in errors
