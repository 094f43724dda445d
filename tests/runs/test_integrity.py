"""Nothing is lost and nothing wrong is taken: damaged checkpoints, lost tails of logs, folders of other runs, seals."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelag import checkpoint
from pipelag.errors import PipelagError
from pipelag.experiments import arms, load_paper, load_scale, run_dir
from pipelag.files import alone, folder_for
from pipelag.results.context import Context
from pipelag.results.logs import Item, read_log
from pipelag.runs import folder as folders
from pipelag.runs.carry_out import carry_out
from pipelag.runs.kinds import train_simulated
from pipelag.runs.spec import RunSpec
from tests.inputs.sizes import FACTOR
from tests.runs.test_runs import SPEC, lines


class Interrupted(Exception):
    """What ends a run in the middle."""


def spec(**changes: Any) -> RunSpec:
    return RunSpec.model_validate(SPEC | {"evaluate_every": 5, "options": {}} | changes)


def trained(out: Path, **changes: Any) -> list[dict[str, Any]]:
    carry_out(spec(**changes), out, "cpu", 1)
    return lines(out)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken")
    trained(out)
    return out


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that ended in its 22nd step, with checkpoints after every step."""
    out = tmp_path / "broken"
    monkeypatch.setattr(train_simulated, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(train_simulated, "FLUSH_STEPS", 1)
    whole = train_simulated.SimulatedTraining.step

    def step(self: Any, *batch: Any) -> torch.Tensor:
        if self.done == 21:
            raise Interrupted
        return whole(self, *batch)

    with monkeypatch.context() as context:
        context.setattr(train_simulated.SimulatedTraining, "step", step)
        with pytest.raises(Interrupted):
            trained(out)
    return out


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every step that is taken from now on, how many were done before it: the first says where a run goes on."""
    steps, whole = list[int](), train_simulated.SimulatedTraining.step

    def step(self: Any, *batch: Any) -> torch.Tensor:
        steps.append(self.done)
        return whole(self, *batch)

    monkeypatch.setattr(train_simulated.SimulatedTraining, "step", step)
    return steps


def zeroed(path: Path) -> None:
    """Lose a block in the middle, as a disk does."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 512] = bytes(512)
    path.write_bytes(content)


def test_a_broken_run_goes_on_from_its_newest_checkpoint(broken: Path, unbroken: Path, taken: list[int]) -> None:
    assert trained(broken) == lines(unbroken) and taken == list(range(21, 30))


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(
    broken: Path, unbroken: Path, taken: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    newest = broken / "partial/checkpoint.pt"
    done = [torch.load(path)["training"]["done"] for path in (newest, checkpoint.before(newest))]
    assert done == [21, 20]
    zeroed(newest)
    assert trained(broken) == lines(unbroken) and taken == list(range(20, 30))
    assert "is damaged and was set aside as checkpoint.damaged" in capfd.readouterr().err


def test_a_run_that_goes_on_knows_how_long_it_has_taken_and_what_was_its_best(broken: Path) -> None:
    newest = broken / "partial/checkpoint.pt"
    saved = checkpoint.load(newest, of=spec().id)
    assert saved is not None and 0 < saved["recorder"]["seconds"] < 1000 and saved["recorder"]["best"]["step"] <= 20
    saved["recorder"] |= {"seconds": 1000.0, "best": {"accuracy": 100.0, "step": 5}}
    checkpoint.save(saved, newest, of=spec().id)
    trained(broken)
    rows = [json.loads(line) for line in (broken / "metrics.jsonl").read_text().splitlines()]
    assert all((row["seconds"] > 1000) == (row["step"] > 21) for row in rows)
    summary = json.loads((broken / "summary.json").read_text())
    assert summary["seconds"] == rows[-1]["seconds"] and summary["best"] == {"accuracy": 100.0, "step": 5}


def test_a_finished_run_with_a_half_made_one_beside_it_is_gone_on_with(
    broken: Path, unbroken: Path, taken: list[int]
) -> None:
    """As after --again was stopped."""
    for path in unbroken.iterdir():
        shutil.copy(path, broken)
    assert folders.finished(unbroken, spec().id) is not None and folders.finished(broken, spec().id) is None
    assert trained(broken) == lines(unbroken) and taken == list(range(21, 30))


@pytest.mark.parametrize(
    "change", [lambda log: log[:-9], lambda log: log.replace('"step": 5', '"step": 7'), lambda log: ""]
)
def test_a_finished_run_whose_log_is_another_is_not_taken_for_it(tmp_path: Path, unbroken: Path, change: Any) -> None:
    shutil.copytree(unbroken, tmp_path / "copy")
    log = tmp_path / "copy/metrics.jsonl"
    log.write_text(change(log.read_text()))
    assert folders.finished(tmp_path / "copy", spec().id) is None


def test_a_finished_run_is_not_taken_for_another(unbroken: Path) -> None:
    assert folders.finished(unbroken, spec().id) is not None and folders.finished(unbroken, spec(seed=3).id) is None


def test_what_a_checkpoint_counts_on_is_on_the_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut at any moment leaves a whole checkpoint and the log that it knows."""
    events, sync, replace = list[tuple[str, str]](), os.fsync, os.replace

    def synced(number: int) -> None:
        synced_one = os.fstat(number).st_ino  # a name for it; /proc, where its number has one, is Linux's
        events.extend(("sync", path.name) for path in tmp_path.rglob("*") if path.stat().st_ino == synced_one)
        sync(number)

    def replaced(one: Path, other: Path) -> None:
        events.append((Path(one).name, Path(other).name))
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(train_simulated, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(train_simulated, "FLUSH_STEPS", 5)
    trained(tmp_path)
    first = [
        ("sync", "metrics.jsonl"), ("sync", "checkpoint.tmp"), ("checkpoint.tmp", "checkpoint.pt"), ("sync", "partial"),
    ]  # fmt: skip
    others = [*first[:2], ("checkpoint.pt", "checkpoint-before.pt"), *first[2:]]
    made = [event for event in events if event[0] == "sync" or event[0].startswith("checkpoint")]
    assert made[made.index(first[0]) :][: 4 + 4 * 5] == [*first, *(others * 4)]


def test_other_data_do_not_go_on(broken: Path) -> None:
    """A run's id has the name of its data, whose files may be others meanwhile."""
    newest = broken / "partial/checkpoint.pt"
    saved = checkpoint.load(newest, of=spec().id)
    assert saved is not None
    told = json.loads(saved["data"])
    saved["data"] = json.dumps(told | {"train": 399})
    checkpoint.save(saved, newest, of=spec().id)
    with pytest.raises(
        PipelagError, match="checkpoint.pt was written with data whose train is 399, but here it is 400; restore"
    ):
        trained(broken)
    assert newest.exists()


def test_without_a_whole_checkpoint_a_run_starts_again(broken: Path, unbroken: Path, taken: list[int]) -> None:
    zeroed(broken / "partial/checkpoint.pt")
    (broken / "partial/checkpoint-before.pt").write_bytes(b"half")
    assert trained(broken) == lines(unbroken) and taken == list(range(30))


@pytest.mark.parametrize("left", [0, 100])
def test_a_log_that_lost_its_tail_is_written_again(broken: Path, unbroken: Path, left: int) -> None:
    log = broken / "partial/metrics.jsonl"
    log.write_bytes(log.read_bytes()[:left])
    assert trained(broken) == lines(unbroken)
    assert b"\0" not in (broken / "metrics.jsonl").read_bytes()


def test_a_log_that_is_not_what_it_was_at_the_checkpoint_is_written_again(broken: Path, unbroken: Path) -> None:
    """Nor is it sealed as if the run had written it."""
    log = broken / "partial/metrics.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"step": 5', b'"step": 7'))
    assert trained(broken) == lines(unbroken)


def test_a_log_that_changes_under_a_run_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    whole = folders.RunFolder.finish

    def changed(self: folders.RunFolder, *words: Any) -> None:
        self.metrics.write_bytes(self.metrics.read_bytes()[10:])
        whole(self, *words)

    with monkeypatch.context() as context:
        context.setattr(folders.RunFolder, "finish", changed)
        with pytest.raises(PipelagError, match="is not what this run wrote"):
            trained(tmp_path / "x")
    assert not (tmp_path / "x/summary.json").exists() and trained(tmp_path / "x") == lines(unbroken)


@pytest.mark.parametrize("name", ["id", "checkpoint-before.pt", "metrics.jsonl"])
def test_files_that_have_each_others_name_are_not_taken_for_each_other(broken: Path, unbroken: Path, name: str) -> None:
    newest, other, aside = broken / "partial/checkpoint.pt", broken / "partial" / name, broken / "aside"
    for one, two in ((newest, aside), (other, newest), (aside, other)):
        one.rename(two)
    assert trained(broken) == lines(unbroken)


def test_a_checkpoint_of_another_run_is_set_aside(broken: Path, unbroken: Path, tmp_path: Path) -> None:
    """Where the file that says whose the folder is was lost."""
    (broken / "partial/id").unlink()
    changed = spec(optimizer={"lr": 0.02})
    carry_out(changed, broken, "cpu", 1)
    carry_out(changed, tmp_path / "new", "cpu", 1)
    assert lines(broken) == lines(tmp_path / "new") != lines(unbroken)


def test_what_is_no_file_where_a_run_keeps_one_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    cases: dict[str, Any] = {
        "summary.json": (os.mkfifo, "is a device or a pipe, where a run keeps a file"),
        "metrics.jsonl": (os.mkdir, "is a folder, where a run keeps a file"),
        "model.pt": (lambda path: os.symlink(path, path), "Too many levels of symbolic links"),
        "partial": (lambda path: Path(path).write_text(""), "is a file, where a run keeps a folder"),
        "partial-over": (lambda path: Path(path).write_text(""), "is a file, where a run keeps a folder"),
    }
    for name, (make, sentence) in cases.items():
        out = tmp_path / name
        out.mkdir()
        make(out / name)
        with pytest.raises(PipelagError, match=sentence):
            trained(out)
        with pytest.raises(PipelagError, match=sentence):
            folders.finished(out, spec().id)


def test_a_link_that_leads_nowhere_is_named_with_what_it_leads_to(tmp_path: Path) -> None:
    link, nowhere = tmp_path / "link", tmp_path / "nowhere"
    link.symlink_to(nowhere)
    sentence = f"'{link}' is a symbolic link to '{nowhere}', which does not exist"
    for use in (folder_for, trained, lambda out: folder_for(out / "sub"), lambda out: trained(out / "sub")):
        with pytest.raises(PipelagError, match=sentence):
            use(link)
    nowhere.mkdir()
    trained(link, phases=[{"method": "sequential", "steps": 2}])  # a link to a folder is as good as the folder
    assert (nowhere / "summary.json").exists() and not (nowhere / "partial").exists()


def test_a_file_in_a_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/sub", "file/sub/subsub"):
        with pytest.raises(PipelagError, match=f"cannot be used as a folder to write to: '{tmp_path}/file' is a file;"):
            folder_for(tmp_path / name)


def test_a_working_folder_that_is_a_link_is_refused_before_the_run_and_not_emptied_after_it(tmp_path: Path) -> None:
    """Its removal failed when all was trained; where the link leads, other things may lie."""
    elsewhere, short = tmp_path / "elsewhere", {"phases": [{"method": "sequential", "steps": 2}]}
    (elsewhere / "mine").mkdir(parents=True)
    (tmp_path / "partial").symlink_to(elsewhere)
    with pytest.raises(PipelagError, match="partial' is a symbolic link, but a run removes it .* whole folder"):
        trained(tmp_path, **short)
    assert [*elsewhere.iterdir()] == [elsewhere / "mine"]
    (tmp_path / "partial").rename(tmp_path / "partial-over")  # as a run of an earlier version left it
    trained(tmp_path, **short)
    assert folders.finished(tmp_path, spec(**short).id) and [*elsewhere.iterdir()] == [elsewhere / "mine"]
    assert not list(tmp_path.glob("partial*"))


def test_a_pipe_in_a_checkpoints_place_is_set_aside_and_not_waited_for(tmp_path: Path) -> None:
    """Of a real run's many files each: what stands in a set is known by its set alone."""
    pipe = tmp_path / "losses-2-of-2.pt"
    os.mkfifo(pipe)
    assert not checkpoint.whole(pipe) and checkpoint.load(pipe) is None
    assert not pipe.exists() and pipe.with_suffix(".damaged").is_fifo()


def test_a_checkpoint_that_cannot_be_opened_now_is_not_taken_for_damaged(tmp_path: Path) -> None:
    """As when a process has as many files open as it may: the next start can go on from it."""
    path = tmp_path / "checkpoint.pt"
    checkpoint.save({"step": 3}, path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 8, limits[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(PipelagError, match="cannot be opened .Too many open files.; fix that and start again"):
            checkpoint.load(path)
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert checkpoint.load(path) == {"step": 3}


def test_a_model_that_is_not_what_its_run_wrote_is_made_anew(tmp_path: Path) -> None:
    saved = {"options": {"save_model": True}, "phases": [{"method": "sequential", "steps": 2}]}
    trained(tmp_path, **saved)
    model, right = tmp_path / "model.pt", (tmp_path / "model.pt").read_bytes()
    assert folders.finished(tmp_path, spec(**saved).id) is not None
    for damage in (zeroed, Path.unlink):
        damage(model)
        assert folders.finished(tmp_path, spec(**saved).id) is None
        trained(tmp_path, **saved)
        assert model.read_bytes() == right


def test_two_processes_do_not_make_a_run_of_any_kind_at_once(tmp_path: Path) -> None:
    """The second would begin the log anew that the first counts on."""
    timeline = RunSpec.model_validate({"kind": "timeline", "phases": [{"method": "stale_weights", "steps": 4}]})
    for number, of in enumerate((spec(), timeline)):
        refused = pytest.raises(PipelagError, match="another process is at work in .*partial; wait for it, or choose")
        with alone(tmp_path / str(number) / "partial"), refused:
            carry_out(of, tmp_path / str(number), "cpu", 1)
        carry_out(of, tmp_path / str(number), "cpu", 1)


def test_a_run_that_srun_has_started_several_times_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun --ntasks 4 pipelag run`: one of them trains, and the others should not only speak of waiting."""
    with alone(tmp_path / "partial"):
        for tasks, hint in (("1", False), ("4", True)):
            monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
            with pytest.raises(PipelagError, match="another process is at work in .*choose another folder") as refused:
                carry_out(spec(), tmp_path, "cpu", 1)
            assert ("srun has started 4 processes of this command" in str(refused.value)) == hint


def test_what_a_kill_while_publishing_left_is_gone_when_the_run_is_made(tmp_path: Path) -> None:
    left, others = [tmp_path / ".0123456789ab.json", tmp_path / ".ba9876543210.yaml"], tmp_path / ".notes.json"
    for path in (*left, others):
        path.write_text("half")
    trained(tmp_path)
    assert not any(path.exists() for path in left) and others.exists()


def test_a_place_that_cannot_be_dropped_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    """The run has ended by then, and is read."""

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", "a file in it")

    with monkeypatch.context() as context:
        context.setattr(folders.shutil, "rmtree", refused)
        with pytest.raises(PipelagError, match=r"is finished, but .*partial.* cannot be removed \(Permission denied\)"):
            trained(tmp_path)
    assert read_log(tmp_path) is not None and lines(tmp_path) == lines(unbroken)


@pytest.mark.parametrize("name", ["environment.json", "config.yaml"])
def test_what_a_run_says_of_itself_is_held_to_what_it_wrote(tmp_path: Path, unbroken: Path, name: str) -> None:
    shutil.copytree(unbroken, tmp_path / "copy")
    path = tmp_path / "copy" / name
    run = json.loads((tmp_path / "copy/summary.json").read_text())["id"]
    assert folders.finished(tmp_path / "copy", run) is not None
    for damage in (zeroed, lambda path: path.write_text(path.read_text().replace("date", "data") + "\n"), Path.unlink):
        damage(path)
        assert folders.finished(tmp_path / "copy", run) is None
        with pytest.raises(PipelagError, match=r"the log in .* (is damaged|is not what its run wrote)"):
            read_log(tmp_path / "copy")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "damaged \\(metrics.jsonl, line {last}: .* at character"),
        (lambda lines: [lines[0], "\n", *lines[1:]], "damaged \\(metrics.jsonl, line 2: .* at character 1\\)"),
        (lambda lines: [*lines[:-1], "\0" + lines[-1]], "metrics.jsonl' is not a run's log: it is binary"),
        (lambda lines: [lines[0], *lines], "not what its run wrote \\(metrics.jsonl\\)"),
        (lambda lines: lines[::-1], "not what its run wrote \\(metrics.jsonl\\)"),
    ],
    ids=["cut", "blank line", "NUL", "a line twice", "another order"],
)
def test_a_damaged_line_of_a_log_is_named(
    tmp_path: Path, unbroken: Path, damage: Callable[[list[str]], list[str]], sentence: str
) -> None:
    shutil.copytree(unbroken, tmp_path / "copy")
    log = tmp_path / "copy/metrics.jsonl"
    written = log.read_text().splitlines(keepends=True)
    log.write_text("".join(damage(written)))
    with pytest.raises(PipelagError, match=sentence.format(last=len(written)) + ".*; delete the folder to make it"):
        read_log(tmp_path / "copy")


@pytest.mark.parametrize("name", ["summary.json", "environment.json", "config.yaml"])
def test_a_folder_in_the_place_of_a_logs_file_is_no_log(tmp_path: Path, unbroken: Path, name: str) -> None:
    shutil.copytree(unbroken, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    (tmp_path / "copy" / name).mkdir()
    with pytest.raises(PipelagError, match=f"{name}.*; delete the folder to make it"):
        read_log(tmp_path / "copy")


def test_every_byte_of_a_summary_counts(tmp_path: Path, unbroken: Path) -> None:
    """A bit of any of them flipped: what is read is what was written, or nothing is."""
    shutil.copytree(unbroken, tmp_path / "copy")
    path = tmp_path / "copy/summary.json"
    content = path.read_bytes()
    written, chance, damaged = json.loads(content), random.Random(0), 0
    for at in range(0, len(content), 1 if FACTOR > 1 else 3):
        flipped = bytearray(content)
        flipped[at] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        assert folders.finished(path.parent, written["id"]) in (None, written)
        try:
            log = read_log(path.parent)
            assert log is not None and log.summary == written
        except PipelagError:
            damaged += 1
    assert damaged


def test_every_byte_of_a_checkpoint_counts(tmp_path: Path) -> None:
    """A bit of any of them flipped: what is read is what was written, or nothing is."""
    path, state = tmp_path / "c.pt", {"a": [1, 2.5], "b": torch.arange(3.0)}
    checkpoint.save(state, path, of="a run")
    content = path.read_bytes()
    chance, damaged = random.Random(0), 0
    for at in range(0, len(content), 1 if FACTOR > 1 else 7):
        flipped = bytearray(content)
        flipped[at] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        loaded = checkpoint.load(path, of="a run")
        damaged += loaded is None
        assert loaded is None or (loaded["a"] == state["a"] and torch.equal(loaded["b"], state["b"]))
    assert damaged
    path.write_bytes(content)
    assert checkpoint.load(path, of="another") is None and path.with_suffix(".damaged").exists()


def test_a_run_that_failed_while_it_was_published_goes_on(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = folders.write_whole

    def full(path: Path, text: str) -> None:
        if path.name == "summary.json":
            raise OSError(28, "No space left on device")
        write(path, text)

    with monkeypatch.context() as context:
        context.setattr(folders, "write_whole", full)
        with pytest.raises(OSError, match="No space"):
            trained(tmp_path / "x")
    files = {path.name for path in (tmp_path / "x").iterdir() if path.is_file()}
    assert files == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
    }  # the summary comes last: it says that all is there
    assert lines(tmp_path / "x") == lines(unbroken)
    assert trained(tmp_path / "x") == lines(unbroken)


def test_a_folder_belongs_to_one_run(broken: Path, unbroken: Path) -> None:
    for changes in ({"seed": 3}, {"batch": 10}, {"optimizer": {"lr": 0.02}}):
        for folder in (broken, unbroken):
            before = {path: path.read_bytes() for path in folder.rglob("*.json*")}
            with pytest.raises(PipelagError, match=f"holds the run {spec().id}, but this is run {spec(**changes).id}"):
                trained(folder, **changes)
            assert before == {path: path.read_bytes() for path in folder.rglob("*.json*")}


def test_what_a_run_has_logged_before_its_first_checkpoint_is_its_own_too(broken: Path, unbroken: Path) -> None:
    for path in (broken / "partial").glob("checkpoint*"):
        path.unlink()
    with pytest.raises(PipelagError, match=f"holds the run {spec().id}, but this is run {spec(seed=3).id}"):
        trained(broken, seed=3)
    assert trained(broken) == lines(unbroken)


def test_weights_that_are_no_numbers_are_divergence_even_if_the_last_loss_was_one(tmp_path: Path) -> None:
    last = {"phases": [{"method": "sequential", "steps": 1}], "optimizer": {"lr": 1e38, "weight_decay": 1e38}}
    trained(tmp_path, **last)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "diverged" and summary["final"] is None and summary["diverged_at"] == 1


@pytest.mark.parametrize("executor", ["simulated", "real"])
def test_so_is_a_loss_after_the_last_update_that_is_no_number(executor: str, tmp_path: Path) -> None:
    last = {"phases": [{"method": "sequential", "steps": 1}], "optimizer": {"lr": 1e37}, "executor": executor}
    trained(tmp_path, **last, workers=1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "diverged" and summary["final"] is None and summary["diverged_at"] == 1


def shorter(rows: str) -> str:
    return "\n".join(rows.splitlines()[:-1]) + "\n"


def better(rows: str) -> str:
    first = json.loads(rows.splitlines()[0]) | {"accuracy": 1e9}
    return rows.replace(rows.splitlines()[0], json.dumps(first))


@pytest.mark.parametrize("change", [shorter, better, lambda rows: "", lambda rows: rows[:-9], lambda rows: "[1]\n"])
def test_a_log_that_is_not_what_its_run_wrote_is_not_read(tmp_path: Path, unbroken: Path, change: Any) -> None:
    shutil.copytree(unbroken, tmp_path / "copy")
    path = tmp_path / "copy/metrics.jsonl"
    path.write_text(change(path.read_text()))
    with pytest.raises(PipelagError, match=r"the log in .* (is damaged|is not what its run wrote)"):
        read_log(tmp_path / "copy")


def test_a_log_of_another_run_or_of_fewer_steps_is_not_read(unbroken: Path) -> None:
    assert read_log(unbroken, spec()) is not None
    with pytest.raises(PipelagError, match=f"is of the run {spec().id}; delete"):
        read_log(unbroken, spec(seed=4))
    summary = unbroken / "summary.json"
    text = summary.read_text()
    fewer = json.loads(text) | {"steps": 10}
    summary.write_text(json.dumps(fewer | {"seal": folders.digest_of(fewer)}))
    with pytest.raises(PipelagError, match="ends after 10 of 30 steps"):
        read_log(unbroken, spec())
    summary.write_text(text)


def test_what_is_drawn_says_which_log_it_did_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper, scale = load_paper("stale_weights"), load_scale("quick")
    arm = next(arm for arm in arms(paper, "figure_5a", scale) if arm.spec.kind == "train")
    monkeypatch.chdir(tmp_path)
    out = run_dir(scale, arm.spec.id)
    out.mkdir(parents=True)
    (out / "metrics.jsonl").write_text('{"step": 1}\n')
    (out / "summary.json").write_text('{"id": "000000000000"}')
    item = Item.of(arm, scale)
    assert item.log is None and "is of the run 000000000000" in item.damaged
    context = Context(paper, "figure_5a", paper.results["figure_5a"], scale, [item])
    assert "is of the run 000000000000" in context.footer()
