"""Valid specs, configs, clusters, profiles, traces and logs, damaged at random: right, or refused in one sentence.

PIPELAG_TEST_FACTOR=50 looks fifty times as long as the ordinary suite does.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelag.commands import partition as partition_command
from pipelag.commands.run import read_spec
from pipelag.commands.timeline import recorded
from pipelag.errors import PipelagError
from pipelag.experiments import arms, check_workflow
from pipelag.experiments.schema import Paper, Scale, read, validate
from pipelag.files import read_yaml
from pipelag.partitioner.cluster import Cluster
from pipelag.partitioner.search import partition
from pipelag.results.logs import read_log
from pipelag.runs.folder import seal
from pipelag.runs.spec import RunSpec
from pipelag.timing.layers import Profile
from tests.inputs.sizes import FACTOR

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30.0  # of a processor that a refusal may take at most; what is meant takes hours, or for ever

SPECS: list[dict[str, Any]] = [
    {
        "model": {"name": "resnet20", "options": {"width": 0.5}},
        "data": {"name": "shapes", "augment": True, "options": {"train": 100, "test": 20}},
        "batch": 20,
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": True},
        "lr_schedule": {"name": "milestones", "gamma": 0.1, "milestones": [0.5, 0.75], "warmup": 3},
        "phases": [
            {"method": "pipemare", "steps": 10, "cuts": [3, 9], "options": {"annealing": 5}, "stage_lr": {"1": 0.01}},
            {"method": "1f1b", "steps": 5, "cuts": [5], "microbatches": 2, "replicas": [2, 1], "recompute": True},
        ],
        "evaluate_every": 5,
        "seed": 3,
    },
    {
        "kind": "partition",
        "model": {"name": "vgg16"},
        "optimizer": {"name": "adam", "lr": 0.001, "betas": [0.9, 0.99], "eps": 1e-8},
        "options": {
            "profile": {"roofline": "v100", "inputs": [{"shape": [3, 32, 32]}]},
            "cluster": {"levels": [{"workers": 4, "bandwidth": 1e9}, {"workers": 2, "bandwidth": 1e8}], "memory": 16e9},
            "given": {"one": {"replicas": [2, 1], "cuts": [3]}},
            "arms": {"PipeDream": {"method": "pipedream", "batch": "largest"}},
        },
    },
    {"kind": "theory", "options": {"study": "trajectories", "forward": 5, "alpha": 0.1, "steps": 10}},
    {
        "kind": "timeline",
        "phases": [{"method": "gpipe", "steps": 2, "cuts": [1, 2], "microbatches": 4}],
        "options": {"costs": {"forward": 1, "backward": 2}, "topology": {"bandwidth": 2.0}, "clock": "lockstep"},
    },
]
CLUSTER: dict[str, Any] = {"levels": [{"workers": 4, "bandwidth": 1e9}], "memory": 16e9, "note": "ours"}
ROW = {"name": "l", "forward_ms": 1.0, "backward_ms": 2.0, "output_bytes": 10, "kept_bytes": 5, "weight_bytes": 7}
PROFILE: list[Any] = [{"layer": number, **ROW} for number in (1, 2, 3)]
EVENT = {"ph": "X", "pid": 0, "tid": 1, "ts": 5.0, "dur": 2.5, "cat": "forward", "args": {"stage": 1, "minibatch": 0}}
TRACE: dict[str, Any] = {"traceEvents": [{"ph": "M", "pid": 0, "tid": 0, "args": {"name": "worker 0"}}, EVENT, EVENT]}

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 10**6, 10**9, 2**63, -(2**63), 10**30, int("9" * 4000)),
    *(0.0, -0.5, 1.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
    *("", " ", "x", "1", "nan", "resnet999999998", "../..", "a\nb", "{x}", "a" * 5000, "$(touch F)", "ü☃", "\ud800"),
    *([], {}, [[]], [None], {"": None}, [1, 1], [2, 1], ["1-999999999"], {"a": {"b": [1]}}, list(range(20_000))),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@st.composite
def damaged(draw: Any, good: Any) -> Any:
    """A value with one to three things dropped, misspelt, doubled, exchanged or made odd."""
    value = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        spots = list(places(value))
        if not spots:
            return value
        *above, key = draw(st.sampled_from(spots))
        inside = value
        for part in above:
            inside = inside[part]
        how = draw(st.sampled_from(["odd", "odd", "odd", "drop", "misspell", "double", "swap", "deep", "text"]))
        if how == "drop":
            del inside[key]
        elif how == "misspell" and isinstance(inside, dict):
            inside[draw(st.sampled_from([str(key)[:-1], f"{key}s", str(key).upper(), " ", 7]))] = inside.pop(key)
        elif how == "double" and isinstance(inside, list):
            inside.append(copy.deepcopy(inside[key]))
        elif how == "swap":
            *other, last = draw(st.sampled_from(spots))
            source = value
            try:
                for part in (*other, last):
                    source = source[part]
            except (KeyError, IndexError, TypeError):
                continue
            inside[key] = copy.deepcopy(source)
        elif how == "deep":
            inside[key] = nested(draw(st.sampled_from([3, 40, 100])))
        elif how == "text":
            inside[key] = draw(st.text(max_size=20))
        else:
            inside[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return value


@st.composite
def broken(draw: Any, good: str) -> bytes:
    """A text as bytes: cut off, a byte flipped, a part doubled, in another encoding, nested, or not there."""
    content = good.encode("utf-8", "surrogatepass")
    how = draw(st.sampled_from(["as it is", "cut", "flip", "double", "utf16", "zero", "prefix", "empty"]))
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if how == "cut":
        return content[:at]
    if how == "flip" and content:
        return content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
    if how == "double":
        return content[:at] + content[at // 2 :]
    if how == "utf16":
        return good.encode("utf-16", "surrogatepass")
    if how == "zero":
        return content[:at] + b"\0" * 4096
    if how == "prefix":
        return draw(st.sampled_from([b"[" * 3000, b"&a [*a]\n", b"{" * 200, b"\xef\xbb\xbf", b"!!python/x "])) + content
    return b"" if how == "empty" else content


def right_or_refused(act: Callable[[], Any]) -> Any:
    """What it gives; a refusal has to be one sentence, in pipelag's words, and quick. Anything else fails the test."""
    begun = time.process_time()
    try:
        result = act()
    except PipelagError as error:
        message = str(error)
        assert message and len(message) < 3000 and "Input should" not in message and "validation error" not in message
        result = None
    assert time.process_time() - begun < SECONDS
    return result


def looked_at(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples * FACTOR,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def json_text(value: Any) -> str:
    return json.dumps(value)


def yaml_text(value: Any) -> str:
    try:
        return yaml.safe_dump(value)
    except yaml.YAMLError:
        return json.dumps(value)


@looked_at(250)
@given(st.data())
def test_specs(data: st.DataObject) -> None:
    value = data.draw(damaged(data.draw(st.sampled_from(SPECS))))
    spec = right_or_refused(lambda: read_spec(json_text(value), None))
    if spec is not None:  # taken: its identity is that of what it says, and it can be read again
        reread = RunSpec.model_validate(json.loads(spec.canonical()))
        assert reread.id == spec.id and reread.steps == spec.steps >= 0


@looked_at(60)
@given(st.data())
def test_spec_files(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(data.draw(broken(yaml_text(data.draw(st.sampled_from(SPECS))))))
    right_or_refused(lambda: read_spec(None, path))


@looked_at(60)
@given(st.data())
def test_clusters(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(data.draw(broken(yaml_text(data.draw(damaged(CLUSTER))))))
    cluster = right_or_refused(lambda: Cluster.load(path))
    if cluster is not None:
        assert cluster.workers >= 1
        profile = Profile(tuple(_profile(tmp_path).layers))
        right_or_refused(lambda: partition(profile, cluster) if cluster.workers <= 64 else None)


def _profile(folder: Path) -> Profile:
    (folder / "good.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROFILE))
    return Profile.load(folder / "good.jsonl")


@looked_at(80)
@given(st.data())
def test_profiles(tmp_path: Path, data: st.DataObject) -> None:
    rows = data.draw(damaged(PROFILE))
    path = tmp_path / "profile.jsonl"
    path.write_bytes(data.draw(broken("".join(json_text(row) + "\n" for row in rows))))
    profile = right_or_refused(lambda: partition_command.read_profile(path)[0])
    if profile is not None:
        assert [layer.layer for layer in profile.layers] == list(range(1, len(profile.layers) + 1))
        plan = right_or_refused(lambda: partition(profile, Cluster.of(CLUSTER)))
        assert plan is None or plan.period > 0


GRAPH = "".join(
    f"node{n} -- Conv -- forward_compute_time={n}.0, backward_compute_time=2.0, activation_size=9.0, parameter_size=5\n"
    for n in range(1, 6)
) + "".join(f"\tnode{n} -- node{n + 1}\n" for n in range(1, 5))


@looked_at(80)
@given(st.data())
def test_published_profiles(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "graph.txt"
    path.write_bytes(data.draw(broken(GRAPH)))
    published = right_or_refused(lambda: partition_command.read_profile(path))
    assert published is None or published[0].layers


@looked_at(80)
@given(st.data())
def test_traces(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / "trace.json").write_bytes(data.draw(broken(json_text(data.draw(damaged(TRACE))))))
    rows = right_or_refused(lambda: recorded(tmp_path))
    assert rows is None or all(row["end"] >= row["start"] >= 0 for row in rows)


ROWS = [{"step": 5, "loss": 1.0, "accuracy": 50.0}, {"step": 10, "loss": 0.5, "accuracy": 60.0}]
LOG = "".join(json.dumps(row) + "\n" for row in ROWS)
SUMMARY = {"id": "x", "kind": "train", "status": "finished", "steps": 10, "final": {}, "log": seal(LOG)}


@looked_at(60)
@given(st.data())
def test_logs(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(data.draw(broken(LOG)))
    (tmp_path / "summary.json").write_bytes(data.draw(broken(json_text(data.draw(damaged(SUMMARY))))))
    read = right_or_refused(lambda: read_log(tmp_path))
    assert read is None or isinstance(read.summary, dict)


WORKFLOW = yaml.safe_load((ROOT / "config/config.yaml").read_text())
PAPER = yaml.safe_load((ROOT / "config/papers/leaderboard.yaml").read_text())
SCALE = yaml.safe_load((ROOT / "config/scales/standard.yaml").read_text())


@looked_at(60)
@given(st.data())
def test_workflow_configs_and_scales(data: st.DataObject) -> None:
    right_or_refused(lambda: check_workflow(data.draw(damaged(WORKFLOW))))
    right_or_refused(lambda: validate(Scale, data.draw(damaged(SCALE)), "scale"))


@looked_at(12)
@given(st.data())
def test_papers(data: st.DataObject) -> None:
    value = data.draw(damaged(PAPER))
    paper = right_or_refused(lambda: validate(Paper, value, "paper"))
    scale = validate(Scale, {"name": "own", "title": "t", "note": "n"}, "scale")
    for result in paper.results if paper is not None else ():
        right_or_refused(lambda result=result: arms(paper, result, scale))  # type: ignore[misc]


def test_the_files_of_this_project_are_right() -> None:
    for path in sorted((ROOT / "config").rglob("*.yaml")):
        assert read_yaml(path, "a config file")
    assert read(Paper, ROOT / "config/papers/leaderboard.yaml").results


def test_what_is_damaged_is_right_before(tmp_path: Path) -> None:
    """Else every damaged one would be refused for that."""
    for name, text in (
        ("cluster.yaml", yaml_text(CLUSTER)),
        ("graph.txt", GRAPH),
        ("trace.json", json_text(TRACE)),
        ("metrics.jsonl", LOG),
        ("summary.json", json_text(SUMMARY)),
    ):
        (tmp_path / name).write_text(text)
    assert Cluster.load(tmp_path / "cluster.yaml").workers == 4 and len(_profile(tmp_path).layers) == 3
    assert len(partition_command.read_profile(tmp_path / "graph.txt")[0].layers) == 5
    assert [row["kind"] for row in recorded(tmp_path)] == ["F", "F"]
    log = read_log(tmp_path)
    assert log is not None and (log.rows, log.summary) == (ROWS, SUMMARY)
    check_workflow(WORKFLOW)
    assert validate(Scale, SCALE, "scale").name == "standard" and validate(Paper, PAPER, "paper").results


@pytest.mark.parametrize("spec", SPECS)
def test_the_specs_that_are_damaged_are_right(spec: dict[str, Any]) -> None:
    assert read_spec(json.dumps(spec), None).kind == spec.get("kind", "train")
