"""What `snakemake` prints about pipelag's workflow: a line per finished job, and errors.

    [ 12 %] 75 of 612, about 41 min left: leaderboard table_1, PipeDream, seed 1 (6 s)

Snakemake finds loggers by the name of their package; profiles/default asks for this one (`logger`). A dry run,
`--verbose` and `--quiet` work as usual, and Snakemake prints warnings and refusals itself.
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

NAMES: dict[str, str] = {}  # a run's name by its id; the workflow fills it
WORTH = ("Nothing to be done",)  # messages that are no event and are printed all the same
ECHO = "CalledProcessError in file"  # the whole command of a failed job, which has printed its own error
LEAST = 8 * 2**20  # free bytes on the disk that any work needs
FULL = "there is no room left on the disk"
FURTHER = "For further error details see"  # with which Snakemake ends what a cluster says, without a space before it
END = 20  # lines of a failed job's log
SKEW = 60.0  # seconds by which another machine's clock may be behind
EARLY = 60.0  # seconds before the time left is estimated


class LogHandler(LogHandlerBase):
    """Writes to standard error; a dry run, as usual, to standard output."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False  # Snakemake's own, which obeys --quiet
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self.jobs: dict[int, tuple[str, bool, float]] = {}  # running jobs: name, whether a run, start
        self.finished: list[str] = []
        self.began = time.monotonic()
        self.runs = self.runs_done = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, keep it for the next line, or drop it."""
        try:
            text = self.said(record)
            if text:
                print(text, file=sys.stdout if self.common_settings.stdout else sys.stderr, flush=True)
        except Exception:
            self.handleError(record)

    def said(self, record: Any) -> str:
        """The text for a record; empty for most."""
        event, settings = getattr(record, "event", None), self.common_settings
        if settings.dryrun or settings.verbose or record.levelno >= logging.WARNING:
            if ECHO in record.getMessage() and not settings.verbose:
                return ""
            return self.failed(record) if event == LogEvent.JOB_ERROR else self.format(record)
        if event == LogEvent.RUN_INFO:
            self.runs = int(getattr(record, "stats", {}).get("run", 0))
        if event == LogEvent.JOB_INFO:
            self.jobs[record.jobid] = (named(record), record.rule_name == "run", time.monotonic())
        elif event == LogEvent.JOB_FINISHED:
            name, run, since = self.jobs.pop(record.job_id, ("", False, time.monotonic()))
            self.runs_done += run
            if name:
                self.finished.append(f"{name} ({time.monotonic() - since:.0f} s)")
        elif event == LogEvent.PROGRESS:
            return self.progress(record.done, record.total)
        elif event is None and record.getMessage().startswith(WORTH):
            return record.getMessage()
        return ""

    def progress(self, done: int, total: int) -> str:
        """The progress, the estimated time left, and the jobs finished since the last line."""
        passed = time.monotonic() - self.began
        share = self.runs_done / self.runs if self.runs else done / total
        left = ""
        if passed > EARLY and 0 < share < 1:
            left = f", about {passed * (1 / share - 1) / 60:.0f} min left"
        names, self.finished = "; ".join(self.finished), []
        return f"[{100 * done // total:3d} %] {done} of {total}{left}" + (f": {names}" if names else "")

    def failed(self, record: Any) -> str:
        """Which job failed, and where its log is; a job of this machine has printed the log's end itself."""
        logs = getattr(record, "log", None) or []
        where = f"; its log: {' '.join(map(str, logs))}" if logs else ""
        name, _, since = self.jobs.pop(getattr(record, "jobid", -1), (record.rule_name, False, 0.0))
        full = f"; {FULL}: free some space and start again" if shutil.disk_usage(".").free < LEAST else ""
        return f"failed: {name}{where}{full}{elsewhere(record, logs, time.time() - time.monotonic() + since)}"


def elsewhere(record: Any, logs: Sequence[Any], since: float) -> str:
    """Of a cluster's job: what the cluster says of its end, and the end of its log, which the job printed elsewhere.

    since: when the job was submitted; a log that is older is an earlier job's.
    """
    said = (getattr(record, "rule_msg", None) or "").split(FURTHER)[0].strip()
    if not said:  # a job of this machine
        return ""
    lines = said.splitlines()[:1]
    for log in logs:  # the job's own, and then the cluster's, if the job did not come to write one
        with suppress(OSError):
            if Path(log).stat().st_mtime < since - SKEW:
                continue
            text = Path(log).read_bytes().decode(errors="replace").rstrip()  # read_text would make \r a new line
            if text:
                lines += [line.rsplit("\r", 1)[-1] for line in text.split("\n")[-END:]]
                break
    return "".join(f"\n    {line}" for line in lines)


def named(record: Any) -> str:
    """A job's name."""
    wildcards: Mapping[str, str] = record.wildcards or {}
    if record.rule_name == "run":
        return NAMES.get(wildcards["id"], f"run {wildcards['id']}")
    if record.rule_name in ("table", "figure"):
        return f"{wildcards['paper']} {wildcards['result']} drawn"
    return "" if record.rule_name == "all" else " ".join([record.rule_name, *wildcards.values()])
