"""The environment's script, with a stand-in for uv that notes what it is asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.workflow


def asked(
    folder: Path, fails_with: str = "nothing fails", project: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run it; what uv was asked for is in the folder's uv.log, files written out."""
    programs = folder / "venv/bin"
    programs.mkdir(parents=True, exist_ok=True)
    uv = f"""#!/bin/bash
        echo "$*" >> {folder}/uv.log
        echo "$CC" >> {folder}/compilers.log
        while [ $# -gt 0 ]; do if [ "$1" = -r ]; then cat "$2" >> {folder}/uv.log; fi; shift; done
        ! tail -n 1 {folder}/uv.log | grep -q '{fails_with}'
    """
    for name, text in (("python", "#!/bin/bash\n"), ("uv", uv)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = os.environ | variables
    command = ["bash", "workflow/scripts/bootstrap.sh", str(folder / "venv")]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)


def packages(text: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9.-]+)==", text, re.M))


def test_all_is_taken_from_the_lock_by_hash(tmp_path: Path) -> None:
    done = asked(tmp_path)
    assert done.returncode == 0 and "3 GB to download" in done.stdout
    assert packages((tmp_path / "uv.log").read_text()) == packages((ROOT / "requirements.lock").read_text())
    assert (tmp_path / "venv/.installed").exists()


def test_a_smaller_torch_comes_from_the_users_index_and_nothing_of_cuda_from_the_lock(tmp_path: Path) -> None:
    done = asked(tmp_path, PIPELAG_TORCH_INDEX="file:///somewhere")
    assert done.returncode == 0 and "CUDA" not in done.stdout
    log = (tmp_path / "uv.log").read_text()
    everything = packages((ROOT / "requirements.lock").read_text())
    left_out = everything - packages(log)
    assert {"torch", "torchvision", "triton", "nvidia-cudnn-cu13", "cuda-bindings"} <= left_out
    assert {name.split("-")[0] for name in left_out} == {"torch", "torchvision", "triton", "nvidia", "cuda"}
    assert not re.search(r"[^\\]\n +--hash", log)  # every hash follows on its package's line
    assert re.search(r"--no-deps --default-index file:///somewhere torch==[\d.]+ torchvision==[\d.]+$", log, re.M)


def test_an_index_without_them_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = asked(tmp_path, fails_with="default-index", PIPELAG_TORCH_INDEX="file:///somewhere")
    assert done.returncode == 1 and "$PIPELAG_TORCH_INDEX has no torch==" in done.stderr
    assert not (tmp_path / "venv/.installed").exists()


@pytest.mark.parametrize(
    "changed", ["requirements.lock", "pyproject.toml", "workflow/envs/uv.lock", "workflow/envs/fairseq.lock"]
)
def test_it_is_made_again_when_any_of_what_it_is_made_from_changes(tmp_path: Path, changed: str) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "workflow", project / "workflow")
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, project)
    log = tmp_path / "uv.log"
    assert asked(tmp_path, project=project).returncode == 0 and log.exists()
    log.unlink()
    assert asked(tmp_path, project=project).returncode == 0 and not log.exists()
    later = (tmp_path / "venv/.installed").stat().st_mtime + 1
    os.utime(project / changed, (later, later))
    assert asked(tmp_path, project=project).returncode == 0 and log.exists()


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ({"python3": (3, 12, 1), "python3.13": (3, 13, 0)}, "python3"),
        ({"python3": (3, 14, 0), "python3.13": (3, 13, 0)}, "python3"),
        ({"python3": (3, 15, 2), "python3.11": (3, 11, 2), "python3.14": (3, 14, 0)}, "python3.11"),
        ({"python3": (3, 15, 2), "python3.14": (3, 14, 0)}, "python3.14"),
        ({"python3": (3, 9, 2), "python3.11": (3, 11, 2)}, "python3.11"),
        ({"python3": (3, 14, 0, "t"), "python3.13": (3, 13, 0)}, "python3.13"),
        ({"python3": (3, 14, 0, "t")}, "python3 is 3.14.0 free-threading build: install"),
        ({"python3": (3, 15, 2)}, "python3 is 3.15.2: install"),
        ({"python3": (3, 10, 9)}, "python3 is 3.10.9: install"),
        ({}, "there is no python3: install"),
    ],
)
def test_a_python_is_taken_for_which_all_that_is_locked_has_wheels(
    tmp_path: Path, there: dict[str, tuple[int | str, ...]], taken: str
) -> None:
    """Stand-ins that know their version and the question; nothing else is on the path but the shell's tools."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "find", "mktemp", "awk", "grep", "rm", "touch"):
        (tools / name).symlink_to(str(shutil.which(name)))
    for name, version in there.items():
        numbers, free = version[:3], len(version) > 3
        known = (
            f"import sys; import sysconfig; sys.version_info = {numbers}; "
            f"sys.version = '{'.'.join(map(str, numbers))}{' free-threading build' * free} (main, of today)'; "
            f"sysconfig.get_config_var = {{'Py_GIL_DISABLED': {int(free)}}}.get; "
        )
        stand_in = f"""#!{shutil.which("bash")}
            [ "$1" = -c ] && exec {sys.executable} -c "{known}${{2#import sys; }}"
            echo "this is {name}"
        """
        (tools / name).write_text(stand_in)
        (tools / name).chmod(0o755)
    done = asked(tmp_path, PATH=str(tools))
    if taken in there:
        assert done.returncode == 0 and f"with this is {taken}:" in done.stdout
    else:
        assert done.returncode == 1 and not done.stdout and not (tmp_path / "uv.log").exists()
        assert re.fullmatch(
            rf"pipelag's locked packages are for Python 3\.11 to 3\.14, [^\n]*, and {taken}[^\n]*\n", done.stderr
        )


def test_a_package_without_a_wheel_for_python_3_14_needs_no_compiler(tmp_path: Path) -> None:
    """`true` stands in for one, and what it did not compile stays out of the cache of others."""
    assert asked(tmp_path).returncode == 0
    first = re.split(r"^pip install ", (tmp_path / "uv.log").read_text(), flags=re.M)
    (alone,) = [each for each in first if packages(each) == {"immutables"}]
    assert "--no-cache --require-hashes" in alone and first.index(alone) < len(first) - 2
    assert "true" in (tmp_path / "compilers.log").read_text().splitlines()


def test_an_environment_whose_python_was_replaced_is_made_again(tmp_path: Path) -> None:
    """As an upgrade of the system does: its `python` is another version, which has none of its packages."""
    project = tmp_path / "project"
    shutil.copytree(ROOT / "workflow", project / "workflow")
    for name in ("requirements.lock", "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, project)
    assert asked(tmp_path, project=project).returncode == 0
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    make = ["make", "env", f"VENV={tmp_path / 'venv'}"]
    assert subprocess.run([*make, "--question"], cwd=project).returncode == 0
    (tmp_path / "venv/bin/python").write_text("#!/bin/bash\n[[ $* != *pip* ]]\n")
    assert subprocess.run([*make, "--question"], cwd=project).returncode == 1
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(
        f"""#!/bin/bash
        [ "$2" = venv ] || exec {sys.executable} "$@"
        mkdir -p "$3/bin"
        printf '#!/bin/bash\\n' > "$3/bin/python"
        cp "$3/bin/python" "$3/bin/uv"
        chmod +x "$3/bin/"*
        """
    )
    (tools / "python3").chmod(0o755)
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(make, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "making" in done.stdout, done.stderr
    assert not (tmp_path / "venv/pyvenv.cfg").exists()  # of the one that was removed
    assert subprocess.run([*make, "--question"], cwd=project).returncode == 0
