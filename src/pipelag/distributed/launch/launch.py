"""Start worker processes, and end all of them when one fails.

`launch(task, workers, ...)` starts `workers` processes on this machine. Each calls `task(job, **arguments)`, and
`launch` returns what the call on rank 0 returns. If the processes already run (a script started by torchrun, on one
machine or many), `join()` makes the `Job` in each.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from pipelag import cores, precision
from pipelag import job as client
from pipelag.allocator import keep_freed_memory
from pipelag.distributed import channel
from pipelag.distributed.heartbeat import Heartbeat, patience_of
from pipelag.distributed.job import ENDLESS, Job
from pipelag.distributed.launch import namespaces, processes, torchrun
from pipelag.distributed.launch.travel import cannot_travel, pickled
from pipelag.distributed.p2p import told_of_loss
from pipelag.errors import PipelagError
from pipelag.job import leave_with_parent
from pipelag.plugins import load_plugins

SELF = "pipelag.distributed.launch.launch"
STARTING = timedelta(minutes=5)  # the most to wait for the store of another machine
NO_ROOM = errno.ENOSPC  # the exit status of a worker that could not even write why it failed
MORE_ROOM = "free some space, or let TMPDIR name another folder"


class WorkerFailed(PipelagError):
    """A worker of a real pipeline failed; the message names its rank and says why. All workers have ended."""


def launch(
    task: Callable[..., Any],
    workers: int,
    device: str = "cpu",
    threads: int = 1,
    links: namespaces.Links | None = None,
    patience: float | None = None,
    meanwhile: Callable[[], None] | None = None,
    kept: Path | None = None,
    **arguments: Any,
) -> Any:
    """Run `task(job, **arguments)` in `workers` processes; returns what rank 0's call returns.

    Args:
        task: any function; it need not be importable, because cloudpickle sends it.
        device: "cpu": gloo and shared memory, with each worker pinned to cores of its own if there are enough.
            "cuda": nccl, with rank r on GPU r. "cuda:N": all workers share one GPU and send through the CPU's memory
            (gloo), which shows that a run works, not how fast.
        threads: CPU threads per worker.
        links: puts each worker into a network namespace of its own, joined to the others by these links (CPU only).
        patience: seconds for which a worker may be silent before the run ends (`pipelag.distributed.heartbeat`); None:
            PIPELAG_PATIENCE, or 30.
        kept: the folder of the task's checkpoints, which the message names if a signal ends the run.
        meanwhile: called in this process many times a second while the workers run; an exception from it ends them.
            Not with links.

    Raises:
        WorkerFailed: a worker failed; the message names the first.
        PipelagError: an unknown device, no threads, fewer GPUs than workers, more workers than addresses behind links,
            a task that cannot be pickled, no loopback interface, no room for the task.
    """
    if device.split(":")[0] not in ("cpu", "cuda"):
        raise PipelagError(f"unknown device '{device}'; the devices are cpu, cuda and cuda:N")
    if not isinstance(threads, int) or threads < 1:
        raise PipelagError(f"a worker needs 1 thread or more, not {threads}")
    count = torch.cuda.device_count()
    if device == "cuda" and count < workers:
        only = ", or cuda:0, which they will share" if count else ""
        raise PipelagError(
            f"{workers} workers need {workers} GPUs, and this machine has {count}; use --device cpu{only}"
        )
    if links is not None and workers > namespaces.MOST:
        raise PipelagError(
            f"{workers} workers behind links are more than the {namespaces.MOST} that their network has addresses for; "
            "take fewer, or leave out the links"
        )
    if links is not None and meanwhile is not None:
        raise PipelagError("meanwhile is not called for workers behind links; leave out meanwhile, or the links")
    payload = {"task": task, "arguments": arguments, "device": device, "threads": threads}
    payload |= {"patience": patience_of(patience), "local": links is None}
    with processes.stoppable(kept), processes.workers_folder() as folder:
        hand_over(payload, folder)
        if links is None:
            words = [sys.executable, "-S", "-I", client.__file__, "-m", SELF, str(folder)]
            codes = processes.run(words, workers, folder, meanwhile)
        else:
            codes = namespaces.run(folder, workers, threads, links)
        if codes:
            raise first_cause(codes, folder, workers)
        return cloudpickle.loads((folder / "result.pkl").read_bytes())


def hand_over(payload: dict[str, Any], folder: Path) -> None:
    """Write the task to the folder where the workers read it.

    Raises:
        PipelagError: the task cannot be pickled, or there is no room for it.
    """
    try:
        text = pickled(payload)
    except Exception as error:
        raise cannot_travel(payload["arguments"], error) from error
    try:
        (folder / "payload.pkl").write_bytes(text)
        (folder / "path.json").write_text(json.dumps(sys.path))  # so that modules beside the caller's script are found
    except OSError as error:
        raise PipelagError(
            f"the workers' task, {len(text):,} bytes, could not be written to {folder} ({error.strerror}); {MORE_ROOM}"
        ) from error


def leave_result(text: bytes, folder: Path) -> None:
    """Write rank 0's result to the folder where the launcher reads it.

    Raises:
        PipelagError: there is no room for it.
    """
    try:
        (folder / "result.pkl").write_bytes(text)
    except OSError as error:
        raise PipelagError(
            f"the run's result, {len(text):,} bytes, could not be written to {folder} ({error.strerror}); {MORE_ROOM}"
        ) from error


def leave_report(report: dict[str, Any], folder: Path, rank: int) -> None:
    """Write why a worker failed to the folder where the launcher reads it.

    The file is replaced as a whole, because the heartbeat's thread may write a reason at the same time.

    Raises:
        OSError: there is no room for it.
    """
    aside = folder / f"error-{rank}-{threading.get_ident()}.tmp"
    aside.write_text(json.dumps(report))
    os.replace(aside, folder / f"error-{rank}.json")


def first_cause(codes: Mapping[int, int], folder: Path, workers: int) -> PipelagError:
    """The error that names the worker whose failure caused the others'.

    It is a worker that died without a report, else one with an error of its own, else one that others no longer hear,
    else one that lost its connection to another.

    Args:
        codes: the exit codes by rank.
    """
    reports = {}
    for rank, code in codes.items():
        path = folder / f"error-{rank}.json"
        report = json.loads(path.read_text()) if path.exists() else None
        if report is None:
            order = 4 if code == NO_ROOM else 0  # it may only have had no room to report that it lost another
        else:
            order = 3 if report["peer_lost"] else 2 if "of" in report else 1
        reports[rank] = (order, code, report)
    rank, (order, code, report) = min(reports.items(), key=lambda item: (item[1][0], item[0]))
    if report is not None and report["bad_input"]:
        return PipelagError(report["message"])
    if report is not None:
        reason = report["message"]
    elif code == NO_ROOM:
        return PipelagError(f"a worker could not write to {folder} ({os.strerror(code)}); {MORE_ROOM}")
    elif code < 0 or code == 130:  # the warm process's status for SIGINT
        number = -code if code < 0 else signal.SIGINT
        name = next((known.name for known in signal.Signals if known == number), "a real-time signal")
        reason = f"it was ended by signal {number} ({name})"
    else:
        reason = f"it exited with status {code}"
    return WorkerFailed(failure(rank if report is None else report.get("of", rank), workers, reason))


def failure(rank: int, workers: int, reason: str) -> str:
    """The error message about a failed worker."""
    return f"rank {rank} of {workers} workers failed: {reason}; all workers have been stopped"


def join(
    device: str,
    threads: int = 1,
    patience: float | None = None,
    lost: Callable[[int, str], None] | None = None,
    local: bool = False,
) -> Job:
    """Make this process a worker; rank, world size and store come from torchrun's environment variables.

    Args:
        patience: see `launch`.
        lost: called when a rank has failed; None: print a message and end this process.
        local: the store is on this machine, in the launcher (see `Heartbeat`).

    Raises:
        PipelagError: the store cannot be reached, or the machines use different backends.
    """
    seconds = patience_of(patience)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    here, local_world = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world))
    torch.set_num_threads(threads)
    if local_world == world:  # one machine: keep its ports closed to others
        os.environ.update(processes.on_loopback())
    precision.prepare()
    precision.prepare_for(device)
    shared = device.startswith("cuda:")
    if device.startswith("cuda"):
        place = torch.device(device) if shared else torch.device("cuda", here)
        torch.cuda.set_device(place)
        backend = "gloo" if shared else "nccl"
    else:
        place, backend = torch.device("cpu"), "gloo"
        keep_freed_memory()
        ours = cores.own()
        if len(ours) >= local_world * threads and namespaces.PLACE not in os.environ:  # else it is pinned already
            os.sched_setaffinity(0, ours[here * threads : (here + 1) * threads])
    try:
        store, rank, world = next(rendezvous("env://", rank, world, timeout=STARTING))
    except dist.DistError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise PipelagError(
            f"rank {rank} cannot reach the workers' store at {where}; check that the machine is up and that its "
            "address is right"
        ) from error
    store.set_timeout(ENDLESS)
    if torchrun.standing():
        store = PrefixStore(torchrun.attempt(store, rank, world, STARTING.total_seconds()), store)
    job_store = PrefixStore("pipelag", store)
    heart = Heartbeat(job_store.clone(), rank, world, seconds, lost or partial(leave, world), local)
    atexit.register(heart.stop)
    check_backend(job_store, rank, backend)
    dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=world, timeout=ENDLESS)
    near = range(rank - here, rank - here + local_world)
    return Job(rank, world, place, job_store, heart, shared=shared, near=neighbours(job_store, rank, near, device))


def neighbours(store: Any, rank: int, near: range, device: str) -> list[int]:
    """The ranks that this one reaches through shared memory: those that the same launcher started, if all agree.

    near: the ranks of this machine, if ranks are numbered consecutively, as torchrun and this module do; if they are
        not, the ranges of the ranks differ, and no rank has a neighbour.
    """
    able = device == "cpu" and channel.possible()
    store.set(f"near/{rank}", str(near) if able else "nobody")
    return [other for other in near if able and store.get(f"near/{other}").decode() == str(near)]


def check_backend(store: Any, rank: int, backend: str) -> None:
    """Refuse a mix of machines that compute on GPUs and machines that do not: they would wait for one another."""
    store.set(f"backend/{rank}", backend)
    first = store.get("backend/0").decode()
    if backend != first:
        raise PipelagError(
            f"rank {rank} would communicate over {backend} and rank 0 over {first}: not all machines have GPUs for "
            "their workers; name a device that all of them have, such as --device cpu"
        )


def leave(world: int, rank: int, reason: str) -> NoReturn:
    """Print which rank has failed, and end this process at once."""
    print(f"pipelag: {failure(rank, world, reason)}", file=sys.stderr, flush=True)
    os._exit(1)


def main(words: Sequence[str]) -> int:
    """Run a worker process: read the task in the folder `words[0]`, do it, and write its result or why it failed."""
    leave_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a traceback, and the launcher names the signal
    folder = Path(words[0])
    rank = int(os.environ["RANK"])

    def report(message: str, peer_lost: bool = False, bad_input: bool = False, **more: Any) -> NoReturn:
        try:
            leave_report({"message": message, "peer_lost": peer_lost, "bad_input": bad_input} | more, folder, rank)
        except OSError as error:
            if folder.exists():  # else the launcher has ended, and no one reads a report
                print(f"pipelag: rank {rank}: {message}", file=sys.stderr, flush=True)
            os._exit(NO_ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
        os._exit(1)  # at once: a normal exit would wait for connections to workers that may be gone

    try:
        sys.path[:] = json.loads((folder / "path.json").read_text())
        load_plugins()
        payload = cloudpickle.loads((folder / "payload.pkl").read_bytes())
        lost = lambda of, reason: report(reason, of=of)  # noqa: E731
        job = join(payload["device"], payload["threads"], payload["patience"], lost, payload["local"])
        precision.prepare(alone=True)
        job.store.set(f"read/{rank}", "yes")
        if rank == 0:  # so that neither model nor data stay behind if the launcher is killed
            job.store.wait([f"read/{other}" for other in range(job.world)], ENDLESS)
            (folder / "payload.pkl").unlink()
        result = payload["task"](job, **payload["arguments"])
        if rank == 0:
            leave_result(cloudpickle.dumps(result), folder)
            job.store.set("finished", "yes")
        job.store.wait(["finished"], ENDLESS)  # rank 0 may have much to measure at the end
        dist.barrier()
        dist.destroy_process_group()
        job.leave(last=rank == 0 and not payload["local"])
    except BaseException as error:
        if not folder.exists():  # the launcher has ended, and no one reads a report
            os._exit(1)
        bad = isinstance(error, PipelagError)
        lost_one = told_of_loss(error)
        if not (lost_one or bad):
            traceback.print_exc()
        notes = "".join(f" ({' '.join(note.split())})" for note in getattr(error, "__notes__", ()))
        message = lost_one or (str(error) if bad else f"{type(error).__name__}: {error}{notes}")
        report(message, bool(lost_one) or isinstance(error, dist.DistBackendError), bad)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
