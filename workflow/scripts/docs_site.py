"""Hooks with which mkdocs builds the site: pages from the README, the library's names and the papers' citations."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FIGURES = "figures/headline"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
MORE = {
    "Models": ["pipelag.models.build", "pipelag.models.register", "pipelag.models.cut.stages"],
    "Data": ["pipelag.data.load", "pipelag.data.register"],
    "Methods": ["pipelag.methods.get", "pipelag.methods.reads"],
    "Results in a notebook": ["pipelag.results.notebook.open_shelf", "pipelag.results.notebook.Shelf"],
    "Refusals": ["pipelag.errors.PipelagError", "pipelag.errors.Stop"],
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files in docs/, and the figures that pages show."""
    from mkdocs.structure.files import File

    readme = (ROOT / "README.md").read_text()
    pages = {"index.md": re.sub(r"\]\(docs/", "](", readme), "api.md": api(), "citing.md": citing()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for figure in sorted((ROOT / FIGURES).glob("*.svg")):
        files.append(File.generated(config, f"figures/{figure.name}", abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace links to files of the repository that are not pages by the links' text."""

    def link_or_text(link: re.Match[str]) -> str:
        target = link[2].partition("#")[0]
        inside = not target or "://" in target or files.get_file_from_path(target) is not None
        return link[0] if inside else link[1]

    return LINK.sub(link_or_text, markdown).replace(f"](../{FIGURES}/", "](figures/")


def api() -> str:
    """The API page: the library's public names by module, and those of `MORE`."""
    tree = ast.parse((ROOT / "src/pipelag/__init__.py").read_text())
    homes = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOMES"
    )
    lines = ["# API", "", "## pipelag", "", "What `import pipelag` gives.", ""]
    for name in ["pipelag.schedule", "pipelag.time", *(f"{home}.{name}" for name, home in homes.items())]:
        lines += [f"::: {name}", ""]
    for title, names in MORE.items():
        lines += [f"## {title}", "", *(f"::: {name}\n" for name in names)]
    return "\n".join(lines)


def citing() -> str:
    """How to cite the suite and the papers, from CITATION.cff and config/papers."""
    suite = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    authors = [author["name"] for author in suite["authors"]]
    written = [entry("pipelag", "software", suite["title"], authors, 2026, version=suite["version"])]
    for path in sorted((ROOT / "config/papers").glob("*.yaml")):
        paper = yaml.safe_load(path.read_text())
        if about := paper.get("citation"):
            kind = "article" if about["venue"].startswith("arXiv") else "inproceedings"
            where = {"journal" if kind == "article" else "booktitle": about["venue"], "doi": about.get("doi")}
            arxiv = {"eprint": about["arxiv"], "archiveprefix": "arXiv"} if about.get("arxiv") else {}
            written.append(entry(paper["id"], kind, paper["title"], about["authors"], about["year"], **where, **arxiv))
    return "\n".join(["# Citing", "", suite["message"], "", "```bibtex", *written, "```", ""])


def entry(key: str, kind: str, title: str, authors: list[str], year: int, **more: Any) -> str:
    """A BibTeX entry; braces keep the title's capitals."""
    fields = {"title": f"{{{title}}}", "author": " and ".join(authors), "year": year, **more}
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{key},", *lines, "}", ""])
