"""`pipelag result`: draw one table or figure from the logs, judge its claims, and record both."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelag.commands.arguments import add_scale
from pipelag.errors import shortened
from pipelag.experiments import load_paper, load_scale, result_of
from pipelag.files import write_whole
from pipelag.report.gather import FIGURE_FILES, NO_LOG, NOT_READ, TABLE_FILES, Run, logged
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, draw
from pipelag.results.loading import load_results
from pipelag.results.verdict import verdicts


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paper", help="a paper of config/papers, such as stale_weights")
    parser.add_argument("result", help="a result of the paper, such as table_2 or figure_5a")
    add_scale(parser)


def main(args: argparse.Namespace) -> int:
    """Draw and judge one result."""
    scale = load_scale(args.scale, args.published)
    paper = load_paper(args.paper)
    result = result_of(paper, args.result)
    load_results(paper)
    context = Context.load(paper, args.result, scale)
    base = Path(scale.figures) / paper.id / args.result
    drawn = draw(context)
    footer = drawn.footer(context)
    save(drawn, base, result.kind, footer)
    content = record(context, drawn, footer)
    write_whole(base.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
    print(outcome_of(content, base))
    return 0


def outcome_of(content: Mapping[str, Any], base: Path) -> str:
    """What was written and from how many logs, and a line per claim."""
    runs = logged(map(Run.model_validate, content["runs"]))
    files = ", ".join(f".{end}" for end in (*(FIGURE_FILES if content["is_figure"] else TABLE_FILES), "json"))
    lines = [f"{base} ({files}): runs logged: {runs}"]
    lines += [f"  not read: {run['damaged']}" for run in content["runs"] if run.get("damaged")]
    lines += [f"  {each['claim']}: {each['verdict']} ({shortened(each['why'], 120)})" for each in content["verdicts"]]
    return "\n".join(lines)


def save(drawn: Drawn, base: Path, kind: str, footer: str = "") -> None:
    """Write the result's files: tables as csv, md, tex; figures as pdf, svg, png with their data as csv.

    `footer`: what was trained, written under a figure and, where a table stands alone, below it.
    """
    if drawn.figure is not None:
        from pipelag.report.style import save as save_figure

        save_figure(drawn.figure, base, footer=footer)
        assert drawn.data is not None
        write_whole(base.with_suffix(".csv"), drawn.data.to_csv(index=False))
    else:
        assert drawn.table is not None, kind
        below = [footer] if footer else []
        replace(drawn.table, notes=[*drawn.table.notes, *below]).save(base)


def record(context: Context, drawn: Drawn, footer: str) -> dict[str, Any]:
    """What the page shows beside the drawing: caption, verdicts, and which logs it is from."""
    logged, asked = context.counts
    runs: dict[str, dict[str, Any]] = {}
    for item in context.items:
        entry = runs.setdefault(
            item.arm.spec.id, {"id": item.arm.spec.id, "labels": dict(item.arm.labels), "seed": item.arm.seed}
        )
        if item.log is None:
            entry["status"] = item.arm.left_out or (NOT_READ if item.damaged else NO_LOG)
            entry["damaged"] = item.damaged
            continue
        summary = item.log.summary
        entry |= {
            "status": summary["status"],
            "folder": item.log.folder.as_posix(),
            "kind": summary["kind"],
            "steps": summary.get("steps"),
            "seconds": summary.get("seconds"),
            "data": (summary.get("data") or {}).get("title"),
            "release": (summary.get("data") or {}).get("release"),
            "device": item.log.environment.get("device"),
            "date": item.log.environment.get("date"),
            "commit": item.log.environment.get("commit"),
        }
    logs = [item.log for item in context.items if item.log]
    sources = {f"{d['title']} ({d['release']})" for log in logs if (d := log.summary.get("data"))}
    return {
        "paper": context.paper.id,
        "result": context.name,
        "kind": context.result.kind,
        "caption": context.result.caption,
        "is_figure": drawn.figure is not None,
        "chart": drawn.chart,
        "table": drawn.table.texts() if drawn.table is not None else None,
        "footer": footer,
        "shortfall": "; ".join(text for text in (context.shortfalls, context.releases()) if text),
        "data": sorted(sources),
        "devices": sorted({str(log.environment.get("device")) for log in logs}),
        "logged": logged,
        "asked": asked,
        "runs": list(runs.values()),
        "verdicts": [asdict(verdict) for verdict in verdicts(context)],
    }
