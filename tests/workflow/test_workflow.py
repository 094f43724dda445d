"""The DAG, run by Snakemake in a copy of the project: what runs, what does not run again, what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelag.experiments import arms, load_paper, load_scale, papers, run_dir
from pipelag.plugins import load_plugins
from pipelag.results.drawing import DRAWINGS
from pipelag.results.named import drawing_code, drawing_files, report_code
from pipelag.runs.folder import digest_of, seal
from tests.workflow import forked

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.workflow


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.snakemake(folder, "--cores", "2", *words)


def planned(folder: Path, *words: str) -> dict[str, int]:
    """Rule -> jobs of a dry run."""
    done = snakemake(folder, "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    jobs = {}
    if "Job stats:" in text:
        for line in text.split("Job stats:")[1].strip().splitlines()[2:]:
            if not line.strip():
                break
            name, count = line.split()
            jobs[name] = int(count)
    return jobs


def write_log(folder: Path, run: str) -> None:
    """An empty log of a finished run."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("")
    summary = {"id": run, "log": seal("")}
    (folder / "summary.json").write_text(json.dumps(summary | {"seal": digest_of(summary)}))


def copied(folder: Path) -> Path:
    """The project in a folder, without logs, and so quick that real training through the whole DAG takes seconds."""
    for name in ("config", "profiles", "workflow"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    (folder / "results/published/cpu").mkdir(parents=True)
    shutil.copy(ROOT / "results/published/cpu/scale.yaml", folder / "results/published/cpu")
    quick = (folder / "config/scales/quick.yaml").read_text()
    quick = quick.replace("steps: 400, evaluate_every: 40", "steps: 6, evaluate_every: 3")
    (folder / "config/scales/quick.yaml").write_text(quick)
    return folder


def of_one_paper(folder: Path) -> Path:
    """A copy that asks for one paper: each start of Snakemake plans all that are asked for, which takes seconds."""
    config = folder / "config/config.yaml"
    text = re.sub(r"^papers: .*", "papers: [stale_weights]", config.read_text(), count=1, flags=re.M)
    assert text != config.read_text()
    config.write_text(text)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one paper; a test that needs another names it on the command line."""
    return of_one_paper(copied(tmp_path_factory.mktemp("project")))


def test_everything_is_planned_from_the_config(tmp_path: Path) -> None:
    project = copied(tmp_path / "project")
    jobs = planned(project)
    results = {(name, key): result for name in papers() for key, result in load_paper(name).results.items()}
    runs = {key: {arm.spec.id for arm in arms(load_paper(key[0]), key[1], load_scale("quick"))} for key in results}
    needed = set().union(*(runs[key] for key, result in results.items() if not result.optional))
    # An optional result is made with the others only if these need all of its runs in any case.
    beside = {key for key, result in results.items() if result.optional and runs[key] and runs[key] <= needed}
    assert ("stale_weights", "control") in beside and ("pipedream", "links") not in beside
    kinds = [result.kind for key, result in results.items() if not result.optional or key in beside]
    tables = sum(kind in ("table", "config", "text-claim") for kind in kinds)
    assert jobs["table"] == tables and jobs["figure"] == len(kinds) - tables and jobs["page"] == 1
    assert jobs["reports"] == 1 and planned(project, "report")["figure"] == jobs["figure"]
    assert tables >= 40 and len(kinds) >= 110 and jobs["run"] > 300
    assert planned(project, "stale_weights_figure_5a") == {
        "figure": 1,
        "run": 5,
        "stale_weights_figure_5a": 1,
        "total": 7,
    }


def test_a_larger_scale_fetches_its_data(project: Path) -> None:
    assert planned(project, "--config", "scale=paper", "--", "stale_weights_figure_5a")["fetch"] == 1


def test_an_optional_result_is_made_by_its_name_and_then_kept(project: Path) -> None:
    target, ask = "pipedream_links", ("--config", "papers=[pipedream]")
    runs = {arm.spec.id for arm in arms(load_paper("pipedream"), "links", load_scale("quick"))}
    everything = planned(project, *ask)
    assert planned(project, *ask, "--", target) == {"figure": 1, "run": len(runs), target: 1, "total": len(runs) + 2}
    for run in runs:
        write_log(project / run_dir(load_scale("quick"), run), run)
    try:
        with_logs = planned(project, *ask)
        assert (with_logs["figure"], with_logs["run"]) == (everything["figure"] + 1, everything["run"])
    finally:
        for run in runs:
            shutil.rmtree(project / run_dir(load_scale("quick"), run))


@pytest.mark.parametrize("deleted", ["figure_5a.png", "table_6.tex", "figure_5a.html", "index.html"])
def test_a_deleted_drawing_or_page_is_missed_by_the_default_target(project: Path, deleted: str) -> None:
    """Snakemake makes a missing file only if it is asked for, or if something that is made from it is missing too."""
    ask = ["--config", "scale=published"]
    figures, results = project / "figures/published", load_paper("stale_weights").results
    shutil.rmtree(figures, ignore_errors=True)
    (figures / "stale_weights").mkdir(parents=True)
    names = [f"{name}.{end}" for name in results for end in ("pdf", "svg", "png", "csv", "md", "tex", "json")]
    for name in [*names, *(f"{name}.html" for name in results), "index.html", "../index.html", "../stale_weights.pdf"]:
        (figures / "stale_weights" / name).touch()
    try:
        assert planned(project, *ask) == {}
        (figures / "stale_weights" / deleted).unlink()
        drawn = "figure" if deleted.endswith("png") else "table"
        remade = {"page": 1} if deleted.endswith("html") else {drawn: 1, "page": 1, "reports": 1}
        assert planned(project, *ask) == remade | {"all": 1, "total": 1 + len(remade)}
    finally:
        shutil.rmtree(figures)


def test_a_target_runs_for_real_and_then_only_what_changed(project: Path) -> None:
    target = "stale_weights_figure_5a"
    done = snakemake(project, target)
    assert done.returncode == 0, done.stderr
    assert (project / "figures/quick/stale_weights/figure_5a.pdf").exists()
    second = snakemake(project, target)
    assert "Nothing to be done" in second.stdout + second.stderr
    assert "Using workflow specific profile profiles/default" in second.stdout + second.stderr
    assert planned(project, "--config", "device=cpu", "--", target) == {}  # another device remakes nothing

    logs = sorted((project / "results/quick/runs").glob("*/metrics.jsonl"))
    assert len(logs) == 5
    logs[0].unlink()
    assert planned(project, target) == {"figure": 1, "run": 1, target: 1, "total": 3}
    assert snakemake(project, target).returncode == 0

    whole = logs[1].read_text()
    logs[1].write_text(whole[:100])
    looked = snakemake(project, "-np", target)
    assert looked.returncode == 0 and "; a run would set its summary aside" in looked.stderr
    assert logs[1].with_name("summary.json").exists()
    repaired = snakemake(project, target)
    assert (
        repaired.returncode == 0 and f"the log in {logs[1].parent.relative_to(project)} is damaged" in repaired.stderr
    )
    assert [json.loads(line)["step"] for line in logs[1].read_text().splitlines()] == [
        json.loads(line)["step"] for line in whole.splitlines()
    ]
    assert "Nothing to be done" in snakemake(project, target).stderr

    paper = project / "config/papers/stale_weights.yaml"
    text = paper.read_text()
    paper.write_text(
        text.replace("method: stale_weights, cuts: [1, 2]}", "method: stale_weights, cuts: [1, 2], lr_times: 0.5}", 1)
    )
    try:
        assert planned(project, target) == {"figure": 1, "run": 1, target: 1, "total": 3}  # that arm and no other
    finally:
        paper.write_text(text)

    scale = project / "config/scales/quick.yaml"
    text = scale.read_text()
    scale.write_text(text.replace("lenet5_sim: {", "lenet5_sim: {note: Small., ", 1))
    assert scale.read_text() != text
    try:  # what stands below a figure, and no run
        assert planned(project, target) == {"figure": 1, target: 1, "total": 2}
    finally:
        scale.write_text(text)

    rules = project / "workflow/rules/common.smk"
    text = rules.read_text()
    rules.write_text(text.replace("functools.cache(drawing_code)", "lambda paper: f'other code of {paper}'", 1))
    assert rules.read_text() != text
    try:
        assert planned(project, target) == {"figure": 1, target: 1, "total": 2}
    finally:
        rules.write_text(text)


def test_a_plugin_that_draws_a_papers_results_is_code_of_these_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, fixed = tmp_path / "my_drawings.py", drawing_code("theirs")
    plugin.write_text(
        "from pipelag.results.drawing import drawing\ndrawing('theirs', 'table_1')(lambda context: None)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELAG_PLUGINS", "my_drawings")
    try:
        load_plugins()
        first, other = drawing_code("theirs"), drawing_code("pipedream")
        plugin.write_text(plugin.read_text() + "# other columns\n")
        assert first != fixed and drawing_code("theirs") != first and drawing_code("pipedream") == other
    finally:
        DRAWINGS.pop(("theirs", "table_1"), None)
        sys.modules.pop("my_drawings", None)
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(("file", "drawn", "shown"), [
    ("results/pipemare/costs.py", False, False),
    ("results/pipedream/published.py", True, False),
    ("results/judging.py", True, False),
    ("report/tables.py", True, True),
    ("report/templates/index.html", False, True),
    ("runs/speedup.py", True, False),
    ("experiments/specs.py", True, False),
    ("timing/timed.py", True, False),
    ("methods/pipemare.py", True, False),
    ("runs/rates.py", False, False),
])  # fmt: skip
def test_what_draws_a_papers_results_and_what_shows_them(tmp_path: Path, file: str, drawn: bool, shown: bool) -> None:
    package = tmp_path / "pipelag"
    shutil.copytree(ROOT / "src/pipelag", package)
    before = drawing_code("pipedream", package), report_code(package)
    assert before == (drawing_code("pipedream"), report_code())
    caches = package / "report/__pycache__"
    caches.mkdir(exist_ok=True)
    (caches / "tables.cpython-311.pyc.140234").write_text("half a module, which another process is writing")
    assert report_code(package) == before[1]
    (package / file).write_text((package / file).read_text() + "\n")
    after = drawing_code("pipedream", package), report_code(package)
    assert [a != b for a, b in zip(after, before, strict=True)] == [drawn, shown]


def test_what_works_out_what_is_drawn_is_known_to_draw_it() -> None:
    """What results and report import of ours counts as drawing, or names, reads and keeps, and works nothing out."""
    keeps = "errors|files|plugins|data.files|runs.(spec|folder)|experiments(.(schema|expand|told))?|partitioner.advice"
    counted = {str(path.relative_to(ROOT / "src/pipelag")) for path in drawing_files("pipemare")}
    unknown = set()
    for path in [*(ROOT / "src/pipelag/results").rglob("*.py"), *(ROOT / "src/pipelag/report").rglob("*.py")]:
        for module in re.findall(r"^ *from pipelag(?:\.| import )([\w.]+)", path.read_text(), re.MULTILINE):
            file = module.replace(".", "/")
            if not module.startswith(("results", "report")) and not {f"{file}.py", f"{file}/__init__.py"} & counted:
                unknown |= set() if re.fullmatch(keeps, module) else {f"{path.name} imports {module}"}
    assert not unknown


def test_what_a_result_shows_of_others_draws_it_again(project: Path) -> None:
    """Another result's printed numbers stand beside its own; a footer says how far its runs are from the paper's."""
    target, words = "stale_weights_text_headline_speedup", ("--config", "scale=published", "--")
    done = snakemake(project, *words, target)
    assert done.returncode == 0 and planned(project, *words, target) == {}, done.stderr
    changes = [
        ("papers/stale_weights.yaml", "speedup_pipelined: 1.82", "speedup_pipelined: 1.83"),  # in table 5
        ("scales/paper.yaml", "setups:\n", "setups:\n  stale_weights: {resnet20_speed: {batch: 7}}\n"),
    ]
    for name, before, after in changes:
        file = project / "config" / name
        text = file.read_text()
        file.write_text(text.replace(before, after, 1))
        assert file.read_text() != text
        try:
            assert planned(project, *words, target) == {"table": 1, target: 1, "total": 2}, name
        finally:
            file.write_text(text)


def test_what_the_site_says_beside_its_records_makes_it_again(project: Path) -> None:
    paper, scale = project / "config/papers/at_scale.yaml", project / "results/published/cpu/scale.yaml"
    whole = paper.read_text()
    paper.write_text(whole.replace("table_3: {kind: table, optional: true,", "table_3: {kind: table,", 1))  # all of it
    words = ("--config", "scale=published", "papers=[at_scale]", "--", "figures/published/at_scale/index.html")
    try:
        done = snakemake(project, *words)
        assert done.returncode == 0 and planned(project, *words) == {}, done.stderr
        changes = [
            (paper, "short: At scale", "short: Large"),
            (scale, "title: real data on two", "title: real data on four"),
            (scale, "for a small part of", "for a part of"),
        ]
        for file, before, after in changes:
            text = file.read_text()
            file.write_text(text.replace(before, after, 1))
            assert file.read_text() != text
            try:
                assert planned(project, *words) == {"page": 1, "total": 1}, before
            finally:
                file.write_text(text)
    finally:
        paper.write_text(whole)


def test_the_published_scale_draws_the_logs_that_are_there_and_trains_only_when_told(project: Path) -> None:
    target = "stale_weights_figure_5a"
    scale = load_scale("published", "cpu")
    there = arms(load_paper("stale_weights"), "figure_5a", scale)[0]
    folder = project / run_dir(scale, there.spec.id)
    write_log(folder, there.spec.id)
    assert planned(project, "--config", "scale=published", "--", target) == {"figure": 1, target: 1, "total": 2}
    retrained = planned(project, "--config", "scale=published", "retrain=true", "--", target)
    assert retrained == {"fetch": 1, "figure": 1, "run": 14, target: 1, "total": 17}  # the log that is there stands
    (folder / "metrics.jsonl").write_text("{}")
    refused = snakemake(project, "--config", "scale=published", "--", target)
    assert refused.returncode != 0 and f"{there.spec.id} is not what its run wrote" in refused.stderr
    assert "git restore" in refused.stderr and (folder / "summary.json").exists()


def test_the_page_at_scale_shows_the_figures_of_the_scale_that_is_asked_for(project: Path) -> None:
    (project / "results/published/h100").mkdir()
    shutil.copy(ROOT / "results/published/h100/scale.yaml", project / "results/published/h100")
    ask = ["scale=published", "published=h100", "papers=[at_scale]"]
    words = ["--printshellcmds", "--config", *ask, "--", "scale"]
    done = snakemake(project, "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    assert "for file in figures/published-h100/at_scale/figure_1.svg" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scale=quik"], "unknown scale 'quik'; did you mean 'quick'"),
        (["scal=quick"], "unknown key 'scal'; did you mean 'scale'"),
        (["device=gpu"], "device is 'gpu', which is not known; did you mean 'cpu'"),
        (["papers=[stale_weight]"], "unknown paper 'stale_weight'; did you mean 'stale_weights'"),
        (["scale=published", "published=cpus"], "unknown published device 'cpus'; did you mean 'cpu'"),
    ],
)
def test_wrong_configuration_is_refused(project: Path, words: list[str], sentence: str) -> None:
    done = snakemake(project, "--dry-run", "--config", *words)
    assert done.returncode != 0 and sentence in done.stdout + done.stderr


def test_runs_ask_a_cluster_for_as_many_gpus_as_they_use(project: Path) -> None:
    words = ("--dry-run", "--config", "device=cuda", "--", "stale_weights_text_hybrid_speedup_bound")
    text = snakemake(project, *words).stdout
    asked = dict(re.findall(r"wildcards: id=(\w+)\s+(?:threads: \d+\s+)?resources: .*?gpu=(\d+)", text))
    paper = load_paper("stale_weights")
    specs = [arm.spec for arm in arms(paper, "text_hybrid_speedup_bound", load_scale("quick"))]
    assert {spec.id: int(asked[spec.id]) for spec in specs} == {
        spec.id: {"speed": 2, "profile": 1, "train": spec.workers}.get(spec.kind, 0) for spec in specs
    }
    assert {"0", "2"} <= {*asked.values()}


def test_an_unknown_result_is_refused(project: Path) -> None:
    done = snakemake(project, "--dry-run", "stale_weights_table_22")
    assert done.returncode != 0
    assert "unknown result 'stale_weights_table_22'; did you mean 'stale_weights_table_2'" in done.stdout + done.stderr


@pytest.mark.parametrize("target", ["pipemare", "pipemare_table_1"])
def test_a_paper_that_the_config_leaves_out_is_named(project: Path, target: str) -> None:
    done = snakemake(project, "--dry-run", "--config", "papers=[stale_weights]", "--", target)
    assert done.returncode != 0
    refusal = f"'{target}' needs 'pipemare' among the papers in config/config.yaml (or --config); add it there"
    assert refusal in done.stdout + done.stderr


def test_the_name_of_a_file_is_no_result(project: Path) -> None:
    done = snakemake(project, "--report", "stale_weights_report.zip", "--", "stale_weights_table_6")
    assert "unknown result" not in done.stdout + done.stderr


WAITING = """
import sys, time
from pathlib import Path
while "snakemake" not in sys.argv[0] and not Path("go").exists():
    time.sleep(0.05)
"""


def test_a_second_snakemake_at_the_same_time_is_refused(project: Path) -> None:
    """The first one's job waits for the second's refusal: a plugin, which it imports, sees to that."""
    (project / "waiting.py").write_text(WAITING)
    words = ["--forcerun", "figure", "--config", "plugins=[waiting]", "--", "stale_weights_figure_4"]
    first = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "1", *words],
        cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        locks = project / ".snakemake/locks"
        while not (locks.exists() and any(locks.iterdir())):
            assert first.poll() is None
            time.sleep(0.05)
        second = snakemake(project, "stale_weights_figure_4")
        assert second.returncode != 0 and "Directory cannot be locked" in second.stdout + second.stderr
    finally:
        (project / "go").touch()
        assert first.wait(timeout=600) == 0


def test_what_is_dated_ahead_of_the_clock_is_dated_back_in_its_order(project: Path) -> None:
    """Of logs that come from another machine, or before whose making the clock was set back."""
    target = "stale_weights_figure_4"
    assert snakemake(project, target).returncode == 0
    ids = {arm.spec.id for arm in arms(load_paper("stale_weights"), "figure_4", load_scale("quick"))}
    logs = [project / run_dir(load_scale("quick"), run) / "metrics.jsonl" for run in ids]
    later = time.time() + 9e6
    drawn = [path for path in (project / "figures/quick/stale_weights").glob("figure_4.*")]
    for number, path in enumerate([*logs, *drawn]):
        os.utime(path, (later + number, later + number))
    looked = snakemake(project, "--dry-run", target)
    assert f"{len(logs + drawn)} files are dated ahead of this machine's clock" in looked.stderr
    done = snakemake(project, target)
    assert done.returncode == 0 and "their dates are set to now" in done.stderr and "Nothing to be done" in done.stderr
    os.utime(logs[0], (later, later))  # this one was made after what is drawn from it
    done = snakemake(project, target)
    assert done.returncode == 0 and "figure_4 drawn" in done.stderr
    assert "Nothing to be done" in snakemake(project, target).stderr


def test_something_else_in_the_place_of_a_runs_folder_is_refused(project: Path) -> None:
    arm = arms(load_paper("stale_weights"), "table_6", load_scale("quick"))[0]
    folder = project / run_dir(load_scale("quick"), arm.spec.id)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("")
    try:
        done = snakemake(project, "stale_weights_table_6")
        sentence = f"'{folder.relative_to(project)}' is a file, where a run keeps a folder"
        assert done.returncode and sentence in done.stderr and "Traceback" not in done.stderr
    finally:
        folder.unlink()


def test_a_folder_whose_name_has_braces_is_refused(tmp_path: Path) -> None:
    folder = copied(tmp_path / "my {first} try")
    done = snakemake(folder, "--dry-run", "stale_weights_figure_1")
    assert done.returncode and "try has braces, which Snakemake takes for its own; rename" in done.stderr, done
    assert "Traceback" not in done.stderr


NOBODY = """
import os, pwd
def unknown(number): raise KeyError(f"getpwuid(): uid not found: {number}")
pwd.getpwuid = unknown
for name in ("LOGNAME", "USER", "LNAME", "USERNAME"): os.environ.pop(name, None)
"""


def test_a_user_who_is_only_a_number(project: Path) -> None:
    """As in a container with `--user 1234`; here a plugin, which the Snakefile imports, sees to that."""
    (project / "nobody.py").write_text(NOBODY)
    done = snakemake(project, "stale_weights_figure_2", "--config", "plugins=[nobody]")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done


HANGING_UP = """
import os, signal, sys, time
if "snakemake" in sys.argv[0]:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup, which ignores it
    with open("snakemake.pid", "w") as file:
        file.write(str(os.getpid()))
else:
    with open("snakemake.pid") as file:
        os.kill(int(file.read()), signal.SIGHUP)
    time.sleep(300)
"""


def test_a_terminal_that_is_closed_ends_the_jobs_and_leaves_no_lock(project: Path) -> None:
    """Here a plugin, which the jobs import, sends the signal."""
    (project / "hanging_up.py").write_text(HANGING_UP)
    began = time.monotonic()
    done = snakemake(project, "--forceall", "stale_weights_figure_2", "--config", "plugins=[hanging_up]")
    assert done.returncode and time.monotonic() < began + 300 and (project / "snakemake.pid").exists(), done
    assert not list(project.glob(".snakemake/locks/*")), done
    shutil.rmtree(project / ".snakemake")  # with the records of what was under way


def test_a_home_that_cannot_be_written_to_is_no_hindrance(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake makes its cache, in ~/.cache, before it reads the Snakefile."""
    monkeypatch.setenv("HOME", "/proc")  # where not even root can make a folder
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    shutil.rmtree(project / "results/published/cpu/runs", ignore_errors=True)
    for words in (["--dry-run"], []):  # no log is published here: a table says so
        done = snakemake(project, *words, "--config", "scale=published", "--", "stale_weights_table_6")
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
@pytest.mark.parametrize("folder", [".snakemake", "results", "figures"])
def test_a_project_that_cannot_be_written_to_is_refused(project: Path, folder: str) -> None:
    """A colleague's clone, a disk that is mounted to be read."""
    place = project / folder
    place.mkdir(exist_ok=True)
    bound = ["mount", "--bind", str(place), str(place)]
    if subprocess.run(bound, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        done = snakemake(project, "stale_weights_table_6")
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert done.returncode and "Traceback" not in done.stderr and "Snakefile" not in done.stderr
    assert "cannot be written to; make that possible, or work in a clone of your own" in done.stderr
