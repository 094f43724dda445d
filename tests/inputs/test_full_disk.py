"""A disk that is really full: a small file system of its own, filled but for a little, under whatever writes to it.

What is promised of each: one sentence that names the file and that there is no room, an exit status that is not 0,
what was there stays whole, and with room again the same command goes on to the right end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelag.__main__ import main
from pipelag.data.files.archives import unpack
from pipelag.errors import PipelagError
from pipelag.runs.spec import RunSpec
from tests.data.samples import mirror, mnist_files, tar
from tests.inputs.sizes import FACTOR
from tests.inputs.test_crashes import RUNS, Ended, equal, one_sentence, start, whole
from tests.workflow.test_warm import JOB, ROOT
from tests.workflow.test_workflow import copied, of_one_paper, snakemake

pytestmark = [pytest.mark.real, pytest.mark.timeout(600 * FACTOR)]

MEGABYTES = 24  # of the disk


def mounted(place: Path) -> bool:
    words = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "pipelag-test", str(place)]
    return shutil.which("mount") is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The small file system."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mounted(place):
        pytest.skip("only root can mount a small file system, and here not even root may")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Ballast:
    """Fills a file system but for so many bytes."""

    def __init__(self, place: Path) -> None:
        self.place, self.file = place, place / "ballast"

    def fill(self, left: int) -> None:
        self.empty()
        status = os.statvfs(self.place)
        with open(self.file, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail * status.f_frsize - left))

    def empty(self) -> None:
        self.file.unlink(missing_ok=True)


def refused_for_room(ended: Ended, *names: str) -> None:
    """One sentence that names a file below one of these, and that there is no room."""
    assert one_sentence(ended), ended
    assert any(word in ended.stderr for word in ("No space left on device", "no space left", "disk is full")), ended
    assert any(name in ended.stderr for name in names), ended


def lefts(seed: int, most: int, number: int) -> list[int]:
    """Room that is left, in bytes: none, and by chance up to `most`, small ones as often as large ones."""
    chance = random.Random(seed)
    return [0, *(int(4096 * (most / 4096) ** chance.random()) for _ in range(number * FACTOR))]


@pytest.mark.parametrize("kind", ["simulated", "real"])
def test_a_training(disk: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "whole").mkdir()
    other = whole(RunSpec.model_validate(RUNS[kind][0]), tmp_path / "whole")
    size = sum(path.stat().st_size for path in other.folder.rglob("*") if path.is_file())
    refusals = 0
    for number, left in enumerate(lefts(1, 12 * size, 2 if kind == "simulated" else 1)):
        ballast, out = Ballast(disk), disk / f"run-{number}"
        out.mkdir()
        ballast.fill(left)
        ended = start(other.spec, out, {"temporary": str(tmp_path)})
        if ended.status:
            refusals += 1
            refused_for_room(ended, str(out))
        ballast.empty()
        ended = start(other.spec, out, {"temporary": str(tmp_path)})
        assert ended.status == 0 and equal(out, other), ended
        shutil.rmtree(out)
    assert refusals


def test_a_real_training_whose_task_finds_no_room(disk: Path, tmp_path: Path) -> None:
    spec = RunSpec.model_validate(RUNS["real"][0])
    ballast = Ballast(disk)
    ballast.fill(8192)  # where not even a byte has room, Python takes another folder for what is temporary
    refused_for_room(start(spec, tmp_path / "run", {"temporary": str(disk)}), str(disk))
    ballast.empty()
    assert start(spec, tmp_path / "run", {"temporary": str(disk)}).status == 0


def pipelag(folder: Path, *words: str, **more: str) -> Ended:
    environment = os.environ | {"TMPDIR": str(folder.parent)} | more
    done = subprocess.run([*JOB, *words], cwd=folder, capture_output=True, text=True, env=environment, check=False)
    return Ended(done.returncode, done.stderr)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", [("figure_2",), ("table_1",)])
def test_a_drawing(disk: Path, words: tuple[str, ...]) -> None:
    project = disk / "project"
    (project / "results").mkdir(parents=True)
    (project / "config").symlink_to(ROOT / "config")
    command = ("result", "stale_weights", *words)
    assert pipelag(project, *command).status == 0
    right, ballast = contents(project / "figures"), Ballast(disk)
    size, refusals = sum(map(len, right.values())), 0
    for left in lefts(2, 2 * size, 2):
        for there in (True, False):  # an older drawing is there, or none is
            if not there:
                shutil.rmtree(project / "figures")
            ballast.fill(left)
            ended = pipelag(project, *command)
            if ended.status:
                refusals += 1
                refused_for_room(ended, f"figures/quick/stale_weights/{words[0]}")
                drawn = contents(project / "figures") if (project / "figures").exists() else {}
                assert drawn.items() <= right.items()  # nothing half-written, nothing left over
                assert not there or drawn == right
            ballast.empty()
            assert pipelag(project, *command).status == 0 and contents(project / "figures") == right
    assert refusals >= 2


def test_decoding_a_data_set(disk: Path, tmp_path: Path) -> None:
    """MNIST from a mirror: what is decoded is kept on the disk."""
    files = mnist_files(train=250, test=50)
    release = {"name": "mnist", "layout": "idx-gz", "note": "small"}
    more = {"PIPELAG_MIRROR": str(mirror(tmp_path / "mirror", files, **release)), "PIPELAG_DATA": str(disk / "data")}
    spec = RUNS["simulated"][0] | {"model": {"name": "lenet5"}, "data": {"name": "mnist"}}
    spec |= {"phases": [{"method": "pipedream", "steps": 5, "cuts": [1]}]}
    ballast, refusals = Ballast(disk), 0
    words = ["run", "--spec", json.dumps(spec), "--threads", "1", "--device", "cpu", "--out"]
    for left in lefts(3, 2**18, 3):
        shutil.rmtree(disk / "data", ignore_errors=True)
        ballast.fill(left)
        ended = pipelag(tmp_path, *words, str(tmp_path / f"run-{left}"), **more)
        if ended.status:
            refusals += 1
            refused_for_room(ended, str(disk / "data"))
            assert not [path for path in (disk / "data").rglob("*") if path.is_file() and path.suffix != ".lock"]
        ballast.empty()
        assert pipelag(tmp_path, *words, str(tmp_path / f"run-{left}"), **more).status == 0
    logs = {path.read_text() for path in tmp_path.glob("run-*/summary.json")}
    assert refusals and len({json.dumps(json.loads(log)["final"]) for log in logs}) == 1


def test_unpacking_an_archive(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(tar({"one": bytes(2**18), "folder/two": bytes(2**18)}))
    ballast = Ballast(disk)
    ballast.fill(2**18 + 2**16)
    with pytest.raises(PipelagError, match=r"a.tar.gz could not be unpacked into .*there .No space left on device."):
        unpack(tmp_path / "a.tar.gz", disk / "there")
    assert [path.name for path in disk.iterdir()] == ["ballast"]
    ballast.empty()
    unpack(tmp_path / "a.tar.gz", disk / "there")
    assert (disk / "there/folder/two").stat().st_size == 2**18


def test_what_else_finds_no_room_is_one_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(name: object) -> None:
        raise OSError(28, "No space left on device", "x/y")

    monkeypatch.setattr("pipelag.commands.methods.main", full)
    assert main(["methods"]) == 2
    assert capsys.readouterr().err == (
        "pipelag methods: x/y could not be written (No space left on device); free some space and start again\n"
    )


FILLING = """
import os, sys
if "snakemake" not in sys.argv[0]:
    status = os.statvfs(".")
    with open("../ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize)
"""


@pytest.mark.workflow
def test_a_target_of_the_workflow(disk: Path) -> None:
    project = of_one_paper(copied(disk / "project"))
    ballast = Ballast(disk)
    ballast.fill(4096)
    done = snakemake(project, "stale_weights_figure_2")
    assert done.returncode and "there is no room left on the disk" in done.stderr, done
    assert "Traceback" not in done.stderr, done
    assert done.stderr.strip().count("\n") <= 1, done  # Snakemake's own line on the profile
    ballast.empty()
    # The disk becomes full while a job is at work: a plugin, which every job imports, sees to that.
    (project / "filling.py").write_text(FILLING)
    failed = snakemake(project, "stale_weights_figure_2", "--config", "plugins=[filling]")
    lines = [line for line in failed.stderr.splitlines() if line.startswith("failed: stale_weights figure_1")]
    assert failed.returncode and len(lines) == 1 and "there is no room left on the disk" in lines[0], failed
    assert not list(project.glob("figures/*/*/*.*"))
    ballast.empty()
    done = snakemake(project, "stale_weights_figure_2")
    assert done.returncode == 0 and list(project.glob("figures/quick/*/figure_2.svg")), done
