"""What is drawn under a name is that run's: every point of a curve and every cell of a table, told by its number alone.

Every run has numbers of its own, which say whose they are, which evaluation's and of what. So each number that is drawn
is followed back to its run, and its name, seed and place are held against that run's labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import pytest

from pipelag.experiments import Arm, load_paper
from pipelag.report.tables import Table
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, draw
from pipelag.results.loading import load_results
from pipelag.results.logs import Item, RunLog
from tests.results.made_up import OFFICIAL, context, log

pytestmark = pytest.mark.usefixtures("in_project")
POINTS = 4  # evaluations of a run
# What an evaluation has, from where on its numbers lie; a run's are an eighth apart, its evaluations' a 1024th
METRICS = {"accuracy": 1.0, "bleu": 21.0, "top5": 61.0, "loss": 201.0, "test_loss": 241.0, "perplexity": 281.0}
WIDTH = 20.0


def value(metric: str, run: int, point: int) -> float:
    """A run's number at an evaluation, both counted from 0."""
    assert run < 8 * WIDTH
    return METRICS[metric] + run / 8 + (point + 1) / 1024


def told(number: float) -> tuple[str, int, int]:
    """Metric, run and evaluation of a number; an error where no run has it."""
    metric = max((start, name) for name, start in METRICS.items() if start <= number)[1]
    eighths = (number - METRICS[metric]) * 8
    point = (eighths - int(eighths)) * 128 - 1
    assert eighths < 8 * WIDTH and point == int(point) and 0 <= point < POINTS, number
    return metric, int(eighths), int(point)


@dataclass
class Marked:
    """A result whose trainings are marked, and its runs by number."""

    context: Context
    runs: list[Item]

    @classmethod
    def of(cls, paper: str, result: str, plans: Callable[[Arm], RunLog | None] = lambda arm: None) -> Marked:
        """The runs of the paper scale; others than trainings have the logs that `plans` gives."""
        numbers: dict[str, int] = {}

        def make(arm: Arm) -> RunLog | None:
            if arm.spec.kind != "train":
                return plans(arm)
            return evaluated(arm, numbers.setdefault(arm.spec.id, len(numbers)))

        whole = context(paper, result, make)
        load_results(whole.paper)
        order = sorted(
            (item for item in whole.items if item.arm.spec.id in numbers), key=lambda i: numbers[i.arm.spec.id]
        )
        return cls(whole, list({item.arm.spec.id: item for item in order}.values()))

    def items(self, run: int) -> list[Item]:
        """All that a run is asked for as."""
        return [item for item in self.context.items if item.arm.spec.id == self.runs[run].arm.spec.id]


def evaluated(arm: Arm, run: int) -> RunLog:
    """A training's log: evaluations at equal distances, ten epochs apart."""
    words = arm.labels.get("task") in ("translation", "WMT17") or arm.labels.get("model", "").startswith("GNMT")
    rows: list[dict[str, Any]] = []
    for point in range(POINTS):
        row: dict[str, Any] = {"step": arm.spec.steps * (point + 1) // POINTS, "epoch": 10.0 * (point + 1), "lr": 0.1}
        row |= {metric: value(metric, run, point) for metric in METRICS if words or metric != "bleu"}
        rows.append(row)
    phases = [
        {"method": p.method, "cuts": list(p.cuts), "steps": p.steps, "stages": p.stages, "stale_percent": 9.0}
        | {"forward_delays": [0] * p.stages, "backward_delays": [0] * p.stages}
        for p in arm.spec.phases
    ]
    ends = {"final": rows[-1], "best": rows[-1], "diverged_at": None}
    return log(rows, data=OFFICIAL, steps=arm.spec.steps, phases=phases, **ends)


def metric_of(panel: str, title: str) -> str:
    """What an axis shows, by the words that stand along it and above it."""
    words = f"{panel} {title}".lower()
    for word, metric in (("bleu", "bleu"), ("top-5", "top5"), ("validation loss", "test_loss"), ("loss", "loss")):
        if word in words:
            return metric
    assert "accuracy" in words, words
    return "accuracy"


def axis(chart: Mapping[str, Any], which: str, panel: str) -> tuple[str, str]:
    """The column of a panel's axis, and what is written along it."""
    described = chart[which]
    if isinstance(described, dict) and "column" not in described:
        described = described[panel]
    return (
        (described["column"], described["title"] or described["column"])
        if isinstance(described, dict)
        else (described,) * 2
    )


def arm_of(item: Item) -> str:
    """A line that is called as the config calls its arm."""
    return item.arm.labels["arm"]


def by_iterations(item: Item) -> str:
    """Stale weights names arms by their iterations: 20k+10k."""
    return re.sub(r"(\d+)k", r"\1,000", arm_of(item))


def by_stages(item: Item) -> str:
    """PipeMare's figure 4."""
    stages, arm = item.arm.spec.phases[-1].stages, arm_of(item)
    sign = ">" if arm == "neither" else "="
    return "synchronous" if arm == "Sync" else f"{stages} stages, tau_fwd {sign} tau_bkwd"


def by_segments(item: Item) -> str:
    """PipeMare's figures of recomputation."""
    segments = item.arm.spec.phases[-1].segments
    assert bool(segments) == (item.arm.labels["checkpoints"] != "none")
    return f"{segments} segments" if segments else "no recomputation"


def by_activations(item: Item) -> str:
    """PipeOptim's figure 7."""
    return f"{arm_of(item)}, activations {item.arm.labels['activations']}"


def by_rate(item: Item) -> str:
    """PipeDream's figure 13."""
    assert item.arm.spec.optimizer is not None
    return arm_of(item) + (f", rate {item.arm.spec.optimizer.lr:g}" if "LARS" in arm_of(item) else "")


CURVES: list[tuple[str, str, Callable[[Item], str]]] = [
    *(("stale_weights", f"figure_5{letter}", by_iterations) for letter in "abcd"),
    ("stale_weights", "figure_7", by_iterations),
    ("stale_weights", "control_curves", arm_of),
    *(("pipemare", f"figure_{number}", arm_of) for number in (7, 8, 11, 12, 13, 14, 15, 19)),
    ("pipemare", "figure_4", by_stages),
    ("pipemare", "figure_17", by_segments),
    ("pipemare", "figure_18", by_segments),
    *(("pipeoptim", f"figure_{name}", arm_of) for name in ("3a", "3b", "3c", "4a", "4b", "4c", "5a", "5b", "5c")),
    *(("pipeoptim", f"figure_7{letter}", by_activations) for letter in "abc"),
    *(("pipeoptim", f"figure_{number}{letter}", arm_of) for number in (9, 10) for letter in "ab"),
    ("spectrain", "figure_5", arm_of),
    ("spectrain", "figure_12", arm_of),
    ("pipedream", "figure_11", arm_of),
    ("pipedream", "figure_13", by_rate),
]


def pipelines(arm: Arm) -> RunLog | None:
    """Rows of PipeMare's pipelines: GPipe is used for a quarter."""
    if arm.labels.get("task") != "pipeline":
        return None
    used = {"GPipe": 0.25, "PipeDream": 1.0, "PipeMare": 1.0}
    pairs = arm.spec.options["pipelines"]
    return log(
        [{"method": m, "stages": P, "microbatches": N, "utilisation": u} for P, N in pairs for m, u in used.items()]
    )


@pytest.mark.parametrize(("paper", "result", "named"), CURVES, ids=[f"{paper}.{result}" for paper, result, _ in CURVES])
def test_a_curve_is_of_the_run_that_it_is_named_by(paper: str, result: str, named: Callable[[Item], str]) -> None:
    marked = Marked.of(paper, result, pipelines)
    drawn = draw(marked.context)
    assert drawn.data is not None and drawn.chart is not None
    seen: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for row in drawn.data.to_dict("records"):
        panel = str(row.get(drawn.chart["panel"] or "", ""))
        column, title = axis(drawn.chart, "y", panel)
        along, x_title = axis(drawn.chart, "x", panel)
        metric, run, point = told(row[column])
        assert metric == metric_of(panel, title), (panel, title)
        evaluation = evaluated(marked.runs[run].arm, run).rows[point]
        if "time" in x_title:  # PipeMare's: a synchronous epoch takes 1 / utilisation
            synchronous = 40.0 * waiting_share(marked.runs[run])
            epoch = evaluation["epoch"]
            assert row[along] == pytest.approx(min(epoch, synchronous) * 4 + max(0.0, epoch - synchronous))
        else:
            assert row[along] == evaluation["step" if "iteration" in x_title or along == "step" else "epoch"]
        assert row["seed"] == marked.runs[run].arm.seed
        items = [item for item in marked.items(run) if named(item) == row[drawn.chart["line"]]]
        assert items, (row[drawn.chart["line"]], [named(item) for item in marked.items(run)])
        assert shown_in(panel, items), (panel, items[0].arm.labels)
        seen.setdefault((panel, metric), set()).add((run, point))
    everything = {(run, point) for run in range(len(marked.runs)) for point in range(POINTS)}
    every_panel = {panel: {m for p, m in seen if p == panel} for panel, _ in seen}
    assert everything == set.union(*seen.values()) or result == "figure_8"  # which has runs without twice the stages
    for panel, metrics in every_panel.items():  # of one panel all metrics, of one metric all that are of the panel
        assert len(metrics) == 1 and {point for _, point in seen[panel, *metrics]} == set(range(POINTS))


def waiting_share(item: Item) -> float:
    """The share of a run's steps that wait for all updates at its beginning."""
    phases = item.arm.spec.phases
    return phases[0].steps / item.arm.spec.steps if phases[0].method == "gpipe" else 0.0


def shown_in(panel: str, items: list[Item]) -> bool:
    """Whether some of these are of the panel, by what it says of data, split weights and methods."""
    for item in items:
        labels = item.arm.labels
        arm_first = re.match(r"(T1(?:\+T2)?(?:\+W)?): ", panel)
        if arm_first and arm_first[1] != labels["arm"]:
            continue
        network = {"images": "ResNet", "ImageNet": "ResNet", "translation": "Transformer", "WMT17": "Transformer"}
        if labels.get("task") in network and network[labels["task"]] not in panel:
            continue
        if labels.get("model", "") not in panel and panel and not panel.startswith(("Training", "Validation")):
            continue
        return True
    return False


def test_figure_8_is_of_twice_the_stages_alone() -> None:
    marked = Marked.of("pipemare", "figure_8")
    drawn = draw(marked.context)
    assert drawn.data is not None
    runs = {told(number)[1] for number in drawn.data["score"]}
    split = {run for run in range(len(marked.runs)) if any(i.arm.labels["split"] == "2" for i in marked.items(run))}
    assert runs == split and 0 < len(split) < len(marked.runs)


def planned(samples: Mapping[str, Mapping[str, float]], key: str = "servers") -> Callable[[Arm], RunLog | None]:
    """Logs of plans with such rates, by a label and the plan's or arm's name."""

    def make(arm: Arm) -> RunLog | None:
        rates = samples.get(arm.labels.get(key, ""))
        if rates is None:
            return None
        rows = [
            {"what": what, "plan": name, "arm": name, "samples_per_second": rate, "config": name}
            for name, rate in rates.items()
            for what in ("plan", "arm")
        ]
        return log(rows, workers=16)

    return make


def hours_by_arm(drawn: Drawn, line: str, **where: str) -> dict[str, float]:
    """Hours of an epoch by line, which are the same at all of a line's points."""
    assert drawn.data is not None
    frame = drawn.data
    for column, word in where.items():
        frame = frame[frame[column].str.contains(word, regex=False)]
    each = {name: set((some["hours"] / some["epoch"]).round(9)) for name, some in frame.groupby(line)}
    assert all(len(hours) == 1 for hours in each.values())
    return {str(name): hours.pop() for name, hours in each.items()}


def test_pipedreams_hours_are_epochs_of_imagenet_at_the_plans_rate() -> None:
    """Figure 10: 1,281,167 images at so many a second, on either cluster, by 15-1 and by data parallelism."""
    rates = {"4x4 (A)": {"15-1": 1000.0, "data parallel": 200.0}, "2x8 (B)": {"15-1": 3000.0, "data parallel": 1500.0}}
    marked = Marked.of("pipedream", "figure_10", planned(rates))
    drawn = draw(marked.context)
    for letter, servers in (("A", "4x4 (A)"), ("B", "2x8 (B)")):
        expected = {"PipeDream": "15-1", "data parallelism": "data parallel"}
        hours = hours_by_arm(drawn, "arm", panel=f"Cluster-{letter}")
        assert hours == {arm: pytest.approx(1_281_167 / rates[servers][plan] / 3600) for arm, plan in expected.items()}
    assert drawn.data is not None
    for row in drawn.data.to_dict("records"):
        metric, run, point = told(row["value"])
        assert (metric, arm_of(marked.runs[run]), marked.runs[run].arm.seed) == ("accuracy", row["arm"], row["seed"])
        assert row["epoch"] == 10.0 * (point + 1)


@pytest.mark.parametrize("result", ["figure_9c", "figure_10c"])
def test_pipeoptims_hours_are_epochs_of_tiny_imagenet_at_the_simulated_rate(result: str) -> None:
    """100,000 images at an approach's own rate."""
    model = {"figure_9c": "ResNet-101", "figure_10c": "Inception-V3"}[result]
    names = ("GPipe", "PipeDream", "PipeDream-2BW", "SpecTrain", "XPipe", "PipeOptim")
    rates = {name: 100.0 * (number + 1) for number, name in enumerate(names)}
    marked = Marked.of("pipeoptim", result, planned({model: rates}, "model"))
    drawn = draw(marked.context)
    assert hours_by_arm(drawn, "approach") == {n: pytest.approx(100_000 / rate / 3600) for n, rate in rates.items()}
    assert drawn.data is not None
    for row in drawn.data.to_dict("records"):
        metric, run, point = told(row["value"])
        assert (metric, arm_of(marked.runs[run]), row["epoch"]) == ("accuracy", row["approach"], 10.0 * (point + 1))


def test_a_register_that_slides_is_drawn_at_its_own_percentage() -> None:
    """Figure 6: x, y and label of a point are of one run; the levels are the baseline's and control's."""
    marked = Marked.of("stale_weights", "figure_6")
    for item in marked.context.items:
        assert item.log is not None
        phase = item.log.summary["phases"][0]
        phase |= {"stale_percent": 5.0 * len(phase["cuts"]) + 0.5 * max(phase["cuts"], default=0)}
    drawn = draw(marked.context)
    assert drawn.data is not None and drawn.chart is not None
    axes = [(drawn.chart[which]["column"], drawn.chart[which]["title"]) for which in "xy"]
    assert axes == [("stale_percent", "percentage of stale weights"), ("accuracy", "inference accuracy (%)")]
    runs = set()
    for row in drawn.data.to_dict("records"):
        metric, run, point = told(row["accuracy"])
        runs.add(run)
        (item,) = [i for i in marked.items(run) if i.arm.labels["curve"] in row["curve"]]
        cuts = item.arm.spec.phases[0].cuts
        assert (metric, point, row["seed"]) == ("accuracy", POINTS - 1, item.arm.seed)
        assert row["stale_percent"] == 5.0 * len(cuts) + 0.5 * cuts[-1]
        shown = str(2 * len(cuts) + 2) if "Increasing" in row["curve"] else str(cuts[-1])
        assert row["label"] == shown and ("stages" if "Increasing" in row["curve"] else "register") in row["curve"]
    curves = [i.arm.labels["curve"] for i in marked.runs]
    assert runs == {run for run, curve in enumerate(curves) if curve in ("Increasing Stages", "Sliding Stage")}
    levels = list(drawn.chart["levels"].items())
    for (name, level), curve in zip(levels, ("baseline", "control"), strict=True):
        ends = [value("accuracy", run, POINTS - 1) for run, other in enumerate(curves) if other == curve]
        assert level == pytest.approx(fmean(ends)), name
    assert levels[0][0] == "non-pipelined" and levels[1][0].endswith(", 0.01 instead of 0.1")


@pytest.mark.parametrize(("result", "key"), [("figure_1", "stages"), ("figure_2", "rate")])
def test_the_leaderboards_figures_are_of_the_runs_at_their_place(result: str, key: str) -> None:
    marked = Marked.of("leaderboard", result)
    drawn = draw(marked.context)
    assert drawn.data is not None and drawn.chart is not None
    runs = set()
    for row in drawn.data.to_dict("records"):
        metric, run, point = told(row["accuracy"])
        spec = marked.runs[run].arm.spec
        assert (metric, point, row["seed"]) == ("accuracy", POINTS - 1, marked.runs[run].arm.seed)
        assert row["method"] == arm_of(marked.runs[run]) and spec.optimizer is not None
        assert row[key] == (spec.phases[0].stages if key == "stages" else spec.optimizer.lr)
        runs.add(run)
    base = [run for run, item in enumerate(marked.runs) if arm_of(item) == "sequential"]
    if result == "figure_1":
        assert drawn.chart["levels"] == {"sequential": pytest.approx(fmean(value("accuracy", r, 3) for r in base))}
        assert runs == set(range(len(marked.runs))) - set(base)


# Tables ---------------------------------------------------------------------------------------------------------------


def ends_of(arm: Arm, number: int) -> tuple[float, float]:
    """A run's best and its final score, of arms that are told apart by their number and whose seeds scatter."""
    wide = 0.05 * (1 + number % 5)
    final = 10 + number / 4 + wide * (0, 1, 3.5)[arm.seed]
    return final + 5 + wide * (0, 0.5, 0.25)[arm.seed], final


class Ending:
    """Trainings of which each arm has ends of its own, the best of four evaluations being the second."""

    def __init__(self, paper: str, result: str, plans: Callable[[Arm], RunLog | None] = lambda arm: None) -> None:
        self.numbers: dict[str, int] = {}
        self.plans = plans
        self.context = context(paper, result, self.make)
        load_results(load_paper(paper))

    def make(self, arm: Arm) -> RunLog | None:
        """A training's log."""
        if arm.spec.kind != "train":
            return self.plans(arm)
        alike = arm.spec.model_copy(update={"seed": 0}).id
        best, final = ends_of(arm, self.numbers.setdefault(alike, len(self.numbers)))
        run = evaluated(arm, 0)
        scores = (final - 2, best, final - 1, final)
        for row, score in zip(run.rows, scores, strict=True):
            of_metric = {"accuracy": score, "bleu": score, "top5": score + 10, "perplexity": 300 - score}
            row.update({key: number for key, number in of_metric.items() if key in row})
            row.update(loss=2 - score / 100, test_loss=3 - score / 100)
        return replace(run, summary=run.summary | {"final": run.rows[-1], "best": run.rows[1]})

    def ends(self, **labels: str) -> list[tuple[float, float]]:
        """(best, final) by seed of the runs with these labels."""
        items = self.context.select(**labels)
        assert {item.arm.seed for item in items} == {0, 1, 2} and len(items) == 3, labels
        numbers = {self.numbers[item.arm.spec.model_copy(update={"seed": 0}).id] for item in items}
        (number,) = numbers
        return [ends_of(item.arm, number) for item in items]

    def table(self) -> list[dict[str, Any]]:
        """The result's rows by heading, cells as a reader sees them."""
        table: Table | None = draw(self.context).table
        assert table is not None
        texts = table.texts()["rows"]
        return [{column.heading: text for column, text in zip(table.columns, row, strict=True)} for row in texts]


def spread(values: list[float], digits: int = 2, between: str = " ± ", after: str = "") -> str:
    """Mean and sample standard deviation."""
    return f"{fmean(values):.{digits}f}{between}{stdev(values):.{digits}f}{after}"


def interval(values: list[float], sign: str = "") -> str:
    """Mean and half of Student's 95 % interval of three."""
    return f"{fmean(values):{sign}.2f} ± {4.30265 * stdev(values) / 3**0.5:.2f}"


def finals(runs: list[tuple[float, float]]) -> list[float]:
    return [final for _, final in runs]


def bests(runs: list[tuple[float, float]]) -> list[float]:
    return [best for best, _ in runs]


def less(a: list[float], b: list[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


STAGES = ("non-pipelined", "4-stage", "6-stage", "8-stage", "10-stage")


@pytest.mark.parametrize("result", ["table_2", "text_headline_accuracy_drop"])
def test_stale_weights_table_2(result: str) -> None:
    ending, printed = Ending("stale_weights", result), load_paper("stale_weights").results["table_2"].reported
    keys = dict(zip(STAGES, ("non_pipelined", "s4", "s6", "s8", "s10"), strict=True))
    checked = 0
    for row in ending.table():
        model = row["CNN"]
        paper = next(line for line in printed if line["model"] == model)
        for arm in [arm for arm in STAGES if arm in row]:
            if paper[keys[arm]] is None:
                assert row[arm] == "N/A"
                continue
            runs, base = (finals(ending.ends(model=model, arm=each)) for each in (arm, "non-pipelined"))
            drop = paper["non_pipelined"] - paper[keys[arm]]
            first = arm == "non-pipelined"
            expected = {
                "paper": f"{paper[keys[arm]]:.2f}",
                "ours": spread(runs),
                "drop, paper": "–" if first else f"{drop:.2f}",
                "drop, ours": "–" if first else interval(less(base, runs)),
            }
            assert row[arm] == expected[row[""]], (model, arm, row[""])
            checked += 1
    assert checked == (4 * 18 if result == "table_2" else 4 * 8)


def test_stale_weights_tables_3_and_4_and_the_controls() -> None:
    ending = Ending("stale_weights", "table_3")
    rows = {row["pipeline"]: row for row in ending.table()}
    named = {f"{stages} stages": str(stages) for stages in range(8, 21, 2)}
    named |= {"non-pipelined": "non-pipelined", "8 stages, registers through the whole network": "8-stage"}
    named["non-pipelined at the pipelined rate"] = "non-pipelined at the pipelined rate"
    assert rows.keys() == named.keys()
    printed = {
        str(line["stages"]): line["accuracy"] for line in load_paper("stale_weights").results["table_3"].reported
    }
    for name, arm in named.items():
        runs = ending.ends(arm=arm)
        cuts = ending.context.select(arm=arm)[0].arm.spec.phases[0].cuts
        assert rows[name]["accuracy %: ours"] == spread(finals(runs)), name
        assert rows[name]["accuracy %: paper"] == (f"{printed[arm]:.2f}" if arm in printed else "–")
        assert rows[name]["PPV"] == (f"({', '.join(map(str, cuts))})" if cuts else "none")
    ending = Ending("stale_weights", "table_4")
    for row in ending.table():
        assert row["accuracy %: ours"] == spread(finals(ending.ends(arm=row["training"])))
    ending = Ending("stale_weights", "control")
    base, control = (finals(ending.ends(arm=arm)) for arm in (STAGES[0], "non-pipelined at the pipelined rate"))
    for row in ending.table():
        runs = finals(ending.ends(arm=row["arm"]))
        assert row["accuracy %"] == spread(runs)
        beyond = row["arm"] in STAGES[1:]
        assert row["lost, points: to the baseline"] == ("–" if row["arm"] == STAGES[0] else interval(less(base, runs)))
        assert row["lost, points: at equal rates"] == (interval(less(control, runs)) if beyond else "–")


def test_stale_weights_tables_of_the_deeper_networks() -> None:
    for result in ("table_5", "text_hybrid_average_gain", "table_7"):
        ending = Ending("stale_weights", result)
        seen = 0
        for row in ending.table():
            model, labels = row["ResNet"], {"model": row["ResNet"], "kind": "train"}
            if result == "table_5" and row[""] == "ours":
                for arm in ("non-pipelined", "pipelined", "hybrid"):
                    assert row[f"accuracy % (ours simulated): {arm}"] == spread(finals(ending.ends(**labels, arm=arm)))
                    seen += 1
            if result == "text_hybrid_average_gain" and model != "mean":
                base, hybrid = (finals(ending.ends(**labels, arm=arm)) for arm in ("non-pipelined", "hybrid"))
                group = "ours, accuracy %"
                assert (row[f"{group}: non-pipelined"], row[f"{group}: hybrid"]) == (spread(base), spread(hybrid))
                assert row[f"{group}: gain"] == f"{interval(less(hybrid, base), '+')} (3 seeds)"
                seen += 1
            if result == "table_7":
                other = "pipelined" if model == "ResNet-20" else "one rate"
                assert row["our accuracy %: with that rate"] == spread(finals(ending.ends(**labels, arm="pipelined")))
                assert row["our accuracy %: one rate in both partitions"] == spread(
                    finals(ending.ends(**labels, arm=other))
                )
                rates = {"ResNet-20": "0.1", "ResNet-56": "0.01"}  # table 7; 0.001 of the others
                assert {row["BKS2 learning rate: paper"], row["BKS2 learning rate: ours"]} == {
                    rates.get(model, "0.001")
                }
                seen += 1
        assert seen == {"table_5": 15, "text_hybrid_average_gain": 5, "table_7": 5}[result]


@pytest.mark.parametrize("result", ["table_2", "table_3", "text_quality_bound"])
def test_pipemares_scores(result: str) -> None:
    ending = Ending("pipemare", result)
    tasks = {"CIFAR10": "images", "ImageNet": "ImageNet", "IWSLT14": "translation", "WMT17": "WMT17"}
    arms = {"GPipe": "Sync", "PipeMare": "T1+T2", "PipeMareW": "T1+T2+W"} if result == "table_2" else {}
    group, seen = "accuracy (%) or BLEU", 0
    ours = "" if result == "text_quality_bound" else "ours, "
    for row in ending.table():
        runs = ending.ends(task=tasks[row["Task"]], arm=arms.get(row["Method"], row["Method"]))
        assert row[f"{group}: {ours}best of 4 evaluations"] == spread(bests(runs), 1, " (sd ", ")"), row
        assert row[f"{group}: {ours}last"] == spread(finals(runs), 1, " (sd ", ")"), row
        if result == "text_quality_bound":
            sync = ending.ends(task=tasks[row["Task"]], arm="Sync")
            assert row["below Sync: best"] == f"{interval(less(bests(sync), bests(runs)), '+')} (3 seeds)"
            assert row["below Sync: last"] == f"{interval(less(finals(sync), finals(runs)), '+')} (3 seeds)"
        seen += 1
    assert seen >= 9


OPTIMS = ("GPipe", "PipeDream", "PipeDream-2BW", "SpecTrain", "XPipe", "PipeOptim")


def test_pipeoptims_table_4() -> None:
    """The highest evaluation of each approach; below, what PipeOptim gains over the rows above."""
    ending = Ending("pipeoptim", "table_4")
    gains: dict[tuple[str, str], list[float]] = {}
    for row in ending.table():
        if row["model"] == "gain" or row[""] == "paper":
            continue
        named = {"optimizer": row["optimizer"], "model": row["model"]}
        best = {arm: bests(ending.ends(**named, arm=arm)) for arm in OPTIMS if ending.context.select(**named, arm=arm)}
        assert {arm: row[arm] for arm in best} == {arm: spread(values) for arm, values in best.items()}
        assert len(best) == (6 if row["optimizer"] == "SGDM" else 5)
        for arm in best:
            gains.setdefault((row["optimizer"], arm), []).append(fmean(best["PipeOptim"]) - fmean(best[arm]))
    for row in [row for row in ending.table() if row["model"] == "gain" and row[""] == "ours"]:
        for arm in OPTIMS[:-1]:
            each = gains.get((row["optimizer"], arm))
            assert row[arm] == (f"{fmean(each):+.2f} ({max(each):+.2f})" if each else "–"), (row["optimizer"], arm)


def test_pipeoptims_tables_of_the_overall_study_and_of_predictions_gain() -> None:
    ending = Ending("pipeoptim", "table_6")
    rows = ending.table()
    for row in rows:
        runs = ending.ends(model=row["model"], arm=row["approach"], what="training")
        assert row["top-1 (%): ours"] == f"{fmean(bests(runs)):.2f}" and len(rows) == 12
        assert row["top-5 (%): ours"] == f"{fmean(best + 10 for best in bests(runs)):.2f}"
    ending = Ending("pipeoptim", "text_weight_prediction_gain")
    means: dict[str, list[float]] = {"recomputed": [], "kept": []}
    for row in ending.table()[:-1]:
        for kind, every in means.items():
            pair = [
                fmean(bests(ending.ends(model=row["model"], arm=arm, activations=kind)))
                for arm in ("PipeOptim", "Vanilla-1F1B")
            ]
            group = f"activations {kind}"
            assert [row[f"{group}: {arm}"] for arm in ("PipeOptim", "Vanilla-1F1B")] == [f"{v:.2f}" for v in pair]
            every.append(pair[0] - pair[1])
            assert row[f"{group}: gain"] == f"{every[-1]:+.2f}"
    last = ending.table()[-1]
    assert {kind: last[f"activations {kind}: gain"] for kind in means} == {
        k: f"{fmean(v):+.2f}" for k, v in means.items()
    }


def test_spectrains_table_1_and_its_headline() -> None:
    """Least losses and the greatest accuracy of a training, not where it ends."""
    ending, accuracies = Ending("spectrain", "table_1"), {}
    for row in ending.table():
        best = bests(ending.ends(model=row["Model"], arm=row["Scheme"], what="training"))
        accuracies[row["Model"], row["Scheme"]] = best
        cells = {
            "min. train loss: ours": spread([2 - b / 100 for b in best], 4),
            "min. val. loss: ours": spread([3 - b / 100 for b in best], 4),
            "max. val. accuracy (%): ours": spread(best),
        }
        assert {key: row[key] for key in cells} == cells
    assert len(accuracies) == 6 * 5
    cnn, dense = ("VGG16", "ResNet-152", "Inception v4"), ("SNN", "Transformer", "Residual LSTM")
    ending = Ending("spectrain", "text_headline_accuracy")
    ends = {key: bests(ending.ends(model=key[0], arm=key[1], what="training")) for key in accuracies}
    for row in ending.table():
        for title, models in (("CNN", cnn), ("FCN/RNN", dense), ("all six", cnn + dense)):
            lost = [
                fmean(ends[model, "Data P."][seed] - ends[model, row["Scheme"]][seed] for model in models)
                for seed in range(3)
            ]
            assert row[f"drop, {title} (points): ours"] == f"{interval(lost, '+')} (3 seeds)", (row["Scheme"], title)


def test_the_leaderboards_table_1_is_of_final_accuracies() -> None:
    ending = Ending("leaderboard", "table_1")
    rows = ending.table()
    for row in rows:
        assert row["accuracy, %"] == spread(finals(ending.ends(what="learning", arm=row["method"])))
    means = [float(row["accuracy, %"].split()[0]) for row in rows]
    assert means == sorted(means, reverse=True) and len(rows) > 15
