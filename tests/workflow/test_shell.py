"""Nothing that stands in a config, in a file that somebody sent, reaches a shell as more than a word."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workflow.test_workflow import ROOT, snakemake

pytestmark = pytest.mark.workflow
TARGET = "figures/quick/stale_weights/figure_2.svg"  # drawn without a run
SCALE, PAPER = "config/scales/quick.yaml", "config/papers/stale_weights.yaml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("config", "profiles", "workflow"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "Snakefile", tmp_path)
    (tmp_path / "results/published/cpu").mkdir(parents=True)
    shutil.copy(ROOT / "results/published/cpu/scale.yaml", tmp_path / "results/published/cpu")
    return tmp_path


def put(path: str, old: str, new: str) -> Callable[[Path], None]:
    """Change a file of the project."""

    def change(folder: Path) -> None:
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new, 1))

    return change


# What is attempted, and how the one sentence that refuses it begins: nothing of it is in any command by then.
ATTEMPTS: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "published": (lambda folder: None, [TARGET, "--config", "published=x;touch F"], "published is 'x;touch F'"),
    "published, substituted": (
        lambda folder: None,
        [TARGET, "--config", "published=$(touch F)"],
        "published is '$(touch F)'",
    ),
    "the name in a scale's file": (
        put(SCALE, "name: quick", 'name: "a; touch F; "'),
        ["figures/a; touch F; /stale_weights/figure_2.svg"],
        "name is 'a; touch F; '",
    ),
    "a result's name": (
        put(PAPER, "  figure_2:", '  "figure_2$(touch F)":'),
        ["figures/quick/stale_weights/figure_2$(touch F).svg"],
        "'figure_2$(touch F)'",
    ),
}


@pytest.mark.parametrize("case", ATTEMPTS)
def test_no_name_is_carried_out(case: str, project: Path) -> None:
    change, words, refusal = ATTEMPTS[case]
    change(project)
    done = snakemake(project, *words)
    assert not list(project.rglob("F")), done.stdout + done.stderr
    assert done.returncode != 0
    refusals = [line for line in (done.stdout + done.stderr).splitlines() if refusal in line]
    assert refusals and all(line.startswith("pipelag: ") for line in refusals), done.stderr
    assert "letters, digits, '_', '.' and '-'" in refusals[0] and "Traceback" not in done.stderr
