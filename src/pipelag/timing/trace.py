"""Write timelines, of the timed executor or from logs, as Chrome trace JSON for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipelag.files import write_whole
from pipelag.schedules import Action
from pipelag.timing.timed import Timing

NAMES = {
    "F": "forward",
    "B": "backward",
    "R": "recompute",
    "W": "gradients of weights",
    "U": "update",
    "S": "synchronise",
    "send": "transfer",
}
COLOURS = {
    "F": "thread_state_running",
    "B": "thread_state_runnable",
    "R": "yellow",
    "W": "thread_state_iowait",
    "U": "grey",
    "send": "olive",
}


def row_of(worker: int, action: Action, start: float, end: float, microbatches: int) -> dict[str, Any]:
    """The timeline row of an action.

    If minibatches have several microbatches, the row also has `microbatch`, the action's number. For an update or a sum
    this is the number of the minibatch.
    """
    kind, stage, number = action
    per = 1 if kind in ("U", "S") else microbatches
    row = {"worker": worker, "start": start, "end": end, "kind": kind, "stage": stage, "minibatch": number // per}
    return row | {"microbatch": number} if microbatches > 1 else row


def transfer_rows(timing: Timing) -> list[dict[str, Any]]:
    """The rows of a timing's messages, kind "send", each on the worker that sends it."""
    return [
        row_of(sent.source, sent.action, sent.start, sent.end, timing.schedule.microbatches)
        | {"kind": "send", "to": sent.target, "of": sent.action.kind}
        for sent in timing.transfers
    ]


def trace_events(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Complete ("X") trace events from timeline rows, one track per worker, times in microseconds.

    Args:
        rows: each has worker, start and end (seconds, or time units, shown as seconds), kind, stage and minibatch;
            other keys become the event's arguments.
    """
    events: list[dict[str, Any]] = []
    named: set[int] = set()
    for row in rows:
        worker, kind = row["worker"], row["kind"]
        if worker not in named:
            named.add(worker)
            about = {"name": f"worker {worker}"}
            events.append({"ph": "M", "pid": 0, "tid": worker, "name": "thread_name", "args": about})
        plain = ("worker", "start", "end", "kind")
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": worker,
                "name": f"{row['stage']}{kind}{row.get('microbatch', row['minibatch'])}",
                "cat": NAMES.get(kind, kind),
                "ts": row["start"] * 1e6,
                "dur": (row["end"] - row["start"]) * 1e6,
                "cname": COLOURS.get(kind, "grey"),
                "args": {key: value for key, value in row.items() if key not in plain and value is not None},
            }
        )
    return events


def write_trace(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write timeline rows as a trace file, to be opened at ui.perfetto.dev or in chrome://tracing."""
    content = {"traceEvents": trace_events(rows), "displayTimeUnit": "ms"}
    write_whole(path, json.dumps(content, separators=(",", ":")))
