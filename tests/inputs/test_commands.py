"""Commands: an argument that cannot be is refused; what nobody foresaw is one sentence and a traceback in a file."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelag import data
from pipelag.__main__ import main, unforeseen
from pipelag.commands import run as run_command
from pipelag.errors import PipelagError
from pipelag.experiments import load_scale, specs
from pipelag.methods import get
from pipelag.partitioner.cluster import flat
from pipelag.partitioner.search import partition
from pipelag.stage.phase import Phase
from pipelag.timing.layers import LayerTime, Profile

SPEC: dict[str, Any] = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits"},
    "batch": 20,
    "optimizer": {"lr": 0.01},
    "phases": [{"method": "stale_weights", "steps": 3, "cuts": [1]}],
}


def changed(**changes: Any) -> str:
    return json.dumps(SPEC | changes)


def phase(**changes: Any) -> dict[str, Any]:
    return {"phases": [SPEC["phases"][0] | changes]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": {"name": "resnet999999998"}}, "too deep to be built; the limit is 2000"),
        ({"model": {"name": "resnet21"}}, "the nearest are 20 and 26"),
        ({"model": {"name": "resnet" + "9" * 5000}}, "unknown model"),
        ({"model": {"name": "lenet5", "options": {"widht": 1}}}, "'widht' of model 'lenet5'; did you mean 'width'?"),
        ({"model": {"name": "lenet5", "options": {"width": 0}}}, "'width' of model 'lenet5' is 0; it should be above"),
        ({"model": {"name": "lenet5", "options": {"classes": "10"}}}, "'classes' of model 'lenet5' is '10'; it should"),
        ({"data": {"name": "digits", "options": {"size": -1}}}, "'size' of data set 'digits' is -1; it should be 1"),
        ({"data": {"name": "shapes", "options": {"tarin": 5}}}, "'tarin' of data set 'shapes'; did you mean 'train'?"),
        (phase(cuts=[2, 1]), "should increase from 1 on, not be .2, 1."),
        (phase(cuts=[1, 1]), "should increase from 1 on"),
        (phase(cuts=[5]), "'lenet5' has 5 layers; cuts lie between 1 and 4"),
        (phase(steps=0), "phases.0.steps is 0; it should be above 0"),
        (phase(steps=2.5), "phases.0.steps is 2.5; it should be a whole number"),
        (phase(stage_lr={"3": 0.1}), "stage_lr names stage 3, but the cuts make stages 1 to 2"),
        (phase(stage_lr={"1": 0}), "stage_lr.1 is 0; it should be above 0"),
        (phase(replicas=[2]), "2 numbers, not 1"),
        (phase(options={"x": 1}), "has no options"),
        (phase(method="pipemare", options={"name": 1}), "unknown option 'name' of method 'pipemare'"),
        (phase(method="pipemare", options={"annealing": None}), "'pipemare' is None; it should be a whole number"),
        (phase(method="pipemare", options={"reading": "x"}), "'pipemare' is 'x'; it should be 'printed' or 'own'"),
        (phase(method="hogwild_t1", options={"mean": "3"}), "'hogwild_t1' is '3'; it should be a whole number or"),
        ({"kind": "theory", "options": {"study": {}}}, "unknown study"),
        ({"executor": "real", "workers": 2} | phase(method="hogwild"), "draws its delays at random"),
        ({"workers": 10**6}, "workers is 1000000; it should be 4,096 or less"),
        ({"seed": -1}, "seed is -1; it should be 0 or more"),
        ({"optimizer": {"lr": 1e300}}, r"optimizer.lr is 1e\+300; it should be"),
        (
            {"model": {"name": "snn", "options": {"layers": 10**6}}},
            "'layers' of model 'snn' is 1000000; it should be 2,000",
        ),
        ({"seed": 2**40}, "seed is 1099511627776; it should be below"),
        ({"optimizer": {"lr": "0.1"}}, "optimizer.lr is '0.1'; it should be a number"),
        ({"optimizer": {"lr": True}}, "optimizer.lr is True; it should be a number"),
        ({"optimizer": {"lr": 0.1, "betas": [0.9, 1.5]}}, "betas.1 is 1.5; it should be below 1"),
        ({"lr_schedule": {"name": "milestones", "milestones": [0.5, 0.2]}}, "should increase, not be .0.5, 0.2."),
        ({"lr_schedule": {"name": "milestones", "milestones": [0.5, 2.0]}}, "milestones.1 is 2.0; it should be 1"),
        ({"model": None}, "needs model"),
        ({"phases": {"a": 1}}, "phases is {'a': 1}; it should be a list"),
    ],
)
def test_a_spec_that_no_run_can_have_is_refused_before_anything_is_made(
    changes: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--spec", changed(**changes), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert re.search(sentence, error) and error.count("\n") == 1 and "nput should" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "data", "properties"),
    [("lenet5", "opinions", "classes and words"), ("sentiment_transformer", "shapes", "classes and in_channels")],
)
def test_data_of_another_kind_than_the_model_is_for_are_refused(
    model: str, data: str, properties: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = changed(model={"name": model}, data={"name": data})
    assert main(["run", "--spec", spec, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"'{model}' cannot be used with data such as '{data}', which sets a model's options {properties};" in error


@pytest.mark.parametrize("model", ["bert", "gnmt", "residual_lstm", "sentiment_transformer"])
def test_running_text_is_for_language_models(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = changed(model={"name": model}, data={"name": "grammar"})
    assert main(["run", "--spec", spec, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"model '{model}' cannot be used with running text such as 'grammar'" in error
    assert "take a language model: awd_lm" in error


@pytest.mark.parametrize(
    "words",
    [["--threads", "0"], ["--threads", "-1"], ["--threads", "x"], ["--threads", "9" * 5000], ["--device", "cuda:99"]],
)
def test_threads_and_devices_that_are_not_there_are_refused(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2") if words[0] == "--threads" else pytest.MonkeyPatch.context():
        assert main(["run", "--spec", changed(), "--out", str(tmp_path / "out"), *words]) == 2


def test_an_out_that_is_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file/x", Path("/dev/null"), Path("/proc/no/x")):
        assert main(["run", "--spec", changed(), "--out", str(out)]) == 2
        assert "cannot be used as a folder to write to" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_finished_run_where_nothing_can_be_written_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--spec", '{"kind": "count", "model": {"name": "resnet20"}}', "--out", str(tmp_path / "run")]
    assert main(words) == 0

    def refuse(path: Path) -> Path:  # as on a disk that is mounted to be read only
        raise PipelagError(f"'{path}' cannot be used as a folder to write to")

    monkeypatch.setattr(run_command, "folder_for", refuse)
    assert main(words) == 0 and "the folder holds this run, finished" in capsys.readouterr().out
    assert main([*words, "--again"]) == 2


def test_a_run_takes_the_cores_that_it_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of the machine's, of which a cluster gives a job only some."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 7}, raising=False)
    assert main(["run", "--spec", '{"kind": "count", "model": {"name": "resnet20"}}', "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "environment.json").read_text())["threads"] == 3


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the latter in the locale C
def test_letters_that_the_locale_lacks_end_no_command(
    errors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
    monkeypatch.setattr(sys, "stdout", told)
    words = ["run", "--spec", '{"kind": "count", "model": {"name": "resnet20"}}', "--out", str(tmp_path / "Läufe")]
    assert main(words) == 0
    told.flush()
    assert b"L\\xe4ufe/metrics.jsonl" in told.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("word", ["--version", "methods"])
@pytest.mark.parametrize(
    ("output", "status", "sentence"),
    [
        ("full", 2, "standard output could not be written (No space left on device); free some space and start again"),
        ("closed", 1, ""),
    ],
)
def test_output_that_cannot_be_written_is_told_once(output: str, status: int, sentence: str, word: str) -> None:
    if output == "full" and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full" if output == "full" else writing, "wb") as stdout:
        words = [sys.executable, "-m", "pipelag", word]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    named = word if word == "methods" else ""
    assert (done.returncode, done.stderr) == (status, f"pipelag {named}: {sentence}\n" if sentence else "")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_what_a_command_opens_takes_no_closed_streams_place(closed: int, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.close(closed)
        sys.stdout, sys.stderr = None, None  # type: ignore[assignment]
        code = main(["methods"])
        opened = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
        os._exit(0 if code == 0 and opened > 2 and isinstance(sys.stderr.isatty(), bool) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object: Operation not permitted"), False),
    ],
)
def test_too_little_memory_is_named(error: Exception, told: bool) -> None:
    assert unforeseen(error, debug=True).startswith("there is not enough memory (") == told


def test_what_nobody_foresaw_is_one_sentence_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object) -> None:
        error = KeyError("weights")
        error.add_note("in step 3")
        raise error

    monkeypatch.setattr(run_command, "carry_out", fail)
    words = ["run", "--spec", changed(), "--out", str(tmp_path / "out")]
    assert main(words) == 1
    error = capsys.readouterr().err
    printed = re.fullmatch(
        r"pipelag run: KeyError: 'weights' \(in step 3\) at test_commands\.py:\d+; the traceback is in (\S+) .*\n",
        error,
    )
    assert printed is not None, error
    assert "in fail" in Path(printed[1]).read_text()
    os.unlink(printed[1])
    assert main([*words, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert main(words) == 1 and "--debug prints the traceback" in capsys.readouterr().err


def test_the_keyboards_signal_is_one_sentence_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to a command that has only begun to read its words."""

    def interrupted(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("argparse.ArgumentParser.__init__", interrupted)
    assert main(["run", "--spec", changed()]) == 130
    assert capsys.readouterr().err == "pipelag run: interrupted; finished work is kept\n"


def test_sizes_are_judged_before_time_is_spent() -> None:
    for steps in (2, 10**6):  # found by a longer look: 3 s and 0.5 GB for one stage, 250 GB for 32 of 16 million
        many = {"method": "gpipe", "steps": steps, "cuts": [1, 2], "microbatches": 10**6}
        with pytest.raises(
            PipelagError,
            match="1,000,000 microbatches on 3 stages are too many: their product should be at most 200,000",
        ):
            run_command.read_spec(json.dumps({"kind": "timeline", "phases": [many]}), None)
        with pytest.raises(PipelagError, match="are too many"):
            Phase(get("gpipe"), steps, (1, 2), microbatches=10**6).check()
    profile = Profile(tuple(LayerTime(i, "layer", 1.0, 2.0, 10, 10, 10) for i in range(1, 201)))
    with pytest.raises(PipelagError, match="200 layers on 4,096 workers would take too long to search"):
        partition(profile, flat(4096, 1e9))
    for images in ({"train": 10**9}, {"size": 10**6}):
        with pytest.raises(PipelagError, match="shapes of .* take more than .* GiB of memory; take fewer, or smaller"):
            data.load("shapes", **images)
    for cuts in ("54/1000000000", "999999999/999999999", "1-999999999"):
        with pytest.raises(PipelagError, match="are too many; the limit is 10,000"):
            specs.cuts_of([cuts] if cuts != "54/1000000000" else "10001/1000000000", "here")
    with pytest.raises(PipelagError, match="here: '9-3' is not a layer, a range of layers"):
        specs.cuts_of([2, "9-3"], "here")


def test_a_scale_that_extends_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "config/scales"
    folder.mkdir(parents=True)
    for name, other in (("one", "two"), ("two", "one")):
        (folder / f"{name}.yaml").write_text(f"{{name: {name}, title: t, note: n, extends: {other}}}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelagError, match="the scale 'one' extends itself: one extends two extends one"):
        load_scale("one")


def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_made() -> None:
    from pipelag import models

    for name, options in {"snn": {"width": 64.0, "layers": 1000}, "awd_lm": {"size": 2**20, "words": 2**20}}.items():
        with pytest.raises(PipelagError, match=f"model '{name}' with these options .*make it smaller"):
            models.build(name, **options)
