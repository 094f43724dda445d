"""`pipelag advise`: its times are the timed executor's, its memory the memory model's, its staleness the schedule's,
its losses the logs'; and `pipelag profile`.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipelag.__main__ import main
from pipelag.commands import subject
from pipelag.commands.run import read_spec
from pipelag.data.images import readers
from pipelag.experiments import arms, load_paper, load_scale, run_dir
from pipelag.methods import get
from pipelag.partitioner.advice import Choice, best, choices, parts_of, plans_of, timed
from pipelag.partitioner.arms import Arm, Ground, checked_arms
from pipelag.partitioner.cluster import Cluster, flat
from pipelag.partitioner.laid import Laid
from pipelag.partitioner.plan import Plan, PlanStage, timed_period
from pipelag.partitioner.search import partition
from pipelag.partitioner.side_by_side import arm_rows
from pipelag.results.advice import Ranked, board, ranked, verdict
from pipelag.results.evidence import Evidence, of_result
from pipelag.results.judging import Difference
from pipelag.runs.folder import seal
from pipelag.runs.spec import ModelSpec
from pipelag.timing.by_batch import Profiles
from pipelag.timing.layers import LayerTime, Profile
from pipelag.timing.sheets import Device

ROOT = Path(__file__).resolve().parents[2]
BATCH = 8
TIMES = ((1, 2), (3, 4), (2, 3), (2, 2), (4, 6), (1, 1))


def profile(samples: int = BATCH) -> Profile:
    """Six layers whose times, outputs and activations grow with the samples; the last weighs most."""
    share = samples / BATCH
    return Profile(
        tuple(
            LayerTime(i, f"layer {i}", f * share, b * share, samples * 100 * i, samples * 250, 400 * i)
            for i, (f, b) in enumerate(TIMES, start=1)
        )
    )


def sgdm(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def ground(workers: int = 4, bandwidth: float = 3e6, memory: float = float("inf")) -> Ground:
    return Ground(Profiles(profile), flat(workers, bandwidth), Device(1.0, 1.0), memory, sgdm, BATCH, "free")


@pytest.fixture(scope="module")
def chosen() -> dict[str, Choice]:
    return {one.method.name: one for one in best(choices(ground())[0])}


def test_times_are_those_of_partition(chosen: dict[str, Choice]) -> None:
    place = ground()
    plan = partition(profile(), place.cluster, "ring", data_parallel=False)
    pipedream = chosen["pipedream"]
    assert pipedream.plan.stages == plan.stages and max(stage.replicas for stage in plan.stages) > 1
    assert pipedream.seconds == pytest.approx(timed_period(profile(), place.cluster, plan), rel=1e-9)
    whole = Plan((PlanStage(1, 6, 4),))
    assert pipedream.throughput == pytest.approx(BATCH / pipedream.seconds)  # samples
    assert chosen["bsp"].updates == (4,)
    assert chosen["bsp"].seconds == pytest.approx(timed_period(profile(), place.cluster, whole), rel=1e-9)
    line = partition(profile(), place.cluster, "ring", straight=True)
    straight = timed(Laid(Arm.of("a", {"method": "pipedream"}), place, line), {})
    assert straight.seconds == pytest.approx(timed_period(profile(), place.cluster, line), rel=1e-9)
    assert chosen["sequential"].seconds == pytest.approx(sum(f + b for f, b in TIMES) / 1e3, rel=1e-9)


def test_a_replicated_stage_has_no_gradient_before_its_forward_has_run_again() -> None:
    """Two workers with two layers of 1 s each way, the last of which takes 4 s to sum; a short stage behind them."""
    times = Profile(
        tuple(LayerTime(n, "layer", f, f, 0, 4, size) for n, f, size in ((1, 1e3, 0), (2, 1e3, 8), (3, 1.0, 0)))
    )
    place = Ground(Profiles(lambda _: times), flat(3, 2.0), Device(1.0, 1.0), 1e9, sgdm, BATCH, "free")
    laid = Laid(Arm.of("1f1b", {"method": "pipedream"}), place, Plan((PlanStage(1, 2, 2), PlanStage(3, 3))))
    assert laid.period(BATCH) == pytest.approx((2 + 1 + 4) / 2)
    assert laid.recomputing().period(BATCH) == pytest.approx((2 + 2 + 1 + 4) / 2)


def test_times_are_those_of_timeline(tmp_path: Path) -> None:
    """Equal layers, so that `pipelag timeline` can be asked for the same pipeline: what one minibatch more takes."""
    even = Profile(tuple(LayerTime(i, "even", 2000.0, 4000.0, 1000, 10, 100) for i in (1, 2, 3)))
    place = Ground(
        Profiles(lambda n: even.scaled(n / 4), scaled=True), flat(3, 1e3), Device(1, 1), 1e9, sgdm, 4, "free"
    )
    by_name = {one.method.name: one for one in choices(place, microbatches=4, one_minibatch=True)[0]}
    for name, parts in (("gpipe", 4), ("1f1b_flush", 4), ("pipedream", 1), ("dualpipe", 1)):
        assert (by_name[name].microbatches, by_name[name].plan.cuts) == (parts, (1, 2))
        ends = []
        for count in (12, 24):
            out = tmp_path / f"{name}{count}.json"
            words = ["--stages", "3", "--minibatches", str(count), "--microbatches", str(parts)]
            times = {"forward": 2 / parts, "backward": 4 / parts, "transfer": 1 / parts}
            words += [word for key, value in times.items() for word in (f"--{key}", str(value))]
            assert main(["timeline", name, *words, "--out", str(out)]) == 0
            events = [event for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X"]
            ends.append(max(event["ts"] + event["dur"] for event in events) / 1e6)
        assert by_name[name].seconds == pytest.approx((ends[1] - ends[0]) / 12, rel=1e-4)


@pytest.mark.parametrize("name", ["pipedream", "pipeoptim", "pipemare", "gpipe", "spectrain"])
def test_memory_is_that_of_the_memory_model(name: str) -> None:
    place = ground()
    one = next(c for c in choices(place, 4, one_minibatch=True)[0] if c.method.name == name)
    arm = {"method": name, "microbatches": one.microbatches}
    (row,) = arm_rows(checked_arms({name: arm}, place.cluster, [4], BATCH, None), place, [4], one.plan.cuts)
    for held, stage in zip(one.memory, row["stages"], strict=True):
        assert held.parts() == stage["memory"]
    assert one.seconds == pytest.approx(row["seconds"], rel=1e-9 if one.microbatches > 1 else 0.01)


def test_a_plan_that_the_partitioner_takes_for_slower_may_be_the_quickest() -> None:
    """To the partitioner a ring of two replicas costs nothing beside their passes; the timed executor knows its end."""

    def even(samples: int) -> Profile:
        times = [(0.0, 0.0), (1.0, 2.0), (1.0, 2.0)]
        return Profile(
            tuple(
                LayerTime(n, "l", f * samples, b * samples, 10 * samples, 10 * samples, 100)
                for n, (f, b) in enumerate(times, start=1)
            )
        )

    place = Ground(Profiles(even), flat(3, 1e3), Device(1.0, 1.0), float("inf"), sgdm, 3, "free")
    laid = [Laid(Arm.of("a", {"method": "pipedream"}), place, plan) for plan in plans_of(place)]
    seconds = [one.period(3) for one in laid]
    assert seconds[0] > min(seconds)
    assert table(place)["pipedream"].seconds == pytest.approx(min(seconds))


def test_staleness_is_the_schedules(chosen: dict[str, Choice]) -> None:
    stale = 0
    for name, one in chosen.items():
        if one.method.data_parallel:
            continue
        replicas = [stage.replicas for stage in one.plan.stages]
        delays = get(name).delays(len(replicas), one.microbatches, replicas if max(replicas) > 1 else ())
        minibatches = [count // one.microbatches for count in delays.periods]
        assert one.updates == tuple(minibatches)
        assert one.staleness == tuple(a * b for a, b in zip(delays.forward, minibatches, strict=True))
        assert one.stale_backward == tuple(a * b for a, b in zip(delays.backward, minibatches, strict=True))
        stale += one.stale
    assert stale > 20 and not chosen["gpipe"].stale


def test_replicas_hold_what_pipedream_counts() -> None:
    plan = Plan((PlanStage(1, 4, 3), PlanStage(5, 6, 1)))
    laid = Laid(Arm.of("a", {"method": "pipedream"}), ground(), plan)
    assert laid.under_way == list(plan.versions())


def test_what_does_not_fit_recomputes_or_comes_last() -> None:
    most = {name: max(s.total() for s in one.memory) for name, one in table(ground()).items()}
    tight = ground(memory=0.8 * most["pipedream"])
    by_name = table(tight)
    one = by_name["pipedream"]
    assert not one.fits or max(s.total() for s in one.memory) <= tight.memory
    assert one.usable == (max(s.total() for s in one.memory) <= tight.memory)
    assert any(each.recompute and each.usable for each in choices(tight)[0])
    nowhere = ranked(best(choices(ground(memory=10.0))[0]), [], None, "sgd", "")
    assert verdict(nowhere, None, 10.0) == "No method can be advised: none fits into a GPU's memory."


@pytest.mark.parametrize(
    ("name", "stages", "batch", "asked", "parts"),
    [
        ("gpipe", 4, 8, None, 4),
        ("gpipe", 3, 8, None, 4),
        ("gpipe", 4, 6, None, 6),
        ("gpipe", 4, 3, None, 3),
        ("gpipe", 4, 8, 2, 2),
        ("pipedream_2bw", 3, 12, None, 3),
        ("pipedream", 4, 8, None, 1),
        ("sequential", 4, 8, None, 1),
    ],
)
def test_a_minibatch_is_split_into_the_fewest_equal_parts_that_fill_the_pipeline(
    name: str, stages: int, batch: int, asked: int | None, parts: int
) -> None:
    assert parts_of(get(name), stages, batch, asked) == parts


def table(place: Ground) -> dict[str, Choice]:
    return {one.method.name: one for one in best(choices(place)[0])}


# Losses of accuracy, from logs that are made here


def log_runs(accuracies: dict[str, float], scale: Any, result: str = "table_1") -> None:
    """Finished runs of a table of the leaderboard."""
    for arm in arms(load_paper("leaderboard"), result, scale):
        label = arm.labels["arm"]
        if arm.labels["what"] != "learning" or label not in accuracies:
            continue
        folder = run_dir(scale, arm.spec.id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("{}\n")
        delay = [0] if label.startswith("sequential") else [3]
        summary = {
            "id": arm.spec.id, "kind": "train", "status": "finished", "steps": arm.spec.steps, "log": seal("{}\n"),
            "final": {"accuracy": accuracies[label] + arm.seed / 10}, "data": {"title": "Shapes", "test": 500},
            "phases": [{"forward_delays": delay, "backward_delays": [0]}],
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))


def test_a_log_that_changes_alters_the_advice(in_project: None, tmp_path: Path) -> None:
    scale = load_scale("quick").model_copy(update={"folder": str(tmp_path)})
    candidates = [
        one for one in best(choices(ground(), one_minibatch=True)[0]) if one.method.name in ("pipedream", "gpipe")
    ]
    paper = load_paper("leaderboard")

    def advised(accept: float | None) -> tuple[str, str]:
        rows = ranked(candidates, list(of_result(paper, "table_1", scale)), accept, "sgd", "")
        return rows[0].choice.method.name, verdict(rows, accept, 1e9)

    assert advised(None)[0] == "pipedream" and "no log says" in advised(None)[1]
    assert advised(1.0)[0] == "gpipe"
    log_runs({"sequential": 80.0, "PipeDream": 79.5}, scale)
    assert advised(1.0)[0] == "pipedream" and "0.50 ± 0.00 points" in advised(1.0)[1]
    assert "leaderboard table_1, quick scale: resnet20 on Shapes" in advised(1.0)[1]
    log_runs({"PipeDream": 70.0}, scale)
    assert advised(1.0)[0] == "gpipe" and advised(10.0)[0] == "pipedream"


def test_of_equally_quick_methods_no_mean_within_its_noise_leads(chosen: dict[str, Choice]) -> None:
    def row(name: str, loss: float, error: float | None, seeds: int = 3) -> Ranked:
        here = Evidence(name, "", "", "", "", "sgd", 4, (), (), "", Difference(loss, error, seeds), 0)
        return Ranked(replace(chosen["pipedream"], method=get(name)), here)

    rows = [row("spectrain", -0.29, 2.81), row("pipeoptim", 0.1, 0.2), row("xpipe", -1.0, None, 1)]
    ordered = sorted(rows, key=lambda one: one.order(None))
    assert [one.choice.method.name for one in ordered] == ["pipeoptim", "spectrain", "xpipe"]


def test_a_loss_is_against_the_same_optimizer(in_project: None, tmp_path: Path) -> None:
    """Sequential training by another would lend the method what that gains or loses by itself."""
    scale = load_scale("quick").model_copy(update={"folder": str(tmp_path)})
    log_runs({"sequential": 80.0, "sequential with NAdam": 70.0, "PipeDream with NAdam": 69.0}, scale, "table_2")
    (loss,) = of_result(load_paper("leaderboard"), "table_2", scale)
    assert (loss.method, loss.optimizer, loss.loss.mean) == ("pipedream", "nadam", pytest.approx(1.0))


def test_losses_of_any_number_of_stages_are_against_sequential_training(in_project: None, tmp_path: Path) -> None:
    """Which has no number of stages, whatever its label beside them."""
    scale = load_scale("quick").model_copy(update={"folder": str(tmp_path)})
    log_runs({"sequential": 80.0, "PipeDream": 79.0}, scale, "figure_1")
    losses = list(of_result(load_paper("leaderboard"), "figure_1", scale))
    assert {one.stages for one in losses} == {2, 4, 8, 16}
    assert [one.loss.mean for one in losses] == pytest.approx([1.0] * 4)
    assert {one.baseline for one in losses} == {"sequential"}


def test_a_loss_is_over_the_seeds_that_both_have(in_project: None, tmp_path: Path) -> None:
    """As long as runs are under way; a method that has other seeds than sequential training has no loss yet."""
    scale = load_scale("quick").model_copy(update={"folder": str(tmp_path)})
    log_runs({"sequential": 80.0, "PipeDream": 79.0, "PipeOptim": 78.0}, scale, "table_2")
    lacking = {("sequential", 2), ("PipeDream", 0), ("PipeDream", 1)}
    for arm in arms(load_paper("leaderboard"), "table_2", scale):
        if (arm.labels["arm"], arm.seed) in lacking:
            shutil.rmtree(run_dir(scale, arm.spec.id))
    (loss,) = of_result(load_paper("leaderboard"), "table_2", scale)
    assert (loss.method, loss.loss.seeds, len(loss.runs)) == ("pipeoptim", 2, 2)


def test_rates_of_less_than_a_sample_a_second_are_told_apart(chosen: dict[str, Choice]) -> None:
    """Half a sample a second, and a little less; the column is the fifth."""
    pair = [replace(chosen[name], seconds=BATCH / rate) for name, rate in (("bsp", 0.5432), ("gpipe", 0.5167))]
    lines = board(ranked(pair, [], None, "sgd", ""), {}, []).markdown().splitlines()
    cells = [line.split("|")[5].strip() for line in lines if "| bsp |" in line or "| gpipe |" in line]
    assert cells == ["0.543", "0.517"]


# The command


def files(folder: Path) -> list[str]:
    profile().save(str(folder / "profile.jsonl"))
    (folder / "cluster.yaml").write_text("levels: [{workers: 3, bandwidth: 3.0e+6}]\nmemory: 1.0e+9\n")
    return [str(folder / "profile.jsonl"), "--cluster", str(folder / "cluster.yaml")]


def test_the_command_prints_draws_and_writes_a_config_that_loads(
    nothing_logged: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["advise", *files(tmp_path), "--batch", "9", "--scale", "quick", "--one-minibatch"]
    outs = ["--plot", str(tmp_path / "a.svg"), "--config", str(tmp_path / "run.yaml")]
    model = ["--model", "vgg16", "--data", "shapes", "--optimizer", "{name: adamw, lr: 0.002}"]
    assert main([*words, *outs, *model]) == 0
    printed = capsys.readouterr().out
    assert "| pipedream | straight |" in printed and re.search(r"Use \w+ \(", printed)
    assert "hogwild" in printed and "Left out" in printed
    assert "throughput, samples per second" in (tmp_path / "a.svg").read_text()
    spec = read_spec(None, tmp_path / "run.yaml")
    name = re.findall(r"Use (\w+)", printed)[0]
    assert spec.phases[0].method == name and spec.optimizer is not None and spec.optimizer.lr == 0.002
    assert main([*words, "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in content["choices"]} >= {"gpipe", "bsp", "sequential", "pipemare"}
    assert all(row["loss_of_accuracy"] is None for row in content["choices"])
    assert main([*words, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["method"] for row in rows] == [row["method"] for row in content["choices"]]
    assert [float(row["samples/s"]) for row in rows] == [row["samples_per_second"] for row in content["choices"]]
    assert main([*words, "--format", "tex"]) == 0
    *table, end, advice = capsys.readouterr().out.splitlines()
    assert end == r"\end{table}" and advice == f"% {content['advice']}"
    assert sum(line.rstrip().endswith(r"\\") for line in table) >= len(rows)


def test_what_an_older_profile_does_not_tell_is_said(
    nothing_logged: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["advise", *files(tmp_path), "--batch", "9", "--scale", "quick", "--format", "json"]
    note, memory = "The memory of zb_h1, zb_h2, zb_v leaves out the gradients of outputs", list[float]()
    for size in (None, 100):
        layers = [replace(layer, weight_ms=0.0, gradient_bytes=size) for layer in profile().layers]
        Profile(tuple(layers)).save(tmp_path / "profile.jsonl")
        assert main(words) == 0
        content = json.loads(capsys.readouterr().out)
        assert any(each.startswith(note) for each in content["notes"]) == (size is None)
        (row,) = (row for row in content["choices"] if row["method"] == "zb_h2")
        memory.append(max(stage["memory"]["output_gradients"] for stage in row["stages"]))
    assert memory[0] == 0 < memory[1]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "the samples per minibatch are not known; give them with --batch"),
        (["--batch", "8", "--plot", "a.gif"], "its name must end in .pdf, .svg or .png"),
        (["--batch", "8", "--config", "run.json"], "its name must end in .yaml"),
        (["--batch", "8", "--config", "run.yaml"], "--config needs a data set"),
        (["--batch", "8", "--config", "run.yaml", "--data", "shapes"], "name it with --model"),
        (["--batch", "8", "--optimizer", "sdg"], "unknown optimizer 'sdg'; did you mean 'sgd'?"),
        (["--batch", "8", "--from", "leaderbord"], "unknown paper 'leaderbord'; did you mean 'leaderboard'?"),
        (["--batch", "8", "--scale", "quik"], "unknown scale 'quik'; did you mean 'quick'?"),
    ],
)
def test_what_cannot_be_is_refused(
    in_project: None, more: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *files(tmp_path), *more]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_data_of_another_kind_than_the_model_is_for_are_refused(
    in_project: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["vgg16", "--data", "opinions", "--batch", "8", "--cluster", "config/examples/one_server.yaml"]
    assert main(["advise", *words]) == 2
    assert "model 'vgg16' cannot be used with data such as 'opinions'" in capsys.readouterr().err


def test_what_was_computed_is_printed_where_there_is_no_config_to_write(
    nothing_logged: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ["--config", str(tmp_path / "run.yaml"), "--model", "vgg16", "--data", "shapes"]
    assert main(["advise", *files(tmp_path), "--batch", "9", "--scale", "quick", "--memory", "1", *config]) == 2
    out, error = capsys.readouterr()
    assert "| pipedream |" in out and "there is no method to write a config for" in error
    assert not (tmp_path / "run.yaml").exists()


def test_a_profile_that_is_not_there_is_told_of_before_what_is_not_given_beside_it(
    in_project: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *cluster = files(tmp_path)
    assert main(["advise", str(tmp_path / "none.jsonl"), *cluster]) == 2
    assert "none.jsonl'; it should be a profile" in capsys.readouterr().err


def test_a_models_profile_is_written_for_partition_and_read_again(
    in_project: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "profile.jsonl")
    assert main(["profile", "lenet5", "--data", "digits", "--batch", "8", "--repeats", "2", "--out", out]) == 0
    assert "5 layers" in capsys.readouterr().out
    assert [layer.weight_ms for layer in Profile.load(out).layers] == [None] * 5
    assert main(["profile", "lenet5", "--data", "digits", "--batch", "8", "--split", "--out", out]) == 0
    assert "5 layers" in capsys.readouterr().out
    split = Profile.load(out).layers
    for layer in split:
        assert layer.weight_ms is not None and 0 <= layer.weight_ms <= layer.backward_ms + layer.split_ms
    Profile.load(out).cut((2,))
    assert split[0].weight_ms == split[0].backward_ms > 0
    (tmp_path / "c.yaml").write_text("levels: [{workers: 2, bandwidth: 1.0e+9}]")
    assert main(["partition", out, "--cluster", str(tmp_path / "c.yaml")]) == 0
    assert Cluster.load(str(tmp_path / "c.yaml")).workers == 2
    assert main(["profile", "vgg16", "--sheet", "v100", "--out", out]) == 0
    assert "minibatch of" in capsys.readouterr().out and len(Profile.load(out).layers) == 16
    assert main(["profile", "resnet20", "--out", out]) == 2
    assert "name a data set with --data" in capsys.readouterr().err
    assert len(list(plans_of(ground(2)))) >= 1


@pytest.mark.parametrize("way", [["--sheet", "v100"], ["--device", "cpu", "--repeats", "1"]])
def test_one_sample_of_which_a_batch_normalisation_gets_one_value_is_refused(
    way: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["profile", "vgg16", "--options", "{width: 0.1}", "--data", "cifar10", "--out", str(tmp_path / "p.jsonl")]
    assert main([*asked, "--batch", "1", *way]) == 2
    said = capsys.readouterr().err
    assert "model 'vgg16' cannot train on 1 sample at a time (Expected more than 1 value per channel" in said
    assert said.endswith("; give more with --batch\n") and not (tmp_path / "p.jsonl").exists()
    assert main([*asked, "--batch", "2", *way]) == 0


def test_a_measured_profile_has_the_loss_where_a_data_sheets_has_it() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def sizes(profile: Profile) -> list[tuple[int, int, int]]:
        return [(layer.output_bytes, layer.kept_bytes, layer.weight_bytes) for layer in profile.layers]

    for loss in (True, False):
        asked = subject.Subject(ModelSpec(name="made_up"), build, lambda many: torch.zeros(many, 8), 32, loss=loss)
        here, sheet = asked.measured(16, "cpu", repeats=1), asked.by_sheet("v100")(16)
        assert sizes(here) == sizes(sheet) and sheet.layers[-1].output_bytes == (4 if loss else 16 * 4 * 4)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "tiny_imagenet"])
def test_no_plan_waits_for_a_download(
    in_project: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a plan fetched a data set")

    monkeypatch.setattr(readers, "fetch", refuse)
    out = str(tmp_path / "profile.jsonl")
    assert main(["profile", "resnet20", "--data", name, "--sheet", "v100", "--batch", "8", "--out", out]) == 0
    assert len(Profile.load(out).layers) == 20
    logged = {
        log["data"]["classes"]
        for summary in Path("results/published/cpu/runs").glob("*/summary.json")
        if (log := json.loads(summary.read_text())).get("data", {}).get("name") == name and "classes" in log["data"]
    }
    assert logged <= {subject.KNOWN[name][1]}  # what runs have read of the set itself


def test_a_copy_of_the_project_needs_no_published_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/extending.md has it: the config and the workflow are copied, the results are not."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    profile().save(tmp_path / "profile.jsonl")
    words = ["advise", "profile.jsonl", "--cluster", "config/examples/one_server.yaml", "--batch", "8"]
    assert main(words) == 0
    assert "There are no logs of leaderboard at the scales published and quick" in capsys.readouterr().out
    assert main([*words, "--published", "cpuu"]) == 2
    assert "unknown published device 'cpuu'" in capsys.readouterr().err
