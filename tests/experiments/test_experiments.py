"""Experiments are data: the config becomes runs; mistakes in it are refused with place and nearest key."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipelag import catalogue, data, methods, models
from pipelag.__main__ import main as pipelag_command
from pipelag.errors import PipelagError
from pipelag.experiments import Arm, arms, expand, load_paper, load_scale, papers, run_dir, scales
from pipelag.models.cut import layer_count
from pipelag.results.drawing import DRAWINGS
from pipelag.results.verdict import JUDGES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of config/ that a test may change."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def ids(result: str, scale: str = "quick", **labels: str) -> set[str]:
    every = arms(load_paper("stale_weights"), result, load_scale(scale))
    matching = {a.spec.id for a in every if all(a.labels.get(k) == v for k, v in labels.items())}
    assert matching, (result, labels)
    return matching


def everything(scale: str, of: Sequence[str] = ()) -> list[Arm]:
    """All arms, or those of some papers."""
    chosen = of or papers()
    return [a for p in chosen for r in load_paper(p).results for a in arms(load_paper(p), r, load_scale(scale))]


@pytest.mark.parametrize("scale", ["quick", "standard", "paper", "published"])
def test_every_run_names_models_data_and_methods_that_exist(config: Path, scale: str) -> None:
    shutil.copytree(ROOT / "results/published/cpu", "results/published/cpu", ignore=shutil.ignore_patterns("runs"))
    for arm in everything(scale):
        assert arm.spec.model is None or arm.spec.model.name in models.MODELS
        assert arm.spec.data is None or arm.spec.data.name in data.DATASETS
        assert all(phase.method in methods.METHODS for phase in arm.spec.phases)


def test_every_result_is_drawn_and_every_claim_judged() -> None:
    import importlib

    for name in papers():
        importlib.import_module(f"pipelag.results.{name}")
        for key, result in load_paper(name).results.items():
            assert (name, result.draw or key) in DRAWINGS, key
            assert result.runs
            # these may claim nothing
            assert result.claims or result.kind in ("diagram", "config") or name == "at_scale", (name, key)
            for claim in result.claims:
                assert bool(claim.because) != ((name, key, claim.id) in JUDGES), (key, claim.id)


def test_equal_runs_are_shared(config: Path) -> None:
    assert ids("figure_5a") == ids("table_2", model="LeNet-5")
    assert ids("figure_7") == ids("table_4")
    assert ids("table_3", arm="non-pipelined") <= ids("table_2")
    assert len(ids("table_3")) == 10
    seven = {a.spec.id for a in everything("quick") if a.labels.get("arm") == "register after 7"}
    assert seven == ids("table_2", model="ResNet-20", arm="4-stage")  # one register after layer 7 is the 4-stage run


def test_ids_are_the_hash_of_what_changes_an_outcome(config: Path) -> None:
    before = {r: ids(r) for r in load_paper("stale_weights").results}
    change(
        config / "papers/stale_weights.yaml",
        "name: vgg16}\n    data: {name: cifar10}\n    batch: 100",
        "name: vgg16}\n    data: {name: cifar10}\n    batch: 50",
    )
    assert {r: ids(r) for r in before} == before  # the quick scale has its own minibatch
    change(config / "scales/quick.yaml", "optimizer: {lr: 0.01}", "optimizer: {lr: 0.02}")
    touched = {r for r in before if ids(r) != before[r]}
    assert touched == {"table_1", "table_2", "figure_5c", "text_headline_accuracy_drop"}
    assert len(ids("table_2") - before["table_2"]) == 5  # VGG-16's five arms and no other


def test_the_papers_settings_are_in_the_paper_scale(config: Path) -> None:
    paper = load_paper("stale_weights")
    lenet = arms(paper, "table_2", load_scale("paper"))[0].spec
    assert lenet.steps == 30_000 and lenet.batch == 100 and lenet.optimizer is not None and lenet.optimizer.lr == 0.01
    hybrid = next(a.spec for a in arms(paper, "table_4", load_scale("paper")) if a.labels["arm"] == "20k+10k hybrid")
    assert [p.steps for p in hybrid.phases] == [20_000, 10_000]
    assert hybrid.phases[0].stage_lr == {1: 0.01, 2: 0.01, 3: 0.01, 4: 0.01} and not hybrid.phases[1].stage_lr
    deep = next(
        a.spec
        for a in arms(paper, "table_5", load_scale("paper"))
        if a.labels == {"model": "ResNet-110", "kind": "train", "arm": "pipelined"}
    )
    assert deep.phases[0].stage_lr == {1: 0.001} and deep.phases[0].cuts == (37,)
    assert deep.lr_schedule.horizon == 78_000 and deep.lr_schedule.milestones == (0.5, 0.75)


def test_a_setup_may_have_seeds_of_its_own_and_its_runs_keep_their_ids(config: Path) -> None:
    def seeds(result: str) -> dict[int, str]:
        return {
            a.seed: a.spec.id
            for a in arms(load_paper("pipeoptim"), result, load_scale("quick"))
            if a.labels["arm"] == "GPipe"
        }

    several, one = seeds("figure_3a"), seeds("figure_3b")
    assert list(several) == [0, 1, 2] and list(one) == [0] and len(set(several.values())) == 3
    change(config / "scales/quick.yaml", "    alexnet:\n      seeds: [0, 1, 2]\n", "    alexnet:\n")
    assert seeds("figure_3a") == {0: several[0]} and seeds("figure_3b") == one


def test_a_scale_may_leave_out_some_seeds_of_an_arm_and_say_why(config: Path) -> None:
    def left_out(arm: str) -> dict[int, str]:
        every = arms(load_paper("leaderboard"), "table_2", load_scale("quick"))
        return {a.seed: a.left_out for a in every if a.labels["arm"] == arm}

    why = "of arms that no claim is about, one seed of three is enough"
    assert left_out("PipeOptim") == {0: "", 1: "", 2: ""} and left_out("LWP_w") == {0: "", 1: why, 2: why}
    change(config / "scales/quick.yaml", "seeds: &more [1, 2]", "seeds: &more [0, 2]")
    assert left_out("LWP_w") == {0: why, 1: "", 2: why}


def test_shares_that_a_setup_names_are_the_papers_at_its_scale_and_others_elsewhere(config: Path) -> None:
    """PipeMare's table 8: T1 anneals over 20 of 200 epochs; after 10 of 60 epochs of warm-up, over 10."""
    shares = {}
    for scale in ("paper", "quick"):
        specs = {
            (a.labels["task"], a.labels["arm"]): a.spec
            for a in arms(load_paper("pipemare"), "table_3", load_scale(scale))
            if a.spec.kind == "train"
        }
        t1 = specs["images", "T1"]
        warm, annealed = specs["translation", "T1+T2+W"].phases
        shares[scale] = [
            t1.phases[0].options["annealing"] / t1.steps,
            warm.steps / (warm.steps + annealed.steps),
            annealed.options["annealing"] / annealed.steps,
        ]
    assert shares["paper"] == pytest.approx([20 / 200, 10 / 60, 10 / 50], abs=1e-3)
    assert shares["quick"] == pytest.approx([0.4, 10 / 60, 10 / 50], abs=1 / 240)  # whole steps of its 240
    change(config / "papers/pipemare.yaml", "{method: gpipe, share: W}", "{method: gpipe, share: V}")
    with pytest.raises(
        PipelagError, match=r"^pipemare.table_3.T1\+T2\+W: unknown share 'V'; it should be K, K1, K2 or W"
    ):
        arms(load_paper("pipemare"), "figure_8", load_scale("quick"))


def test_pipemares_translation_at_each_scale(config: Path) -> None:
    """Table 7 at the paper scale; a set that can be had, by sentences, at the others."""
    shutil.copytree(ROOT / "results/published/cpu", "results/published/cpu", ignore=shutil.ignore_patterns("runs"))
    specs = {}
    for scale in ("quick", "standard", "published", "paper"):
        table_2 = arms(load_paper("pipemare"), "table_2", load_scale(scale))
        specs[scale] = next(a.spec for a in table_2 if a.labels["arm"] == "Sync" and a.labels["task"] == "translation")
        large = [a for a in table_2 if a.labels.get("task") == "WMT17"]
        assert len(large) == 4 * len(load_scale(scale).seeds) and all(
            bool(a.left_out) == (scale != "paper") for a in large
        )
    assert [s.data.name for s in specs.values() if s.data] == ["phrases", "multi30k", "multi30k", "iwslt14"]
    assert ["tokens" in s.options for s in specs.values()] == [False, False, False, True]
    iwslt, wmt = specs["paper"], large[0].spec
    assert (iwslt.options["tokens"], iwslt.phases[0].microbatches, iwslt.batch) == (19 * 245, 19, 19)
    assert iwslt.optimizer and iwslt.optimizer.lr == 0.0005 and iwslt.lr_schedule.warmup == 8000
    assert wmt.optimizer and wmt.optimizer.lr == 0.0007 and wmt.optimizer.weight_decay == 0
    assert wmt.model and wmt.model.options["dropout"] == 0.1 and wmt.options["tokens"] <= 25 * 1792
    assert specs["standard"].batch == 152 and specs["standard"].steps == 11_400


def test_null_takes_away_what_is_there() -> None:
    base = {"options": {"a": 1, "b": 2}, "steps": 5}
    assert expand.merge(base, {"options": {"a": None}, "steps": None, "c": None}) == {"options": {"b": 2}}


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        (
            "papers/stale_weights.yaml",
            "  table_2:\n    kind: table\n    caption:",
            "  table_2:\n    kind: table\n    captoin:",
            r"papers/stale_weights.yaml: unknown key 'captoin' at results.table_2.captoin; did you mean 'caption'",
        ),
        (
            "papers/stale_weights.yaml",
            "evaluate_every: 100",
            "evaluat_every: 100",
            "unknown key 'evaluat_every' at setups.lenet5_sim.evaluat_every; did you mean 'evaluate_every'",
        ),
        (
            "papers/stale_weights.yaml",
            "lr: 0.01, momentum",
            "lr: 0.01, momentun",
            "unknown key 'momentun' at setups.lenet5_sim.optimizer.momentun; did you mean 'momentum'",
        ),
        (
            "papers/stale_weights.yaml",
            "setup: lenet5_sim",
            "setup: lenet_sim",
            "unknown setup 'lenet_sim'; did you mean 'lenet5_sim'",
        ),
        (
            "papers/stale_weights.yaml",
            "use: figure_3",
            "use: figure_33",
            "unknown result to use 'figure_33'; did you mean 'figure_3'",
        ),
        (
            "papers/stale_weights.yaml",
            "    - {use: figure_3, labels: {minibatches: 5}}",
            "    - {use: figure_4}",
            "stale_weights: results.figure_4 uses its own runs through the results that it uses; remove one",
        ),
        ("papers/stale_weights.yaml", "id: stale_weights", "id: [stale_weights", "stale_weights.yaml' is not YAML"),
        (
            "scales/quick.yaml",
            "leave_out:",
            "leaveout:",
            "scales/quick.yaml: unknown key 'leaveout'; did you mean 'leave_out'",
        ),
        (
            "papers/stale_weights.yaml",
            "model: {name: lenet5}",
            "model: {name: lenet}",
            "stale_weights.table_2.non-pipelined: unknown model 'lenet'; did you mean 'lenet5'",
        ),
        (
            "papers/stale_weights.yaml",
            "4-stage: {method: stale_weights, cuts: [1]}",
            "4-stage: {method: stale_weight, cuts: [1]}",
            "stale_weights.table_2.4-stage: unknown method 'stale_weight'; did you mean 'stale_weights'",
        ),
        (
            "papers/stale_weights.yaml",
            "where: {model: AlexNet}",
            "where: {model: AlxNet}",
            "stale_weights, results.figure_5b: no run of table_2 has the labels {'model': 'AlxNet'}",
        ),
        (
            "papers/stale_weights.yaml",
            "where: {model: AlexNet}",
            "where: {model: AlexNet}, seeds: [7]",
            "stale_weights, results.figure_5b: no run of table_2 has the seeds 7; they have 0",
        ),
        (
            "scales/quick.yaml",
            "data: {name: digits}",
            "data: {name: digit}",
            "unknown data set 'digit'; did you mean 'digits'",
        ),
        (
            "scales/quick.yaml",
            "result: table_5",
            "result: tabel_5",
            "scale 'quick': unknown result 'tabel_5' of stale_weights; did you mean 'table_5'",
        ),
        (
            "scales/quick.yaml",
            "setups:\n  stale_weights:",
            "setups:\n  stale_weight:",
            "scale 'quick': unknown paper 'stale_weight'; did you mean 'stale_weights'",
        ),
        *(
            (
                "scales/quick.yaml",
                "name: quick",
                f"name: quick\nfolder: {folder}",
                "folder is invalid: '.*' is not a folder",
            )
            for folder in ("~/runs", "'runs/{id}'", "' '", '"a\\nb"')
        ),
        (
            "scales/quick.yaml",
            "lenet5_sim: {data",
            "lenet5: {data",
            "scale 'quick': unknown setup 'lenet5' of stale_weights; did you mean 'lenet5_sim'",
        ),
    ],
)
def test_mistakes_in_the_config_are_named(config: Path, file: str, old: str, new: str, sentence: str) -> None:
    change(config / file, old, new)
    with pytest.raises(PipelagError, match=sentence):
        everything("quick", [Path(file).stem] if file.startswith("papers/") else ["stale_weights"])


def test_a_scale_may_have_its_runs_elsewhere_but_published_logs_lie_beside_their_scale(config: Path) -> None:
    change(config / "scales/quick.yaml", "name: quick", "name: quick\nfolder: /elsewhere/my runs")
    assert run_dir(load_scale("quick"), "a") == Path("/elsewhere/my runs/runs/a")
    published = Path("results/published/mine/scale.yaml")
    published.parent.mkdir(parents=True)
    published.write_text("{name: mine, title: mine, note: none, folder: elsewhere}")
    for missing in ("", "../mine", "a/b"):  # also where the path leads out of the folder
        with pytest.raises(PipelagError, match="unknown published device .*; (it should be|did you mean) '?mine"):
            load_scale("published", missing)
    with pytest.raises(
        PipelagError, match="mine/scale.yaml: the logs of this scale lie beside the file; leave out folder"
    ):
        load_scale("published", "mine")


def test_unknown_names_are_refused_with_the_nearest(config: Path) -> None:
    with pytest.raises(PipelagError, match="unknown paper 'stale_weight'; did you mean 'stale_weights'"):
        load_paper("stale_weight")
    with pytest.raises(PipelagError, match="unknown scale 'quik'; did you mean 'quick'"):
        load_scale("quik")
    with pytest.raises(PipelagError, match="unknown result 'table_22' of stale_weights; did you mean 'table_2'"):
        expand.result_of(load_paper("stale_weights"), "table_22")
    assert scales() == ["paper", "published", "quick", "standard"]


def test_the_declared_models_are_the_registered_ones() -> None:
    assert set(catalogue.HOMES) == set(models.MODELS)
    small = {"size": 8, "words": 20}
    for name, options in {"resnet20": {}, "snn": {"layers": 3, "width": 0.1}, "gnmt": small, "awd_lm": small}.items():
        assert layer_count(models.build(name, **options)) == catalogue.layers_in(name, options)
    for name in (*catalogue.LAYERS, "residual_lstm"):
        few = {"words": 20, "size": 8} if name in ("s2vt", "residual_lstm") else {}
        assert layer_count(models.build(name, **few)) == catalogue.layers_in(name, few)


def test_outside_of_the_project_the_missing_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelagError, match="there is no folder 'config/papers' here"):
        papers()


def test_plan_lists_every_run_with_its_state(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = arms(load_paper("stale_weights"), "table_4", load_scale("quick"))[0].spec.id
    folder = config.parent / "results/quick/runs" / done
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    assert pipelag_command(["list", "stale_weights", "table_4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[-1] == "4 different runs"
    assert lines[0].startswith(f"{done}  done") and all("  to do" in line for line in lines[1:4])
    assert "stale_weights + sequential" in lines[2] and lines[2].endswith(
        "table_4: ResNet-20, 20k+10k hybrid  (no log)"
    )
    assert lines[0].endswith(f"  (results/quick/runs/{done})")
    hybrid = "{paper: stale_weights, result: table_4, where: {arm: [20k+10k hybrid]}, why: no time}"
    change(config / "scales/quick.yaml", "leave_out:\n", f"leave_out:\n  - {hybrid}\n")
    assert pipelag_command(["list", "stale_weights", "table_4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  left out  " in lines[2] and lines[-1] == "3 different runs, and 1 that the scale leaves out"
    assert pipelag_command(["list", "stale_weights", "table_44"]) == 2
    assert "unknown result 'table_44' of stale_weights; did you mean 'table_4'" in capsys.readouterr().err


def test_hours_are_those_of_logs_and_what_is_to_do_is_to_take_as_long(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(*asked: str) -> list[str]:
        assert pipelag_command(["list", *asked, "--hours"]) == 0
        header, *lines = capsys.readouterr().out.splitlines()
        assert header.split() == ["paper", "result", "runs", "logged", "left", "out", "to", "do", "spent", "to", "go"]
        assert lines[-1].split()[1:] == lines[0].split()[2:]
        return lines[0].split()

    runs = [arm.spec for arm in arms(load_paper("stale_weights"), "table_4", load_scale("quick"))]
    assert line("stale_weights", "table_4")[2:] == ["4", "0", "0", "4", "0.00", "h", "0.00", "h", "+", "?"]
    folder = config.parent / "results/quick/runs" / runs[0].id
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text('{"seconds": 7200}')
    to_go = sum(spec.steps for spec in runs[1:]) * 2 / runs[0].steps
    assert line("stale_weights", "table_4")[2:] == f"4 1 0 3 2.00 h {to_go:.2f} h".split()
    drawn = {arm.spec.id for arm in arms(load_paper("stale_weights"), "figure_4", load_scale("quick"))}
    for each in drawn:  # a timeline says nothing of seconds, and is done all the same
        folder = config.parent / "results/quick/runs" / each
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text('{"kind": "timeline"}')
    assert line("stale_weights", "figure_4")[2:] == f"{len(drawn)} {len(drawn)} 0 0 0.00 h -".split()


def test_reading_the_config_and_loading_results_and_commands_loads_no_torch() -> None:
    code = (
        "import sys, importlib, pkgutil, pipelag, pipelag.experiments as e, pipelag.results, pipelag.commands\n"
        "for room in (pipelag.results, pipelag.commands):\n"
        "    for module in pkgutil.walk_packages(room.__path__, room.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "assert e.arms(e.load_paper('stale_weights'), 'table_2', e.load_scale('quick'))\n"
        "pipelag.delays(pipelag.schedule('stale_weights', stages=2, minibatches=8))\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_training_says_how_many_steps_it_takes(config: Path) -> None:
    (config / "papers/mine.yaml").write_text(
        """
id: mine
title: Mine
short: Mine
year: 2026
setups:
  one:
    model: {name: lenet5}
    data: {name: digits}
    batch: 32
    optimizer: {lr: 0.1}
results:
  table_1:
    kind: table
    caption: One.
    runs:
    - {setup: one, arms: {plain: {method: sequential}}}
"""
    )
    with pytest.raises(PipelagError, match="the setup does not say how many steps a run takes"):
        arms(load_paper("mine"), "table_1", load_scale("quick"))


def test_a_paper_has_one_year_the_cited_versions(config: Path) -> None:
    change(config / "papers/pipemare.yaml", "\nyear: 2021\n", "\nyear: 2019\n")
    with pytest.raises(
        PipelagError,
        match="the citation's year is 2021, but the paper's year is 2019; both should be the cited version's",
    ):
        load_paper("pipemare")


def test_a_paper_without_a_year_is_of_its_citations(config: Path) -> None:
    change(config / "papers/pipemare.yaml", "\nyear: 2021\n", "\n")
    assert load_paper("pipemare").year == 2021
    change(config / "papers/leaderboard.yaml", "\nyear: 2026\n", "\n")
    with pytest.raises(PipelagError, match="year is missing"):
        load_paper("leaderboard")


def test_the_documents_example_of_a_papers_file_is_read(config: Path) -> None:
    page = (ROOT / "docs/workflow.md").read_text()
    (example,) = re.findall(r"^## A paper's file\n.*?```yaml\n(.*?)```", page, re.M | re.S)
    (config / "papers/resnets.yaml").write_text(example)
    paper = load_paper("resnets")
    assert paper.year == 2020
    runs = arms(paper, "table_4", load_scale("paper"))
    assert {tuple(phase.steps for phase in run.spec.phases) for run in runs} == {(30000,), (20000, 10000)}


def test_a_result_says_what_it_has_written_and_from_how_many_logs(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipelag_command(["result", "stale_weights", "table_6"]) == 0
    first, *claims = capsys.readouterr().out.splitlines()
    assert first == "figures/quick/stale_weights/table_6 (.csv, .md, .tex, .json): runs logged: 0 of 5"
    assert len(claims) == len(load_paper("stale_weights").results["table_6"].claims)
    assert all(": cannot be judged (" in line for line in claims)
    written = {path.suffix for path in (config.parent / "figures/quick/stale_weights").iterdir()}
    assert written == {".csv", ".md", ".tex", ".json"}


def test_what_a_paper_took_is_told_beside_its_budget(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(config / "scales/quick.yaml", "name: quick", "name: quick\nhours: {spectrain: 4}")
    assert pipelag_command(["list", "spectrain", "--hours"]) == 0
    assert capsys.readouterr().out.endswith("\nspectrain      0.00 h of a budget of 4 h\n")
    for other in (["pipemare"], ["spectrain", "figure_12"]):  # a result has no budget of its own
        assert pipelag_command(["list", *other, "--hours"]) == 0
        assert "budget" not in capsys.readouterr().out
    change(config / "scales/quick.yaml", "hours: {spectrain: 4}", "hours: {spectrum: 4}")
    assert pipelag_command(["list", "spectrain"]) == 2 and "spectrum" in capsys.readouterr().err


def test_a_report_and_a_list_are_of_the_papers_that_are_made(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipelag.commands.report import asked_for

    assert len(asked_for()) > 2
    change(config / "config.yaml", "papers: [", "papers: [leaderboard, spectrain]  # [")
    assert asked_for() == ["leaderboard", "spectrain"]
    assert pipelag_command(["list", "--hours"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:-1]
    assert {line.split()[0] for line in lines} == {"leaderboard", "spectrain"}
    (config / "config.yaml").unlink()
    assert asked_for() == papers()


def test_a_scale_has_the_seeds_of_the_one_that_it_extends(config: Path) -> None:
    text = "name: mine\ntitle: Mine\nnote: shorter\nextends: standard\n"
    (config / "scales/mine.yaml").write_text(text)
    assert load_scale("mine").seeds == load_scale("standard").seeds == [0, 1, 2]
    (config / "scales/mine.yaml").write_text(text + "seeds: [7]\n")
    assert load_scale("mine").seeds == [7]


def test_a_scale_leaves_out_and_asks_what_the_one_that_it_extends_does_and_more(config: Path) -> None:
    left = [(each.paper, each.result, each.why) for each in load_scale("quick").leave_out]
    change(config / "scales/quick.yaml", "name: quick", "name: quick\nleast_seeds: {pipemare: 2, spectrain: 2}")
    text = "name: mine\ntitle: Mine\nnote: shorter\nextends: quick\nleast_seeds: {spectrain: 3}\n"
    (config / "scales/mine.yaml").write_text(text + "leave_out:\n- {paper: spectrain, result: table_1, why: no time}\n")
    mine = load_scale("mine")
    assert mine.least_seeds == {"pipemare": 2, "spectrain": 3}
    whys = [(each.paper, each.result, each.why) for each in mine.leave_out]
    assert left and whys == [*left, ("spectrain", "table_1", "no time")]


def test_no_published_log_names_a_folder_of_the_machine_that_made_it() -> None:
    environments = (ROOT / "results/published").glob("*/runs/*/environment.json")
    commands = {path: json.loads(path.read_text())["command"] for path in environments}
    assert commands
    assert [path.parent.name for path, words in commands.items() if any(word.startswith("/") for word in words)] == []
