"""The workflow with profiles/slurm, over an executor that takes the plugin's name and options and submits nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.test_workflow import copied, of_one_paper

pytestmark = pytest.mark.workflow
PLUGIN = """
import json, os
from dataclasses import dataclass, field
from pathlib import Path
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

common_settings = CommonSettings(non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    status_command: str = field(default="sacct", metadata={"help": "which command says how jobs are"})
    jobname_prefix: str = field(default="", metadata={"help": "how the names of jobs begin"})


class Executor(RemoteExecutor):
    def run_job(self, job):
        names = ("gpu", "mem_mb", "nodes", "runtime", "slurm_account", "slurm_partition")
        asked = {name: job.resources.get(name) for name in names} | {"threads": job.threads, "rule": job.rule.name}
        asked |= {"warm": "PIPELAG_WARM" in os.environ, "status": self.workflow.executor_settings.status_command}
        with open("asked.jsonl", "a") as lines:
            print(json.dumps(asked), file=lines)
        log = Path(str(job.log[0]))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("0%|   |\\r50%|#  |\\nthe rate is too high\\n")
        if job.resources.get("gpu") == 0:  # what an earlier job has left; this one did not come to write
            os.utime(log, (1e9, 1e9))
        said = "SLURM-job '7' failed, SLURM status is: 'TIMEOUT'.For further error details see the log"
        self.report_job_error(SubmittedJobInfo(job), msg=said, aux_logs=["slurm/7.log"])

    async def check_active_jobs(self, active_jobs):
        for job in active_jobs:
            yield job

    def cancel_jobs(self, active_jobs):
        pass
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = of_one_paper(copied(tmp_path_factory.mktemp("project")))
    (folder / "snakemake_executor_plugin_slurm").mkdir()  # Snakemake finds packages alone
    (folder / "snakemake_executor_plugin_slurm/__init__.py").write_text(PLUGIN)
    return folder


def submitted(
    folder: Path, *words: str, path: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
    """What Snakemake printed, and what its jobs asked for; in a process of its own, which looks for plugins anew."""
    asked = folder / "asked.jsonl"
    asked.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PIPELAG_WARM"}
    environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}" if path else environment["PATH"]
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done, [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []


def test_a_profile_without_account_and_partition_is_refused_before_anything_is_submitted(project: Path) -> None:
    profile = project / "profiles/slurm/config.yaml"
    untouched = profile.read_text()
    for name, mine in (("account", "ml"), ("partition", "gpu")):
        done, asked = submitted(project, "stale_weights_table_6")
        assert done.returncode != 0 and asked == [] and "Traceback" not in done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("pipelag: ")]
        assert len(said) == 1 and f"slurm_{name} is still 'your_{name}' in profiles/slurm/config.yaml" in said[0]
        assert not any((project / ".snakemake/locks").glob("*"))
        profile.write_text(profile.read_text().replace(f"your_{name}", mine))
    profile.write_text(untouched)


def test_while_jobs_of_an_earlier_call_go_on_none_is_submitted(project: Path, tmp_path: Path) -> None:
    """Of a call that was killed, in this folder; not those of another folder, nor other jobs of the user."""
    profile = project / "profiles/slurm/config.yaml"
    untouched = profile.read_text()
    profile.write_text(re.sub("your_(account|partition)", "mine", untouched))
    queue = f"7|pipelag_a|{project}\n8|pipelag_a|{tmp_path}\n9|mine|{project}\n10|pipelag_a|{project}\n"
    (tmp_path / "squeue").write_text(f"#!/bin/sh\nprintf '%s' '{queue}'\n")
    (tmp_path / "squeue").chmod(0o755)
    done, asked = submitted(project, "stale_weights_table_6", path=str(tmp_path))
    said = [line for line in done.stderr.splitlines() if line.startswith("pipelag: ")]
    assert done.returncode != 0 and asked == [] and len(said) == 1 and said[0].endswith(": scancel 7 10")
    profile.write_text(untouched)


def test_what_jobs_ask_for_and_what_is_said_of_one_that_fails(project: Path) -> None:
    profile = project / "profiles/slurm/config.yaml"
    profile.write_text(re.sub("your_(account|partition)", "mine", profile.read_text()))
    done, asked = submitted(project, "--config", "device=cuda", "--", "stale_weights_text_hybrid_speedup_bound")
    runs = [job for job in asked if job["rule"] == "run"]
    assert {job["gpu"] for job in runs} == {0, 2} and {job["threads"] for job in runs} == {8}
    for job in runs:  # no warm process: a job that found one would compute outside of what it was given
        assert (job["warm"], job["nodes"], job["status"]) == (False, 1, "squeue"), job
        assert job["slurm_account"] == job["slurm_partition"] == "mine" and job["mem_mb"] == 16000
    assert not (project / "results/quick/logs/warm.log").exists()
    lines = done.stderr.splitlines()
    first = next(number for number, line in enumerate(lines) if "the rate is too high" in line) - 3
    assert lines[first].startswith("failed: stale_weights") and lines[first].endswith(".log slurm/7.log")
    said = ["SLURM-job '7' failed, SLURM status is: 'TIMEOUT'.", "50%|#  |", "the rate is too high"]
    assert [line.strip() for line in lines[first + 1 : first + 4]] == said
    assert "further" not in done.stderr
    with_gpu = sum(job["gpu"] == 2 for job in runs)  # the others have left an old log
    assert 0 < done.stderr.count("the rate is too high") == with_gpu < done.stderr.count("SLURM status is")
