"""Start worker processes under torchrun's elastic agent, and end all of them when one fails.

`launch(task, workers, ...)` starts `workers` processes on this machine; each calls `task(job, **arguments)`, and what
rank 0 returns comes back. Where the processes stand already (a script started by torchrun, on one machine or many),
`join()` makes the `Job` in each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from pipelag import job as client
from pipelag.distributed.launch import namespaces
from pipelag.distributed.p2p import PeerLost
from pipelag.distributed.workers.base import ENDLESS, Job
from pipelag.errors import PipelagError
from pipelag.job import be_parent, leave_with_parent
from pipelag.plugins import load_plugins

SELF = "pipelag.distributed.launch.launch"
TIMEOUT = timedelta(minutes=30)  # of one message; a dead peer is noticed at once by its closed connection


class WorkerFailed(PipelagError):
    """A worker of a real pipeline failed; the message names its rank and says why. All workers have ended."""


def launch(
    task: Callable[..., Any],
    workers: int,
    device: str = "cpu",
    threads: int = 1,
    links: namespaces.Links | None = None,
    **arguments: Any,
) -> Any:
    """Run `task(job, **arguments)` in `workers` processes; returns what rank 0's call returns.

    Args:
        task: importable or not (it travels by cloudpickle).
        device: "cpu" (gloo; each worker pinned to cores of its own where there are enough) or "cuda" (nccl, rank r
            on GPU r).
        threads: CPU threads per worker.
        links: each worker in a network namespace of its own, joined to the others by such links (CPU only).

    Raises:
        WorkerFailed: naming the first rank that failed.
        PipelagError: fewer GPUs than workers.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if device.startswith("cuda") and torch.cuda.device_count() < workers:
        raise PipelagError(
            f"{workers} workers need {workers} GPUs, and this machine has {torch.cuda.device_count()}; use --device cpu"
        )
    with tempfile.TemporaryDirectory(prefix="pipelag-") as folder:
        payload = {"task": task, "arguments": arguments, "device": device.split(":")[0], "threads": threads}
        Path(folder, "payload.pkl").write_bytes(cloudpickle.dumps(payload))
        Path(folder, "path.json").write_text(json.dumps(sys.path))  # modules beside the caller's script
        be_parent()
        if links is not None:
            codes = namespaces.run(Path(folder), workers, threads, links)
            if codes:
                failures = {rank: SimpleNamespace(exitcode=1) for rank in codes}
                raise first_cause(failures, Path(folder), workers)
            return cloudpickle.loads(Path(folder, "result.pkl").read_bytes())
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.1,
        )
        try:
            elastic_launch(config, entrypoint=sys.executable)("-S", "-I", client.__file__, "-m", SELF, folder)
        except ChildFailedError as error:
            raise first_cause(error.failures, Path(folder), workers) from None
        result = Path(folder, "result.pkl")
        return cloudpickle.loads(result.read_bytes())


def first_cause(failures: dict[int, Any], folder: Path, workers: int) -> PipelagError:
    """Which failed worker began it: one that was killed, else one with an error of its own, else a lost peer."""
    reports = {}
    for rank, failure in failures.items():
        path = folder / f"error-{rank}.json"
        report = json.loads(path.read_text()) if path.exists() else None
        # The agent ends the others with SIGTERM once one has failed: those are not causes.
        killed = failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
        order = 0 if killed else 3 if report is None else 2 if report["peer_lost"] else 1
        reports[rank] = (order, failure, report)
    rank, (order, failure, report) = min(reports.items(), key=lambda item: (item[1][0], item[0]))
    if report is not None and report["bad_input"]:
        return PipelagError(report["message"])
    if report is not None:
        reason = report["message"]
    elif failure.exitcode < 0:
        reason = f"it was ended by signal {-failure.exitcode} ({signal.Signals(-failure.exitcode).name})"
    else:
        reason = f"it exited with status {failure.exitcode}"
    return WorkerFailed(f"rank {rank} of {workers} workers failed: {reason}; all workers have been stopped")


def join(device: str, threads: int = 1) -> Job:
    """Make this process a worker: rank, world size and the store come from torchrun's environment variables."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local, local_world = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world))
    torch.set_num_threads(threads)
    if device == "cuda":
        place = torch.device("cuda", local)
        torch.cuda.set_device(place)
        backend = "nccl"
    else:
        place, backend = torch.device("cpu"), "gloo"
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if len(cores) >= local_world * threads and namespaces.PLACE not in os.environ:  # else it is pinned already
            os.sched_setaffinity(0, cores[local * threads : (local + 1) * threads])
    store, rank, world = next(rendezvous("env://", rank, world, timeout=TIMEOUT))
    store.set_timeout(TIMEOUT)
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=world, timeout=TIMEOUT)
    return Job(rank, world, place, PrefixStore("pipelag", store))


def main(words: Sequence[str]) -> int:
    """A worker process: read the payload in the folder `words[0]`, do the task, leave its result or why it failed."""
    leave_with_parent()
    folder = Path(words[0])
    rank = int(os.environ["RANK"])
    try:
        sys.path[:] = json.loads((folder / "path.json").read_text())
        load_plugins()
        payload = cloudpickle.loads((folder / "payload.pkl").read_bytes())
        job = join(payload["device"], payload["threads"])
        result = payload["task"](job, **payload["arguments"])
        if rank == 0:
            (folder / "result.pkl").write_bytes(cloudpickle.dumps(result))
            job.store.set("finished", "yes")
        job.store.wait(["finished"], ENDLESS)  # rank 0 may have much to measure at the end
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        bad = isinstance(error, PipelagError)
        # gloo's collectives (DDP, the sums of replicas) tell of a lost peer by a plain RuntimeError from their sources.
        lost = isinstance(error, PeerLost) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))
        message = str(error) if bad or lost else f"{type(error).__name__}: {error}"
        report = {"message": message, "peer_lost": lost or isinstance(error, dist.DistBackendError), "bad_input": bad}
        (folder / f"error-{rank}.json").write_text(json.dumps(report))
        if not (lost or bad):
            traceback.print_exc()
        os._exit(1)  # at once: a normal exit would wait for connections to workers that may be gone
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
