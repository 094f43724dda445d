"""docs/extending.md, followed by a stranger: its plugin and its paper in a copy of the project, made by Snakemake."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.workflow import forked
from tests.workflow.test_warm import JOB

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()
TYPED = 'class NormOptions(__import__("pipelag.typed", fromlist="T").Typed)'
pytestmark = pytest.mark.workflow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("Snakefile", "workflow", "config", "profiles"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    (tmp_path / "mine.py").write_text("\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S)))
    (paper,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    (tmp_path / "config/papers/mine.yaml").write_text(paper)
    return tmp_path


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.snakemake(folder, "--cores", "2", *words, "--config", "plugins=[mine]", "papers=[mine]")


def test_all_that_the_page_adds_runs_is_drawn_and_judged(project: Path) -> None:
    done = snakemake(project)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = project / "figures/quick"
    table = json.loads((figures / "mine/table_1.json").read_text())
    (claim,) = table["verdicts"]
    assert "(3 seeds)" in claim["why"] and len(table["runs"]) == 12
    accuracies = {row[2] for row in table["table"]["rows"]}
    assert len(accuracies) > 3 and "100.0" not in accuracies  # methods may differ here
    text = (figures / "mine/table_1.md").read_text()
    assert text.count("| deeper |") == text.count("| averaged |") == 3 and re.search(r"\| \d+\.\d \|", text)
    (row,) = re.findall(r"\| rounded \| ([\d.]+) \| ([\d.]+) \|", (figures / "mine/table_2.md").read_text())
    (run,) = json.loads((figures / "mine/table_2.json").read_text())["runs"]
    rows = [json.loads(line) for line in (project / f"results/quick/runs/{run['id']}/metrics.jsonl").open()]
    assert f"{rows[-1]['confidence']:.1f}" == row[1] and 50 < rows[-1]["confidence"] <= 100
    assert rows[-1]["lr"] == pytest.approx(0.01 * 1 / 45)  # the triangle's last step
    assert "norm" in (figures / "mine/figure_1.csv").read_text()
    assert "My paper" in (figures / "index.html").read_text()
    second = snakemake(project)
    assert second.returncode == 0 and "Nothing to be done" in second.stdout + second.stderr
    plugin = project / "mine.py"
    plugin.write_text(plugin.read_text() + "\n# another column\n")
    third = snakemake(project, "--dry-run", "--quiet", "rules", "host")  # results are drawn again, and no run is made
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", third.stdout + third.stderr, re.M))
    assert jobs == {"table": "2", "figure": "1", "reports": "1", "page": "1", "all": "1", "total": "6"}


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("mine.py", '@drawing("mine", "table_1")', '@drawing("mine", "tabel_1")', "nothing draws table_1 of mine"),
        ("mine.py", '"table_1", "staleness_costs"', '"table_1", "stalenes"', "nothing judges the claim"),
        ("config/papers/mine.yaml", "{order: 1.0}", "{ordre: 1.0}", "did you mean 'order'?"),
        ("config/papers/mine.yaml", "kind: norms", "kind: norm", "did you mean 'norms'?"),
        ("config/papers/mine.yaml", "{name: stripes}", "{name: stripe}", "did you mean 'stripes'?"),
        ("config/papers/mine.yaml", "{name: stripes}", "{name: stripes, options: {trian: 9}}", "did you mean 'train'?"),
        ("config/papers/mine.yaml", "{keep: 0.8}", "{kep: 0.8}", "did you mean 'keep'?"),
        (
            "config/papers/mine.yaml",
            "deeper, cuts: [1]}",
            "deeper, cuts: [1, 1]}",
            "should increase from 1 on, not be [1, 1]",
        ),
        (
            "mine.py",
            "class NormOptions(TaskOptions)",
            TYPED,
            "derive NormOptions from pipelag.runs.kinds.options.TaskOptions",
        ),
        ("config/papers/mine.yaml", "name: sign_sgd", "name: sin_sgd", "did you mean 'sign_sgd'?"),
        ("config/papers/mine.yaml", "{name: sign_sgd,", "{name: sign_sgd, momentum: 0.9,", "has no momentum"),
        ("config/papers/mine.yaml", "{scale: 0.5}", "{scael: 0.5}", "did you mean 'scale'?"),
        ("config/papers/mine.yaml", "name: triangle", "name: triangel", "did you mean 'triangle'?"),
        ("config/papers/mine.yaml", "{peak: 0.25}", "{peek: 0.25}", "did you mean 'peak'?"),
        ("config/papers/mine.yaml", "loss: focal", "loss: fokal", "did you mean 'focal'?"),
        ("config/papers/mine.yaml", "[confidence]", "[confidense]", "did you mean 'confidence'?"),
    ],
)
def test_what_is_misspelt_is_refused_before_anything_runs(
    project: Path, file: str, old: str, new: str, sentence: str
) -> None:
    path = project / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    refused = snakemake(project, "--dry-run")
    assert refused.returncode != 0 and sentence in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr and "common.smk" not in refused.stderr


def test_a_result_may_be_a_table_here_and_a_figure_there(project: Path) -> None:
    path = project / "config/papers/mine.yaml"
    page = path.read_text()
    path.write_text(page.replace("  figure_1:\n", "  table_3:\n    draw: figure_1\n"))  # the first paper's is a table
    words = ("--dry-run", "--config", "plugins=[mine]", "papers=[stale_weights,mine]", "--", "mine_table_3")
    done = forked.snakemake(project, "--cores", "2", *words)
    assert done.returncode == 0 and "table_3.svg" in done.stdout
    path.write_text(page[: page.index("  figure_1:")])  # a paper with tables only
    assert snakemake(project, "--dry-run").returncode == 0


@pytest.mark.real
def test_its_optimizer_trains_with_every_method_that_it_adds_or_that_predicts(project: Path) -> None:
    code = (
        "import torch, pipelag, mine\n"
        "from torch import nn\n"
        "model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 1, bias=False))\n"
        "batches = [(torch.ones(2, 3), torch.zeros(2, 1))] * 12\n"
        "loss = lambda output, target: output.sum()\n"
        "for method in ('pipeoptim', 'rounded', 'deeper', 'averaged'):\n"
        "    pipelag.train(model, iter(batches), method=method, cuts=(1,), steps=12, loss=loss,\n"
        "                  optimizer=lambda parameters: mine.SignSGD(parameters, lr=0.01))\n"
    )
    (project / "script.py").write_text(code)
    subprocess.run([*JOB, "-m", "tests.script", "script.py"], cwd=project, check=True)
