"""Results that rest on plans: made for real for the networks quick to profile, judged, and noticed when changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelag.__main__ import main
from pipelag.experiments import arms, load_paper, load_scale, run_dir
from pipelag.runs.carry_out import carry_out
from pipelag.runs.spec import ModelSpec, RunSpec
from tests.results import made_up

ROOT = Path(__file__).resolve().parents[2]
PAPER = "pipedream"
SHEET = {"roofline": "v100", "inputs": [{"shape": [3, 224, 224]}]}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    shutil.copytree(ROOT / "config", folder / "config")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        scale = load_scale("quick")
        for arm in arms(load_paper(PAPER), "table_1", scale):
            if arm.labels["what"] == "plan" and arm.labels["model"] in ("VGG-16", "AlexNet"):
                carry_out(arm.spec, run_dir(scale, arm.spec.id), "cpu", 1)
    return folder


@pytest.fixture
def copy(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(project, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def verdicts(result: str) -> dict[str, str]:
    assert main(["result", PAPER, result]) == 0
    record = json.loads(Path(f"figures/quick/{PAPER}/{result}.json").read_text())
    return {verdict["claim"]: verdict["verdict"] for verdict in record["verdicts"]}


def change(rewrite: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite every plan's row of every log."""
    for log in Path("results/quick/runs").glob("*/metrics.jsonl"):
        made_up.rewrite(log, lambda row: rewrite(row) if row["what"] == "plan" else row)


@pytest.mark.usefixtures("copy")
def test_claims_about_plans_follow_their_logs() -> None:
    assert verdicts("text_flexflow") == {"nineteen_tenths": "cannot be judged"}  # FlexFlow is not run
    assert verdicts("figure_6") == {"profile_to_plan": "holds"}
    assert set(verdicts("text_optimizer_time").values()) == {"cannot be judged"}  # only two models are planned here
    assert verdicts("table_1")["vgg16_gains_more_here"] == "holds"
    change(lambda row: row | {"timed": 1.9 if "not pipelined" in row["plan"] else 1.0, "stages": row["stages"][1:]})
    assert verdicts("figure_6") == {"profile_to_plan": "fails"}
    change(lambda row: row | {"samples_per_second": 100.0})
    assert verdicts("table_1")["vgg16_gains_more_here"] == "fails"


@pytest.mark.usefixtures("copy")
def test_missing_rows_are_empty_cells() -> None:
    assert main(["result", PAPER, "table_1"]) == 0
    lines = Path(f"figures/quick/{PAPER}/table_1.md").read_text().splitlines()
    cells = {tuple(c.strip() for c in line.split("|")[1:3]): line for line in lines if line.startswith("| ")}
    assert cells["VGG-16", "4x4 (A)"].count("–") == 1  # nothing is trained here
    assert cells["GNMT-8", "2x8 (B)"].count("–") == 6
    assert cells["AWD-LM (80 per GPU)", "1x4 (A)"].count("–") == 8


@pytest.mark.usefixtures("copy")
def test_a_plan_by_a_data_sheet_says_that_the_papers_rest_on_published_profiles() -> None:
    assert main(["result", PAPER, "table_1"]) == 0
    record = json.loads(Path(f"figures/quick/{PAPER}/table_1.json").read_text())
    why = {verdict["claim"]: verdict["why"] for verdict in record["verdicts"]}["plan_vgg16"]
    assert "profiles from data sheets instead of the authors'" in why


def test_bad_plans_are_refused(tmp_path: Path) -> None:
    def plan(**options: Any) -> None:
        carry_out(RunSpec(kind="partition", model={"name": "vgg16_imagenet"}, options=options), tmp_path, "cpu", 1)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="did you mean 'cluster'"):
        plan(clusters={})
    with pytest.raises(ValueError, match="the key 'levels' of a cluster is missing"):
        plan(cluster={})
    with pytest.raises(ValueError, match="needs options.profile"):
        plan(cluster={"levels": [{"workers": 2, "bandwidth": 1}]})
    known = {"cluster": {"levels": [{"workers": 2, "bandwidth": 1}]}, "search": False, "profile": SHEET}
    with pytest.raises(ValueError, match="the option 'given.mine.replicas' of a partition run is missing"):
        plan(**known, given={"mine": {}})
    for wrong in ({"replicas": [1, 1], "cuts": [99]}, {"replicas": [1], "cuts": [3]}, {"replicas": [1] * 5}):
        with pytest.raises(ValueError, match="options.given: 'mine' needs replicas"):
            plan(**known, given={"mine": wrong})
    with pytest.raises(ValueError, match="no layer has a name that begins with 'lstm'"):
        plan(**known, given={"mine": {"replicas": [1, 1], "cuts": ["lstm"]}})


def test_given_plans_are_cut_where_it_is_said_or_where_it_is_best(tmp_path: Path) -> None:
    cluster = {"levels": [{"workers": 4, "bandwidth": 3e9}]}
    given = {
        "number": {"replicas": [3, 1], "cuts": [5]},
        "name": {"replicas": [3, 1], "cuts": ["linear"]},
        "best": {"replicas": [3, 1]},
    }
    options = {"profile": SHEET, "cluster": cluster, "search": False, "given": given, "compare": True}
    spec = RunSpec(kind="partition", model=ModelSpec(name="alexnet_imagenet"), batch=256, options=options)
    carry_out(spec, tmp_path, "cpu", 1)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rows = {row["plan"]: row for row in lines if row["what"] == "plan"}
    assert [stage["last"] for stage in rows["number"]["stages"]] == [5, 8]
    assert rows["name"]["stages"] == rows["number"]["stages"]  # five convolutions stand before the linear layers
    assert rows["best"]["config"] == "3-1"
    assert rows["best"]["predicted"]["ring"] <= rows["number"]["predicted"]["ring"]
    assert rows["best"]["timed"] == rows["several stages"]["timed"]  # a search over all plans finds the same


def test_sums_after_the_backward_come_on_top_of_it(tmp_path: Path) -> None:
    options = {"profile": {"roofline": "v100", "inputs": [{"shape": [3, 224, 224]}]}, "data_parallel_over": [2]}
    cluster = {"levels": [{"workers": 2, "bandwidth": 1e9}]}
    rows = {}
    for overlap in (True, False):
        more = {**options, "cluster": cluster, "search": False, "overlap": overlap}
        spec = RunSpec(kind="partition", model=ModelSpec(name="alexnet_imagenet"), batch=8, options=more)
        carry_out(spec, tmp_path / str(overlap), "cpu", 1)
        log = [json.loads(line) for line in (tmp_path / str(overlap) / "metrics.jsonl").read_text().splitlines()]
        layers, (rows[overlap],) = ([r for r in log if r["what"] == what] for what in ("layer", "plan"))
    compute = sum(layer["forward_ms"] + layer["backward_ms"] for layer in layers) / 1e3
    ring = sum(layer["weight_bytes"] for layer in layers) / 1e9  # 2 (m-1)/m of them, for m = 2
    assert rows[False]["timed"] == pytest.approx((compute + ring) / 2)
    assert rows[True]["timed"] < rows[False]["timed"] and rows[True]["overhead"] < rows[False]["overhead"]
