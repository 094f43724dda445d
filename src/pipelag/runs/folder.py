"""A run's folder: a growing log while the run is under way, then finished files, each put in place by a rename."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pipelag import precision
from pipelag.errors import PipelagError
from pipelag.files import dangling, remove_half_written, write_whole
from pipelag.runs.spec import RunSpec

PRODUCTS = ("model.pt", "trace.json", "translations.tsv")  # some runs leave these beside the log
DESCRIPTIONS = ("config.yaml", "environment.json")  # what was run, and where
FILES = (*DESCRIPTIONS, "metrics.jsonl", "summary.json", *PRODUCTS)
GROWING = ("id", "lock", "metrics.jsonl")


class RunFolder:
    """The folder of one run. `metrics.jsonl` grows in `partial/`; `finish` copies it into place.

    `summary.json` is written last, so its presence means that the run is complete.

    Raises:
        PipelagError: the folder holds the log or a checkpoint of another run.
    """

    def __init__(self, path: Path, spec: RunSpec) -> None:
        self.path, self.spec = path, spec
        self.partial = path / "partial"
        self.over = path / "partial-over"
        self.metrics = self.partial / "metrics.jsonl"
        self.checkpoint = self.partial / "checkpoint.pt"
        self.written = hashlib.sha256()  # the log as this process has resumed and written it
        owner = self._owner()
        if owner not in (None, spec.id):
            raise PipelagError(
                f"the folder {path} holds the run {owner}, but this is run {spec.id}; choose another folder, or "
                "remove that run"
            )
        if self.over.is_symlink():
            self.over.unlink()
        elif self.over.exists():  # the run was stopped while it removed this folder
            shutil.rmtree(self.over, ignore_errors=True)
        remove_half_written(path)  # left by a run that was killed in `finish`
        self.partial.mkdir(parents=True, exist_ok=True)
        write_whole(self.partial / "id", spec.id + "\n")

    def _owner(self) -> str | None:
        """The id of the run in this folder, finished or not; None where there is none."""
        growing, finished = self.partial / "id", self.path / "summary.json"
        # A training's lines may be hours of work; those of other kinds may be left from a run that was refused.
        logged = self.spec.kind == "train" and self.metrics.is_file() and self.metrics.stat().st_size > 0
        if growing.is_file() and (logged or any(self.partial.glob("checkpoint*"))):  # else there is nothing to lose
            run = growing.read_text(errors="replace").strip()
            return run if re.fullmatch("[0-9a-f]{12}", run) else None  # if damaged: each checkpoint names its own run
        return _id_in(finished.read_text(errors="replace")) if finished.is_file() else None

    def holds(self, offset: int, digest: str) -> bool:
        """Whether the first `offset` bytes of the growing log have the SHA-256 `digest`."""
        log = self.metrics.read_bytes() if self.metrics.exists() else b""
        return hashlib.sha256(log[:offset]).hexdigest() == digest

    def rewind(self, offset: int) -> None:
        """Cut the growing log back to the length in bytes that it had at the checkpoint to be resumed."""
        with self._writing(), open(self.metrics, "ab") as file:
            file.truncate(offset)
        self.written = hashlib.sha256(self.metrics.read_bytes())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PipelagError(
                f"the log {self.metrics} cannot be written ({error.strerror}); what was logged is kept: free some "
                "space and start again"
            ) from error

    def log(self, row: dict[str, Any]) -> int:
        """Append a line; returns the new length of the log in bytes."""
        line = (json.dumps(finite(row)) + "\n").encode()
        with self._writing(), open(self.metrics, "ab") as file:
            file.write(line)
            file.flush()
            self.written.update(line)
            return file.tell()

    def sync(self) -> None:
        """Flush the log to the disk. A checkpoint that relies on the log may be written after this returns."""
        with self._writing(), open(self.metrics, "ab") as file:
            os.fsync(file.fileno())

    def finish(self, summary: dict[str, Any], environment: dict[str, Any]) -> None:
        """Publish config, environment, metrics and, last, the summary with the log's seal; then remove `partial/`.

        Raises:
            PipelagError: a file cannot be written, the log is not what this process wrote, or `partial/` cannot be
                removed.
        """
        with self._writing():
            self.metrics.touch()
            log = self.metrics.read_text(errors="replace")
        if seal(log)["sha256"] != self.written.hexdigest():
            raise PipelagError(
                f"the log {self.metrics} is not what this run wrote (another program or the disk has changed it); "
                f"remove {self.partial} and start again"
            )
        write_whole(self.path / "config.yaml", yaml.safe_dump(self.spec.model_dump(mode="json"), sort_keys=False))
        write_whole(self.path / "environment.json", json.dumps(environment, indent=1) + "\n")
        write_whole(self.path / "metrics.jsonl", log)
        head = {"id": self.spec.id, "kind": self.spec.kind}
        beside = {name: sum_of(self.path / name) for name in (*DESCRIPTIONS, *PRODUCTS) if (self.path / name).exists()}
        written = finite(head | summary | {"log": seal(log), "files": beside})
        written["seal"] = digest_of(written)
        write_whole(self.path / "summary.json", json.dumps(written, indent=1) + "\n")
        try:
            os.replace(self.partial, self.over)  # atomic: a half-removed `partial/` would look like a half-made run
            shutil.rmtree(self.over)
        except OSError as error:
            raise PipelagError(
                f"the run is finished, but its working folder {self.partial} cannot be removed ({error.strerror}); "
                "remove it"
            ) from error


@contextmanager
def leaving_nothing(path: Path) -> Iterator[None]:
    """Remove what was created for a run in the folder `path` if the body raises before the run has computed anything.

    A `partial/` that is new and holds neither a log line nor a checkpoint is removed, then each new folder that is
    empty. What was there before stays, and so do the files of another process that is at work there.
    """
    made = [place for place in (path / "partial", path, *path.parents) if not os.path.exists(place)]
    try:
        yield
    except BaseException:
        if made and made[0].name == "partial":
            _remove_begun(made[0])
        for place in made:
            with suppress(OSError):
                place.rmdir()
        raise


def _remove_begun(partial: Path) -> None:
    """Remove the files of a run that was opened and has computed nothing."""
    with suppress(OSError, Timeout):
        if not partial.is_dir():
            return
        with FileLock(partial / "lock", timeout=0):
            files = list(partial.iterdir())
            if all(file.name in GROWING and (file.name == "id" or not file.stat().st_size) for file in files):
                for file in files:
                    file.unlink()


def finished(path: Path, run: str) -> dict[str, Any] | None:
    """The summary of the finished run with the id `run` in a folder; None if it is missing or a file of it is damaged.

    Also None if a checkpoint lies in `partial/`: that half-made run is to be resumed.

    Raises:
        PipelagError: see `check_places`.
    """
    check_places(path)
    try:
        summary = json.loads((path / "summary.json").read_text())
        log = (path / "metrics.jsonl").read_text()
        beside = summary.get("files", {}).items()
        whole = summary.get("id") == run and is_as_written(summary) and summary.get("log") == seal(log)
        whole = whole and all(sum_of(path / name) == value for name, value in beside)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return summary if whole and not any((path / "partial").glob("checkpoint*")) else None


def check_places(path: Path) -> None:
    """Refuse a run's folder in which a file or folder of the run would be something else, such as a named pipe.

    Opening a pipe would block forever. A `partial/` that is a link could not be removed when the run is done, as what
    else lies in the folder that it names may not be the run's.
    """
    partial = path / "partial"
    if os.path.islink(partial):
        raise PipelagError(
            f"'{partial}' is a symbolic link, but a run removes it when it is done; put a folder there, or "
            "make the run's whole folder a link"
        )
    folders = [path, partial, path / "partial-over", partial / "checkpoints"]
    growing = [*(partial / name for name in GROWING), *partial.glob("checkpoint*.pt")] if partial.is_dir() else []
    for place in [*folders, *(path / name for name in FILES), *growing]:
        try:
            mode = os.stat(place).st_mode
        except (FileNotFoundError, NotADirectoryError):
            if place in folders and os.path.islink(place):
                raise PipelagError(f"{dangling(place)}; make that folder, or remove the link") from None
            continue
        except OSError as error:
            raise PipelagError(f"'{place}' cannot be used by a run ({error.strerror}); remove it") from error
        kind, right = (stat.S_ISDIR, "folder") if place in folders else (stat.S_ISREG, "file")
        if not kind(mode):
            other = "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "a device or a pipe"
            raise PipelagError(
                f"'{place}' is {other}, where a run keeps a {right}; remove it, or choose another folder"
            )


def sum_of(path: Path) -> str:
    """The SHA-256 of a file; raises `OSError` if the path is not a regular file, as reading a pipe might never end."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_summed(summary: Mapping[str, Any], path: Path) -> bool:
    """Whether a file beside a run's log has the SHA-256 in the summary; True for older summaries, which hold none."""
    sums = summary.get("files", {})
    return isinstance(sums, dict) and (path.name not in sums or path.is_file() and sum_of(path) == sums[path.name])


def seal(log: str) -> dict[str, Any]:
    """The seal of a log, by which a reader of the summary checks that the log is whole: its lines and its SHA-256."""
    return {"rows": len(log.splitlines()), "sha256": hashlib.sha256(log.encode()).hexdigest()}


def digest_of(summary: Mapping[str, Any]) -> str:
    """The SHA-256 of a summary without its own seal."""
    content = {key: value for key, value in summary.items() if key != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_as_written(summary: Mapping[str, Any]) -> bool:
    """Whether a summary is as its run wrote it. Older summaries, which have neither `seal` nor `files`, pass."""
    return summary["seal"] == digest_of(summary) if "seal" in summary else "files" not in summary


def _id_in(summary: str) -> str | None:
    """The run id in the JSON text of a summary; None where the text is damaged."""
    try:
        return json.loads(summary).get("id")  # type: ignore[no-any-return]
    except (ValueError, AttributeError):
        return None


def finite(value: Any) -> Any:
    """The value with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def environment(device: str, threads: int) -> dict[str, Any]:
    """What a run was made with, and where: versions, commit, host, SLURM job, device, threads, precision, date."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": socket.gethostname(),
        **({"slurm": slurm} if (slurm := slurm_job(os.environ)) else {}),
        "device": device_title(device),
        "threads": threads,
        **({"precision": precision.described(device)} if "torch" in sys.modules else {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in ("pipelag", "torch", "torchvision", "numpy")},
        "commit": _commit(),
        "command": ["pipelag", *sys.argv[1:]],
    }


def slurm_job(environment: Mapping[str, str]) -> dict[str, str]:
    """The job of SLURM that this process belongs to, by which `sacct -j` finds it, and its nodes; else empty."""
    names = {"job": "SLURM_JOB_ID", "nodes": "SLURM_JOB_NODELIST", "partition": "SLURM_JOB_PARTITION"}
    return {key: environment[name] for key, name in names.items() if name in environment}


def device_title(device: str) -> str:
    """A device's name as a reader knows it: the GPU's, or the processor's with its number of cores."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(torch.device(device))
    return f"{processor()} ({os.cpu_count()} cores)"


def processor() -> str:
    """The processor's name. Linux has a file with it, but on Arm only lscpu knows the name; macOS has sysctl."""
    sources = (
        Path("/proc/cpuinfo").read_text,
        partial(_answer, "lscpu"),
        partial(_answer, "sysctl", "machdep.cpu.brand_string"),
    )
    for source in sources:
        with suppress(OSError):
            if named := re.search(r"^(?:model name|machdep.cpu.brand_string)\s*:\s*(\w.*)$", source(), re.M | re.I):
                return named[1].strip()
    return platform.processor() or platform.machine()


def _answer(*words: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment).stdout


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this source tree, with `+` appended if the tree has changes.

    None outside a checkout, and for a copy that is installed inside another project's checkout.
    """
    here = Path(__file__).resolve()

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=here.parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
