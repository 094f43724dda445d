"""What a user sees of a workflow: a line per finished job, which job failed and the end of its log; nothing else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.workflow import forked

pytestmark = pytest.mark.workflow
SNAKEFILE = """
import snakemake_logger_plugin_pipelag as progress
progress.NAMES["a"] = "table_1, PipeDream, seed 0"

rule all:
    input: "a.txt", "figure/paper/one.txt", "b.txt"

rule run:
    output: "{id}.txt"
    wildcard_constraints: id="[ab]"
    log: "{id}.log"
    shell:
        "test {wildcards.id} = a || {{ echo 'the rate is too high' > {log}; tail -n 1 {log} >&2; exit 1; }}; "
        "touch {output}"

rule figure:
    output: "figure/{paper}/{result}.txt"
    shell: "touch {output}"
"""


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "Snakefile").write_text(SNAKEFILE)
    return forked.snakemake(folder, "--logger", "pipelag", "--cores", "1", "--keep-going", *words)


def test_a_line_per_job_and_what_failed(tmp_path: Path) -> None:
    done = snakemake(tmp_path)
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    progress = [line for line in lines if line.startswith("[")]
    assert any(re.fullmatch(r"\[ ?\d+ %\] \d of 4: table_1, PipeDream, seed 0 \(\d+ s\)", line) for line in progress), (
        lines
    )
    assert any("paper one drawn" in line for line in progress)
    assert "failed: run b; its log: b.log" in done.stderr and "the rate is too high" in lines
    for word in ("Select jobs", "Finished jobid", "Job stats", "rule run:", "Shell command", "CalledProcessError"):
        assert word not in done.stderr, word
    assert len(lines) < 20, done.stderr


def test_nothing_to_do_and_a_dry_run_are_said_as_ever(tmp_path: Path) -> None:
    target = "figure/paper/one.txt"
    assert "Job stats" in snakemake(tmp_path, "--dry-run", target).stdout
    assert snakemake(tmp_path, target).returncode == 0
    assert "Nothing to be done" in snakemake(tmp_path, target).stderr
    assert "Nothing to be done" in snakemake(tmp_path, "--dry-run", target).stdout
    assert snakemake(tmp_path, "--quiet", "all", "--forceall", target).stderr.strip() == ""
