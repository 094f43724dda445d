"""Which runs a small paper's results have at a scale: their order, seeds, labels, notes, and what is left out."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelag.errors import PipelagError
from pipelag.experiments import Arm, all_arms, arms, expand, load_paper, load_scale, papers, specs, told
from pipelag.experiments.schema import Paper, Scale, reading_order

SETUP: dict[str, Any] = {
    "model": {"name": "lenet5"},
    "data": {"name": "digits", "options": {"size": 28}},
    "batch": 10,
    "optimizer": {"lr": 0.1},
    "steps": 100,
}
RESULT = {"kind": "table", "caption": "One."}
PLAIN = {"arms": {"plain": {"method": "sequential"}}}


def paper(setups: dict[str, Any], **results: list[dict[str, Any]]) -> Paper:
    """A paper whose setups differ from `SETUP` as given."""
    content = {name: SETUP | setup for name, setup in setups.items()}
    of_results = {name: RESULT | {"runs": runs} for name, runs in results.items()}
    return Paper.model_validate(
        {"id": "mine", "title": "Mine", "short": "Mine", "year": 2026, "setups": content, "results": of_results}
    )


def scale(**content: Any) -> Scale:
    return Scale.model_validate({"name": "small", "title": "Small", "note": "small"} | content)


def one(arm: dict[str, Any], **setup: Any) -> Any:
    """The spec of an arm over `SETUP` with these changes."""
    (run,) = arms(paper({"a": setup}, table_1=[{"setup": "a", "arms": {"one": arm}}]), "table_1", scale())
    return run.spec


def test_seeds_are_the_entrys_else_the_setups_else_the_scales_in_their_order() -> None:
    runs = [{"setup": name, "seeds": seeds} | PLAIN for name in ("own", "none") for seeds in ([5, 4], [])]
    every = arms(paper({"own": {"seeds": [3, 1, 2]}, "none": {}}, table_1=runs), "table_1", scale(seeds=[9, 8]))
    assert [arm.seed for arm in every] == [5, 4, 3, 1, 2, 5, 4, 9, 8]
    assert [arm.spec.seed for arm in every] == [arm.seed for arm in every]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: scale(seeds=[1, 0, 1]), "the seed 1 appears twice; name each once"),
        (lambda: paper({"a": {"seeds": [4, 4]}}), "the seed 4 appears twice; name each once"),
        (lambda: scale(seeds=[]), "at least 1"),
        (lambda: scale(folder="~/runs"), "'~/runs' is not a folder name that Snakemake accepts"),
        (lambda: scale(folder="runs/{seed}"), "is not a folder name that Snakemake accepts"),
        (lambda: scale(folder=" runs"), "is not a folder name that Snakemake accepts"),
        (lambda: paper({"a": {"shares": {"none": [0, 4]}}}), "a share is [numerator, denominator], above 0"),
        (lambda: paper({"a": {"shares": {"more": [5, 4]}}}), "a share is [numerator, denominator], above 0"),
    ],
)
def test_what_a_config_cannot_mean_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        make()


def test_results_are_read_tables_first_and_claims_in_the_text_last_in_the_configs_order() -> None:
    names = ["text_b", "figure_10", "figure_2b", "algorithm_1", "text_a", "table_2", "figure_2a", "table_10", "table_1"]
    of_paper = paper({}, **{name: [] for name in names})
    assert reading_order(of_paper) == [
        *("table_1", "table_2", "table_10", "figure_2a", "figure_2b", "figure_10", "algorithm_1", "text_b", "text_a"),
    ]


def test_logs_of_another_device_have_figures_and_arguments_of_their_own() -> None:
    usual, other = (scale(name="published", folder=f"results/published/{name}") for name in ("cpu", "h200"))
    assert (usual.device, usual.figures) == ("", "figures/published")
    assert (other.device, other.figures) == ("h200", "figures/published-h200")
    assert other.asked_beside("papers=x") == "--config scale=published published=h200 papers=x -- "
    elsewhere = scale(name="quick", folder="results/h200")
    assert (elsewhere.device, elsewhere.figures, elsewhere.asked_beside("")) == ("", "figures/quick", "")


def test_a_command_line_is_told_what_the_configs_lists_lack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(told, "CONFIG", tmp_path)
    assert told.asked_for() == papers()  # without a config: all there are
    monkeypatch.setattr(told, "asked_for", lambda: ["one", "two"])
    monkeypatch.setattr(told, "configured", lambda: ["plain.py"])
    for plugins, shown, words in (
        ([], ["two"], []),
        (["plain.py"], ["two", "one"], []),
        (["my own.py", "plain.py"], ["one"], ['plugins=["my own.py", "plain.py"]']),
        ([], ["three", "one"], ['papers=["three", "one"]']),
    ):
        monkeypatch.setattr(told, "named_plugins", lambda plugins=plugins: plugins)
        assert shlex.split(told.beyond(shown)) == words


def test_the_note_of_an_entry_comes_before_its_setups() -> None:
    runs = [{"setup": name, "note": note} | PLAIN for name in ("noted", "bare") for note in ("Of these runs.", "")]
    every = arms(paper({"noted": {"note": "Of the setup."}, "bare": {}}, table_1=runs), "table_1", scale())
    assert [arm.note for arm in every] == ["Of these runs. Of the setup.", "Of the setup.", "Of these runs.", ""]


def test_runs_of_another_result_are_chosen_by_labels_and_seeds_and_may_be_called_otherwise() -> None:
    of_models = {
        "setup": "a",
        "labels": {"model": "{m}", "task": "images"},
        "each": [{"m": "x"}, {"m": "y"}, {"m": "z"}],
    }
    used = {
        "use": "table_1",
        "where": {"model": ["x", "z"], "task": "images"},
        "seeds": [0, 2],
        "labels": {"model": "w"},
    }
    mine = paper({"a": {}}, table_1=[of_models | PLAIN], table_2=[used, {"use": "table_1", "where": {"model": "y"}}])
    every = arms(mine, "table_2", scale(seeds=[2, 1, 0]))
    seen = [(arm.labels["model"], arm.seed) for arm in every]
    assert seen == [("w", 2), ("w", 0), ("w", 2), ("w", 0), ("y", 2), ("y", 1), ("y", 0)]
    assert every[0].labels == {"model": "w", "task": "images", "arm": "plain"}


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize("name", papers())
def test_all_results_of_a_paper_have_the_runs_that_each_has_alone(name: str) -> None:
    mine, quick = load_paper(name), load_scale("quick")
    every = all_arms(mine, quick)
    assert list(every) == list(mine.results)
    assert every == {result: arms(mine, result, quick) for result in mine.results}


def test_runs_that_several_results_use_are_expanded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {f"table_{number}": [{"use": "table_1"}] for number in (2, 3)}
    mine, made, expanded = paper({"a": {}}, table_1=[{"setup": "a"} | PLAIN], **used), [], specs.spec_of
    monkeypatch.setattr(expand, "spec_of", lambda *words: made.append(words) or expanded(*words))
    every = all_arms(mine, scale())
    assert len(made) == 1 and every["table_1"] == every["table_2"] == every["table_3"] != []


def test_a_scale_that_does_not_fit_a_paper_is_refused_for_all_its_results() -> None:
    mine = paper({"a": {}}, table_1=[{"setup": "a"} | PLAIN])
    with pytest.raises(PipelagError, match="unknown setup 'b' of mine"):
        all_arms(mine, scale(setups={"mine": {"b": {}}}))


def left_out(*entries: dict[str, Any], **data: Any) -> dict[str, str]:
    """Why each run of two results is left out, by result, setup and arm."""
    runs = {"setup": "{s}", "labels": {"of": "{s}"}, "each": [{"s": "a"}, {"s": "b"}]}
    two = [runs | {"arms": {arm: {"method": "sequential"} for arm in ("x", "y")}}]
    mine = paper({"a": data, "b": data}, table_1=two, table_2=two)
    small = scale(leave_out=[{"paper": "mine"} | entry for entry in entries])
    every: list[tuple[str, Arm]] = [(result, arm) for result in mine.results for arm in arms(mine, result, small)]
    return {f"{result[-1]}{arm.labels['of']}{arm.labels['arm']}": arm.left_out for result, arm in every}


@pytest.mark.parametrize(
    ("entry", "runs"),
    [
        ({"result": "table_1"}, "1ax 1ay 1bx 1by"),
        ({"setups": ["b"]}, "1bx 1by 2bx 2by"),
        ({"result": "table_2", "setups": ["a"]}, "2ax 2ay"),
        ({"setups": ["a", "b"], "where": {"arm": "y"}}, "1ay 1by 2ay 2by"),
        ({"result": "table_1", "where": {"arm": ["x", "y"], "of": "b"}}, "1bx 1by"),
        ({"result": "table_1", "paper": "another"}, ""),
        ({"result": "table_1", "seeds": [1]}, ""),
    ],
)
def test_a_scale_leaves_out_the_runs_that_meet_all_of_an_entrys_conditions(entry: dict[str, Any], runs: str) -> None:
    assert [run for run, why in left_out(entry | {"why": "no time"}).items() if why] == runs.split()


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"where": {"arm": "x"}}, "an entry of leave_out for mine names neither a result nor setups"),
        ({"result": "table_3"}, "unknown result 'table_3' of mine"),
        ({"setups": ["a", "c"]}, "unknown setup 'c' of mine"),
        ({"setups": ["a"], "where": {"off": "a"}}, "leave_out: unknown label 'off' of mine; did you mean 'of'"),
        ({"setups": ["a"], "where": {"of": ["b", "{s}"]}}, "leave_out: unknown of '{s}' of mine"),
        ({"setups": ["a"], "where": {"arm": "z"}}, "leave_out: unknown arm 'z' of mine"),
    ],
)
def test_an_entry_that_leaves_nothing_out_is_refused(entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PipelagError, match=f"^scale 'small'.*{re.escape(sentence)}"):
        left_out(entry | {"why": "no time"})


def test_the_first_reason_of_the_scale_is_given_before_what_is_missing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expand, "absent", lambda name: f"no {name}")
    entries = {"setups": ["a"], "why": "too slow"}, {"result": "table_1", "why": "no time"}
    whys = left_out(*entries)
    assert [whys[run] for run in ("1ax", "1bx", "2bx")] == ["too slow", "no time", "no digits"]


def test_another_model_or_data_set_drops_the_old_ones_options_and_another_optimizer_keeps_its_rate() -> None:
    base = {part: {"name": "old", "options": {"size": 1}} for part in ("model", "data", "optimizer")}
    merged = expand.merge(base, {part: {"name": "new"} for part in base})
    assert merged == {
        "model": {"name": "new"},
        "data": {"name": "new"},
        "optimizer": base["optimizer"] | {"name": "new"},
    }
    assert expand.merge(base, {"model": {"name": "old", "options": {"width": 2}}})["model"]["options"] == {
        "size": 1,
        "width": 2,
    }


def test_a_scale_changes_a_setup_and_an_arm_changes_both() -> None:
    usual = {"cuts": [1], "microbatches": 2, "replicas": [3], "options": {"save_model": False, "grouped": False}}
    small = {"cuts": [2], "microbatches": 5, "replicas": [1, 2], "options": {"save_model": True, "grouped": True}}
    arm = {"method": "gpipe", "cuts": [3], "microbatches": 10, "replicas": [2, 1], "options": {"grouped": False}}
    mine = paper({"a": usual}, table_1=[{"setup": "a", "arms": {"own": arm, "none": {"method": "gpipe"}}}])
    own, none = (run.spec for run in arms(mine, "table_1", scale(setups={"mine": {"a": small | {"steps": 7}}})))
    assert own.steps == none.steps == 7
    seen = [(spec.phases[0].cuts, spec.phases[0].microbatches, spec.phases[0].replicas) for spec in (own, none)]
    assert seen == [((3,), 10, (2, 1)), ((2,), 5, (1, 2))]
    assert own.options == {"save_model": True, "grouped": False} and none.options == {
        "save_model": True,
        "grouped": True,
    }


def test_factors_on_the_rate_multiply_and_phases_share_the_steps() -> None:
    alone = one({"method": "stale_weights", "cuts": [1, 2], "lr_times": 3, "stage_lr_times": {2: 3}})
    assert alone.optimizer.lr == 0.3 and alone.phases[0].stage_lr == {2: 0.9}  # not 0.30000000000000004
    first = {"method": "stale_weights", "cuts": [1], "share": [1, 4], "lr_times": 2, "stage_lr_times": {1: 0.25}}
    rest = {"method": "sequential", "share": "rest"}
    arm = {"lr_times": 3, "phases": [first, {"method": "stale_weights", "cuts": [2], "share": "half"}, rest]}
    phased = one(arm, shares={"half": [1, 2]})
    assert phased.optimizer.lr == 0.3
    assert [phase.steps for phase in phased.phases] == [25, 50, 25]
    assert [phase.stage_lr for phase in phased.phases] == [{1: 0.15, 2: 0.6}, {}, {}]


def test_a_setting_is_a_share_of_its_phases_steps_and_at_least_one() -> None:
    def annealing(share: list[int]) -> int:
        t1 = {"method": "pipemare", "cuts": [1], "settings": {"annealing": {"share": share}}, "share": "rest"}
        spec = one({"phases": [{"method": "gpipe", "cuts": [1], "share": [1, 2]}, t1]})
        return int(spec.phases[1].options["annealing"])

    assert [annealing([1, 5]), annealing([1, 1000])] == [10, 1]


def test_layers_are_spread_over_stages_to_the_nearest_layer() -> None:
    assert specs.cuts_of("3/3", "here") == [1, 2] and specs.cuts_of("1/3", "here") == []
    assert specs.cuts_of("4/10", "here") == [3, 5, 8] and specs.cuts_of([1, "4-9:2"], "here") == [1, 4, 6, 8]


@pytest.mark.parametrize(
    ("arm", "setup", "sentence"),
    [
        ({"cuts": [5]}, {}, "a cut after layer 5 leaves an empty stage: 'lenet5' has 5 layers"),
        ({"cuts": ["1-4:0"]}, {}, "'1-4:0' is not a layer, a range of layers such as"),
        ({"recompute": {"checkpoints": 3}}, {}, "or {checkpoints: 1 to 2}"),
        ({"recompute": {"checkpoints": 1, "stages": 1}}, {}, "or {checkpoints: 1 to 2}"),
        (
            {"recompute": {"checkpoints": "many"}},
            {"checkpoints": {"few": 1}},
            "unknown name 'many' of a number of checkpoints; it",
        ),
        ({"method": "pipemare", "settings": {"annealing": {"share": [0, 4]}}}, {}, "above 0 and at most 1"),
        ({"method": "pipemare", "settings": {"annealing": {"share": [1.5, 4]}}}, {}, "in whole numbers, above 0"),
        ({"method": "pipemare", "settings": {"decay": 1.0}}, {}, "T2's decay D should be between 0 and 1, not 1.0"),
        ({"stage_lr_times": {1: "fast"}}, {}, "the factor on a stage's rate is 'fast', which is not a number"),
        ({}, {"data": {"name": "digits", "options": {"sise": 28}}}, "unknown option 'sise' of data set 'digits'"),
        ({}, {"steps": 0}, "the setup does not say how many steps a run takes; give it steps"),
        ({}, {"steps": 0, "kind": "speed"}, "the setup does not say how many steps a run takes; give it steps"),
        ({"method": "random_delays"}, {"executor": "real", "workers": 2}, "'random_delays'"),
    ],
)
def test_an_arm_that_no_run_can_have_is_refused_with_its_place(
    arm: dict[str, Any], setup: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PipelagError, match=rf"^mine\.table_1\.one: .*{re.escape(sentence)}"):
        one({"method": "gpipe", "cuts": [1]} | arm, **setup)


def test_a_method_is_asked_about_the_stages_and_microbatches_that_a_run_has() -> None:
    deep = {"model": {"name": "resnet110"}, "batch": 17 * 32, "microbatches": 17}
    interleaved = {"method": "1f1b_interleaved", "cuts": ["1-33"]}  # 34 stages over 17 workers
    assert one(interleaved, **deep).phases[0].stages == 34
    deeper = deep | {"model": {"name": "resnet362"}, "batch": 150, "microbatches": 150}
    assert one(interleaved | {"cuts": ["1-299"]}, **deeper).phases[0].stages == 300  # more than are tried first
    for arm, microbatches, sentence in (
        (interleaved, 16, "into which 34 stages and 16 microbatches do not divide"),
        ({"method": "bidirectional", "cuts": ["1-32"]}, 2, "of stages and of microbatches, not 33 and 2"),
        ({"method": "pipedream_2bw", "cuts": ["1-47"]}, 32, "with 32 microbatches over 48 stages"),
    ):
        with pytest.raises(PipelagError, match=sentence):
            one(arm, **deep | {"microbatches": microbatches})


def test_milestones_are_shares_of_the_setups_steps_unless_it_gives_a_horizon() -> None:
    falls = {"name": "milestones", "milestones": [0.5]}
    schedules = falls, falls | {"horizon": 40}, {"name": "cosine"}
    assert [one({"method": "sequential"}, lr_schedule=one_of).lr_schedule.horizon for one_of in schedules] == [
        100,
        40,
        None,
    ]


def test_checkpoints_are_segments_of_stages_the_last_of_which_may_be_shorter() -> None:
    five = {"method": "gpipe", "cuts": "1-4", "recompute": {"checkpoints": "few"}}
    seen = [one(five, checkpoints={"few": count}).phases[0].recompute for count in (1, 2, 3, 5)]
    assert seen == [5, 3, 2, 1]


def write(path: Path, **content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"title": "x", "note": "x"} | content))  # JSON is YAML


def test_a_scale_that_extends_the_published_one_has_the_settings_of_the_device_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "config/papers/mine.yaml", id="mine")
    write(tmp_path / "config/scales/paper.yaml", name="paper", seeds=[0, 1])
    write(tmp_path / "config/scales/published.yaml", name="published", frozen=True)
    write(tmp_path / "config/scales/own.yaml", name="own", extends="published", folder="elsewhere")
    for device in ("cpu", "gpu"):
        setups = {"mine": {"a": {"options": {"where": device}}}}
        write(tmp_path / f"results/published/{device}/scale.yaml", name=device, extends="paper", setups=setups)
    published = load_scale("published", "gpu")
    assert (published.name, published.frozen, published.seeds) == ("published", True, [0, 1])
    assert (published.device, published.figures) == ("gpu", "figures/published-gpu")
    assert published.asked_beside("") == "--config scale=published published=gpu -- "
    usual = load_scale("published")
    assert (usual.device, usual.figures, usual.folder) == ("", "figures/published", "results/published/cpu")
    own = load_scale("own", "gpu")
    assert own.setups == published.setups != usual.setups and own.seeds == [0, 1] and not own.frozen
    assert (own.device, own.figures, own.asked_beside("retrain=true")) == (
        "",
        "figures/own",
        "--config scale=own retrain=true -- ",
    )
    assert load_scale("own").setups == usual.setups
    assert [scale(name="quick").asked_beside(more) for more in ("", "retrain=true")] == [
        "",
        "--config retrain=true -- ",
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"setups": {"yours": {}}},
        {"leave_out": [{"paper": "yours", "result": "a", "why": "no time"}]},
        {"least_seeds": {"yours": 2}},
        {"hours": {"yours": 2}},
    ],
)
def test_whatever_a_scale_says_is_of_papers_that_are_there(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "config/papers/mine.yaml", id="mine")
    write(tmp_path / "config/scales/own.yaml", name="own", **content)
    with pytest.raises(PipelagError, match="scale 'own': unknown paper 'yours'"):
        load_scale("own")
