"""The functions of the notebooks: a paper's results as the workflow drew them, its verdicts, and its logs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelag import methods
from pipelag.errors import unknown
from pipelag.experiments import Paper, Scale, load_paper, load_scale
from pipelag.experiments.expand import result_of
from pipelag.experiments.schema import reading_order
from pipelag.experiments.told import beyond
from pipelag.plugins import load_plugins
from pipelag.report.frames import Axis, Lines
from pipelag.results.context import Context
from pipelag.results.loading import load_results
from pipelag.results.logs import Item
from pipelag.results.verdict import verdicts


@dataclass(frozen=True)
class Shelf:
    """A paper's drawn results at a scale."""

    paper: Paper
    scale: Scale

    @property
    def folder(self) -> Path:
        """The folder into which the workflow draws the results."""
        return Path(self.scale.figures) / self.paper.id

    def show(self, *names: str) -> None:
        """Display the results named, by default all. For one that is not drawn yet, print the command that draws it."""
        from IPython.display import SVG, Markdown, display

        for name in names or reading_order(self.paper):
            base = self.folder / name
            display(Markdown(f"### {name}\n{self.paper.results[name].caption}"))
            if base.with_suffix(".svg").exists():
                display(SVG(base.with_suffix(".svg")))
            elif base.with_suffix(".md").exists():
                display(Markdown(base.with_suffix(".md").read_text()))
            else:
                told = self.scale.asked_beside(beyond([self.paper.id]))
                print(f"not drawn yet: snakemake --cores all {told}{self.paper.id}_{name}")

    def verdicts(self) -> pd.DataFrame:
        """Every claim of the results that are drawn, with its verdict and the numbers that decide it."""
        pd.set_option("display.max_colwidth", None)
        rows: list[dict[str, Any]] = []
        for name in reading_order(self.paper):
            record = self.folder / f"{name}.json"
            if record.exists():
                rows += [{"result": name, **verdict} for verdict in json.loads(record.read_text())["verdicts"]]
        return pd.DataFrame(rows, columns=["result", "claim", "text", "verdict", "why"])

    def runs(self, name: str) -> pd.DataFrame:
        """One line per run of a result: labels, seed, id, status, accuracies."""
        return pd.DataFrame(map(_line, Context.load(self.paper, name, self.scale).items))

    def pick(self, result: str = "", method: str = "", **labels: str) -> pd.DataFrame:
        """One line per run of a result, or of all, with this method and these labels (arm="4-stage").

        Columns: the result, labels, seed, the methods of the run's phases, id, status, and every metric's last value.

        Raises:
            PipelagError: an unknown method, or a result or label that the paper does not have; it names the nearest.
        """
        rows: list[dict[str, Any]] = []
        for name in [result] if result else reading_order(self.paper):
            for item in self._items(name, method, labels if result else {}):
                ends = {
                    key: value for row in (item.log.rows if item.log else []) for key, value in _numbers(row).items()
                }
                spec = item.arm.spec
                status = item.log.summary["status"] if item.log else item.why or "no log"
                by = ", then ".join(phase.method for phase in spec.phases)
                about = {"seed": item.arm.seed, "method": by, "id": spec.id, "status": status}
                rows.append({"result": name, **item.arm.labels, **about, **ends})
        runs = pd.DataFrame(rows)
        for key, value in labels.items() if rows else ():
            if key not in runs:
                raise unknown("label", key, [str(name) for name in runs])
            runs = runs[runs[key] == value]
        return runs.reset_index(drop=True)

    def curves(self, result: str, metric: str = "accuracy", method: str = "", **labels: str) -> pd.DataFrame:
        """A metric over the steps of the chosen runs: columns `line` (labels, seed, id), `step`, and the metric.

        A metric with a value per stage is averaged over the stages.

        Raises:
            PipelagError: a metric that no log has; it names those that logs have. See also `pick`.
        """
        rows, known = [], set()
        for item in self._items(result, method, labels):
            line = ", ".join([*item.arm.labels.values(), f"seed {item.arm.seed}", item.arm.spec.id])
            for number, row in enumerate(item.log.rows if item.log else []):
                values = _numbers(row)
                known |= set(values)
                if metric in values:
                    rows.append({"line": line, "step": values.get("step", number), metric: values[metric]})
        if known and not rows:
            raise unknown(f"metric in the logs of {result}", metric, known)
        return pd.DataFrame(rows, columns=["line", "step", metric])

    def plot(self, result: str, metric: str = "accuracy", method: str = "", **labels: str) -> Any:
        """A figure with the curves of the chosen runs; without logs, a note in their place."""
        frame = self.curves(result, metric, method, **labels)
        chart = Lines(Axis("step", limits=(0, None)), metric, line="line", panel="result", smooth=True, height=2.6)
        return chart.draw(frame.assign(result=result))

    def compare(self, result: str) -> pd.DataFrame:
        """What the paper reports and claims, beside what the logs say; claims are judged now, drawn or not."""
        context = Context.load(self.paper, result, self.scale)
        load_results(self.paper)
        reported = [
            {"what": what, "paper": value, "verdict": "", "ours": ""} for what, value in _flat(context.result.reported)
        ]
        judged = [
            {"what": claim.claim, "paper": claim.text, "verdict": claim.verdict, "ours": claim.why}
            for claim in verdicts(context)
        ]
        return pd.DataFrame(judged + reported, columns=["what", "paper", "verdict", "ours"])

    def _items(self, result: str, method: str, labels: Mapping[str, str]) -> list[Item]:
        """The runs of a result with these labels, and by one method if it is named."""
        result_of(self.paper, result)
        if method:
            methods.get(method)  # refuses an unknown name
        context = Context.load(self.paper, result, self.scale)
        for key, value in labels.items():
            if value not in context.values(key):
                names = sorted({name for item in context.items for name in item.arm.labels})
                raise (
                    unknown(f"{key} of {result}", value, context.values(key))
                    if key in names
                    else unknown(f"label of {result}", key, names)
                )
        return [
            item
            for item in context.select(**labels)
            if not method or any(phase.method == method for phase in item.arm.spec.phases)
        ]

    def log(self, name: str, **labels: str) -> pd.DataFrame | None:
        """The lines of one run's log; None if there is no log."""
        log = Context.load(self.paper, name, self.scale).log(**labels)
        return pd.DataFrame(log.rows) if log is not None else None


def _line(item: Item) -> dict[str, Any]:
    """A run in a line of a table."""
    line: dict[str, Any] = {**item.arm.labels, "seed": item.arm.seed, "run": item.arm.spec.id}
    if item.log is None:
        return line | {"status": item.why or "no log"}
    summary = item.log.summary
    line |= {"status": summary.get("status"), "steps": summary.get("steps"), "accuracy": item.log.accuracy}
    best = summary.get("best") or {}
    return line | {"best_accuracy": best.get("accuracy"), "best_step": best.get("step")}


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a log's line; for a list of numbers, its mean."""
    numbers = {}
    for key, value in row.items():
        values = value if isinstance(value, list) else [value]
        if values and all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in values):
            numbers[key] = sum(values) / len(values) if isinstance(value, list) else value
    return numbers


def _flat(reported: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """What a paper reports, as pairs (place, value). The line of a table is named by the words in it."""
    if isinstance(reported, Mapping):
        for key, value in reported.items():
            yield from _flat(value, f"{at} {key}".strip())
    elif isinstance(reported, list) and all(isinstance(line, Mapping) for line in reported):
        for line in reported:
            words = [str(value) for value in line.values() if isinstance(value, str)]
            numbers = {key: value for key, value in line.items() if not isinstance(value, str)}
            yield from _flat(numbers, " ".join([at, *words]).strip())
    elif reported is not None:
        yield at, reported


def open_shelf(paper: str, scale: str = "quick") -> Shelf:
    """Open the results of a paper, after importing the config's plugins.

    A notebook started in notebooks/ is first moved to the project's folder.
    """
    if not Path("config").exists() and Path("../config").exists():
        os.chdir("..")
    load_plugins()
    return Shelf(load_paper(paper), load_scale(scale))
