"""The real executor: processes on torch.distributed. Simulated equals real, and a dead worker ends the run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import pipelag
from pipelag.distributed.feasible import check_workers
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.distributed.workers.base import Worker
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, get
from pipelag.stage import flat_step
from pipelag.stage.phase import Phase
from tests.distributed.test_heartbeat import wait_for
from tests.ending import alive, ended
from tests.toy import PARTS, VIRTUAL, Noise, adamw, convolutional, equal, sgd

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]

CASES = {
    "two workers, cut inside a residual block": [Phase(get("stale_weights"), 12, (2,))],
    "two workers, weight stashing": [Phase(get("stale_weights_stashed"), 12, (3,))],
    "two workers, model parallel": [Phase(get("sequential"), 6, (3,))],
    "four workers": [Phase(get("stale_weights"), 14, (1, 2, 4), {1: 0.01})],
    "hybrid": [Phase(get("stale_weights"), 8, (4,), {1: 0.02}), Phase(get("sequential"), 5)],
}


@pytest.mark.parametrize("case", CASES)
def test_real_weights_equal_the_simulated_bit_for_bit(case: str) -> None:
    models = {}
    for executor in ("simulated", "real"):
        models[executor] = convolutional()
        run = pipelag.train(models[executor], Noise(), phases=CASES[case], optimizer=sgd, executor=executor, seed=5)
        models[executor + " losses"] = [row["loss"] for row in run.metrics]
    assert models["simulated losses"] == models["real losses"]
    assert equal(models["simulated"].state_dict(), models["real"].state_dict())


# Every method that a real pipeline can run, on 2 and on 4 workers, in whole minibatches or in microbatches.
OWN = ("asp", "bsp", "sequential", "gpipe_torch", "1f1b_torch", *VIRTUAL)  # have tests of their own
REAL = [name for name, method in METHODS.items() if method.random is None and name not in OWN]
SPLIT = PARTS | {"gpipe": 4, "1f1b_flush": 2, "pipemare": 2, "pipedream": 2, "zb_h1": 4, "zb_h2": 4}
METHOD_CASES = {
    cuts: [[Phase(get(name), 10, cuts, microbatches=SPLIT.get(name, 1))] for name in REAL] for cuts in [(3,), (1, 2, 4)]
}
METHOD_CASES[(1, 2, 4)] += [
    [Phase(get(name), 8, (1, 2, 4), microbatches=parts, recompute=True)]
    for name, parts in (("pipedream", 1), ("gpipe", 4), ("pipemare", 2), ("spectrain", 1))
]
METHOD_CASES[(1, 2, 4)] += [
    [Phase(get(name), 10, (1, 2, 4), microbatches=parts, recompute=size)]
    for name in ("pipemare", "pipemare_naive", "pipedream_cycle")
    for size, parts in ((2, 1), (3, 2), (4, 1))
]
METHOD_CASES[(3,)] += [
    [Phase(get("gpipe"), 4, (2,), microbatches=2), Phase(get("pipemare", annealing=4), 8, (2,), microbatches=2)],
    [
        Phase(get("gpipe"), 4, (2,), microbatches=2),
        Phase(get("spectrain"), 8, (2,)),
    ],  # inherits momentum
    [Phase(get("pipemare"), 4, (), recompute=2), Phase(get("pipemare"), 6, (3,), recompute=2)],  # rank 1 waits first
]


def optimizer_for(method: str) -> Callable[[Any], torch.optim.Optimizer]:
    """AdamW where a prediction reads its moments, plain SGD where the method brings its momentum."""
    if method == "nesterov_async":
        return lambda params: torch.optim.SGD(params, lr=0.05)
    if method in ("pipeoptim", "xpipe"):
        return lambda params: torch.optim.AdamW(params, lr=0.002)
    return sgd


def falling(step: int) -> float:
    """Predictions go by the coming update's rate, so it must not be the same at every step."""
    return 1 / (1 + step / 4)


def all_cases(job: Job, cases: list[list[Phase]]) -> list[dict[str, torch.Tensor]]:
    """Trains one after the other on the same workers: starting processes is what takes the time."""
    ends: list[dict[str, torch.Tensor]] = []
    for phases in cases:
        batches, model = Noise(device=str(job.device)), convolutional()
        make, loss = optimizer_for(phases[0].method.name), nn.functional.cross_entropy
        training = RealTraining(job, model.train(), phases, make, loss, rate=falling, seed=5)
        training.run(batches.inputs, batches.targets)
        ends.append(model.cpu().state_dict())
    return ends


def marked(job: Job, method: str, cuts: tuple[int, ...]) -> int:
    """How often the worker marks an update, which on a GPU is an event."""
    marks, mark = [], Worker.mark
    Worker.mark = lambda self: marks.append(mark(self))  # type: ignore[method-assign]
    try:
        phases = [Phase(get(method), 3, cuts, microbatches=2 if cuts else 1)]
        loss = nn.functional.cross_entropy
        training = RealTraining(job, convolutional(), phases, sgd, loss, rate=lambda step: 1.0, seed=5)
        records = training.run(Noise().inputs, Noise().targets)
    finally:
        Worker.mark = mark  # type: ignore[method-assign]
    assert len(records[0][0].updated) == 3
    return len(marks)


@pytest.mark.real
@pytest.mark.parametrize(("method", "cuts"), [("bsp", ()), ("gpipe_torch", (3,)), ("gpipe", (3,))])
def test_every_worker_says_when_the_device_has_made_an_update(method: str, cuts: tuple[int, ...]) -> None:
    assert launch(marked, 2, "cpu", 1, method=method, cuts=cuts) == 3


def data_parallel(job: Job) -> tuple[dict[str, torch.Tensor], list[float]]:
    """A pipelined phase, then a data-parallel one, which inherits weights and momentum."""
    batches, model = Noise(), convolutional()
    phases = [Phase(get("pipedream"), 4, (3,)), Phase(get("bsp"), 6)]
    training = RealTraining(job, model.train(), phases, sgd, nn.functional.cross_entropy, rate=falling, seed=5)
    training.run(batches.inputs, batches.targets)
    return model.state_dict(), training.losses[4:]


def test_data_parallel_replicas_learn_what_as_many_microbatches_do() -> None:
    state, losses = launch(data_parallel, 2, "cpu", 1)
    model = convolutional()
    phases = [Phase(get("pipedream"), 4, (3,)), Phase(get("bsp"), 6, microbatches=2)]
    run = pipelag.train(model, Noise(), phases=phases, optimizer=sgd, seed=5, rate=falling)
    assert losses == pytest.approx([row["loss"] for row in run.metrics[4:]], abs=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), state[name], rtol=1e-4, atol=1e-5)
    by_library = pipelag.train(
        convolutional(), Noise(), method="bsp", steps=3, executor="real", workers=2, optimizer=sgd
    )
    assert len(by_library.metrics) == 3
    with pytest.raises(PipelagError, match=r"replicates the whole model, so it takes no cuts, not \[3\]"):
        pipelag.train(convolutional(), Noise(), method="bsp", cuts=(3,), steps=2, executor="real")


SLOW = 30  # the minibatch with which an asynchronous worker is slow, until the other has had three more


def asynchronous(job: Job, steps: int) -> tuple[list[float], list[int], list[int], dict[str, torch.Tensor]]:
    """ASP, remembering which minibatches this rank was given."""
    batches, model, taken = Noise(), convolutional(), []
    model[3].requires_grad_(False)  # weight decay must not move what is frozen

    def inputs(step: int) -> torch.Tensor:
        taken.append(step)
        had = job.store.add("had", 1)
        while step == SLOW and job.world == 2 and job.store.add("had", 0) < had + 3:
            time.sleep(0.01)  # with weights in hand, while the other worker goes on
        return batches.inputs(step)

    phases = [Phase(get("pipedream"), 4, (3,))] * (job.world == 2) + [Phase(get("asp"), steps)]
    loss = nn.functional.cross_entropy
    training = RealTraining(job, model.train(), phases, sgd, loss, rate=lambda step: 1.0 if step < 9 else 0.5, seed=5)
    records = training.run(inputs, batches.targets)
    all_taken: list[list[int]] = [[] for _ in range(job.world)]
    dist.all_gather_object(all_taken, taken)
    minibatches = [step for rank in all_taken for step in rank if step >= 4 or job.world == 1]
    return training.losses, records[-1][0].ages, minibatches, model.state_dict()


def counted(job: Job, phases: list[Phase], optimizer: Any) -> tuple[int, list[float], dict[str, torch.Tensor]]:
    """Training, and how many of rank 0's updates were made over flat buffers."""
    flat_updates, counts = [], flat_step.FlatState.count

    def counting(state: flat_step.FlatState) -> None:
        flat_updates.append(state)
        counts(state)

    flat_step.FlatState.count = counting  # type: ignore[method-assign]
    model, batches = convolutional(), Noise()
    training = RealTraining(
        job, model.train(), phases, optimizer, nn.functional.cross_entropy, rate=lambda step: 1.0, seed=5
    )
    training.run(batches.inputs, batches.targets)
    return len(flat_updates), training.losses, model.state_dict()


@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_workers_update_small_tensors_over_flat_buffers_too(optimizer: Any) -> None:
    phases = [Phase(get("pipedream"), 12, (3,)), Phase(get("spectrain"), 8, (2,))]
    flat_updates, losses, state = launch(counted, 2, "cpu", 1, phases=phases, optimizer=optimizer)
    assert flat_updates >= 18  # all but each phase's first
    model = convolutional()
    plain = pipelag.train(model, Noise(), phases=phases, optimizer=optimizer, seed=5)
    assert losses == [row["loss"] for row in plain.metrics] and equal(state, model.state_dict())


def test_one_asynchronous_worker_is_plain_training_bit_for_bit() -> None:
    losses, ages, minibatches, state = launch(asynchronous, 1, "cpu", 1, steps=12)
    model = convolutional()
    model[3].requires_grad_(False)
    rate = lambda step: 1.0 if step < 9 else 0.5  # noqa: E731
    plain = pipelag.train(model, Noise(), method="sequential", steps=12, optimizer=sgd, seed=5, rate=rate)
    assert losses == [row["loss"] for row in plain.metrics] and equal(state, model.state_dict())
    assert ages == [0] * 12 and minibatches == list(range(12))


def test_asynchronous_workers_wait_for_nobody_and_share_all_minibatches() -> None:
    losses, ages, minibatches, state = launch(asynchronous, 2, "cpu", 1, steps=400)
    assert sorted(minibatches) == list(range(4, 404))  # each once
    assert len(losses) == 404 and len(ages) == 400
    assert ages[0] == 0 and max(ages) > 1  # the other worker has made updates while this one slept
    assert all(0 <= age < 400 for age in ages)
    assert sum(losses[-40:]) < 0.95 * sum(losses[:40])  # 0.70 to 0.81: who was when at work differs from time to time
    assert all(torch.isfinite(value).all() for value in state.values())


@pytest.mark.parametrize("cuts", [(2,), (1, 2, 4)], ids=["2 workers", "4 workers"])
def test_the_schedules_of_torch_learn_what_ours_learn(cuts: tuple[int, ...]) -> None:
    """Two tensors cross the boundary inside the residual block; batch norm, dropout, microbatches, a phase before."""
    pairs = (("gpipe_torch", "gpipe"), ("1f1b_torch", "1f1b_flush"))
    cases = [[Phase(get("pipedream"), 4, cuts), Phase(get(name), 8, cuts, microbatches=4)] for name, _ in pairs]
    ends = launch(all_cases, len(cuts) + 1, "cpu", 1, cases=cases)
    for (name, counterpart), real, phases in zip(pairs, ends, cases, strict=True):
        model = convolutional()
        ours = [phases[0], replace(phases[1], method=get(counterpart))]
        pipelag.train(model, Noise(), phases=ours, optimizer=optimizer_for(name), seed=5, rate=falling)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(real[key], value, rtol=1e-5, atol=1e-6, msg=f"{name}: {key}")
    with pytest.raises(PipelagError, match="'gpipe_torch' cannot recompute; use gpipe"):
        check_workers(Phase(get("gpipe_torch"), 2, (2,), recompute=True), 2)
    with pytest.raises(PipelagError, match="'bsp' cannot recompute on real workers; recompute in the simulated"):
        check_workers(Phase(get("bsp"), 2, recompute=True), 2)


@pytest.mark.parametrize("cuts", METHOD_CASES, ids=["2 workers", "4 workers"])
def test_every_method_is_the_same_real_and_simulated_bit_for_bit(cuts: tuple[int, ...], place: str) -> None:
    cases = METHOD_CASES[cuts]
    ends = launch(all_cases, len(cuts) + 1, place, 1, cases=cases)
    for phases, real in zip(cases, ends, strict=True):
        name = phases[0].method.name
        model = convolutional()
        how = {"optimizer": optimizer_for(name), "seed": 5, "rate": falling, "device": place}
        pipelag.train(model, Noise(), phases=phases, **how)
        assert equal(model.cpu().state_dict(), real), name


def test_what_does_not_fit_is_refused() -> None:
    two = [Phase(get("stale_weights"), 4, (2,)), Phase(get("stale_weights"), 4, (2, 4))]
    with pytest.raises(
        PipelagError, match=r"3 workers are more than the 2 that the 2 stages of the cuts \[2\] use; take 2 work"
    ):
        pipelag.train(convolutional(), Noise(), phases=two, executor="real")
    with pytest.raises(PipelagError, match="draws its delays at random, which a real pipeline cannot reproduce"):
        pipelag.train(convolutional(), Noise(), method="hogwild", cuts=(3,), steps=2, executor="real")
    with pytest.raises(PipelagError, match="'asp' replicates the whole model, so it takes no cuts, not .3."):
        pipelag.train(convolutional(), Noise(), method="asp", cuts=(3,), steps=2, executor="real")
    with pytest.raises(PipelagError, match="unknown executor 'reel'; did you mean 'real'"):
        pipelag.train(convolutional(), Noise(), steps=1, executor="reel")
    torchs = replace(get("pipedream"), name="pipedream_torch", workers="torch")
    with pytest.raises(PipelagError, match="which has only those of gpipe and one_f_one_b_flush"):
        pipelag.train(convolutional(), Noise(), method=torchs, cuts=(3,), steps=2, executor="real")
    if not torch.cuda.is_available():
        with pytest.raises(PipelagError, match="the device 'cuda' is not available"):
            pipelag.train(convolutional(), Noise(), steps=1, cuts=(2,), executor="real", device="cuda")


class Uneven(Noise):
    """Its last minibatch is smaller than the others."""

    def inputs(self, t: int) -> torch.Tensor:
        return super().inputs(t)[: 3 if t == 5 else None]


def test_a_smaller_minibatch_is_refused_with_its_number() -> None:
    with pytest.raises(
        PipelagError, match=r"output of stage 1 for minibatch 5 has shape \[3, 8, 8, 8\], but .* drop or pad"
    ):
        pipelag.train(convolutional(), Uneven(), steps=6, cuts=(1,), executor="real")


class Bomb(nn.Module):
    """Raises in its third forward."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.count == 3:
            raise ArithmeticError("the bomb went off")
        return x


def test_an_error_in_a_worker_is_reported_with_its_rank() -> None:
    model = nn.Sequential(*convolutional()[:5], Bomb(), convolutional()[5])
    with pytest.raises(PipelagError, match="rank 1 of 2 workers failed: ArithmeticError: the bomb went off"):
        pipelag.train(model, Noise(), steps=8, cuts=(3,), executor="real")


def alone(warm: bool = False, **more: str) -> dict[str, str]:
    """The environment of a script that finds the project, and no warm process: as a user of the library runs it.

    warm: with one, for what differs from a test before in little, to start in less time.
    """
    environment = {key: value for key, value in os.environ.items() if warm or key != "PIPELAG_WARM"}
    return environment | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])} | more


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_ends_all_within_ten_seconds(tmp_path: Path, victim: int) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys, pipelag
        from tests.toy import Noise, convolutional

        class Telling(Noise):
            def __getitem__(self, t):
                if t == 20:
                    open(os.path.join(os.environ["TELL"], "pid" + os.environ["RANK"]), "w").write(str(os.getpid()))
                return super().__getitem__(t)

        if __name__ == "__main__":
            try:
                pipelag.train(convolutional(), Telling(), steps=10**5, cuts=(3,), executor="real")
            except pipelag.PipelagError as error:
                sys.exit(str(error))
        """)
    )
    environment = alone(warm=victim == 1, TELL=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        pids = [tmp_path / f"pid{rank}" for rank in (0, 1)]
        deadline = time.monotonic() + 240  # starting up is not what is tested, and a busy machine is slow at it
        while not all(path.exists() and path.read_text() for path in pids):
            assert time.monotonic() < deadline and process.poll() is None, "the workers did not start"
            time.sleep(0.05)
        everyone = [int(path.read_text()) for path in pids]
        killed = time.monotonic()
        os.kill(everyone[victim], signal.SIGKILL)
        _, errors = process.communicate(timeout=240)
        assert time.monotonic() - killed < 120  # of which three seconds are given: a busy machine takes its time
        assert process.returncode != 0
        assert re.search(rf"rank {victim} of 2 workers failed: it was ended by signal 9 \(SIGKILL\)", errors)
        wait_for(lambda: not any(alive(pid) for pid in everyone))  # the warm process may be about to kill its fork
    finally:
        process.kill()


def test_killing_the_launcher_leaves_no_worker(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys, pipelag
        from tests.toy import Noise, convolutional

        class Telling(Noise):
            def __getitem__(self, t):
                if t == 5:
                    open(os.path.join(os.environ["TELL"], "pid" + os.environ["RANK"]), "w").write(str(os.getpid()))
                return super().__getitem__(t)

        if __name__ == "__main__":
            pipelag.train(convolutional(), Telling(), steps=10**5, cuts=(3,), executor="real")
        """)
    )
    environment = alone(TELL=str(tmp_path))
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)
    with ended(process):
        pids = [tmp_path / f"pid{rank}" for rank in (0, 1)]
        deadline = time.monotonic() + 240  # starting up is not what is tested, and a busy machine is slow at it
        while not all(path.exists() and path.read_text() for path in pids):
            assert time.monotonic() < deadline and process.poll() is None, "the workers did not start"
            time.sleep(0.05)
        process.kill()
        process.wait()
        everyone = [int(path.read_text()) for path in pids]
        wait_for(lambda: not any(alive(pid) for pid in everyone))


def test_processes_started_by_torchrun_can_join(tmp_path: Path) -> None:
    """What a cluster does: torchrun starts the processes, each joins and trains its stage."""
    (tmp_path / "job.py").write_text(
        textwrap.dedent("""
        import sys, torch
        from pipelag.distributed.launch.launch import join
        from pipelag.distributed.feasible import check_workers
        from pipelag.distributed.training import RealTraining
        from pipelag.methods import METHODS, get
        from pipelag.stage.phase import Phase
        from tests.toy import Noise, convolutional, sgd

        job, batches = join("cpu"), Noise()
        phases = [Phase(get("stale_weights"), 6, (3,))]
        loss = torch.nn.functional.cross_entropy
        training = RealTraining(job, convolutional(), phases, sgd, loss, rate=lambda step: 1.0, seed=5)
        training.run(batches.inputs, batches.targets)
        if job.rank == 0:
            torch.save(training.model.state_dict(), sys.argv[1])
        """)
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "job.py", "out.pt"]
    environment = alone()
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, stderr=subprocess.DEVNULL)
    simulated = convolutional()
    pipelag.train(simulated, Noise(), cuts=(3,), steps=6, optimizer=sgd, seed=5)
    assert equal(torch.load(tmp_path / "out.pt"), simulated.state_dict())


def blocking(job: Job, cases: list[list[Phase]]) -> list[float]:
    """A backend whose first message between two ranks of a group waits until both have come to it, as nccl's does."""
    met: set[Any] = set()
    isend, irecv = dist.isend, dist.irecv

    def meet(group: Any, peer: int) -> None:
        key = (getattr(group, "group_name", ""), min(job.rank, peer), max(job.rank, peer))
        if key not in met:
            job.store.set(f"meet/{key}/{job.rank}", "x")
            job.store.wait([f"meet/{key}/{peer}"], timedelta(seconds=120))  # in a circle it would never come
            met.add(key)

    def first(talk: Any) -> Any:
        return lambda tensor, peer, group=None, tag=0: (meet(group, peer), talk(tensor, peer, group=group, tag=tag))[1]

    dist.isend, dist.irecv = first(isend), first(irecv)
    job.near = range(0)  # as if on machines of their own
    batches, losses = Noise(), []
    for phases in cases:
        training = RealTraining(
            job, convolutional(), phases, sgd, nn.functional.cross_entropy, rate=lambda step: 1.0, seed=5
        )
        training.run(batches.inputs, batches.targets)
        losses.append(training.losses[-1])
    return losses


def test_no_schedule_waits_in_a_circle_where_a_first_message_blocks() -> None:
    two = [[Phase(get(name), 6, (3,), microbatches=parts)] for name, parts in (("gpipe", 4), ("1f1b_flush", 4))]
    assert len(launch(blocking, 2, "cpu", 1, cases=two)) == 2
    cuts = (1, 2, 4)
    four = [[Phase(get(name), 6, cuts)] for name in ("stale_weights", "pipedream", "sequential")]
    four += [[Phase(get("pipemare"), 6, cuts, recompute=2)], [Phase(get("pipedream"), 6, (2, 4), replicas=(2, 1, 1))]]
    assert len(launch(blocking, 4, "cpu", 1, cases=four)) == 5


@pytest.mark.parametrize("method", ["stale_weights", "pipedream", "spectrain", "pipemare"])
def test_two_workers_share_a_gpu(method: str, place: str) -> None:
    models = {}
    for executor in ("simulated", "real"):
        models[executor] = convolutional()
        pipelag.train(
            models[executor], Noise(), method=method, cuts=(3,), steps=8, optimizer=sgd, executor=executor, device=place
        )
    assert equal(*(model.cpu().state_dict() for model in models.values()))


def late(job: Job) -> str:
    job.store.set_timeout(timedelta(seconds=1))
    if job.rank == 0:
        time.sleep(3)
    job.arrive()
    return "together"


def test_ranks_without_work_wait_as_long_as_it_takes() -> None:
    assert launch(late, 2, "cpu", 1) == "together"
