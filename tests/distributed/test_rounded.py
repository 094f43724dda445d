"""bfloat16 over float32 masters on real workers: the simulated run bit for bit, and a restart that nobody sees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.distributed.checkpoints import Checkpoints
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.runs.carry_out import carry_out
from pipelag.runs.spec import RunSpec
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.phase import Phase
from tests.distributed.test_real import falling, optimizer_for
from tests.distributed.test_torchrun import RUN, log_of
from tests.toy import Noise, convolutional, equal

STEPS, BROKEN = 10, 7
cross_entropy = nn.functional.cross_entropy
TWO = [
    [Phase(get(name), STEPS, (3,), microbatches=parts)]
    for name, parts in (
        *(("sequential", 1), ("stale_weights", 1), ("stale_weights_stashed", 1), ("pipedream", 2), ("1f1b", 1)),
        *(("spectrain", 1), ("pipeoptim", 1), ("xpipe", 1), ("pipemare", 2), ("pipedream_2bw", 4), ("gpipe", 4)),
        ("zb_h1", 4),
    )
]
TWO.append([Phase(get("pipemare"), 4, (2,), microbatches=2), Phase(get("spectrain_1f1b"), STEPS - 4, (4,))])
THREE = [
    [Phase(get("pipedream"), STEPS, (3,), replicas=(2, 1))],
    [Phase(get("pipemare"), STEPS, (2, 4), recompute=2)],
    [Phase(get("pipedream"), STEPS, (2, 4), recompute=True)],
    [Phase(get("zb_h2"), STEPS, (2, 4), microbatches=4)],
]


def trained(
    job: Job, phases: list[Phase], checkpoints: Checkpoints | None = None, resume: bool = False
) -> RealTraining:
    make, model = optimizer_for(phases[0].method.name), convolutional(1 if resume else 0).train()
    training = RealTraining(
        job, model, phases, make, cross_entropy, rate=falling, seed=5, checkpoints=checkpoints, bf16=True
    )
    if checkpoints is not None and resume:
        training.resume(max(checkpoints.steps()))
    training.run(Noise().inputs, Noise().targets)
    return training


def in_the_end(training: RealTraining) -> dict[str, Any]:
    assert training.masters is not None
    return {
        "shown": training.model.state_dict(),
        "masters": [master.data.clone() for master in training.masters.values()],
        "losses": training.losses,
    }


def each(job: Job, cases: list[list[Phase]], folder: Path) -> list[dict[str, Any]]:
    """Every case, whole and, where it is one phase without replicas, broken and gone on with."""
    ends = []
    for number, phases in enumerate(cases):
        end = {"whole": in_the_end(trained(job, phases))}
        if len(phases) == 1 and not phases[0].replicas:
            checkpoints = Checkpoints(folder / str(number), frozenset({4, STEPS}))
            trained(job, [replace(phases[0], steps=BROKEN)], checkpoints)
            end["gone on"] = in_the_end(trained(job, phases, checkpoints, resume=True))
        ends.append(end)
    return ends


@pytest.mark.real
@pytest.mark.parametrize("cases", [TWO, THREE], ids=["2 workers", "3 workers"])
def test_real_workers_do_what_the_simulated_run_does(in_memory: Path, cases: list[list[Phase]]) -> None:
    ends = launch(each, 2 if cases is TWO else 3, "cpu", 1, cases=cases, folder=in_memory)
    for phases, end in zip(cases, ends, strict=True):
        name = phases[-1].method.name
        simulated = SimulatedTraining(
            convolutional().train(),
            phases,
            optimizer_for(phases[0].method.name),
            cross_entropy,
            falling,
            5,
            bf16=True,
        )
        losses = [float(simulated.step(*Noise()[t])) for t in range(STEPS)]
        assert simulated.masters is not None
        for real in end.values():
            assert real["losses"] == losses, name
            assert equal(real["shown"], simulated.model.state_dict()), name
            for expected, master in zip(simulated.masters.values(), real["masters"], strict=True):
                assert torch.equal(expected, master), name


@pytest.mark.real
def test_a_run_leaves_the_log_of_the_simulated_one(tmp_path: Path) -> None:
    options = {"precision": "bf16", "save_model": True}
    summaries = {}
    for executor, workers in (("real", 2), ("simulated", 1)):
        spec = RunSpec(**RUN | {"executor": executor, "workers": workers, "options": options})
        summaries[executor] = carry_out(spec, tmp_path / executor, "cpu", workers)
    assert log_of(tmp_path / "real") == log_of(tmp_path / "simulated")
    assert {summary["precision"] for summary in summaries.values()} == {"bf16 over fp32 masters"}
    real, simulated = (torch.load(tmp_path / executor / "model.pt") for executor in summaries)
    assert equal(real, simulated) and {value.dtype for value in real.values()} == {torch.bfloat16, torch.float32}
    assert log_of(tmp_path / "real") != []


def test_workers_that_know_no_masters_are_refused(tmp_path: Path) -> None:
    for method, cuts in (("bsp", []), ("gpipe_torch", [2])):
        phases = [{"method": method, "steps": 4, "cuts": cuts, "microbatches": 2 if cuts else 1}]
        spec = RunSpec(**RUN | {"phases": phases, "options": {"precision": "bf16"}})
        with pytest.raises(
            PipelagError, match=rf"^real workers of method '{method}' compute in fp32 only; leave out .*"
        ):
            carry_out(spec, tmp_path / method, "cpu", 2)


@pytest.mark.real
def test_a_speed_run_in_bfloat16_says_so(tmp_path: Path) -> None:
    options = {"precision": "bf16", "blocks": 1, "hybrid": False}
    phases = [{"method": "pipedream", "steps": 12, "cuts": [2]}]
    spec = RunSpec(**RUN | {"kind": "speed", "executor": "real", "phases": phases, "options": options})
    full = RunSpec(**RUN | {"kind": "speed", "executor": "real", "phases": phases, "options": {"blocks": 1}})
    sent = {}
    for name, each_spec in (("half", spec), ("full", full)):
        summary = carry_out(each_spec, tmp_path / name, "cpu", 2)
        assert summary.get("precision") == ("bf16 over fp32 masters" if name == "half" else None)
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        sent[name] = next(row["sent_bytes_per_step"] for row in rows if row["arm"] == "pipelined")
    assert sent["half"] == [size / 2 for size in sent["full"]]  # what crosses a cut is of bfloat16 too
    links = spec.model_copy(update={"options": options | {"links": {"gbit": [1]}}})
    with pytest.raises(PipelagError, match="^a speed run over links is compared with data parallelism in fp32"):
        carry_out(links, tmp_path / "links", "cpu", 2)
