"""What users look up on the command line: the registries' contents, the version, and what a run came to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipelag
from pipelag.__main__ import COMMANDS, main
from pipelag.commands.listing import first_sentence
from pipelag.commands.methods import fewest
from pipelag.errors import PipelagError
from pipelag.methods import METHODS
from pipelag.models import MODELS
from pipelag.runs.spec import RunSpec
from pipelag.schedules import SCHEDULES
from pipelag.schedules.library import one_f_one_b

pytestmark = pytest.mark.usefixtures("in_project")
Captured = pytest.CaptureFixture[str]
COSTS = {"costs": {"forward": 1, "backward": 2}}
SPEC = {"kind": "timeline", "phases": [{"method": "pipedream", "steps": 3, "cuts": [1]}], "options": COSTS}
TRAINED = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits"},
    "batch": 20,
    "optimizer": {"lr": 0.01},
    "phases": [{"method": "stale_weights", "steps": 4, "cuts": [1]}],
    "evaluate_every": 2,
}
PLUGIN = '''"""A plugin with one of each."""
from torch import nn
from pipelag.methods import Method, register
from pipelag.models import register as model
from pipelag.schedules import register_schedule
from pipelag.schedules.library import one_f_one_b


@register_schedule
def mine_schedule(stages: int, minibatches: int, turn: int = 3):
    """One by one et al. and so on. More."""
    return one_f_one_b(stages, minibatches)


@model("mine_model")
def mine(classes: int, *, size: int = 7, **rest):
    """A row of `size` layers. It is small."""
    return nn.Sequential(nn.Linear(1, classes))


register(Method(name="mine_method", summary="mine does it", source="an example", build=one_f_one_b))
'''


def printed(capsys: Captured, *words: str, code: int = 0) -> str:
    assert main(words) == code
    streams = capsys.readouterr()
    return streams.err if code else streams.out


@pytest.mark.parametrize(("what", "registry"), [("methods", METHODS), ("models", MODELS), ("schedules", SCHEDULES)])
def test_a_registry_is_listed_whole_a_line_each(what: str, registry: dict[str, object], capsys: Captured) -> None:
    lines = printed(capsys, what).splitlines()
    assert {line.split()[0] for line in lines} == set(registry) and len(lines) == len(registry)
    assert not any("no description" in line for line in lines)
    wrong = next(iter(registry))[:-1] + "~"
    assert f"unknown {what[:-1]} '{wrong}'; did you mean" in printed(capsys, what, wrong, code=2)


def test_a_method_is_described_with_settings_and_the_paper_it_is_from(capsys: Captured) -> None:
    text = printed(capsys, "methods", "pipemare")
    assert "source: pipemare section 3\n" in text
    assert "paper: PipeMare: Asynchronous Pipeline Parallel DNN Training (2021)" in text
    assert "settings: annealing: int = 400, decay: float = 0.1, reading: 'printed' | 'own' = 'printed'" in text
    assert "[7, 5, 3, 1] in the forward, [0, 0, 0, 0] in the backward" in text
    assert "3 stages, updates missed per stage: [5, 3, 1]" in printed(capsys, "methods", "pipemare", "--stages", "3")
    for name in METHODS:
        assert f"{name}: {METHODS[name].summary}" in printed(capsys, "methods", name)


def test_double_buffering_is_described_with_the_microbatches_it_needs(capsys: Captured) -> None:
    assert "with 4 stages and 4 microbatches, updates missed per stage: [1, 1, 1, 1]" in printed(
        capsys, "methods", "pipedream_2bw"
    )


def test_a_method_is_described_with_the_versions_that_it_holds_and_the_microbatches_that_it_takes(
    capsys: Captured,
) -> None:
    held = {
        name
        for name in METHODS
        if "forward reads: an older version that the stage keeps" in printed(capsys, "methods", name)
    }
    assert held == {"pipedream_vertical_sync", "pipedream_2bw", "dualpipe_stashed"}
    for name, numbers in [("pipedream_2bw", "3, 4, 5"), ("bidirectional", "2, 4, 6"), ("1f1b_interleaved", "2, 4, 6")]:
        assert f"  microbatches: with 4 stages: {numbers}, ...\n" in printed(capsys, "methods", name)
    assert "with 8 stages: 4, 8, 12, ...\n" in printed(capsys, "methods", "pipedream_interleaved", "--stages", "8")
    assert "  microbatches: none with 3 stages\n" in printed(capsys, "methods", "bidirectional", "--stages", "3")
    assert "  microbatches: any number\n" in printed(capsys, "methods", "pipedream")
    assert "  microbatches: 1\n" in printed(capsys, "methods", "asp")


def test_of_double_buffering_over_a_hundred_stages_few_numbers_of_microbatches_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A schedule for every number to 101 took seconds. Where only even ones are taken, each is tried all the same."""
    tried: list[int] = []
    one_by_one = pipelag.commands.methods._fits
    monkeypatch.setattr(pipelag.commands.methods, "_fits", lambda *given: tried.append(given[2]) or one_by_one(*given))
    assert fewest(METHODS["pipedream_2bw"], 100) == [99, 100, 101]
    assert len(tried) < 20

    def even(stages: int, minibatches: int, microbatches: int = 1) -> pipelag.Schedule:
        if microbatches % 2:
            raise PipelagError("an even number")
        return one_f_one_b(stages, minibatches, microbatches)

    assert fewest(replace(METHODS["pipedream_2bw"], name="even", build=even), 6) == [6, 8, 10]


def test_models_and_schedules_are_described_with_their_options(capsys: Captured) -> None:
    assert "options: width: float = 1.0, classes: int = 10" in printed(capsys, "models", "resnet20")
    assert printed(capsys, "models", "resnet32") == printed(capsys, "models", "resnet20").replace(
        "resnet20", "resnet32"
    )
    assert "has depth 6n + 2, not 33; the nearest are 32 and 38" in printed(capsys, "models", "resnet33", code=2)
    assert "options: replicas: Sequence[int] = (), depth: int | None = None" in printed(capsys, "schedules", "1f1b_rr")
    assert "another name of `cycle`" in printed(capsys, "schedules", "dualpipe")


def test_what_is_said_of_a_schedule_draws_it(tmp_path: Path, capsys: Captured) -> None:
    text = printed(capsys, "schedules", "1f1b_rr")
    command = text.partition("draw it: pipelag ")[2].replace("1f1b_rr.svg", str(tmp_path / "rr.svg")).split()
    assert "3 workers\nupdates missed per stage: [1, 0] in the forward" in printed(capsys, *command)
    out = ("--out", str(tmp_path / "x.svg"))
    wrong = ("timeline", "1f1b_rr", "--stages", "3", "--replicas", "2,1")
    assert "should give each of the 3 stages" in printed(capsys, *wrong, *out, code=2)
    wrong = ("timeline", "gpipe", "--replicas", "2,1")
    assert "unknown option 'replicas' of schedule 'gpipe'" in printed(capsys, *wrong, *out, code=2)
    fewer = ("timeline", "1f1b_rr", "--stages", "4", "--depth")  # so many minibatches are on their way
    assert "per stage: [0, 0, 0, 0] in the forward" in printed(capsys, *fewer, "1", *out)
    assert "per stage: [1, 1, 0, 0] in the forward" in printed(capsys, *fewer, "2", *out)
    assert "per stage: [3, 2, 1, 0] in the forward" in printed(capsys, *fewer, "4", *out)
    wrong = ("timeline", "1f1b", "--depth", "2")
    assert "unknown option 'depth' of schedule '1f1b'" in printed(capsys, *wrong, *out, code=2)


def test_what_a_timeline_would_leave_out_is_refused(tmp_path: Path, capsys: Captured) -> None:
    """A run has its own stages and times, and a trace all of them."""
    drawing = ("timeline", str(tmp_path), "--out", str(tmp_path / "x.svg"))
    for name, value in (("stages", "3"), ("minibatches", "9"), ("replicas", "2,1"), ("forward", "2"), ("segment", "2")):
        assert f"--{name} applies to a schedule, and '{tmp_path}' is a run's folder" in printed(
            capsys, *drawing, f"--{name}", value, code=2
        )
    trace = ("timeline", "1f1b", "--out", str(tmp_path / "x.json"), "--until", "3")
    assert "--until applies to figures, and a trace holds every action" in printed(capsys, *trace, code=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "value"), [("topology", {"latency": 1.0}), ("clock", "lockstep")])
def test_links_and_clocks_of_a_timeline_without_times_are_refused(name: str, value: object, capsys: Captured) -> None:
    spec = json.dumps({**SPEC, "options": {name: value}})
    refusal = printed(capsys, "run", "--spec", spec, "--out", "never", code=2)
    assert f"{name} needs a schedule laid out in time; give the costs of its passes" in refusal


def test_of_very_many_names_none_of_which_is_near_the_command_that_lists_them_is_named(capsys: Captured) -> None:
    own = ", and docs/extending.md says how to add one\n"
    text = printed(capsys, "methods", "qqq", code=2)
    assert text == f"pipelag methods: unknown method 'qqq'; `pipelag methods` lists them{own}"
    text = printed(capsys, "timeline", "qqq", "--out", "x.svg", code=2)
    assert text.endswith(f"'qqq'; `pipelag schedules` and `pipelag methods` list them{own}")


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "qqq"},
        {"model": {"name": "qqq"}},
        {"data": {"name": "qqq"}},
        {"optimizer": {"name": "qqq", "lr": 0.1}},
        {"lr_schedule": {"name": "qqq"}},
        {"phases": [{"method": "qqq", "steps": 1}]},
        {"options": {"loss": "qqq"}},
        {"options": {"metrics": ["qqq"]}},
    ],
    ids=str,
)
def test_what_anybody_may_add_says_so_where_no_name_is_near(changes: dict[str, Any], capsys: Captured) -> None:
    """Else who forgot to name a plugin reads that there are no others."""
    trained = {"model": {"name": "lenet5"}, "data": {"name": "digits"}, "optimizer": {"lr": 0.1}}
    spec = trained | {"phases": [{"method": "pipemare", "steps": 1, "cuts": [2]}]} | changes
    refusal = printed(capsys, "run", "--spec", json.dumps(spec), "--out", "never", code=2)
    assert "'qqq'" in refusal and refusal.endswith(", and docs/extending.md says how to add one\n")


def test_a_name_too_long_for_a_file_is_an_unknown_name(capsys: Captured) -> None:
    name = "x" * 300
    assert "unknown schedule or method 'xxx" in printed(capsys, "timeline", name, "--out", "x.svg", code=2)
    words = ("list", "stale_weights", "--scale", "published", "--published", name)
    assert "unknown published device 'xxx" in printed(capsys, *words, code=2)


def test_an_unknown_data_sheet_is_named_before_missing_data(capsys: Captured) -> None:
    """A device that is spelt alike is another device; one that begins so is meant."""
    for name, end in [("h100", "did you mean 'h100_bf16'?"), ("v200", "it should be 1080ti, a100_bf16, h100_bf16, ")]:
        text = printed(capsys, "profile", "lenet5", "--sheet", name, "--out", "x.jsonl", code=2)
        assert f"unknown device '{name}' with a data sheet; {end}" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("profile lenet5 --out x.jsonl --sheet= --batch 2", "unknown device '' with a data sheet; it should be"),
        ("profile lenet5 --out x.jsonl --data= --batch 2", "unknown data set ''"),
        ("profile lenet5 --out x.jsonl --data mnist --options= --batch 2", "--options should be a mapping"),
        ("profile lenet5 --out x.jsonl --sheet v100 --device cpu", "--device applies to measuring"),
        ("profile lenet5 --out x.jsonl --sheet v100 --repeats 3", "--repeats applies to measuring"),
        ("profile lenet5 --out x.jsonl --sheet v100 --split", "--split applies to measuring"),
        ("profile lenet5 --out x.jsonl --sheet v100 --data cifar10 --batch 2", "'lenet5' cannot take these inputs"),
    ],
)
def test_what_a_profile_would_ignore_or_break_over_is_refused(
    words: str, sentence: str, capsys: Captured, tmp_path: Path
) -> None:
    out = str(tmp_path / "x.jsonl")
    refusal = printed(capsys, *(out if word == "x.jsonl" else word for word in words.split()), code=2)
    assert sentence in refusal and refusal.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("methods --stages 3", "--stages is for one method's delays; name the method, such as: pipelag methods pipe"),
        ("advise lenet5 --cluster c.yaml --batch 64 --profiled 32", "--profiled applies to a profile's file, and 'len"),
        ("advise lenet5 --cluster c.yaml --batch 64 --model snn", "--model applies to a profile's file, and 'lenet5'"),
        (
            "digest README.md --check --tables x.y",
            "--tables applies to the mark <!-- digest -->, which README.md does not have",
        ),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(words: str, sentence: str, capsys: Captured) -> None:
    refusal = printed(capsys, *words.split(), code=2)
    assert sentence in refusal and refusal.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "timeline 1f1b --out=",
        "profile lenet5 --out=",
        "partition x.jsonl --cluster=",
        "advise lenet5 --cluster=",
        "fetch mnist --to=",
        "fetch mnist --stamp=",
        "fetch mnist --mirror=",
        "run --config= --out x",
        "run --spec {} --out=",
    ],
)
def test_an_empty_path_is_not_the_working_directory(words: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert "it is empty; give a path" in capsys.readouterr().err


def test_a_folder_of_a_run_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    exists = Path.exists

    def locked(path: Path) -> bool:
        if path.parent == tmp_path / "run":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(Path, "exists", locked)
    words = ("timeline", str(tmp_path / "run"), "--out", str(tmp_path / "x.svg"))
    assert "trace.json'" in printed(capsys, *words, code=2)


def test_an_empty_paper_or_result_is_not_all_of_them(capsys: Captured) -> None:
    assert "unknown paper ''" in printed(capsys, "list", "", code=2)
    assert "unknown result '' of stale_weights" in printed(capsys, "list", "stale_weights", "", code=2)


def test_a_drawing_counts_replicas_that_have_nothing_to_do(tmp_path: Path, capsys: Captured) -> None:
    words = ("timeline", "1f1b_rr", "--minibatches", "2", "--replicas", "3,4", "--out", str(tmp_path / "x.svg"))
    assert "8 actions on 7 workers\n" in printed(capsys, *words)
    assert len(printed(capsys, *words, "--depth", "1000")) < 500  # why no method can use it, in short


def test_what_plugins_register_is_listed_and_described(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    asked = [["methods"], ["methods", "mine_method"], ["schedules"], ["models", "mine_model"]]
    code = f"from pipelag.__main__ import main\nfor words in {asked}: print(main(words), '---')"
    environment = os.environ | {"PIPELAG_PLUGINS": "mine", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    methods, method, schedules, model, _ = done.stdout.split("0 ---\n")
    assert "\nmine_method " in methods and "source: an example" in method
    assert schedules.splitlines()[-1].split(maxsplit=1) == ["mine_schedule", "One by one et al. and so on."]
    assert model == "mine_model: A row of `size` layers.\n  options: classes: int, size: int = 7\n"


def test_a_first_sentence_ends_where_it_ends() -> None:
    assert first_sentence("One (section 3.2)\n    goes on. Two.") == "One (section 3.2) goes on."
    assert first_sentence("By Li et al. in 2021. Two.") == "By Li et al. in 2021."
    assert first_sentence("no full stop\n\nMore.") == "no full stop"
    assert first_sentence(None) == "no description"


def test_the_version_is_the_packages(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"pipelag": "7.8.9"}[name])
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == "pipelag 7.8.9\n"
    assert pipelag.__version__ == "7.8.9"


def test_the_help_shows_every_command_in_a_group(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    groups = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups[0] == "Look up:" and len(groups) == 5  # the last: options
    assert all(text.count(f"\n  {name} ") == 1 for name in COMMANDS)


def test_a_run_says_what_came_out_and_a_finished_one_stands(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    words = ["run", "--spec", json.dumps(TRAINED), "--out", str(out), "--threads", "1", "--device", "cpu"]
    first = printed(capsys, *words)
    final = json.loads((out / "summary.json").read_text())["final"]
    assert first.startswith(f"run {RunSpec.model_validate(TRAINED).id} (train): finished after 4 steps in ")
    assert f"final: accuracy {final['accuracy']:.4g}, " in first
    assert f"log: {out / 'metrics.jsonl'}; summary: {out / 'summary.json'}" in first
    written = (out / "summary.json").stat().st_mtime_ns
    second = printed(capsys, *words)
    assert second.startswith(first) and "nothing was done: the folder holds this run, finished" in second
    assert (out / "summary.json").stat().st_mtime_ns == written
    assert "nothing was done" not in printed(capsys, *words, "--again")
    assert (out / "summary.json").stat().st_mtime_ns > written


def test_a_damaged_log_is_made_anew_and_another_run_is_left_alone(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "run"
    words = ["run", "--out", str(out), "--threads", "1", "--spec"]
    printed(capsys, *words, json.dumps(SPEC))
    log = (out / "metrics.jsonl").read_text()
    (out / "metrics.jsonl").write_text(log[:-20])
    assert "the log that was here was damaged; the run was made again" in printed(capsys, *words, json.dumps(SPEC))
    assert (out / "metrics.jsonl").read_text() == log
    other = SPEC | {"phases": [SPEC["phases"][0] | {"steps": 4}]}  # type: ignore[index,dict-item]
    assert "holds the run" in printed(capsys, *words, json.dumps(other), code=2)
    assert (out / "metrics.jsonl").read_text() == log
