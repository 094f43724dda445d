"""Runs whose workers torchrun has started, on one machine or several, with the same command line in each process.

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --max-restarts 3 \\
        -m pipelag run --config run.yaml --out /shared/run

Rank 0 leads: only it opens the run's folder and writes the log. The other ranks do their part of the task.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelag.distributed.heartbeat import patience_of
from pipelag.errors import PipelagError

if TYPE_CHECKING:
    from pipelag.distributed.job import Job

Lead = Generator[dict[str, Any], Any, dict[str, Any]]


def standing() -> bool:
    """Whether torchrun has started this process. One of its variables alone is what another program has left behind."""
    return {"TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"} <= os.environ.keys()


def leads() -> bool:
    """Whether this process is the one that opens the run's folder and reports the results."""
    return not standing() or os.environ["RANK"] == "0"


def workers_here(workers: int) -> int:
    """The number of a run's workers on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if standing() else workers


def check_world(workers: int, what: str) -> None:
    """Refuse a run that needs another number of processes than torchrun has started."""
    world = int(os.environ["WORLD_SIZE"]) if standing() else workers
    if world != workers:
        remedy = (
            "start it without torchrun"
            if workers == 1
            else f"choose --nnodes and --nproc-per-node whose product is {workers}"
        )
        raise PipelagError(f"torchrun has started {world} processes, and {what} is for {workers}; {remedy}")


def attempt(store: Any, rank: int, world: int, patience: float) -> str:
    """Agree among all ranks on a name for this start of the processes, which no earlier start had.

    torchrun restarts failed workers over the same store, which still holds what the failed ones wrote. So every rank
    calls with a new name of its own, and rank 0 answers these calls until all ranks have read the answer.

    Raises:
        PipelagError: rank 0 has not heard from a rank in `patience` seconds, or another rank not from rank 0.
    """
    new_name, until = uuid.uuid4().hex, time.monotonic() + patience
    if rank:
        store.set(f"call/{rank}", new_name)
    answered: set[str] = set()
    while time.monotonic() < until:
        if rank and store.check([f"answer/{new_name}"]):
            name: str = store.get(f"answer/{new_name}").decode()
            store.set(f"heard/{name}/{rank}", "yes")
            return name
        if not rank:
            calls = [key for other in range(1, world) if store.check([key := f"call/{other}"])]
            for call in {store.get(key).decode() for key in calls} - answered:
                store.set(f"answer/{call}", new_name)
                answered.add(call)
            if all(store.check([f"heard/{new_name}/{other}"]) for other in range(1, world)):
                return new_name
        time.sleep(0.02)
    silent = (other for other in range(1, world) if not store.check([f"heard/{new_name}/{other}"]))
    raise PipelagError(f"rank {0 if rank else next(silent)} has not joined rank {rank} within {patience:g} s")


def everywhere(
    task: Callable[..., Any], lead: Lead, workers: int, device: str, threads: int, folder: Path, **arguments: Any
) -> dict[str, Any]:
    """Run `task(job, **arguments)` on every worker: on new workers of this machine, or on those of torchrun.

    Args:
        lead: a generator that only one process runs. It opens the run, yields further arguments for all workers (they
            travel as JSON), is sent the result of rank 0's task, and returns the run's summary.
        threads: CPU threads per worker.
        folder: the run's folder, which all machines must share.

    Returns:
        The summary; empty in a process that does not lead.
    """
    from pipelag.distributed.launch.launch import launch
    from pipelag.distributed.p2p import told_of_loss

    if not standing():
        return sent(lead, launch(task, workers, device, threads, kept=folder, **arguments, **next(lead)))
    check_world(workers, "this run")
    try:
        return _as_one_of_them(task, lead, device, threads, folder, arguments)
    except BaseException as error:
        said = str(error) if isinstance(error, PipelagError) else told_of_loss(error)
        if said:
            print(f"pipelag: rank {os.environ['RANK']}: {said}", file=sys.stderr, flush=True)
        else:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # at once: a normal exit would wait for connections to workers that may be gone


def sent(lead: Lead, result: Any) -> dict[str, Any]:
    """Send the task's result to `lead`, and return the summary that `lead` returns."""
    try:
        lead.send(result)
    except StopIteration as end:
        summary: dict[str, Any] = end.value
        return summary
    raise RuntimeError("a lead yields once")


def _as_one_of_them(
    task: Callable[..., Any], lead: Lead, device: str, threads: int, folder: Path, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Do this process's part, from joining the other workers to leaving them; `join` ends it if one of them is lost."""
    import torch.distributed as dist

    from pipelag.distributed.job import ENDLESS
    from pipelag.distributed.launch.launch import join

    job = join(device, threads)
    if job.rank == 0:
        job.store.set("told", json.dumps(next(lead)))
    job.store.wait(["told"], ENDLESS)
    check_shared(job, folder)
    result, summary = task(job, **arguments, **json.loads(job.store.get("told"))), {}
    if job.rank == 0:
        summary = sent(lead, result)
        job.store.set("finished", "yes")
    job.store.wait(["finished"], ENDLESS)  # rank 0 may have much to measure at the end
    dist.barrier()
    dist.destroy_process_group()
    job.leave(last=job.rank == 0)
    return summary


def check_shared(job: Job, folder: Path) -> None:
    """Refuse a folder that the ranks do not share: stages write checkpoints there, which rank 0 reads.

    Raises:
        PipelagError: on every rank; it names the first rank that has not seen rank 0's file there within the patience.
    """
    if job.rank == 0:
        name = f"seen-{uuid.uuid4().hex}"
        (folder / name).touch()
        job.store.set("mark", name)
    mark = folder / job.store.get("mark").decode()
    until = time.monotonic() + patience_of(None)
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.05)
    job.store.set(f"sees/{job.rank}", socket.gethostname() if not mark.exists() else "")
    blind = {rank: job.store.get(f"sees/{rank}").decode() for rank in range(job.world)}
    if job.rank == 0:
        mark.unlink(missing_ok=True)
    for rank, host in blind.items():
        if host:
            raise PipelagError(
                f"rank {rank} on {host} does not see what rank 0 writes to {folder}; set --out to a folder that all "
                "machines share"
            )
