"""Bars and tables of times, bytes and counts: each number is what its title says, of the log that its row names.

Logs are made here with numbers of their own for every model, arm and cluster; what is drawn is worked out beside it by
hand: times as ratios over the right baseline, in the unit of the title.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, geometric_mean
from typing import Any

import pandas as pd
import pytest

from pipelag.experiments import Arm
from pipelag.report.tables import Table
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from pipelag.results.logs import RunLog
from tests.results.made_up import context, log

pytestmark = pytest.mark.usefixtures("in_project")


def made(paper: str, result: str, make: Callable[[Arm], RunLog | None], scale: str = "paper") -> Context:
    """A result's runs with these logs."""
    runs = context(paper, result, make, scale)
    load_results(runs.paper)
    return runs


def cells(runs: Context) -> list[dict[str, Any]]:
    """A table's rows by heading, as a reader sees them."""
    table: Table | None = draw(runs).table
    assert table is not None
    texts = table.texts()["rows"]
    return [{column.heading: text for column, text in zip(table.columns, row, strict=True)} for row in texts]


def bars(runs: Context, group: str, bar: str, height: str) -> dict[tuple[str, str], float]:
    """A figure's numbers by group and bar, each once."""
    data = draw(runs).data
    assert isinstance(data, pd.DataFrame) and not data.duplicated([group, bar]).any()
    return {(str(row[group]), str(row[bar])): float(row[height]) for row in data.to_dict("records")}


def titles(runs: Context) -> tuple[str, str]:
    """What a bar chart's axis says, and the format of the numbers above the bars."""
    chart = draw(runs).chart
    assert chart is not None
    return chart["y"]["title"], chart["number"]


# PipeDream ------------------------------------------------------------------------------------------------------------

PLANS = ("data parallel", "model parallel", "straight", "PipeDream", "PipeDream, ring", "several stages")
PLANS += ("several stages, not pipelined", "15-1", "2-1-1", "GPipe, NOAM", "GPipe, most that fit")
MODELS = ("VGG-16", "AlexNet", "GNMT-8", "GNMT-16", "ResNet-50", "AWD-LM", "S2VT")
SERVERS = ("1x4 (A)", "4x4 (A)", "3x4 (A)", "2x8 (B)", "4x1 (C)", "Cluster-A", "Cluster-B")


def seconds(plan: str, model: str = "VGG-16", servers: str = "1x4 (A)", batch: str = "") -> float:
    """Of a minibatch: another number for every plan, model, cluster and minibatch."""
    number = PLANS.index(plan) + 1
    return number + MODELS.index(model) / 8 * number + SERVERS.index(servers) / 64 + (0.01 if batch == "80" else 0.0)


def places(arm: Arm) -> dict[str, str]:
    """A plan's model, cluster and minibatch, as far as its labels say."""
    labels = arm.labels
    servers = labels.get("servers", labels["arm"] if labels["arm"] in SERVERS else "1x4 (A)")
    return {"model": labels.get("model", "VGG-16"), "servers": servers, "batch": labels.get("batch", "")}


def plans(arm: Arm) -> RunLog | None:
    """A plan's log; of the paper's 64 samples a minibatch, a thousandth of a second per unit of `seconds`."""
    if arm.spec.kind != "partition":
        return None
    rows = []
    for plan in PLANS:
        time = seconds(plan, **places(arm))
        stage = {"forward_ms": 1.0, "backward_ms": 2.0, "replicas": 1, "first": 1, "last": 2, "versions": 4}
        stages = [stage | {"versions": 4 - i} for i in range(4)]
        row = {
            "what": "plan",
            "plan": plan,
            "timed": time,
            "config": f"config of {plan}",
            "samples_per_second": 64 / time,
        }
        row |= {"bytes_per_sample": 1e6 * time, "memory": [(10 * time + i) * 1e9 for i in range(4)], "stages": stages}
        rows.append(row | {"search_seconds": time / 100, "microbatches": 2 * PLANS.index(plan), "batch": 64})
    return log(rows, workers=16, layers=19, forward_ms=10.0, backward_ms=20.0, weight_bytes=4.1e8, batch=64)


def test_pipedreams_speedups_are_over_data_parallelism_on_the_same_servers() -> None:
    """Table 1: how many times as many samples a second; the language model's plans with its two minibatches."""
    for row in cells(made("pipedream", "table_1", plans)):
        model, _, note = row["Model"].partition(" (")
        place = {"model": model, "servers": row["Servers"]}
        search, piped = ({"batch": "20"}, {"batch": "80"}) if model == "AWD-LM" else ({}, {})
        search = {"batch": "80"} if note.startswith("80 per GPU") else search
        alone = seconds("data parallel", **place, **search)
        for group, plan in (("recurrence as printed", "PipeDream"), ("a ring's cost", "PipeDream, ring")):
            assert row[f"ours, {group}: config"] == f"config of {plan}"
            assert row[f"ours, {group}: epoch"] == f"{alone / seconds(plan, **place, **search):.2f}x", row
        config = row["paper: config"]
        if (model, row["Servers"]) == ("VGG-16", "2x8 (B)"):
            assert (row["paper: epoch"], row["paper: to target"]) == ("2.98x", "2.46x")
        theirs = "data parallel" if config == "16" else config
        expected = alone / (alone if config == "16" else seconds(theirs, **place, **piped))
        assert row["ours, the paper's config: epoch"] == f"{expected:.2f}x", row


def test_pipedreams_bytes_are_saved_of_data_parallelisms() -> None:
    for row in cells(made("pipedream", "text_communication_reduction", plans)):
        model, _, note = row["Model"].partition(" (")
        place = {"model": model, "servers": row["Servers"]} | ({"batch": "80"} if "80 per" in note else {})
        groups = {"ours, recurrence as printed": "PipeDream", "ours, a ring's cost": "PipeDream, ring"}
        groups["several stages, least predicted time"] = "several stages"
        for group, plan in groups.items():
            saved = 100 * (1 - seconds(plan, **place) / seconds("data parallel", **place))
            assert row[f"{group}: saved (%)"] == f"{saved:.0f}", (row["Model"], group)


def test_pipedreams_throughputs_are_over_what_their_axes_say() -> None:
    runs = made("pipedream", "figure_14a", plans)
    heights = bars(runs, "model", "scheme", "throughput")
    names = {"model parallelism": "model parallel", "straight pipeline": "straight", "PipeDream": "PipeDream"}
    assert len(heights) == 3 * 4
    for (title, scheme), height in heights.items():
        model, _, plan = title.partition("\n")
        assert plan == "(config of PipeDream)"
        assert height == pytest.approx(seconds("model parallel", model) / seconds(names[scheme], model))
    assert titles(runs) == ("throughput over\nmodel parallelism", "{:.1f}x")
    heights = bars(made("pipedream", "figure_14b", plans), "model", "hybrid", "throughput")
    for (title, bar), height in heights.items():
        model = title.partition("\n")[0]
        gain = seconds("several stages, not pipelined", model) / seconds("several stages", model)
        assert height == pytest.approx(gain if bar == "with pipelining" else 1.0)


def test_pipedreams_memory_and_bytes_are_in_the_units_of_their_axes() -> None:
    runs = made("pipedream", "figure_16", plans)
    for (model, worker), height in bars(runs, "model", "worker", "gigabytes").items():
        alone = worker == "data parallelism"
        time = seconds("data parallel" if alone else "straight", model)
        assert height == pytest.approx(10 * time + (0 if alone else int(worker.split()[1])))
    assert titles(runs)[0] == "memory per GPU (GB)"
    for row in cells(made("pipedream", "text_memory_bound", plans)):
        worst, alone = 10 * seconds("straight", row["Model"]) + 3, 10 * seconds("data parallel", row["Model"])
        assert [row[key] for key in ("worst stage (GB)", "data parallelism (GB)", "factor")] == [
            f"{worst:.2f}",
            f"{alone:.2f}",
            f"{worst / alone:.2f}",
        ]
        assert row["versions by stage"] == "4, 3, 2, 1"
    runs = made("pipedream", "figure_17", plans)
    for (title, scheme), height in bars(runs, "model", "scheme", "megabytes").items():
        plan = "data parallel" if scheme == "data parallelism" else "several stages"
        assert height == pytest.approx(seconds(plan, title.partition("\n")[0]))
    assert titles(runs)[0] == "communicated\nper sample (MB)"


def test_gpipes_slowdown_is_what_it_loses_of_the_pipelines_throughput() -> None:
    """Twice as long is half of the throughput: 50 %."""
    plan_of = {"NOAM": "GPipe, NOAM", "most that fit": "GPipe, most that fit"}
    rows = cells(made("pipedream", "text_gpipe_comparison", plans))
    assert [(row["Depth"], row["Cluster"]) for row in rows] == [(d, f"Cluster-{c}") for d in plan_of for c in "AB"]
    for row in rows:
        straight, gpipe = (seconds(plan, servers=row["Cluster"]) for plan in ("straight", plan_of[row["Depth"]]))
        assert row["ours (%)"] == f"{100 * (1 - straight / gpipe):.0f}"
        assert row["microbatches"] == str(2 * PLANS.index(plan_of[row["Depth"]]))
    printed = {(row["Depth"], row["Cluster"][-1]): row["paper (%)"] for row in rows}
    assert printed == {
        ("NOAM", "A"): "55",
        ("NOAM", "B"): "71",
        ("most that fit", "A"): "35",
        ("most that fit", "B"): "42",
    }


def test_pipedreams_other_tables_of_plans() -> None:
    ranges = {row["Over"]: row for row in cells(made("pipedream", "text_headline_other", plans))}
    gains = [seconds("model parallel", m) / seconds("PipeDream", m) for m in ("VGG-16", "AlexNet", "GNMT-8", "GNMT-16")]
    over = ranges["model parallelism"]
    assert (over["paper"], over["ours: least"], over["ours: most"]) == (
        "2.6x-15x",
        f"{min(gains):.2f}x",
        f"{max(gains):.2f}x",
    )
    (row,) = cells(made("pipedream", "text_flexflow", plans))
    flexflow = made("pipedream", "text_flexflow", plans)
    place = places(flexflow.items[0].arm)
    ratio = seconds("several stages, not pipelined", **place) / seconds("several stages", **place)
    assert (row["paper"], row["ours"]) == ("1.9x", f"{ratio:.2f}x")
    for row in cells(made("pipedream", "text_optimizer_time", plans)):
        place = {"model": row["Model"], "servers": row["Servers"]}
        batch = {"batch": "20"} if row["Model"] == "AWD-LM" else {}
        assert row["search (s)"] == f"{seconds('PipeDream, ring', **place, **batch) / 100:.3f}"  # the slower one
    rows = {row["Language model"]: row for row in cells(made("pipedream", "text_weight_size_lm", plans))}
    assert rows["parameters (GB)"]["ours"] == "0.41" and rows["parameters (GB)"]["paper"] == "0.41"


def test_the_cloud_is_over_the_dedicated_cluster() -> None:
    """Table 3: Cluster-B's time over MLPerf's, of as many GPUs, in either precision."""

    def make(arm: Arm) -> RunLog:
        time = {"Cluster-B": 6.0, "MLPerf": 2.0}[arm.labels["arm"]] + (
            1.0 if arm.labels["precision"] == "fp16" else 0.0
        )
        sizes = (64, 256)
        return log([{"what": "plan", "plan": f"data parallel over {n}", "timed": time + n / 1000} for n in sizes])

    for row in cells(made("pipedream", "table_3", make)):
        more = int(row["V100s"]) / 1000
        assert row["ours: fp16"] == f"{(7 + more) / (3 + more):.2f}x", row
        assert row["ours: fp32"] == f"{(6 + more) / (2 + more):.2f}x", row


@pytest.mark.parametrize(("result", "line"), [("figure_1", "model"), ("figure_12", "precision")])
def test_overheads_are_percents_of_the_time_by_gpus(result: str, line: str) -> None:
    def share(arm: Arm, gpus: int) -> float:
        numbers = [len(arm.labels[key]) + ord(arm.labels[key][-1]) for key in (line, "arm")]
        return (numbers[0] % 31 + numbers[1] % 7) / 1000 + gpus / 100

    def make(arm: Arm) -> RunLog:
        return log(
            [{"what": "plan", "plan": str(n), "workers": n, "overhead": share(arm, n)} for n in (1, 2, 4, 8, 16, 32)]
        )

    runs = made("pipedream", result, make)
    drawn = draw(runs)
    assert drawn.data is not None and drawn.chart is not None
    expected = {
        (item.arm.labels["arm"], item.arm.labels[line], gpus): 100 * share(item.arm, gpus)
        for item in runs.items
        for gpus in (1, 2, 4, 8, 16, 32)
    }
    seen = {
        (row["servers"], row[line].removeprefix("GNMT-8, "), row["gpus"]): row["percent"]
        for row in drawn.data.to_dict("records")
    }
    assert seen == {key: pytest.approx(value) for key, value in expected.items()}
    assert drawn.chart["x"]["log"] and drawn.chart["x"]["ticks"] == (1, 2, 4, 8, 16, 32)
    assert drawn.chart["y"]["limits"] == (0, 100) and drawn.chart["shared_y"]


def test_depths_of_figure_18_are_of_the_straight_pipeline() -> None:
    def make(arm: Arm) -> RunLog:
        rows = [
            {
                "what": "plan",
                "plan": "straight",
                "depth": d,
                "samples_per_second": 100.0 * d,
                "memory": [1e9 * d, 2e9 * d],
            }
            for d in (1, 2, 4, 7)
        ]
        return log([*rows, {"what": "plan", "plan": "straight", "samples_per_second": 5.0, "memory": [5e9]}])

    data = draw(made("pipedream", "figure_18a", make)).data
    assert data is not None
    rates = dict(zip(data["depth"], data["samples_per_second"], strict=True))
    assert rates == {"1 (no pipelining)": 100.0, "2": 200.0, "4": 400.0, "7": 700.0}
    memory = bars(made("pipedream", "figure_18b", make), "stage", "depth", "gigabytes")
    names = {1: "no pipelining", 2: "depth 2", 4: "depth 4", 7: "depth 7"}
    assert memory == {(f"stage {s}", name): (s + 1.0) * d for d, name in names.items() for s in (0, 1)}


def test_predicted_and_real_rates_stand_on_their_own_axes() -> None:
    """Figure 15: samples a second, predicted by either cost along x, timed or measured along y."""
    plan_names = ("data parallel", "PipeDream", "PipeDream, ring", "partition 1", "partition 2")

    def make(arm: Arm) -> RunLog | None:
        if arm.spec.kind == "profile":
            return log([{"layer": n, "forward_ms": 1.0, "backward_ms": 1.5} for n in range(1, 17)])
        if arm.spec.kind == "speed":
            cut = int(arm.labels["cut"])
            rows = [{"arm": "pipelined", "block": b, "samples_per_second": cut + b} for b in (0, 1, 5)]
            return log([*rows, {"arm": "non-pipelined", "block": 0, "samples_per_second": 900.0}], batch=32)
        rows = [
            {"what": "plan", "plan": name, "timed": 1 + n, "predicted": {"paper": 2.0 + n, "ring": 4.0 + n}}
            for n, name in enumerate(plan_names)
        ]
        return log(rows, batch=1200)

    drawn = draw(made("pipedream", "figure_15", make))
    assert drawn.data is not None and drawn.chart is not None
    chosen = {"cost as printed": ("PipeDream", 2), "a ring's cost": ("PipeDream, ring", 4)}
    for words, (choice, first) in chosen.items():
        frame = drawn.data[drawn.data["panel"].str.endswith(words)]
        points = {row["plan"]: (row["kind"], row["predicted"], row["real"]) for row in frame.to_dict("records")}
        kinds = {"data parallel": "data parallelism", choice: "the optimiser's choice"}
        assert points == {
            name: (kinds.get(name, "partition"), pytest.approx(1200 / (first + n)), pytest.approx(1200 / (1 + n)))
            for n, name in enumerate(plan_names)
            if "PipeDream" not in name or name == choice
        }
    here = drawn.data[drawn.data["panel"].str.contains("here")]
    for row in here.to_dict("records"):
        cut = int(row["plan"].split()[-1])
        slower = 2.5e-3 * max(cut, 16 - cut)  # seconds of the slower stage
        assert (row["predicted"], row["real"]) == (pytest.approx(32 / slower), cut + 1)
    assert len(here) > 3 and drawn.chart["x"]["column"] == "predicted" and drawn.chart["equal"]
    assert {axis["column"] for axis in drawn.chart["y"].values()} == {"real"}


# SpecTrain ------------------------------------------------------------------------------------------------------------

NETWORKS = ("VGG16", "ResNet-152", "Inception v4", "SNN", "Transformer", "Residual LSTM")
ARMS = ("Data P.", "Data P., ring", "PipeDream", "PipeDream, free clock", "DualPipe", "DualPipe, free clock")


def speedup(model: str, arm: str, gpus: int = 4, reading: str = "weights moved") -> float:
    """Over one GPU: another number for every network, arm, number of GPUs and reading."""
    return (
        1 + NETWORKS.index(model) / 4 + ARMS.index(arm) / 3 + gpus / 10 + (0.05 if reading == "weights for free" else 0)
    )


def shares(model: str, arm: str, gpus: int) -> list[dict[str, float]]:
    """Where a minibatch's time goes on each GPU; the means over GPUs are a half, a quarter, an eighth, an eighth."""
    parts = {"computing": 0.5, "transfer": 0.25, "transfer_idle": 0.125, "imbalance_idle": 0.125}
    moved = {key: value * (1 + NETWORKS.index(model) / 16) for key, value in parts.items()}
    return [{key: value * (1 + (0.5 if gpu % 2 else -0.5)) for key, value in moved.items()} for gpu in range(gpus)]


def networks(arm: Arm) -> RunLog | None:
    """The plan of a network in a reading."""
    if arm.labels.get("what") != "plan":
        return None
    model, reading, rows = arm.labels["model"], arm.labels["arm"], []
    for gpus in (2, 4):
        for name in arm.spec.options["arms"]:
            faster = speedup(model, name, gpus, reading)
            row = {"what": "arm", "arm": name, "workers": gpus, "speedup": faster, "samples_per_second": 50 * faster}
            row |= {"seconds": 128 / (50 * faster), "bytes": 1e6 * (ARMS.index(name) + 1 + NETWORKS.index(model))}
            rows.append(
                row | {"method": f"method of {name}", "stages": [{"shares": s} for s in shares(model, name, gpus)]}
            )
    return log(rows, forward_ms=2.0, backward_ms=3.0 + NETWORKS.index(model))


def flat(title: str) -> str:
    """A network's name, whose title has its words in lines."""
    return title.replace("-\n", "-").replace("\n", " ").replace("Trans-former", "Transformer")


def test_spectrains_throughput_is_over_one_gpu() -> None:
    drawn = draw(made("spectrain", "figure_10", networks))
    assert drawn.data is not None and drawn.chart is not None
    seen = {
        (row["gpus"], flat(row["model"]), row["scheme"]): row["throughput"] for row in drawn.data.to_dict("records")
    }
    assert seen == {
        (f"{gpus} GPUs", model, arm): speedup(model, arm, gpus)
        for gpus in (2, 4)
        for model in NETWORKS
        for arm in ("Data P.", "PipeDream", "DualPipe")
    }
    assert drawn.chart["levels"] == {"single GPU": 1.0} and "single GPU = 1" in drawn.chart["y"]["title"]


def test_spectrains_parts_are_of_data_parallelisms_time() -> None:
    """Figure 11: a bar's parts add up to its time over Data P.'s; nothing of it lies beyond the axis."""
    drawn = draw(made("spectrain", "figure_11", networks))
    assert drawn.data is not None and drawn.chart is not None and drawn.figure is not None
    parts = {"computing": 0.5, "P2P transfer": 0.25, "idle for transfers": 0.125, "idle for imbalance": 0.125}
    seen = {(r["model"], r["scheme"].strip(), r["part"]): r["time"] for r in drawn.data.to_dict("records")}
    assert seen == {
        (model, arm, part): pytest.approx(
            share * (1 + NETWORKS.index(model) / 16) * speedup(model, "Data P.") / speedup(model, arm)
        )
        for model in NETWORKS
        for arm in ("Data P.", "PipeDream", "DualPipe")
        for part, share in parts.items()
    }


@pytest.mark.parametrize("longer", [1.0, 3.0])
def test_no_bar_of_figure_11_ends_beyond_the_axis(longer: float) -> None:
    """A pipeline may take longer than data parallelism: on CNNs the paper's PipeDream takes 1.25 times its time."""

    def make(arm: Arm) -> RunLog | None:
        run = networks(arm)
        for row in run.rows if run else []:
            row["seconds"] *= longer if row["arm"] == "PipeDream" else 1.0
        return run

    drawn = draw(made("spectrain", "figure_11", make))
    assert drawn.data is not None and drawn.figure is not None
    highest = drawn.data.groupby(["model", "scheme"])["time"].sum().max()
    assert all(axes.get_ylim()[1] >= highest for axes in drawn.figure.axes)


def test_spectrains_bytes_shares_and_backwards() -> None:
    sent = bars(made("spectrain", "figure_3", networks), "model", "scheme", "megabytes")
    assert sent == {
        (model, scheme): ARMS.index(arm) + 1 + NETWORKS.index(model)
        for model in NETWORKS
        for scheme, arm in (("Data P.", "Data P."), ("Model P.", "PipeDream"))
    }
    runs = made("spectrain", "figure_3", networks)
    chart = draw(runs).chart
    assert chart is not None and chart["y"]["log"] and chart["y"]["title"] == "MB per minibatch"
    waits = bars(made("spectrain", "figure_4", networks), "model", "gradients summed by", "percent")
    assert {key: round(value, 9) for key, value in waits.items()} == {
        (model, how): 37.5 * (1 + NETWORKS.index(model) / 16)
        for model in NETWORKS
        for how in ("parameter server on a GPU", "ring")
    }
    times = bars(made("spectrain", "figure_7", networks), "model", "pass", "time")
    for model in NETWORKS:
        assert times[model, "forward"] == 1.0
        assert times[model, "backward, roofline of a P40"] == (3.0 + NETWORKS.index(model)) / 2


def test_spectrains_headline_has_its_readings_apart() -> None:
    """Dual over the others, each in its own reading; means geometric and arithmetic."""
    rows = cells(made("spectrain", "text_headline_throughput", networks))
    words = {"a server": ("DualPipe", "Data P."), "a ring": ("DualPipe, free clock", "Data P., ring")}
    words |= {"one clock for all GPUs": ("DualPipe", "PipeDream")}
    words |= {"every GPU by itself": ("DualPipe, free clock", "PipeDream, free clock")}
    printed = {
        row["DualPipe over"]: (row["geometric mean"], row["at most"]) for row in rows if row["Reading"] == "paper"
    }
    assert printed == {"Data P.": ("2.64x", "15.77x"), "PipeDream": ("1.68x", "2.18x")}
    ours = [row for row in rows if row["Reading"] != "paper"]
    assert len(ours) == 8
    for row in ours:
        clock, reading = row["Reading"].removeprefix("ours: ").split(", ")
        dual, other = words[clock]
        gains = [speedup(m, dual, 4, reading) / speedup(m, other, 4, reading) for m in NETWORKS]
        assert other.startswith(row["DualPipe over"])
        assert row["geometric mean"] == f"{geometric_mean(gains):.2f}x"
        assert (row["arithmetic mean"], row["at most"]) == (f"{fmean(gains):.2f}x", f"{max(gains):.2f}x")


# PipeOptim ------------------------------------------------------------------------------------------------------------

APPROACHES = ("GPipe", "PipeDream", "PipeDream-2BW", "SpecTrain", "XPipe", "PipeOptim", "Vanilla-1F1B")


def rate(name: str, model: str, workers: int = 4) -> float:
    """Samples a second: another number for every approach and model."""
    largest = name.endswith(", largest")
    if (name, model) == ("XPipe", "VGG-16"):
        return 400.0  # of one model PipeOptim is far behind
    return 100 + 7 * APPROACHES.index(name.removesuffix(", largest")) + len(model) + workers + (0.5 if largest else 0)


def approaches(arm: Arm) -> RunLog | None:
    """A plan's log by approach."""
    if arm.spec.kind != "partition":
        return None
    rows = []
    for name in arm.spec.options["arms"]:
        model = arm.labels.get("model", "")
        workers = 4 * int(arm.labels.get("nodes", 1))
        largest = {"samples": 1000 + int(rate(name, model)), "batch": 9, "stage": 3, "part": "activations"}
        row = {"what": "arm", "arm": name, "samples_per_second": rate(name, model, workers), "workers": workers}
        rows.append(row | {"largest": largest, "batch": 32, "microbatches": 4, "stages": []})
    return log(rows)


def test_pipeoptims_throughputs_are_each_approachs_own() -> None:
    for letter in "abcdefgh":
        runs = made("pipeoptim", f"figure_6{letter}", approaches)
        model = runs.items[0].arm.labels["model"]
        seen = bars(runs, "gpus", "approach", "throughput")
        assert seen == {("4 GPUs", name): rate(name, model) for name in runs.items[0].arm.spec.options["arms"]}
        assert titles(runs)[0] == "simulated throughput (samples/s)"
    runs = made("pipeoptim", "figure_8", approaches)
    drawn, model = draw(runs), runs.items[0].arm.labels.get("model", "")
    assert drawn.data is not None
    for row in drawn.data.to_dict("records"):
        ending = ", largest" if row["panel"].startswith("the largest") else ""
        assert row["throughput"] == rate(row["approach"] + ending, model, 4 * int(row["nodes"]))
    assert len(drawn.data) == 2 * 3 * 5


def test_pipeoptims_throughput_is_told_in_percent_over_each() -> None:
    """Over the others' rates, not over its own; means over models, and what is farthest from nought."""
    rows = {row["model"]: row for row in cells(made("pipeoptim", "text_throughput", approaches))}
    models = [name for name in rows if "," not in name]
    assert len(models) == 8
    over: dict[str, dict[str, float]] = {}
    for other in APPROACHES[:5]:
        key = f"throughput of PipeOptim: over {other}"
        for model in models:
            gain = 100 * (rate("PipeOptim", model) / rate(other, model) - 1)
            if other == "SpecTrain" and rows[model]["optimizer"] != "SGDM":
                assert rows[model][key] == "–"
                continue
            assert rows[model][key] == f"{gain:+.2f} %"
            over.setdefault(other, {})[model] = gain
        assert rows["all, mean"][key] == f"{fmean(over[other].values()):+.2f} %"
        assert rows["all, farthest from 0"][key] == f"{max(over[other].values(), key=abs):+.2f} %"
    adamw = [gain for model, gain in over["GPipe"].items() if rows[model]["optimizer"] == "AdamW"]
    key = "throughput of PipeOptim: over GPipe"
    assert rows["AdamW, mean"][key] == f"{fmean(adamw):+.2f} %" and len(adamw) == 3
    assert rows["AdamW, farthest from 0"][key] == f"{max(adamw):+.2f} %"
    assert rows["AdamW, mean, paper"][key] == "+51.27 %" and rows["AdamW, farthest from 0, paper"][key] == "+91.70 %"
    lower = "throughput of PipeOptim: over PipeDream"  # the paper says lower, which is below nought
    assert (rows["all, mean, paper"][lower], rows["all, farthest from 0, paper"][lower]) == ("-4.00 %", "-16.50 %")


def test_pipeoptims_largest_passes_are_samples() -> None:
    for row in cells(made("pipeoptim", "table_5", approaches)):
        if row[""] == "ours":
            for name in APPROACHES[:6]:
                cell = row[f"samples of a pass: {name}"]
                has = name != "SpecTrain" or row["optimizer"] == "SGDM"
                assert cell == (f"{1000 + int(rate(name, row['model'])):,d}" if has else "–")
            assert row["fullest GPU under PipeOptim, and what fills it"] == "GPU 2, activations"


# Stale weights --------------------------------------------------------------------------------------------------------

DEPTHS = (20, 56, 110, 224, 362)


def blocks(arm: Arm) -> RunLog | None:
    """Three timed blocks of unlike numbers of steps, by depth; a hybrid block from end to end besides."""
    if arm.spec.kind != "speed":
        return None
    depth, rows = int(arm.labels["model"].split("-")[1]), []
    for block, slow in enumerate((1.0, 1.5, 4.0)):
        alone, piped = 0.02 * slow * depth, 0.01 * slow * depth * (1 + block / 10)
        rows.append({"arm": "non-pipelined", "block": block, "steps": 10, "seconds": 10 * alone})
        rows.append(
            {"arm": "pipelined", "block": block, "steps": 20, "seconds": 20 * piped, "sent_bytes_per_step": [1, 2]}
        )
        rows.append({"arm": "hybrid", "block": block, "steps": 20, "seconds": 10 * alone + 10 * piped})
    return log(rows, kind="speed", batch=depth, threads_per_worker=1, device="cpu")


def test_stale_weights_times_are_medians_in_milliseconds() -> None:
    """Table 5: of a minibatch; the speedup is the time without a pipeline over the time with one, block by block."""
    for row in cells(made("stale_weights", "table_5", blocks)):
        if row[""] != "ours":
            continue
        depth = int(row["ResNet"].split("-")[1])
        alone = [0.02 * slow * depth for slow in (1.0, 1.5, 4.0)]
        piped = [0.01 * slow * depth * (1 + n / 10) for n, slow in enumerate((1.0, 1.5, 4.0))]
        hybrid = [(a + b) / 2 for a, b in zip(alone, piped, strict=True)]
        assert row["timed: minibatch"] == str(depth)
        for arm, values in (("non-pipelined", alone), ("pipelined", piped), ("hybrid", hybrid)):
            assert row[f"timed, ms per minibatch: {arm}"] == f"{1000 * sorted(values)[1]:.1f}"
        for arm, values in (("pipelined", piped), ("hybrid", hybrid)):
            gains = sorted(a / b for a, b in zip(alone, values, strict=True))
            assert row[f"speedup: {arm}"] == f"{gains[1]:.2f} [{gains[0]:.2f}, {gains[2]:.2f}]"
    rows = {row["ResNet"]: row for row in cells(made("stale_weights", "text_headline_speedup", blocks))}
    gains = sorted(2 / (1 + n / 10) for n in range(3))
    for depth in DEPTHS:
        row = rows[f"ResNet-{depth}"]
        assert row["speedup: ours"] == f"{gains[1]:.2f} [{gains[0]:.2f}, {gains[2]:.2f}]"
        assert row["speedup / 2, %: ours"] == f"{50 * gains[1]:.0f}"
    assert (rows["ResNet-362"]["speedup: paper"], rows["ResNet-362"]["speedup / 2, %: paper"]) == ("1.82", "91")


def test_stale_weights_memory_is_counted_as_its_note_says() -> None:
    """Table 6: 4 bytes a number, 2^20 of them a MB; activations twice, a kept copy once, of the first stage two."""

    def make(arm: Arm) -> RunLog:
        (cut,) = arm.spec.options["cuts"]
        rows = [{"layer": n, "parameters": 1000 * n, "activations": 5000 + n} for n in range(1, cut + 6)]
        return log(rows, cuts=[cut], batch=128)

    for row in cells(made("stale_weights", "table_6", make)):
        if row[""] != "ours":
            continue
        cut = int(row["PPV"].strip("()"))
        every = [5000 + n for n in range(1, cut + 6)]
        weights = 4 * sum(1000 * n for n in range(1, cut + 6)) / 2**20
        activations, kept = 2 * 4 * sum(every) / 2**20, 2 * 4 * sum(every[:cut]) / 2**20
        assert row["activations (MB/sample)"] == f"{activations:.2f}" and row["weights (MB)"] == f"{weights:.2f}"
        assert row["increase (MB/sample)"] == f"{kept:.2f}"
        assert row["increase (%)"] == f"{100 * 128 * kept / (128 * activations + weights):.0f}"
        assert cut == 1 + (int(row["ResNet"].split("-")[1]) - 2) // 3


# PipeMare -------------------------------------------------------------------------------------------------------------


def pipelines(arm: Arm) -> RunLog | None:
    """Its pipelines, weights and what a step holds, in round numbers."""
    what = arm.labels.get("what", arm.labels.get("task"))
    if what == "pipeline":
        used = {"GPipe": lambda P, N: N / (N + P - 1), "PipeDream": lambda P, N: 1.0, "PipeMare": lambda P, N: 1.0}
        rows = [
            {"method": m, "stages": P, "microbatches": N, "utilisation": of(P, N)}
            | {"copies": [2 if m == "PipeDream" else 1] * P}
            for P, N in arm.spec.options["pipelines"]
            for m, of in used.items()
        ]
        return log(rows)
    if what == "weights":
        return log([{"name": f"layer {n}", "parameters": 2**20, "activations": 8} for n in range(200)])
    if what == "copies":
        adam = arm.labels["arm"] == "Adam"
        plain = {"elements": 10, "weights": 10, "gradients": 10, "optimizer": 20 if adam else 10, "average": 0}
        return log([plain, plain | {"average": 10}])
    return None


def test_pipemares_utilisation_and_memory() -> None:
    """Table 2: GPipe uses N/(N + P - 1); SGD holds 3 sizes of weights, Adam 4, T2 one, PipeDream's copies one."""
    rows = cells(made("pipemare", "table_2", pipelines))
    sizes = {"CIFAR10": (107, 8), "ImageNet": (107, 16), "IWSLT14": (93, 19)}
    for row in rows:
        held = 3 if row["Task"] in ("CIFAR10", "ImageNet") else 4
        more = {"GPipe": 0, "PipeDream": 1, "PipeMare": 1, "PipeMareW": 1}[row["Method"]]
        assert row["weights and optimizer: ours"] == f"{(held + more) / held:.2f}x", row
        if row["Method"] == "GPipe":
            assert row["weights and optimizer of GPipe: ours (MiB)"] == f"{4 * held * 200:.0f}"
        if row["Method"] == "GPipe" and row["Task"] in sizes:
            P, N = sizes[row["Task"]]
            assert row["utilisation (%): ours"] == f"{100 * N / (N + P - 1):.1f}"
        if row["Method"] in ("PipeDream", "PipeMare"):
            assert row["utilisation (%): ours"] == "100.0"
    assert len(rows) == 15


def test_pipemares_recomputation_is_with_over_without() -> None:
    """Table 5 and figure 9."""

    def make(arm: Arm) -> RunLog:
        rows = [{"stages": P, "segment": 4, "without": [P, P + 2], "with": [P // 2, 1]} for P in (107, 93, 91)]
        return log(rows)

    for row in cells(made("pipemare", "table_5", make)):
        P = int(row["P"])
        assert row["counted over the schedule"] == f"{(P // 2 + 1) / (2 * P + 2):.3f}"
        assert row["1/sqrt(P)"] == f"{P**-0.5:.3f}" == row["paper"]

    def one(arm: Arm) -> RunLog:
        return log([{"stages": 3, "segment": 3, "without": [5, 3, 1], "with": [5, 2, 1]}])

    stack = bars(made("pipemare", "figure_9", one), "stage", "kind", "activations")
    below, above = "with recomputation", "added where nothing is recomputed"
    assert stack == {
        (str(stage), kind): number
        for kind, numbers in ((below, (5, 2, 1)), (above, (0, 1, 0)))
        for stage, number in enumerate(numbers, 1)
    }
