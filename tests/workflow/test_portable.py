"""What pipelag's scripts, rules and Makefile use exists on a Mac, too: bash 3.2, make 3.81, BSD's tools, no flock.

And where PyTorch's wheels do not exist, `make` says so in a sentence before it downloads anything.
"""

from __future__ import annotations

import fcntl
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workflow.test_bootstrap import asked

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.workflow
SHELL = [
    *(ROOT / "workflow/scripts").glob("*.sh"),
    *(ROOT / "workflow/rules").glob("*.smk"),
    *(ROOT / name for name in ("Makefile", "Snakefile", ".ci/run")),
]
ABSENT = {  # what a Mac lacks: a pattern, and a line that has it
    r"\b(mapfile|readarray|coproc)\b": "mapfile -t names < list",
    r"\b(declare|local|typeset) -[aAgnr]*[Agn]": "declare -A ages",
    r"\$\{\w+(\[[^]]*\])?(\^|,)": "${name^^}",
    r"&>>|\|&|\bwait -n\b|\bBASHPID\b|\[\[ -v ": "make |& tee log",
    r"\bsed\b.*\\[tn]": r"sed 's/:/\t/'",
    r"\bsed\b( -\w+)* -i": "sed -i s/a/b/ file",
    r"\bgrep\b( -\w+)* -\w*P": "grep -oP '\\d+'",
    r"\b(readlink -|stat -c|date -[dI]|find .*-printf|mktemp -\w*p|sort -\w*V|xargs -\w*r)": "readlink -f .",
    r"\b(du|ls|cp|mv|head|tail|sort|touch) --|\b(head|tail) -\w+ -\d": "du --max-depth=1",
    r"(^|[;&|(] *|@)(flock|nproc|setsid|timeout|taskset|tac|sha256sum|md5sum|shuf) ": "make & nproc --all",
    r"^\.ONESHELL|!=\s*\$|^\w+ *!= |\$\(file |&:|::=|\.RECIPEPREFIX": "now != date",
}


@pytest.mark.parametrize("pattern", ABSENT)
def test_nothing_is_used_that_a_mac_lacks(pattern: str) -> None:
    assert re.search(pattern, ABSENT[pattern])
    lines = [(path.name, line) for path in SHELL for line in path.read_text().splitlines() if "#!" not in line]
    assert len(lines) > 300
    assert not [each for each in lines if re.search(pattern, each[1].split(" # ")[0])]


def test_help_needs_neither_gnu_sed_nor_expand(tmp_path: Path) -> None:
    for name in ("make", "bash", "awk"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(["make", "help"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0 and "\nreproduce   make all results" in done.stdout


def test_the_environment_is_made_by_a_bash_without_mapfile(tmp_path: Path) -> None:
    """As macOS's bash 3.2 is. It is told of what it downloads, which is less where there is no CUDA."""
    (tmp_path / "before").write_text("enable -n mapfile readarray\n")
    old = {"BASH_ENV": str(tmp_path / "before"), "OSTYPE": "darwin23"}
    done = asked(tmp_path, PIPELAG_TORCH_INDEX="file:///somewhere", **old)
    assert done.returncode == 0, done.stderr
    assert re.search(r"file:///somewhere torch==[\d.]+ torchvision==[\d.]+$", (tmp_path / "uv.log").read_text(), re.M)
    (tmp_path / "venv/.installed").unlink()
    done = asked(tmp_path, **old)
    assert done.returncode == 0 and "0.4 GB to download" in done.stdout and "CUDA" not in done.stdout


def test_two_makes_wait_for_each_other_without_flock(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("awk", "bash", "dirname", "find", "mktemp", "rm", "touch"):
        (tools / name).symlink_to(str(shutil.which(name)))
    asked_of = tmp_path / "asked"
    asked_of.touch()
    (tools / "python3").write_text(f'#!/bin/bash\necho asked >> {asked_of}\nexec {sys.executable} "$@"\n')
    (tools / "python3").chmod(0o755)
    for name in ("python", "uv"):
        program = tmp_path / "venv/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/bash\n")
        program.chmod(0o755)
    installed = tmp_path / "venv/.installed"
    with open(tmp_path / "venv.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        words = ["bash", "workflow/scripts/bootstrap.sh", str(tmp_path / "venv")]
        waiting = subprocess.Popen(words, cwd=ROOT, env={"PATH": str(tools)}, stdout=subprocess.PIPE)
        until = time.monotonic() + 240
        while len(asked_of.read_text().split()) < 2:  # its version, and the lock
            assert time.monotonic() < until and waiting.poll() is None
            time.sleep(0.02)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.0)
        assert not installed.exists()
    waiting.communicate()
    assert waiting.returncode == 0 and installed.exists()


SUPPORTED = runpy.run_path(str(ROOT / "workflow/scripts/supported.py"))


@pytest.mark.parametrize(
    ("system", "machine", "version", "said"),
    [
        ("Linux", "x86_64", "2.36", ""),
        ("Linux", "aarch64", "2.28", ""),
        ("Darwin", "arm64", "14.0", ""),
        ("Darwin", "arm64", "26.1", ""),
        ("Darwin", "arm64", "13.7.1", "PyTorch needs macOS 14 or newer, and this is 13.7.1: update it, or"),
        ("Darwin", "x86_64", "15.1", "PyPI has no PyTorch for this Python, which is for Intel Macs: on Apple silicon"),
        (
            "Linux",
            "x86_64",
            "2.17",
            "PyTorch needs glibc 2.28 or newer, and this Linux has 2.17: take a newer Linux, or",
        ),
        ("Linux", "aarch64", "", "PyPI has no PyTorch for Linux without glibc, such as Alpine: take Debian or Ubuntu"),
        ("Linux", "riscv64", "2.39", "PyPI has no PyTorch for Linux on riscv64: take a machine with x86_64 or aarch64"),
        ("Windows", "AMD64", "", "pipelag runs on Linux and macOS, and this is Windows: on Windows work in WSL 2"),
    ],
)
def test_where_pytorch_has_no_wheels_a_sentence_says_so(system: str, machine: str, version: str, said: str) -> None:
    sentence = SUPPORTED["obstacle"](system, machine, version)
    assert sentence.startswith(said) and bool(sentence) == bool(said)


def test_a_c_library_that_is_not_glibc_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise OSError(22, "Invalid argument")  # musl's answer

    monkeypatch.setattr(os, "confstr", unknown)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert SUPPORTED["version_here"]() == ""


def test_nothing_is_downloaded_where_pytorch_has_no_wheels(tmp_path: Path) -> None:
    """Unless the user names another index, which may have them."""
    project = tmp_path / "project"
    shutil.copytree(ROOT / "workflow", project / "workflow")
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, project)
    script = project / "workflow/scripts/supported.py"
    script.write_text(
        script.read_text().replace("GLIBC = (2, 28)", "GLIBC = (99, 0)").replace("MACOS = (14", "MACOS = (99")
    )
    done = asked(tmp_path, project=project)
    assert done.returncode == 1 and re.fullmatch(r"PyTorch needs (glibc|macOS) 99[^\n]*\n", done.stderr)
    assert not (tmp_path / "uv.log").exists() and not done.stdout
    assert asked(tmp_path, project=project, PIPELAG_TORCH_INDEX="file:///somewhere").returncode == 0
