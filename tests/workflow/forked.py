"""Snakemake, started as a fork of a process that has loaded it: half of a start's eight seconds of a processor is that.

The process is the product's own warm process (`pipelag.warm`) with other modules loaded, and a start is its client. A
fork does what `python -m snakemake` does in the same folder and environment, from the words it is given to its status.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from pipelag import warm
from pipelag.job import PARENT

ROOT = Path(__file__).resolve().parents[2]
NAME = "tests.workflow.forked"
LOADED = (
    "snakemake.cli",
    "snakemake.executors.local",
    "snakemake_logger_plugin_pipelag",
    "torch",  # which plugins need
    "pipelag.methods",
    "pipelag.models",
    "pipelag.runs.kinds.options",
    "pipelag.runs.objectives",
    "pipelag.warm",
    "pipelag.results.named",
    *(f"pipelag.results.{path.stem}" for path in sorted((ROOT / "config/papers").glob("*.yaml"))),
)


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Start Snakemake in a folder with these words; where forks cannot be watched, in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "PIPELAG_WARM"}
    command = [sys.executable, "-m", "snakemake"]
    if hasattr(os, "pidfd_open"):
        environment["PIPELAG_WARM"] = server()
        command = [sys.executable, "-S", "-I", str(ROOT / "src/pipelag/job.py"), "-m", NAME]
    return subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@functools.cache
def server() -> str:
    """The socket of the process that has Snakemake loaded, for the time of the session."""
    folder = tempfile.TemporaryDirectory(prefix="pipelag-snakemake-")
    path = Path(folder.name, "socket")
    with open(path.with_name("log"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", NAME, str(path)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, env=os.environ | {PARENT: str(os.getpid())},
        )  # fmt: skip

    def end() -> None:
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    while not path.exists():  # it listens before it loads: a first start waits for it
        assert process.poll() is None, path.with_name("log").read_text()
        time.sleep(0.01)
    return str(path)


def main(words: list[str]) -> int:
    """In a fork: be Snakemake, in this folder."""
    os.environ.pop("PIPELAG_WARM", None)  # this one's; for its jobs Snakemake starts another
    sys.argv = ["snakemake", *words]
    sys.path[0] = os.getcwd()
    try:
        import_module("snakemake.cli").main(words)
    except SystemExit as end:
        if isinstance(end.code, str):  # an interpreter's end says so
            print(end.code, file=sys.stderr)
        raise
    return 0


if __name__ == "__main__":
    warm.DRAWING, warm.COMPUTING = LOADED, ()
    sys.exit(warm.main())
