"""From logs to tables, figures and verdicts: nothing reaches a table that is not in a log or in the config."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelag.__main__ import main
from pipelag.experiments import arms, load_paper, load_scale, run_dir
from pipelag.report.gather import Run, logged
from pipelag.report.tables import Column, Table
from pipelag.runs.folder import seal

ROOT = Path(__file__).resolve().parents[2]
PAPER = "stale_weights"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the config and made-up logs of every training run at the quick scale."""
    monkeypatch.chdir(tmp_path)
    make_up_here()
    return tmp_path


def make_up_here() -> None:
    shutil.copytree(ROOT / "config", "config")
    paper, scale = load_paper(PAPER), load_scale("quick")
    for result in paper.results:
        for arm in arms(paper, result, scale):
            if arm.spec.kind == "train" and not arm.left_out:
                pretend(run_dir(scale, arm.spec.id), arm.spec)


def pretend(folder: Path, spec: Any) -> None:
    """A log whose accuracy falls by a point per register, so that every number in a table can be told."""
    folder.mkdir(parents=True, exist_ok=True)
    accuracy = 90.0 - len(spec.phases[0].cuts)
    steps = range(50, spec.steps + 1, 50)
    rows = [
        {"step": s, "epoch": s / 10, "phase": 0 if s <= spec.phases[0].steps else 1, "accuracy": accuracy - 10 / s}
        for s in steps
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    phases = [
        {
            "method": p.method,
            "cuts": list(p.cuts),
            "steps": p.steps,
            "stages": len(p.cuts) + 1,
            "forward_delays": [0],
            "stale_percent": 9.0 * len(p.cuts),
        }
        for p in spec.phases
    ]
    data = {
        "name": spec.data.name,
        "title": "pretended",
        "release": "none",
        "official": True,
        "note": "",
        "test": 100_000,
    }
    summary = {
        "id": spec.id,
        "kind": "train",
        "status": "finished",
        "steps": spec.steps,
        "final": {"accuracy": accuracy},
        "best": {},
        "data": data,
        "phases": phases,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def draw(result: str) -> dict[str, Any]:
    assert main(["result", PAPER, result]) == 0
    return json.loads(Path(f"figures/quick/{PAPER}/{result}.json").read_text())


def test_the_papers_numbers_stand_beside_ours(project: Path) -> None:
    record = draw("table_2")
    lines = Path(f"figures/quick/{PAPER}/table_2.md").read_text().splitlines()
    assert "| VGG-16 | paper | 91.36 | 90.53 | 88.96 | 83.73 | 79.85 |" in lines
    assert "| VGG-16 | ours | 90.00 | 89.00 | 88.00 | 87.00 | 86.00 |" in lines
    assert "| VGG-16 | drop, ours | – | 1.00 ± 0.27 | 2.00 ± 0.27 | 3.00 ± 0.28 | 4.00 ± 0.28 |" in lines
    assert record["logged"] == record["asked"] == 18
    verdict = {v["claim"]: v for v in record["verdicts"]}
    assert verdict["vgg16_monotone"]["verdict"] == "holds" and "one seed" in verdict["vgg16_monotone"]["tolerance"]
    assert verdict["vgg16_deep_costs_7"]["verdict"] == "cannot be judged"
    assert "shapes instead of CIFAR-10" in verdict["vgg16_deep_costs_7"]["why"]
    assert "| AlexNet | ours | 90.00 | 89.00 | 88.00 | 87.00 | N/A |" in lines  # as in the paper


def test_a_deleted_log_leaves_an_empty_cell(project: Path) -> None:
    arm = next(
        a
        for a in arms(load_paper(PAPER), "table_2", load_scale("quick"))
        if dict(a.labels) == {"model": "VGG-16", "arm": "6-stage"}
    )
    (run_dir(load_scale("quick"), arm.spec.id) / "metrics.jsonl").unlink()
    record = draw("table_2")
    assert (
        "| VGG-16 | ours | 90.00 | 89.00 | – | 87.00 | 86.00 |" in Path(f"figures/quick/{PAPER}/table_2.md").read_text()
    )
    assert (record["logged"], record["asked"]) == (17, 18)
    assert {v["claim"]: v["verdict"] for v in record["verdicts"]}["vgg16_monotone"] == "cannot be judged"
    assert (
        "–: no log; 1 of 18 runs are not made at this scale." in Path(f"figures/quick/{PAPER}/table_2.md").read_text()
    )


def test_a_log_that_is_not_what_its_run_wrote_is_said_to_be_that(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arm = arms(load_paper(PAPER), "table_4", load_scale("quick"))[0]
    folder = run_dir(load_scale("quick"), arm.spec.id)
    (folder / "metrics.jsonl").write_text(
        (folder / "metrics.jsonl").read_text().replace('"accuracy": 8', '"accuracy": 9')
    )
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"log": seal("another")}))
    record = draw("table_4")
    (run,) = [each for each in record["runs"] if each["id"] == arm.spec.id]
    assert run["status"] == "not read" and "is not what its run wrote" in run["damaged"] and "folder" not in run
    assert logged([Run.model_validate(each) for each in record["runs"]]).endswith("; 1 not read")
    assert run["damaged"] in record["footer"]
    capsys.readouterr()
    assert main(["list", PAPER, "table_4"]) == 0
    states = {line.split()[0]: line[14:22] for line in capsys.readouterr().out.splitlines()[:-1]}
    assert [id for id, state in states.items() if state == "not read"] == [
        arm.spec.id
    ] and "done    " in states.values()
    draw("table_4")
    assert f"not read: {run['damaged']}" in capsys.readouterr().out


def test_a_diverged_run_is_shown_as_that(project: Path) -> None:
    arm = next(
        a
        for a in arms(load_paper(PAPER), "table_2", load_scale("quick"))
        if dict(a.labels) == {"model": "LeNet-5", "arm": "10-stage"}
    )
    path = run_dir(load_scale("quick"), arm.spec.id) / "summary.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"status": "diverged", "diverged_at": 195, "final": None})
    )
    draw("table_2")
    assert "diverged at step 195" in Path(f"figures/quick/{PAPER}/table_2.md").read_text()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a folder in which every result has been drawn; tests read it, or copy it."""
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_up_here()
        for result in load_paper(PAPER).results:
            draw(result)
    return folder


@pytest.mark.parametrize("result", list(load_paper(PAPER).results))
def test_every_result_draws_with_and_without_logs(
    drawn: Path, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    draw(result)
    for folder in (drawn, tmp_path):
        left = folder / f"figures/quick/{PAPER}"
        is_figure = json.loads((left / f"{result}.json").read_text())["is_figure"]
        ends = ("pdf", "svg", "png", "csv") if is_figure else ("csv", "md", "tex")
        assert all((left / f"{result}.{end}").stat().st_size > 0 for end in ends)


def test_verdicts_follow_the_numbers(project: Path) -> None:
    scale = load_scale("quick")
    for arm in arms(load_paper(PAPER), "table_4", scale):
        accuracy = {"Baseline 30k": 91.0, "Pipelined 30k": 88.0, "20k+10k hybrid": 90.5, "20k+20k hybrid": 92.0}[
            arm.labels["arm"]
        ]
        path = run_dir(scale, arm.spec.id) / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"final": {"accuracy": accuracy}}))
        if arm.labels["arm"] == "20k+10k hybrid":
            short = path
    claim = "short_hybrid_below_baseline"
    assert {v["claim"]: v["verdict"] for v in draw("table_4")["verdicts"]}[claim] == "holds"
    short.write_text(json.dumps(json.loads(short.read_text()) | {"final": {"accuracy": 92.0}}))  # the hybrid rises
    assert {v["claim"]: v["verdict"] for v in draw("table_4")["verdicts"]}[claim] == "fails"


def test_the_page_gathers_all_and_links_to_logs(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(drawn, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    Path("figures").rename("drawn")
    assert main(["report", PAPER]) == 2
    assert "draw it first: snakemake --cores all stale_weights_table_1" in capsys.readouterr().err
    Path("drawn").rename("figures")
    assert main(["report", PAPER]) == 0
    folder = Path("figures/quick")
    pages = [folder / "index.html", *sorted((folder / PAPER).glob("*.html"))]
    assert len(pages) == 2 + len(load_paper(PAPER).results)
    logs = 0
    for path in pages:
        links = [part.split('"')[0].partition("#")[0] for part in path.read_text().split('href="')[1:]]
        assert all((path.parent / link).exists() for link in links if link and not link.startswith("https://")), path
        logs += sum(link.startswith("../../../results/quick/runs/") for link in links)
    assert logs > 100


def test_tables_escape_and_keep_precision() -> None:
    table = Table(
        [Column("a", "50 %"), Column("b", "x_1", "group", "{:.1f}")],
        [{"a": "A & B", "b": 1.23456}, {"a": None}],
        "100 % & more",
    )
    assert table.csv() == "50 %,group: x_1\nA & B,1.23456\n,\n"
    assert r"A \& B & 1.2 \\" in table.latex() and r"\caption{100 \% \& more}" in table.latex()
    assert "| A & B | 1.2 |" in table.markdown() and "| – | – |" in table.markdown()


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    columns = [Column("a", "stages"), Column("b", "plan"), Column("c", "points"), Column("d", "cuts")]
    rows = [{"a": 4, "b": "straight", "c": "+5.48 ± 3.37", "d": "2, 4"}, {"a": 8, "b": "15-1", "c": "one diverges"}]
    table = Table(columns, [*rows, {"a": 16, "b": "straight"}])
    assert table.right == [False, False, True, True]  # the first names the rows
    assert "| --- | --- | ---: | ---: |" in table.markdown() and r"\begin{tabular}{llrr}" in table.latex()
