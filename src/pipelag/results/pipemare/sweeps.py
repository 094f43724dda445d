"""Figures 2, 3, 11, 15, 17 and 18: training over numbers of stages, warm-up and checkpoints."""

from __future__ import annotations

import pandas as pd

from pipelag.report.charts import lines
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.logs import Context
from pipelag.results.pipemare.costs import gpipe_utilisation, memory_over_gpipe, warmed_up
from pipelag.results.pipemare.quality import TASKS, gaps, needed, points, quality
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER = "pipemare"


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
