"""`pipelag report`: gather the records of all results of a scale in one page."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from pipelag.errors import PipelagError
from pipelag.experiments import load_paper, load_scale, papers
from pipelag.experiments.schema import Paper, reading_order


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("papers", nargs="*", help="papers to show (default: all)")
    parser.add_argument("--scale", default="quick", help="quick, standard, paper or published (default: quick)")
    parser.add_argument("--published", default="cpu", help="the device folder of the published scale")


def main(args: argparse.Namespace) -> int:
    """Write figures/<scale>/index.html."""
    scale = load_scale(args.scale, args.published)
    folder = Path("figures") / scale.name
    shown: list[dict[str, Any]] = []
    for name in args.papers or papers():
        paper = load_paper(name)
        results = [read(folder, name, result) for result in reading_order(paper) if drawn(folder, paper, result)]
        counts: Counter[str] = Counter(verdict["verdict"] for result in results for verdict in result["verdicts"])
        shown.append({"id": paper.id, "title": paper.title, "year": paper.year, "results": results, "counts": counts})
    environment = Environment(
        loader=PackageLoader("pipelag.report", "."), autoescape=select_autoescape(), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    total: Counter[str] = Counter()
    for entry in shown:
        total.update(entry["counts"])
    page = environment.get_template("page.html").render(scale=scale, papers=shown, total=total)
    (folder / "index.html").write_text(page)
    print(f"{folder / 'index.html'}: {', '.join(f'{n} {word}' for word, n in sorted(total.items()))}")
    return 0


def drawn(folder: Path, paper: Paper, result: str) -> bool:
    """Whether a result belongs on the page: an optional one only where it has been made."""
    return not paper.results[result].optional or (folder / paper.id / f"{result}.json").exists()


def read(folder: Path, paper: str, result: str) -> dict[str, Any]:
    """A result's record, with its table or drawing to put into the page."""
    base = folder / paper / result
    path = base.with_suffix(".json")
    if not path.exists():
        raise PipelagError(f"{path} is not there; draw it first: snakemake --cores all {paper}_{result}")
    record: dict[str, Any] = json.loads(path.read_text())
    record["base"] = f"{paper}/{result}"
    record["title"] = title_of(result)
    ends = ("pdf", "svg", "png", "csv") if record["is_figure"] else ("csv", "md", "tex")
    record["files"] = [(end, f"{record['base']}.{end}") for end in ends]
    for run in record["runs"]:
        if "folder" in run:
            run["link"] = Path(os.path.relpath(run["folder"], folder)).as_posix()
    if record["is_figure"]:
        record["svg"] = base.with_suffix(".svg").read_text().split("<svg", 1)[1]
    return record


def title_of(result: str) -> str:
    """`table_2` -> "Table 2", `text_headline_speedup` -> "In the text: headline speedup"."""
    kind, _, rest = result.partition("_")
    return f"In the text: {rest.replace('_', ' ')}" if kind == "text" else f"{kind.capitalize()} {rest}"
