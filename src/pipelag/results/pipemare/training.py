"""Figures 2-4, 7, 8, 11-15 and 19, and table 3: training with fine-grained asynchrony."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import pandas as pd

from pipelag.report.charts import lines
from pipelag.report.tables import Cell, Column, Table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context, RunLog
from pipelag.results.pipemare.formulas import gpipe_utilisation, memory_over_gpipe, warmed_up
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipemare"
CHANCE = 1.5  # an arm that ends below this many times chance (10 % of ten classes) has not learned


TASKS = {"images": "test accuracy (%)", "translation": "BLEU"}


def points(log: RunLog | None) -> list[tuple[float, float]]:
    """(epoch, quality) of every evaluation: BLEU, or accuracy of images."""
    return [(row["epoch"], row.get("bleu", row["accuracy"])) for row in log.rows if "accuracy" in row] if log else []


def quality(context: Context, **labels: str) -> float | None:
    """Best accuracy or BLEU over the epochs, mean over seeds (section 4.1); None where a run is missing or diverged."""
    items = context.select(**({"task": "images"} | labels))
    best = [
        log.summary["best"].get("bleu", log.summary["best"]["accuracy"])
        for item in items
        if (log := item.log) is not None and log.summary["status"] == "finished"
    ]
    return mean(best) if items and len(best) == len(items) else None


def outcome(context: Context, **labels: str) -> str:
    """A quality in words: a number, that it diverged, or that there is no log."""
    found = quality(context, **labels)
    if found is not None:
        return f"{found:.1f}"
    logs = context.logs(**({"task": "images"} | labels))
    return f"diverged at step {logs[0].diverged_at}" if logs and logs[0].diverged_at is not None else "no log"


def needed(context: Context, **labels: str) -> float:
    """`quality` for a judge; a diverged run counts as 0."""
    log_of(context, **({"task": "images"} | labels))
    return quality(context, **labels) or 0.0


def learned(context: Context, **labels: str) -> bool:
    """Whether an arm neither diverged nor stayed near chance."""
    return needed(context, **labels) > CHANCE * 10


def stages_of(context: Context, task: str = "images") -> str:
    """The numbers of stages trained with, for titles."""
    counts = sorted({len(i.arm.spec.phases[-1].cuts) + 1 for i in context.select(task=task) if i.arm.spec.phases})
    return " and ".join(map(str, counts)) + " stages"


@drawing(PAPER, "figure_4", "figure_7", "figure_8", "figure_12", "figure_13", "figure_14", "figure_19")
def curves(context: Context) -> Drawn:
    """Quality against epochs, a line per arm, a panel per task."""
    panels, data = {}, []
    for task, metric in TASKS.items():
        series = {arm: points(context.log(arm=arm, task=task)) for arm in context.values("arm")}
        series = {arm: line for arm, line in series.items() if line}
        if not series:
            continue
        model = next(i.arm.spec.model.name for i in context.select(task=task) if i.arm.spec.model)
        panels[f"{model}, {stages_of(context, task)}: {metric}"] = series
        data += [(task, arm, *point) for arm, line in series.items() for point in line]
    if not data:
        return not_logged("no run is logged")
    figure = lines(panels, "epoch", "quality", marker="", shared_y=False)
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["task", "arm", "epoch", "quality"]))


@judge(PAPER, "figure_4", "finest_diverges")
def finest_diverges(context: Context) -> Finding:
    """It never gets beyond 1.5 times chance."""
    arm = "most stages, no discrepancy"
    return not learned(context, arm=arm), f"best accuracy {outcome(context, arm=arm)}"


@judge(PAPER, "figure_4", "plain_does_not")
def plain_does_not(context: Context) -> Finding:
    """It learns."""
    arm = "P stages, no discrepancy"
    return learned(context, arm=arm), f"best accuracy {outcome(context, arm=arm)}"


@judge(PAPER, "figure_4", "discrepancy_diverges")
def discrepancy_diverges(context: Context) -> Finding:
    """It does not learn."""
    worse, better = outcome(context, arm="neither"), outcome(context, arm="P stages, no discrepancy")
    return not learned(context, arm="neither"), f"best accuracy {worse} with discrepancy, {better} without"


def gaps(context: Context, arms: Sequence[str], task: str = "images") -> tuple[dict[str, float], str]:
    """How far arms stay below Sync, and that in words."""
    sync = needed(context, arm="Sync", task=task)
    found = {arm: sync - needed(context, arm=arm, task=task) for arm in arms}
    text = f"Sync {sync:.1f}; " + ", ".join(f"{arm} {outcome(context, arm=arm, task=task)}" for arm in arms)
    return found, text


@judge(PAPER, "figure_7", "all_reach_sync")
def all_reach_sync(context: Context) -> Finding:
    """T1 and T1+T2."""
    found, text = gaps(context, ["T1", "T1+T2", "neither"])
    return max(found["T1"], found["T1+T2"]) <= 0.1, text


def area(context: Context, arm: str) -> float:
    """Mean BLEU over the epochs: high for an arm that converges early."""
    return mean(value for _, value in points(log_of(context, arm=arm, task="translation")))


@judge(PAPER, "figure_7", "convergence_order")
def convergence_order(context: Context) -> Finding:
    """Mean BLEU over the epochs as a measure of speed."""
    found = {arm: area(context, arm) for arm in ("Sync", "T1+T2+W", "T1+T2", "T1", "neither")}
    text = "mean BLEU over the epochs: " + ", ".join(f"{arm} {value:.1f}" for arm, value in found.items())
    return min(found["Sync"], found["T1+T2+W"]) > found["T1+T2"] > found["T1"], text


@judge(PAPER, "figure_8", "transformer_needs_t2")
def transformer_needs_t2(context: Context) -> Finding:
    """T1 at most half of T1+T2."""
    found, text = gaps(context, ["T1", "T1+T2", "T1+T2+W"], "translation")
    sync = needed(context, arm="Sync", task="translation")
    return sync - found["T1"] < 0.5 * (sync - found["T1+T2"]), text


@judge(PAPER, "figure_8", "t2_needed")
def t2_needed(context: Context) -> Finding:
    """T1 alone learns nothing or diverges."""
    _, text = gaps(context, ["T1", "T1+T2"])
    return not learned(context, arm="T1") and learned(context, arm="T1+T2"), text


@judge(PAPER, "figure_8", "t2_worth_more")
def t2_worth_more(context: Context) -> Finding:
    """T1+T2 minus T1, here against a stage per weight (figure 7's runs)."""
    here = needed(context, arm="T1+T2") - needed(context, arm="T1")
    single = Context.load(context.paper, "table_3", context.scale)
    there = needed(single, arm="T1+T2") - needed(single, arm="T1")
    return here > there, f"T2 adds {here:.1f} points with split weights, {there:.1f} without"


@judge(PAPER, "figure_12", "t2_reaches_sync")
def t2_reaches_sync(context: Context) -> Finding:
    """Within 0.1, and T1 fails."""
    found, text = gaps(context, ["T1", "T1+T2"])
    return found["T1+T2"] <= 0.1 and not learned(context, arm="T1"), text


@judge(PAPER, "figure_13", "resnet_small_k")
def resnet_small_k(context: Context) -> Finding:
    """The best K for images is smaller than that for translation."""
    best, texts = {}, []
    for task in TASKS:
        arms = [arm for arm in context.values("arm") if arm.startswith("K") and context.select(arm=arm, task=task)]
        arms.sort(key=lambda arm: float(arm.split()[2]))
        found = {arm: needed(context, arm=arm, task=task) for arm in arms}
        best[task] = float(max(found, key=lambda arm: found[arm]).split()[2])
        texts.append(f"{task}: " + ", ".join(f"{arm} {value:.1f}" for arm, value in found.items()))
    return best["images"] < best["translation"], "; ".join(texts)


@judge(PAPER, "figure_14", "half_matches")
def half_matches(context: Context) -> Finding:
    """Within 0.1 of Sync."""
    found, text = gaps(context, ["no correction", "D = 0.1", "D = 0.5", "D = 0.9"])
    return found["D = 0.5"] <= 0.1, text


@judge(PAPER, "figure_14", "small_d_converges")
def small_d_converges(context: Context) -> Finding:
    """Mean BLEU over the epochs."""
    found = {arm: area(context, arm) for arm in ("no correction", "D = 0.01", "D = 0.1", "D = 0.5")}
    text = "mean BLEU over the epochs: " + ", ".join(f"{arm} {value:.1f}" for arm, value in found.items())
    return min(found["D = 0.01"], found["D = 0.1"]) > found["no correction"], text


@judge(PAPER, "figure_19", "t1_helps")
def t1_helps(context: Context) -> Finding:
    """Best accuracy and BLEU."""
    texts, holds = [], True
    for task in TASKS:
        found, text = gaps(context, ["Hogwild", "Hogwild+T1"], task)
        holds &= found["Hogwild+T1"] < found["Hogwild"]
        texts.append(f"{task}: {text}")
    return holds, "; ".join(texts)


TASK_OF = {"CIFAR10": "images", "IWSLT14": "translation"}


@drawing(PAPER, "table_3")
def table_3(context: Context) -> Drawn:
    """The paper's rows; ours where they are trained here, with the two arms that it leaves out."""
    paper_rows = context.result.reported
    rows: list[dict[str, Cell]] = []
    for dataset, task in TASK_OF.items():
        own = [{"dataset": dataset, "method": arm} for arm in ("Sync", "neither")]
        for paper in own + [row for row in paper_rows if row["dataset"] == dataset]:
            rows.append(
                {
                    "dataset": dataset,
                    "method": paper["method"],
                    "paper": paper.get("quality"),
                    "own": outcome(context, arm=paper["method"], task=task),
                    "util": paper.get("util"),
                    "memory": paper.get("memory"),
                }
            )
    columns = [
        Column("dataset", "Task of the paper"),
        Column("method", "Method"),
        Column("paper", "paper", "best quality", "{:.1f}"),
        Column("own", "ours", "best quality"),
        Column("util", "utilisation (%), paper"),
        Column("memory", "memory, paper", "", "{:.2f}x"),
    ]
    titles = {task: title for task in TASKS if (title := trained_on(context, task))}
    notes = [f"ours: {'; '.join(titles.values())}", "utilisation and memory are recomputed in table 2"]
    notes += [context.releases()] if context.releases() else []
    starts = [i for i in range(1, len(rows)) if rows[i]["dataset"] != rows[i - 1]["dataset"]]
    return Drawn(table=Table(columns, rows, context.result.caption, notes, starts))


def trained_on(context: Context, task: str) -> str:
    """What a task is here: data set, model and stages."""
    for item in context.select(task=task):
        spec = item.arm.spec
        if item.log is not None and spec.model is not None:
            return f"{task} on {item.log.summary['data']['title']}, {spec.model.name}, {stages_of(context, task)}"
    return ""


@judge(PAPER, "table_3", "t1_best_neither_worst")
def t1_best(context: Context) -> Finding:
    """T2 only < T1 only, T1+T2 within 0.1 of T1 or above, and neither fails."""
    found = {arm: needed(context, arm=arm) for arm in ("neither", "T2", "T1", "T1+T2")}
    text = ", ".join(f"{arm} {outcome(context, arm=arm)}" for arm in found)
    holds = found["T2"] < found["T1"] <= found["T1+T2"] + 0.1 and not learned(context, arm="neither")
    return holds, text


@judge(PAPER, "table_3", "t2_alone_fails")
def t2_alone_fails(context: Context) -> Finding:
    """T2 alone and neither stay below a fifth of Sync."""
    found, text = gaps(context, ["T2", "neither", "T1", "T1+T2"], "translation")
    sync = needed(context, arm="Sync", task="translation")
    return max(sync - found["T2"], sync - found["neither"]) < 0.2 * sync, text


@judge(PAPER, "table_3", "warmup_closes")
def warmup_closes(context: Context) -> Finding:
    """Above T1+T2, and within 0.5 of Sync."""
    found, text = gaps(context, ["T1+T2", "T1+T2+W"], "translation")
    return found["T1+T2+W"] < found["T1+T2"] and found["T1+T2+W"] <= 0.5, text


@judge(PAPER, "text_quality_bound", "within")
def within(context: Context) -> Finding:
    """The best variant against Sync."""
    found, text = gaps(context, ["T1", "T2", "T1+T2"])
    return min(found.values()) <= context.result.reported["max_top1_difference"], text


@drawing(PAPER, "text_quality_bound")
def quality_bound(context: Context) -> Drawn:
    """One row per variant."""
    sync = quality(context, arm="Sync")
    rows: list[dict[str, Cell]] = []
    for arm in ("T1", "T2", "T1+T2"):
        own = quality(context, arm=arm)
        rows.append({"arm": arm, "own": own, "gap": sync - own if sync is not None and own is not None else None})
    columns = [
        Column("arm", "Method"),
        Column("own", "best accuracy (%)", "", "{:.1f}"),
        Column("gap", "below Sync", "", "{:.1f}"),
    ]
    notes = [f"the paper: at most {context.result.reported['max_top1_difference']} below on images"]
    return Drawn(table=Table(columns, rows, context.result.caption, notes))


def by_stages(context: Context) -> list[tuple[int, int, str]]:
    """(stages, microbatches, setup) of the runs, by stages."""
    found = {
        (len(i.arm.spec.phases[0].cuts) + 1, i.arm.spec.phases[0].microbatches, i.arm.labels["setup"])
        for i in context.items
        if i.arm.spec.phases
    }
    return sorted(found)


@drawing(PAPER, "figure_2", "figure_3")
def figure_2(context: Context) -> Drawn:
    """Three panels over the number of stages."""
    task = "images" if context.name == "figure_2" else "translation"
    counts = context.log(arm="weights")
    arms = [arm for arm in context.values("arm") if arm != "weights"]
    used: dict[str, list[tuple[float, float]]] = {arm: [] for arm in arms}
    held: dict[str, list[tuple[float, float]]] = {arm: [] for arm in arms}
    reached: dict[str, list[tuple[float, float]]] = {arm: [] for arm in arms}
    for stages, micro, setup in by_stages(context):
        for arm in arms:
            used[arm].append((stages, warmed_share(context, arm, setup, gpipe_utilisation(stages, micro))))
            if counts:
                copies = 3 if task == "images" else 4  # SGD with momentum, or Adam
                held[arm].append((stages, memory_over_gpipe(arm, counts.rows, stages, micro, copies)))
            best = quality(context, arm=arm, setup=setup, task=task)
            if best is not None:
                reached[arm].append((stages, best / 100))
    label = "best accuracy" if task == "images" else "best BLEU / 100"
    panels = {"utilisation": used, "memory over GPipe's": held, label: reached}
    data = [(panel, arm, *point) for panel, s in panels.items() for arm, line in s.items() for point in line]
    if not any(context.logs()):
        return not_logged("no run is logged")
    figure = lines(panels, "pipeline stages", "", shared_y=False, y_range=(0, None))
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["panel", "arm", "stages", "value"]))


def warmed_share(context: Context, arm: str, setup: str, alone: float) -> float:
    """An arm's utilisation, warm-up steps counted at GPipe's."""
    if arm == "GPipe":
        return alone
    item = next((i for i in context.select(arm=arm, setup=setup) if i.arm.spec.phases), None)
    if item is None or len(item.arm.spec.phases) == 1:
        return 1.0
    first, second = item.arm.spec.phases
    return warmed_up(alone, first.steps, second.steps)


@judge(PAPER, "figure_2", "gpipe_utilisation_falls")
def utilisation_falls(context: Context) -> Finding:
    """By N / (N + P - 1); table 1 holds the schedules to it."""
    if not context.logs():
        raise NotLogged("nothing is logged")
    values = [(stages, gpipe_utilisation(stages, micro)) for stages, micro, _ in by_stages(context)]
    falling = all(a[1] > b[1] for a, b in zip(values[:-1], values[1:], strict=True))
    return falling, ", ".join(f"P = {stages}: {100 * value:.0f} %" for stages, value in values)


@judge(PAPER, "figure_2", "pipedream_memory_grows")
def memory_grows(context: Context) -> Finding:
    """Growth of PipeDream's extra memory with P; the others do not depend on it."""
    counts = log_of(context, arm="weights").rows
    values = [(s, memory_over_gpipe("PipeDream", counts, s, micro, copies=3)) for s, micro, _ in by_stages(context)]
    growing = all(a[1] < b[1] for a, b in zip(values[:-1], values[1:], strict=True))
    return growing, ", ".join(f"P = {stages}: {value:.2f}x" for stages, value in values)


@judge(PAPER, "figure_2", "accuracy_within")
def accuracy_within(context: Context) -> Finding:
    """At every P."""
    texts, holds = [], True
    for stages, _, setup in by_stages(context):
        found = {arm: quality(context, arm=arm, setup=setup) for arm in ("GPipe", "PipeDream", "PipeMare")}
        if all(value is None for value in found.values()):
            raise NotLogged(f"P = {stages} has no log")
        best = max(value or 0.0 for value in found.values())
        holds &= best - (found["PipeMare"] or 0.0) <= 0.1
        texts.append(f"P = {stages}: PipeMare {found['PipeMare'] or 0:.1f} of {best:.1f}")
    return holds, "; ".join(texts)


@judge(PAPER, "figure_3", "same_trends")
def same_trends(context: Context) -> Finding:
    """Both of figure 2's."""
    first, falling = utilisation_falls(context)
    counts = log_of(context, arm="weights").rows
    values = [(s, memory_over_gpipe("PipeDream", counts, s, micro, copies=4)) for s, micro, _ in by_stages(context)]
    growing = all(a[1] < b[1] for a, b in zip(values[:-1], values[1:], strict=True))
    text = ", ".join(f"P = {stages}: {value:.2f}x" for stages, value in values)
    return bool(first) and growing, f"GPipe's utilisation {falling}; PipeDream's memory {text}"


@judge(PAPER, "figure_3", "warmup_closes_gap")
def warmup_closes_gap(context: Context) -> Finding:
    """At every P: PipeMareW nearer to GPipe than PipeMare, and within 0.5."""
    texts, holds = [], True
    for stages, _, setup in by_stages(context):
        found = {
            arm: needed(context, arm=arm, setup=setup, task="translation")
            for arm in ("GPipe", "PipeDream", "PipeMare", "PipeMareW")
        }
        holds &= found["PipeMareW"] >= max(found["PipeMare"], found["GPipe"] - 0.5)
        texts.append(f"P = {stages}: " + ", ".join(f"{arm} {value:.1f}" for arm, value in found.items()))
    return holds, "; ".join(texts)


def over_time(context: Context, arm: str) -> list[tuple[float, float]]:
    """(normalised time, BLEU): an epoch takes 1 / utilisation, of its phase."""
    item = next((i for i in context.select(arm=arm, task="translation") if i.log is not None), None)
    if item is None or item.log is None:
        return []
    spec, done, clock = item.arm.spec, 0, 0.0
    borders = []  # (steps until here, time until here, time per step)
    for phase in spec.phases:
        alone = gpipe_utilisation(len(phase.cuts) + 1, phase.microbatches)
        each = 1 / alone if phase.method == "gpipe" else 1.0
        borders.append((done, clock, each))
        done, clock = done + phase.steps, clock + phase.steps * each
    found = []
    for row in item.log.rows:
        start, begun, each = max(b for b in borders if b[0] < row["step"])
        per_epoch = row["step"] / row["epoch"]
        found.append(((begun + (row["step"] - start) * each) / per_epoch, row["bleu"]))
    return found


@drawing(PAPER, "figure_11", "figure_15")
def epochs_and_time(context: Context) -> Drawn:
    """BLEU against epochs and against normalised time."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {"by epochs": {}, "by normalised time": {}}
    data = []
    for arm in context.values("arm"):
        epochs = points(context.log(arm=arm, task="translation"))
        if not epochs:
            continue
        panels["by epochs"][arm] = epochs
        panels["by normalised time"][arm] = over_time(context, arm)
        data += [(arm, e, t, value) for (e, value), (t, _) in zip(epochs, over_time(context, arm), strict=True)]
    if not data:
        return not_logged("no run is logged")
    figure = lines(panels, "epochs; epochs of a fully used pipeline", "BLEU", marker="")
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["arm", "epoch", "time", "bleu"]))


@judge(PAPER, "figure_11", "pipedream_near_zero")
def pipedream_near_zero(context: Context) -> Finding:
    """Below a fifth of Sync; and the warmed-up arm at least Sync's BLEU less 0.1."""
    found, text = gaps(context, ["PipeDream", "T1+T2", "T1+T2+W"], "translation")
    sync = needed(context, arm="Sync", task="translation")
    return sync - found["PipeDream"] < 0.2 * sync and found["T1+T2+W"] <= 0.1, text


@judge(PAPER, "figure_15", "more_warmup_fewer_epochs")
def more_warmup(context: Context) -> Finding:
    """Epochs to 90 % of Sync's best BLEU, and the utilisation."""
    arms = sorted((a for a in context.values("arm") if a.startswith("W")), key=lambda arm: float(arm.split()[2]))
    goal = 0.9 * needed(context, arm="Sync", task="translation")
    reached: dict[str, float] = {}
    used = {}
    for arm in arms:
        line = points(log_of(context, arm=arm, task="translation"))
        reached[arm] = next((epoch for epoch, value in line if value >= goal), float("inf"))
        time = over_time(context, arm)
        used[arm] = line[-1][0] / time[-1][0]
    texts = [f"{arm}: {reached[arm]:.2f} epochs, utilisation {100 * used[arm]:.0f} %" for arm in arms]
    fewer = all(reached[a] >= reached[b] for a, b in zip(arms[:-1], arms[1:], strict=True))
    lower = all(used[a] > used[b] for a, b in zip(arms[:-1], arms[1:], strict=True))
    return fewer and lower, f"to {goal:.1f} BLEU: " + "; ".join(texts).replace("inf epochs", "never")


@drawing(PAPER, "figure_17", "figure_18")
def by_checkpoints(context: Context) -> Drawn:
    """A panel per method, a line per number of checkpoints."""
    task = "images" if context.name == "figure_17" else "translation"
    panels, data = {}, []
    counts = sorted(context.values("checkpoints"), key=lambda count: (count != "none", count))
    for arm in context.values("arm"):
        series = {
            "no recomputation" if count == "none" else f"{count} checkpoints": points(
                context.log(arm=arm, checkpoints=count)
            )
            for count in counts
        }
        panels[arm] = {label: line for label, line in series.items() if line}
        data += [(arm, label, *point) for label, line in series.items() for point in line]
    if not data:
        return not_logged("no run is logged")
    figure = lines(panels, "epoch", TASKS[task], marker="")
    return Drawn(figure=figure, data=pd.DataFrame(data, columns=["arm", "checkpoints", "epoch", "quality"]))


def lost(context: Context, arm: str, task: str) -> tuple[float, str]:
    """The most that recomputation costs an arm over all numbers of checkpoints; and all qualities."""
    plain = needed(context, arm=arm, task=task, checkpoints="none")
    counts = [count for count in context.values("checkpoints") if count != "none"]
    found = {count: needed(context, arm=arm, task=task, checkpoints=count) for count in counts}
    text = f"{arm} {plain:.1f} without, " + ", ".join(f"{value:.1f} with {count}" for count, value in found.items())
    return max(plain - value for value in found.values()), text


@judge(PAPER, "figure_17", "matches")
def recompute_matches(context: Context) -> Finding:
    """Nowhere more than 5 points below; at this scale seeds differ by as much."""
    pairs = [lost(context, arm, "images") for arm in ("T1", "T1+T2")]
    return max(loss for loss, _ in pairs) <= 5, "; ".join(text for _, text in pairs)


@judge(PAPER, "figure_18", "t1_alone_suffers")
def t1_alone_suffers(context: Context) -> Finding:
    """By more than 5 BLEU for some number of checkpoints."""
    loss, text = lost(context, "T1", "translation")
    return loss > 5, text


@judge(PAPER, "figure_18", "t2_matches")
def t2_matches(context: Context) -> Finding:
    """Nowhere more than 5 BLEU below."""
    pairs = [lost(context, arm, "translation") for arm in ("T1+T2", "T1+T2+W")]
    return max(loss for loss, _ in pairs) <= 5, "; ".join(text for _, text in pairs)
