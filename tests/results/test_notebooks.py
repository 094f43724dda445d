"""The notebooks, executed as papermill would: with other parameters; and the functions that they call."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipelag.errors import PipelagError
from pipelag.experiments import arms, load_paper, load_scale
from pipelag.results.context import Context
from pipelag.results.notebook import open_shelf
from pipelag.results.verdict import verdicts
from pipelag.runs.rates import RATES
from tests.reproduced import REPRODUCED
from tests.results.test_results import PAPER, ROOT, draw, make_up_here

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
EXECUTED = [name for name in NOTEBOOKS if name != "gpt2" or find_spec("transformers") is not None]
SHORTER: dict[str, dict[str, Any]] = {  # than a reader's
    PAPER: {"LABELS": {"model": "VGG-16"}, "RESULT": "table_2"},
    "your_own_model": {"STEPS": 40, "METHODS": ["sequential", "pipedream"]},
    "gpt2": {"STEPS": 12, "METHODS": ["sequential", "pipemare"], "DATA": "grammar"},
}


def cells(name: str) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = json.loads((ROOT / f"notebooks/{name}.ipynb").read_text())["cells"]
    return parsed


def parameters(name: str) -> int:
    """Where the cell with this tag stands."""
    (place,) = [n for n, cell in enumerate(cells(name)) if "parameters" in cell["metadata"].get("tags", [])]
    return place


def shortened(name: str) -> str:
    """A notebook, its parameters followed by other values, as papermill puts them."""
    notebook = json.loads((ROOT / f"notebooks/{name}.ipynb").read_text())
    source = "\n".join(f"{key} = {value!r}" for key, value in SHORTER.get(name, {}).items())
    injected = {"cell_type": "code", "execution_count": None, "id": "injected", "metadata": {}, "outputs": []}
    notebook["cells"].insert(parameters(name) + 1, {**injected, "source": source})
    return json.dumps(notebook)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the executed notebooks' pages: one start of nbconvert for all, each in a kernel of its own."""
    folder = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_up_here()
        for result in ("table_2", "figure_5a"):
            draw(result)
        Path("notebooks").mkdir()
        for name in EXECUTED:
            Path(f"notebooks/{name}.ipynb").write_text(shortened(name))
        command = [sys.executable, "-m", "nbconvert", "--to", "markdown", "--execute"]
        command += ["--ExecutePreprocessor.startup_timeout=600", *(f"notebooks/{name}.ipynb" for name in EXECUTED)]
        subprocess.run(command, check=True)
    return folder / "notebooks"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_has_parameters_and_no_outputs(name: str) -> None:
    names = {line.split(" = ")[0] for line in cells(name)[parameters(name)]["source"] if " = " in line}
    assert names >= ({"STEPS", "METRIC"} if name in ("gpt2", "your_own_model") else {"SCALE", "RESULT", "METRIC"})
    assert names >= set(SHORTER.get(name, {}))
    for cell in cells(name):
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs_from_top_to_bottom(pages: Path, name: str) -> None:
    """Before anything is drawn they say so; after, they show tables, figures, verdicts and logs."""
    if name not in EXECUTED:
        pytest.skip("the optional package transformers is not installed")
    page = (pages / f"{name}.md").read_text()
    assert page
    if name == PAPER:
        assert "not drawn yet" in page and "| VGG-16 | ours | 90.00" in page and ("<svg" in page or ".svg" in page)
        assert "cannot be judged" in page or "holds" in page
        assert "![png]" in page.partition("## Plot any metric")[2].partition("##")[0]
        assert "VGG-16 s4" in page.partition("## Compare with the paper")[2]  # what the paper reports


def test_what_draws_a_result_names_plugins_and_papers_that_the_config_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    config = Path("config/config.yaml")
    config.write_text(config.read_text().replace(f"{PAPER}, ", "").replace("plugins: []", "plugins: [also]"))
    monkeypatch.setenv("PIPELAG_PLUGINS", "also,mine")
    for name in ("also", "mine"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    open_shelf(PAPER).show("table_2")
    words = f"""--config plugins='["also", "mine"]' papers='["{PAPER}"]'"""
    assert f"not drawn yet: snakemake --cores all {words} -- {PAPER}_table_2\n" in capsys.readouterr().out


def test_a_shelf_knows_what_the_plugins_of_the_config_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PIPELAG_PLUGINS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = Path("config/config.yaml")
    config.write_text(config.read_text().replace("plugins: []", "plugins: [shelved]"))
    Path("shelved.py").write_text(
        "from pipelag.runs.rates import rate_schedule\nrate_schedule('shelved')(lambda spec, total: lambda step: 1.0)\n"
    )
    setup = "{model: {name: lenet5}, data: {name: digits}, batch: 8, optimizer: {lr: 0.1}, steps: 4"
    setup += ", lr_schedule: {name: shelved}}"
    Path("config/papers/own.yaml").write_text(
        f"id: own\ntitle: Own\nshort: Own\nyear: 2026\nsetups:\n  a: {setup}\nresults:\n"
        "  table_1: {kind: table, caption: x, runs: [{setup: a, arms: {s: {method: sequential}}}]}\n"
    )
    try:
        assert list(open_shelf("own").pick("table_1")["status"]) == ["no log"]
    finally:
        RATES.pop("shelved", None)
        sys.modules.pop("shelved", None)


@pytest.mark.usefixtures("in_project")
def test_runs_are_picked_by_paper_result_method_and_arm() -> None:
    shelf = open_shelf(PAPER, "published")
    table = shelf.pick("table_2", method="stale_weights", model="LeNet-5")
    assert list(table["arm"]) == [f"{stages}-stage" for stages in (4, 6, 8, 10) for _ in range(3)]
    assert list(table["seed"]) == [0, 1, 2] * 4
    assert set(table["status"]) == {"finished"} and set(table["method"]) == {"stale_weights"}
    log = shelf.log("table_2", model="LeNet-5", arm="6-stage")
    assert log is not None and table["accuracy"][3] == log["accuracy"].iloc[-1]
    assert shelf.pick("table_2", method="pipemare", model="LeNet-5").empty  # a label that is there, and no such run
    with pytest.raises(PipelagError, match="unknown method 'pipemar'; did you mean 'pipemare'"):
        shelf.pick("table_2", method="pipemar")
    everywhere = shelf.pick(arm="6-stage", model="LeNet-5")
    assert {"table_2", "figure_5a"} <= set(everywhere["result"]) and set(everywhere["arm"]) == {"6-stage"}


@pytest.mark.usefixtures("in_project")
def test_any_metric_of_the_logs_is_plotted() -> None:
    shelf = open_shelf(PAPER, "published")
    frame = shelf.curves("table_2", "test_loss", model="LeNet-5", arm="6-stage")
    log = shelf.log("table_2", model="LeNet-5", arm="6-stage")
    assert log is not None
    frame = frame[frame["line"].str.contains("seed 0,")]
    assert list(frame["test_loss"]) == list(log["test_loss"]) and list(frame["step"]) == list(log["step"])
    drawn = shelf.plot("table_2", "test_loss", model="LeNet-5", arm="6-stage").axes[0]
    assert drawn.get_ylabel() == "test_loss" and list(drawn.lines[0].get_xdata()) == list(frame["step"])
    distances = open_shelf("leaderboard", "published").curves("table_1", "forward_distance", what="learning")
    assert not distances.empty and distances["forward_distance"].dtype == float  # the means of lists over stages
    nothing = open_shelf(PAPER, "paper").plot("table_2", model="VGG-16")  # a scale of which no run is here
    assert [t.get_text() for t in nothing.axes[0].texts] == ["no run logged"]


@pytest.mark.usefixtures("in_project")
def test_a_result_stands_beside_the_paper() -> None:
    comparison = open_shelf(PAPER, "published").compare("table_2")
    reported = comparison[comparison["verdict"] == ""].set_index("what")["paper"]
    assert reported["LeNet-5 s4"] == 98.64
    judged = comparison[comparison["verdict"] != ""].set_index("what")["verdict"].to_dict()
    context = Context.load(load_paper(PAPER), "table_2", load_scale("published", "cpu"))
    assert judged == {each.claim: each.verdict for each in verdicts(context)} and "fails" in judged.values()


@pytest.mark.usefixtures("in_project")
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"result": "table_22"}, "unknown result 'table_22' of stale_weights; did you mean 'table_2'"),
        ({"result": "table_2", "arm": "4 stage"}, "unknown arm '4 stage' of table_2; did you mean '4-stage'"),
        ({"result": "table_2", "arn": "4-stage"}, "unknown label 'arn' of table_2; did you mean 'arm'"),
        ({"arn": "4-stage"}, "unknown label 'arn'; did you mean 'arm'"),
    ],
)
def test_what_is_not_there_is_refused(asked: dict[str, str], sentence: str) -> None:
    with pytest.raises(PipelagError, match=sentence):
        open_shelf(PAPER, "published").pick(**asked)


@pytest.mark.usefixtures("in_project")
def test_a_metric_that_no_log_has_is_refused() -> None:
    with pytest.raises(PipelagError, match="unknown metric 'acuracy' in the logs of table_2; did you mean 'accuracy'"):
        open_shelf(PAPER, "published").plot("table_2", "acuracy")


@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name in REPRODUCED])
def test_the_examples_of_the_first_cell_are_of_the_result_that_it_names(name: str) -> None:
    first = "".join(cells(name)[parameters(name)]["source"])
    result = re.search(r'RESULT = "(\w+)"', first)
    method = re.search(r'METHOD = ""  # e\.g\. "(\w+)"', first)
    labels = re.search(r"LABELS = {}  # e\.g\. ({.*?});", first)
    assert result and method and labels
    runs = arms(load_paper(name), result[1], load_scale("quick"))
    assert any(phase.method == method[1] for run in runs for phase in run.spec.phases)
    assert any(json.loads(labels[1]).items() <= run.labels.items() for run in runs)
