"""Whether every result has its drawing and every claim its judge, and what code: asked at every call of the workflow.

Finding out means importing a paper's package, and pandas with it, which takes a second; so a stamp is left where all
was well, and counts until the paper's config or the package changes.
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
# Beside results and report: speedups of timed blocks, layers dealt out to stages, the study of what optimizers foresee,
# times of a method's schedule.
WORKED_OUT_BY = (
    "runs/speedup.py", "experiments/specs.py", "theory/foreseen.py", "timing/*.py", "methods/*.py", "schedules/*.py"
)  # fmt: skip


def drawing_code(paper: str, package: Path = PACKAGE) -> str:
    """Changes when the code that draws and judges a paper's results does, its own or what all papers share, or what
    works out the times and speedups that are drawn."""
    return _sum(drawing_files(paper, package))


def drawing_files(paper: str, package: Path = PACKAGE) -> list[Path]:
    """The sources of it, the plugins' in which its drawings and judges stand among them."""
    results = package / "results"
    shared = [path for folder in WORKED_OUT_BY for path in package.glob(folder)]
    own = [*results.glob("*.py"), *(results / paper).rglob("*.py"), *(package / "report").glob("*.py")]
    return [*own, *shared, *plugged(paper)]


def plugged(paper: str) -> list[Path]:
    """The plugins' modules that draw or judge a paper's results; they have been imported."""
    if not plugged_in():
        return []
    from pipelag.results.drawing import DRAWINGS
    from pipelag.results.verdict import JUDGES

    functions = [function for (of, *_), function in [*DRAWINGS.items(), *JUDGES.items()] if of == paper]
    modules = {sys.modules.get(getattr(function, "__module__", "")) for function in functions}
    files = {Path(file).resolve() for module in modules if (file := getattr(module, "__file__", None))}
    return [file for file in files if PACKAGE.resolve() not in file.parents]


def report_code(package: Path = PACKAGE) -> str:
    """Changes when what makes the site and the typeset reports does: code, templates, styles."""
    return _sum(path for path in (package / "report").rglob("*") if path.is_file() and path.suffix != ".pyc")


def _sum(files: Iterable[Path]) -> str:
    content = hashlib.sha256()
    for path in sorted(files):
        content.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return content.hexdigest()[:12]


def check_results(paper: Paper, stamps: Path = Path(".snakemake/judged")) -> None:
    """Refuse a result that nothing draws, or a claim that nothing judges.

    Raises:
        PipelagError: with the nearest that is known.
    """
    stamp = stamps / f"{paper.id}-{_content(paper)}"
    if not plugged_in() and stamp.exists():  # a plugin may have any source
        return
    from pipelag.results.loading import load_results

    load_results(paper)
    with suppress(OSError):  # it is not needed
        stamps.mkdir(parents=True, exist_ok=True)
        for old in stamps.glob(f"{paper.id}-*"):
            old.unlink()
        stamp.touch()


def _content(paper: Paper) -> str:
    """Of what the answer depends on: the ids in the config, and the sources of the drawings and judges."""
    named = [
        (name, result.draw, [c.id for c in result.claims if not c.because]) for name, result in paper.results.items()
    ]
    sources = [*Path(__file__).parent.glob("*.py"), *(Path(__file__).parent / paper.id).rglob("*.py")]
    stats = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources)
    return hashlib.sha256(repr((named, stats)).encode()).hexdigest()[:16]
