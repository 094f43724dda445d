"""Runs that are killed at any moment, and whose files are damaged meanwhile: the right end, or one sentence.

Each round is one run: started, killed (SIGKILL, by itself, at a touch of its files or after some time), damaged,
started again, until it ends; then its finished folder is damaged and started once more. A seed stands for a round:
`PIPELAG_TEST_SEED=17` begins with that one, `PIPELAG_TEST_FACTOR=50` makes fifty times as many.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelag.errors import PipelagError
from pipelag.results.logs import read_log
from pipelag.runs.spec import RunSpec
from pipelag.warm import WarmProcess
from tests.inputs import damage, dying
from tests.inputs.sizes import FACTOR
from tests.workflow.test_warm import JOB, ROOT, forks, wait_for

pytestmark = [  # forks of the warm process: real processes, killed for real
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there is no warm process"),
    pytest.mark.real,
    pytest.mark.timeout(2400 * FACTOR),
]

FIRST = int(os.environ.get("PIPELAG_TEST_SEED", "0"))
SECONDS = 600.0  # of a start, which takes one or two: a busy machine gives way to all else
STARTS = 5  # of a round that are killed, at most
SIMULATED, REAL = 8, 2  # rounds in the ordinary suite

SPEC: dict[str, Any] = {
    "model": {"name": "alexnet", "options": {"width": 0.06}},
    "data": {"name": "shapes", "augment": True, "options": {"train": 40, "test": 20}},
    "batch": 4,
    "optimizer": {"lr": 0.01, "momentum": 0.9},
    "evaluate_every": 4,
    "options": {"save_model": True},
}
ADAM = {"optimizer": {"name": "adam", "lr": 0.001}}
RUNS: dict[str, list[dict[str, Any]]] = {
    "simulated": [
        SPEC | {"phases": [{"method": "pipedream", "steps": 9, "cuts": [2, 5]}]},
        SPEC | ADAM | {"phases": [{"method": "pipemare", "steps": 9, "cuts": [3], "recompute": True}]},
        SPEC | {"phases": [{"method": "spectrain", "steps": 5, "cuts": [2]}, {"method": "sequential", "steps": 4}]},
        {"kind": "timeline", "phases": [{"method": "gpipe", "steps": 2, "cuts": [1, 2], "microbatches": 4}],
         "options": {"costs": {"forward": 1, "backward": 2}}},
    ],
    "real": [
        SPEC | {"executor": "real", "workers": 2, **more, "phases": phases}
        for more, phases in (
            ({}, [{"method": "pipedream", "steps": 13, "cuts": [3]}]),
            (ADAM, [{"method": "spectrain", "steps": 7, "cuts": [3]}, {"method": "bsp", "steps": 6}]),
        )
    ],
}  # fmt: skip
NOT_EQUAL = {"seconds", "workers", "resumed_at", "log", "files", "seal"}  # of a summary; the log is compared itself


@dataclass
class Unbroken:
    """A run that nothing happened to, how long it took, and how often each of its processes touched its folder."""

    spec: RunSpec
    folder: Path
    seconds: float
    touches: dict[str, int]


@dataclass
class Ended:
    """How a start ended: its exit status, negative for a signal, and what it said."""

    status: int
    stderr: str


def start(spec: RunSpec, out: Path, orders: dict[str, Any]) -> Ended:
    """Start a run, or go on with it, as a user does. A thread per worker: two spin while they wait for each other."""
    threads = str(spec.workers)
    words = ["run", "--spec", spec.canonical(), "--out", str(out), "--device", "cpu", "--threads", threads]
    environment = os.environ | {
        "PIPELAG_PLUGINS": dying.__name__,
        dying.VARIABLE: json.dumps({"folder": str(out)} | orders),
        "TMPDIR": orders.get("temporary", str(out.parent)),
    }
    with subprocess.Popen(
        [*JOB, *words], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, stderr = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"it hangs: no end after {SECONDS:g} s") from None
    return Ended(process.returncode, stderr)


def whole(spec: RunSpec, folder: Path) -> Unbroken:
    """The run, in which each of its processes counts its touches."""
    began = time.monotonic()
    ended = start(spec, folder / "run", {"who": dying.ALL, "count": str(folder / "count-")})
    assert ended.status == 0, ended.stderr
    touches = {path.name.removeprefix("count-"): path.stat().st_size for path in folder.glob("count-*")}
    assert set(touches) == {"launcher", *map(str, range(spec.workers if spec.executor == "real" else 0))}
    return Unbroken(spec, folder / "run", time.monotonic() - began, touches)


def rows(out: Path) -> list[dict[str, Any]]:
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in logged]


def equal(out: Path, other: Unbroken) -> bool:
    """Whether a folder holds the run that nothing happened to, and is read as such."""
    log = read_log(out, other.spec)
    assert log is not None
    summaries = (log.summary, json.loads((other.folder / "summary.json").read_text()))
    one, two = ({key: value for key, value in each.items() if key not in NOT_EQUAL} for each in summaries)
    models = [each / "model.pt" for each in (out, other.folder)]
    same = [path.read_bytes() for path in models if path.exists()]
    return rows(out) == rows(other.folder) and one == two and len(same) in (0, 2) and len(set(same)) <= 1


def one_sentence(ended: Ended) -> bool:
    """Bad input's exit status, and one line that is the refusal, behind notices of what was set aside."""
    lines = [line for line in ended.stderr.splitlines() if re.match("pipelag [a-z]+: ", line)]
    return ended.status == 2 and len(lines) == 1 and "Traceback" not in ended.stderr and len(lines[0]) < 600


def one_round(seed: int, other: Unbroken, out: Path, warm: WarmProcess) -> str:
    """A round; returns how it ended. What goes wrong fails with the whole story."""
    chance, story = random.Random(seed), [f"seed {seed}"]
    before = set(forks(warm))
    kills, finished = chance.randint(1, STARTS), False
    for number in range(kills + 3):
        orders: dict[str, Any] = {}
        if number < kills and not finished:
            who = chance.choice(sorted(other.touches))
            moment = ("touch", 1 + chance.randrange(other.touches[who] + 2))
            moment = moment if chance.random() < 0.8 else ("seconds", round(chance.uniform(0, other.seconds), 3))
            orders = {"who": who, moment[0]: moment[1]}
        try:
            story.append(f"start {orders}:")
            ended = start(other.spec, out, orders)
            wait_for(lambda: not set(forks(warm)) - before, SECONDS)  # a killed launcher's workers follow it
            story[-1] += f" {ended.status} {ended.stderr.strip()[-700:]}"
            worker = orders.get("who", "launcher") != "launcher" and "SIGKILL" in ended.stderr
            if ended.status == 0:
                assert equal(out, other), "another log, or another result"
                if finished:
                    return "right"
                finished = True
            elif not orders or not (ended.status == -9 or worker):
                assert one_sentence(ended), "not in one sentence"
                damage.writable(out)
                shutil.rmtree(out)  # what every such sentence comes to
                story += ["refused; its folder was removed"]
                if finished:
                    return "refused"
                out.mkdir()
        except (AssertionError, PipelagError) as error:
            raise AssertionError("\n  ".join([str(error), *story])) from error
        if number < kills or finished:
            damage.writable(out)
            story += [damage.damage(out, chance) for _ in range(chance.choice((0, 1, 1, 2)))]
    raise AssertionError("\n  ".join(["it does not end", *story]))


def rounds(kind: str, number: int, folder: Path, warm: WarmProcess) -> None:
    known: dict[int, Unbroken] = {}
    outcomes: dict[str, int] = {}
    for seed in range(FIRST, FIRST + number * FACTOR):
        which = seed % len(RUNS[kind])
        if which not in known:
            (folder / f"whole-{which}").mkdir()
            known[which] = whole(RunSpec.model_validate(RUNS[kind][which]), folder / f"whole-{which}")
        place = folder / str(seed)
        place.mkdir()
        outcome = one_round(seed, known[which], place / "run", warm)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        damage.writable(place)
        shutil.rmtree(place)
    print(f"{kind}: seeds {FIRST} to {seed}, {outcomes}", file=sys.stderr)


@pytest.fixture
def place(in_memory: Path) -> Iterator[Path]:
    yield in_memory
    damage.writable(in_memory)


def test_simulated_runs(place: Path, warm: WarmProcess) -> None:
    rounds("simulated", SIMULATED, place, warm)


def test_real_runs(place: Path, warm: WarmProcess) -> None:
    rounds("real", REAL, place, warm)
