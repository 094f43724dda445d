"""Check that every result has a drawing and every claim a judge, and hash their code. Every workflow call does both.

The check imports a paper's package, and pandas with it, which takes a second. So a stamp file records that the check
passed; it is valid until the paper's config or the package changes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pipelag.experiments.schema import Paper
from pipelag.plugins import plugged_in

PACKAGE = Path(__file__).parents[1]
# Code outside results and report that computes drawn numbers: speedups of timed blocks, the split of layers into
# stages, the study of how well optimizers predict weights, the times of a method's schedule.
WORKED_OUT_BY = (
    "runs/speedup.py", "experiments/specs.py", "theory/foreseen.py", "timing/*.py", "methods/*.py", "schedules/*.py"
)  # fmt: skip


def drawing_code(paper: str, package: Path = PACKAGE) -> str:
    """A hash of the code that draws and judges a paper's results, the paper's own and the shared.

    It covers the code that computes the drawn times and speedups.
    """
    return _sum(drawing_files(paper, package))


def drawing_files(paper: str, package: Path = PACKAGE) -> list[Path]:
    """The source files that `drawing_code` hashes, with those of plugins that hold drawings or judges of the paper."""
    results = package / "results"
    shared = [path for folder in WORKED_OUT_BY for path in package.glob(folder)]
    own = [*results.glob("*.py"), *(results / paper).rglob("*.py"), *(package / "report").glob("*.py")]
    return [*own, *shared, *plugged(paper)]


def plugged(paper: str) -> list[Path]:
    """The files of the plugins that draw or judge a paper's results. The plugins must have been imported."""
    if not plugged_in():
        return []
    from pipelag.results.drawing import DRAWINGS
    from pipelag.results.verdict import JUDGES

    functions = [function for (of, *_), function in [*DRAWINGS.items(), *JUDGES.items()] if of == paper]
    modules = {sys.modules.get(getattr(function, "__module__", "")) for function in functions}
    files = {Path(file).resolve() for module in modules if (file := getattr(module, "__file__", None))}
    return [file for file in files if PACKAGE.resolve() not in file.parents]


def report_code(package: Path = PACKAGE) -> str:
    """A hash of what makes the site and the typeset reports: code, templates, styles."""
    # In __pycache__ are files, some under other names for a moment, that a process writes while it imports the package.
    made = (package / "report").rglob("*")
    return _sum(path for path in made if "__pycache__" not in path.parts and path.is_file())


def _sum(files: Iterable[Path]) -> str:
    content = hashlib.sha256()
    for path in sorted(files):
        content.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return content.hexdigest()[:12]


def check_results(paper: Paper, stamps: Path = Path(".snakemake/judged")) -> None:
    """Refuse a paper with a result that nothing draws or a claim that nothing judges.

    Raises:
        PipelagError: names what is missing and the nearest names that exist.
    """
    stamp = stamps / f"{paper.id}-{_content(paper)}"
    if not plugged_in() and stamp.exists():  # the stamp does not cover plugins, whose source may be anywhere
        return
    from pipelag.results.loading import load_results

    load_results(paper)
    with suppress(OSError):  # the stamp only saves time
        stamps.mkdir(parents=True, exist_ok=True)
        for old in stamps.glob(f"{paper.id}-*"):
            old.unlink()
        stamp.touch()


def _content(paper: Paper) -> str:
    """A hash of what the check depends on: the ids in the config, and the files of the drawings and judges."""
    named = [
        (name, result.draw, [c.id for c in result.claims if not c.because]) for name, result in paper.results.items()
    ]
    sources = [*Path(__file__).parent.glob("*.py"), *(Path(__file__).parent / paper.id).rglob("*.py")]
    stats = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources)
    return hashlib.sha256(repr((named, stats)).encode()).hexdigest()[:16]
