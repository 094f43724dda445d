"""What the notebooks share: a paper's results as the workflow drew them, its verdicts, and the way down to the logs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelag.experiments import Paper, Scale, load_paper, load_scale
from pipelag.experiments.schema import reading_order
from pipelag.results.logs import Context, tidy


@dataclass(frozen=True)
class Shelf:
    """A paper's drawn results at a scale."""

    paper: Paper
    scale: Scale

    @property
    def folder(self) -> Path:
        """Where the workflow puts them."""
        return Path("figures") / self.scale.name / self.paper.id

    def show(self, *names: str) -> None:
        """Display results by name, all of them by default; those not drawn yet say so."""
        from IPython.display import SVG, Markdown, display

        for name in names or reading_order(self.paper):
            base = self.folder / name
            display(Markdown(f"### {name}\n{self.paper.results[name].caption}"))
            if base.with_suffix(".svg").exists():
                display(SVG(base.with_suffix(".svg")))
            elif base.with_suffix(".md").exists():
                display(Markdown(base.with_suffix(".md").read_text()))
            else:
                print(f"not drawn yet: snakemake --cores all {self.paper.id}_{name}")

    def verdicts(self) -> pd.DataFrame:
        """Every claim of the results that are drawn, with its verdict and the numbers it rests on."""
        pd.set_option("display.max_colwidth", None)
        rows: list[dict[str, Any]] = []
        for name in reading_order(self.paper):
            record = self.folder / f"{name}.json"
            if record.exists():
                rows += [{"result": name, **verdict} for verdict in json.loads(record.read_text())["verdicts"]]
        return pd.DataFrame(rows, columns=["result", "claim", "text", "verdict", "why"])

    def runs(self, name: str) -> pd.DataFrame:
        """One line per run of a result: labels, seed, id, status."""
        return tidy(Context.load(self.paper, name, self.scale).items)

    def log(self, name: str, **labels: str) -> pd.DataFrame | None:
        """The lines of one run's log; None where it has none."""
        found = Context.load(self.paper, name, self.scale).log(**labels)
        return pd.DataFrame(found.rows) if found is not None else None


def open_shelf(paper: str, scale: str = "quick") -> Shelf:
    """The results of a paper; goes to the project's folder where a notebook was started from notebooks/."""
    if not Path("config").exists() and Path("../config").exists():
        os.chdir("..")
    return Shelf(load_paper(paper), load_scale(scale))
