"""A run's folder: the growing log while it runs, and the finished files that appear by rename."""

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
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pipelag import precision
from pipelag.errors import PipelagError
from pipelag.files import remove_half_written, write_whole
from pipelag.runs.spec import RunSpec

PRODUCTS = ("model.pt", "trace.json")  # beside the log, of some runs
DESCRIPTIONS = ("config.yaml", "environment.json")  # of what was run, and where
FILES = (*DESCRIPTIONS, "metrics.jsonl", "summary.json", *PRODUCTS)
GROWING = ("id", "lock", "metrics.jsonl")


class RunFolder:
    """`metrics.jsonl` grows in `partial/`; `finish` copies it into place and writes `summary.json` last.

    A folder belongs to one run. Raises `PipelagError` where it holds another's log or checkpoint.
    """

    def __init__(self, path: Path, spec: RunSpec) -> None:
        self.path, self.spec = path, spec
        self.partial = path / "partial"
        self.over = path / "partial-over"
        self.metrics = self.partial / "metrics.jsonl"
        self.checkpoint = self.partial / "checkpoint.pt"
        self.written = hashlib.sha256()  # of the log as this process knows it
        owner = self._owner()
        if owner not in (None, spec.id):
            raise PipelagError(
                f"the folder {path} holds the run {owner}, and this is {spec.id}; choose another, or remove that one"
            )
        if self.over.exists():  # of a run that was stopped while it removed it
            shutil.rmtree(self.over, ignore_errors=True)
        remove_half_written(path)  # by one that was killed while it published
        self.partial.mkdir(parents=True, exist_ok=True)
        write_whole(self.partial / "id", spec.id + "\n")

    def _owner(self) -> str | None:
        """The run that is here, finished or not; None where there is none."""
        growing, finished = self.partial / "id", self.path / "summary.json"
        # What trains has hours in its lines; of other kinds they may be those of a run that was refused.
        logged = self.spec.kind == "train" and self.metrics.is_file() and self.metrics.stat().st_size > 0
        if growing.is_file() and (logged or any(self.partial.glob("checkpoint*"))):  # else there is nothing to lose
            run = growing.read_text(errors="replace").strip()
            return run if re.fullmatch("[0-9a-f]{12}", run) else None  # damaged: checkpoints say whose they are
        return _id_in(finished.read_text(errors="replace")) if finished.is_file() else None

    def holds(self, offset: int, digest: str) -> bool:
        """Whether the growing log begins with so many bytes of this SHA-256."""
        log = self.metrics.read_bytes() if self.metrics.exists() else b""
        return hashlib.sha256(log[:offset]).hexdigest() == digest

    def rewind(self, offset: int) -> None:
        """Cut the growing log back to the length it had at the checkpoint that is resumed."""
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
        """Append a line; returns the log's length in bytes afterwards."""
        line = (json.dumps(finite(row)) + "\n").encode()
        with self._writing(), open(self.metrics, "ab") as file:
            file.write(line)
            file.flush()
            self.written.update(line)
            return file.tell()

    def sync(self) -> None:
        """Return when the log is on the disk: a checkpoint that counts on it may be written."""
        with self._writing(), open(self.metrics, "ab") as file:
            os.fsync(file.fileno())

    def finish(self, summary: dict[str, Any], environment: dict[str, Any]) -> None:
        """Publish config, environment, metrics and, last, the summary with the log's seal; then drop `partial/`.

        Raises:
            PipelagError: no room, the log is not what this process wrote, or `partial/` cannot be dropped.
        """
        with self._writing():
            self.metrics.touch()
            log = self.metrics.read_text(errors="replace")
        if seal(log)["sha256"] != self.written.hexdigest():
            raise PipelagError(
                f"the log {self.metrics} is not what this run wrote: another program or the disk has changed it; "
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
            os.replace(self.partial, self.over)  # in one instant: half of it would pass for a half-made run
            shutil.rmtree(self.over)
        except OSError as error:
            raise PipelagError(
                f"the run is finished, but {self.partial}, of which it went on, cannot be removed ({error.strerror}); "
                "remove it"
            ) from error


@contextmanager
def leaving_nothing(path: Path) -> Iterator[None]:
    """Where what follows raises before anything is computed for the run in this folder: remove what was made for it.

    That is what `partial/` has of a run without a line or a checkpoint, and folders that are empty then; nothing that
    stood there before, nor of another process that is at work there.
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
    """The summary of the run of this id that stands whole in a folder; None where there is none, or a file is not.

    A half-made run beside it is to be gone on with, so it is none then either.

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
    """Refuse a run's folder in which something else stands where the run keeps a file or a folder: who opens a pipe
    waits for ever.
    """
    partial = path / "partial"
    folders = [path, partial, partial / "checkpoints"]
    growing = [*(partial / name for name in GROWING), *partial.glob("checkpoint*.pt")] if partial.is_dir() else []
    for place in [*folders, *(path / name for name in FILES), *growing]:
        try:
            mode = os.stat(place).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise PipelagError(f"'{place}' cannot be used by a run ({error.strerror}); remove it") from error
        kind, right = (stat.S_ISDIR, "folder") if place in folders else (stat.S_ISREG, "file")
        if not kind(mode):
            other = "a folder" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "a device or a pipe"
            raise PipelagError(f"'{place}' is {other}, where a run keeps a {right}; remove it, or choose another place")


def sum_of(path: Path) -> str:
    """The SHA-256 of a file; raises OSError where there is none, or something that may never end."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_summed(summary: Mapping[str, Any], path: Path) -> bool:
    """Whether a file beside a run's log is the one whose sum the summary holds; older ones hold none."""
    sums = summary.get("files", {})
    return isinstance(sums, dict) and (path.name not in sums or path.is_file() and sum_of(path) == sums[path.name])


def seal(log: str) -> dict[str, Any]:
    """What a summary says of its log, by which a reader sees that it is whole: its lines and their SHA-256."""
    return {"rows": len(log.splitlines()), "sha256": hashlib.sha256(log.encode()).hexdigest()}


def digest_of(summary: Mapping[str, Any]) -> str:
    """The SHA-256 of what a summary says, but for its own seal."""
    content = {key: value for key, value in summary.items() if key != "seal"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_as_written(summary: Mapping[str, Any]) -> bool:
    """Whether a summary says what its run wrote; older ones, which hold no sums of files either, cannot tell."""
    return summary["seal"] == digest_of(summary) if "seal" in summary else "files" not in summary


def _id_in(summary: str) -> str | None:
    """The run that a summary is of; None where it is damaged."""
    try:
        return json.loads(summary).get("id")  # type: ignore[no-any-return]
    except (ValueError, AttributeError):
        return None


def finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def environment(device: str, threads: int) -> dict[str, Any]:
    """Where and with what a run was made: versions, commit, host, device, threads, precision, date (UTC)."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": socket.gethostname(),
        "device": device_title(device),
        "threads": threads,
        **({"precision": precision.described(device)} if "torch" in sys.modules else {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in ("pipelag", "torch", "torchvision", "numpy")},
        "commit": _commit(),
        "command": ["pipelag", *sys.argv[1:]],
    }


def device_title(device: str) -> str:
    """A device's name as a reader knows it: the GPU's, or the processor's with its number of cores."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(torch.device(device))
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model} ({os.cpu_count()} cores)"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this source tree, with `+` behind it where the tree has changes; None outside a checkout, and of a
    copy that is installed within somebody else's.
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
