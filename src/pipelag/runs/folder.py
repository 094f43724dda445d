"""A run's folder: the growing log while it runs, and the finished files that appear by rename."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from pipelag.errors import PipelagError
from pipelag.runs.spec import RunSpec


class RunFolder:
    """`metrics.jsonl` grows in `partial/`; `finish` copies it into place and writes `summary.json` last.

    A folder belongs to one run. Raises `PipelagError` where it holds another's log or checkpoint.
    """

    def __init__(self, path: Path, spec: RunSpec) -> None:
        self.path, self.spec = path, spec
        self.partial = path / "partial"
        self.metrics = self.partial / "metrics.jsonl"
        self.checkpoint = self.partial / "checkpoint.pt"
        owner = self._owner()
        if owner not in (None, spec.id):
            raise PipelagError(
                f"the folder {path} holds the run {owner}, and this is {spec.id}; choose another, or remove that one"
            )
        self.partial.mkdir(parents=True, exist_ok=True)
        write_atomically(self.partial / "id", spec.id + "\n")

    def _owner(self) -> str | None:
        """The run that is here, finished or not; None where there is none."""
        growing, finished = self.partial / "id", self.path / "summary.json"
        if growing.is_file() and any(self.partial.glob("checkpoint*")):  # without one there is nothing to go on with
            return growing.read_text(errors="replace").strip()
        return _id_in(finished.read_text(errors="replace")) if finished.is_file() else None

    def length(self) -> int:
        """Bytes of the growing log."""
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    def rewind(self, offset: int) -> None:
        """Cut the growing log back to the length it had at the checkpoint that is resumed."""
        with open(self.metrics, "ab") as file:
            file.truncate(offset)

    def log(self, row: dict[str, Any]) -> int:
        """Append a line; returns the log's length in bytes afterwards."""
        with open(self.metrics, "a") as file:
            file.write(json.dumps(finite(row)) + "\n")
            file.flush()
            return file.tell()

    def sync(self) -> None:
        """Return when the log is on the disk: a checkpoint that counts on it may be written."""
        with open(self.metrics, "ab") as file:
            os.fsync(file.fileno())

    def finish(self, summary: dict[str, Any], environment: dict[str, Any]) -> None:
        """Publish config, environment, metrics and, last, the summary with the log's seal; then drop `partial/`."""
        self.metrics.touch()
        log = self.metrics.read_text()
        write_atomically(self.path / "config.yaml", yaml.safe_dump(self.spec.model_dump(mode="json"), sort_keys=False))
        write_atomically(self.path / "environment.json", json.dumps(environment, indent=1) + "\n")
        write_atomically(self.path / "metrics.jsonl", log)
        head = {"id": self.spec.id, "kind": self.spec.kind}
        written = finite(head | summary | {"log": seal(log)})
        write_atomically(self.path / "summary.json", json.dumps(written, indent=1) + "\n")
        shutil.rmtree(self.partial)


def seal(log: str) -> dict[str, Any]:
    """What a summary says of its log, by which a reader sees that it is whole: its lines and their SHA-256."""
    return {"rows": len(log.splitlines()), "sha256": hashlib.sha256(log.encode()).hexdigest()}


def _id_in(summary: str) -> str | None:
    """The run that a summary is of; None where it is damaged."""
    try:
        return json.loads(summary).get("id")  # type: ignore[no-any-return]
    except (ValueError, AttributeError):
        return None


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old or the new text, never a part."""
    aside = path.with_name(path.name + ".tmp")
    with open(aside, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


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
    """Where and with what a run was made: versions, commit, host, device, threads, date (UTC)."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": socket.gethostname(),
        "device": device_title(device),
        "threads": threads,
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
    """The commit of this source tree, with `+` behind it where the tree has changes; None outside a checkout."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
