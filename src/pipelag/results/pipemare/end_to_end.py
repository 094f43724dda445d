"""Table 2, figures 11 and 15, and what the abstract says: quality, utilisation and memory together."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Col, table
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, exact, sized, trend
from pipelag.results.logs import Context
from pipelag.results.pipemare.arms import about_zero, grid, number
from pipelag.results.pipemare.costs import (
    amortised,
    epochs_to,
    goal,
    gpipe,
    held,
    megabytes,
    memory_of,
    normalised,
    pipeline,
    pipelines,
)
from pipelag.results.pipemare.curves import STYLES, nothing
from pipelag.results.pipemare.quality import (
    BLEU,
    DATASET_OF,
    EQUAL_BLEU,
    EQUAL_POINTS,
    IMAGES,
    POINTS,
    TASK_OF,
    BySeed,
    area,
    below,
    best,
    cell,
    each,
    evaluations,
    log_in,
    metric,
    reasons,
    runs_of,
    title,
    trained_as,
    value_of,
)
from pipelag.results.verdict import Finding, NotLogged, judge

PAPER = "pipemare"
ARMS = {"PipeDream": "PipeDream", "GPipe": "Sync", "PipeMare": "T1+T2", "PipeMareW": "T1+T2+W"}
DATASETS = tuple(TASK_OF)


def or_none(value: Callable[[], float]) -> float | None:
    """A number, or none where it has no log."""
    try:
        return value()
    except NotLogged:
        return None


def utilisation(context: Context, dataset: str, method: str) -> float:
    """Of a method on a data set, at the paper's P and N; PipeMareW's until the run here reaches its target score."""
    if method == "GPipe":
        return float(gpipe(context, dataset)["utilisation"])
    if method == "PipeMareW":
        return fmean(warmed_up(context, dataset).values())
    return float(pipeline(context, method, dataset=dataset, arm="pipeline")["utilisation"])


def warmed_up(context: Context, dataset: str) -> BySeed:
    """PipeMareW's amortised utilisation by seed (section 4)."""
    task, alone = TASK_OF[dataset], gpipe(context, dataset)["utilisation"]
    return amortised(context, alone, goal(context, task), task=task, arm="T1+T2+W")


@drawing(PAPER, "table_2")
def table_2(context: Context) -> Drawn:
    """The paper's rows beside ours."""

    def quality(row: dict[str, Any]) -> str | None:
        return cell(context, task=TASK_OF[row["dataset"]], arm=ARMS[row["method"]])

    def used(row: dict[str, Any]) -> float | None:
        return or_none(lambda: 100 * utilisation(context, row["dataset"], row["method"]))

    def memory(row: dict[str, Any]) -> float | None:
        return or_none(lambda: memory_of(context, row["dataset"], row["method"]))

    def size(row: dict[str, Any]) -> float | None:
        return or_none(lambda: megabytes(context, row["dataset"])) if row["method"] == "GPipe" else None

    cols = [
        Col("Task", "dataset"),
        Col("Method", "method"),
        Col("paper", "quality", "{:.1f}", "accuracy (%) or BLEU"),
        Col("ours", quality, "{}", "accuracy (%) or BLEU"),
        Col("paper", "util", "{:.0f}", "utilisation (%)"),
        Col("ours", used, "{:.1f}", "utilisation (%)"),
        Col("paper", "memory", "{:.2f}x", "weights and optimizer"),
        Col("ours", memory, "{:.2f}x", "weights and optimizer"),
        Col("paper", lambda row: row.get("megabytes"), "{:.0f}", "MB"),
        Col("ours", size, "{:.0f}", "MB"),
    ]
    notes = [
        "utilisation from schedules of the paper's P and N; PipeMareW's amortised over the epochs that the runs here "
        "take to as large a share of their synchronous best as the paper's target is of its own",
        "memory from the schedules' weight copies, the parameters of full-size models and what a training step holds; "
        "the paper's ratios of PipeDream do not follow from its formula",
    ]
    trained = [name for task in TASK_OF.values() if (name := trained_as(context, task))]
    notes += [f"trained here: {'; '.join(trained)}"] if trained else []
    notes += reasons(context)
    notes += [context.releases()] if context.releases() else []
    return Drawn(table=table(context.result.reported, cols, context.result.caption, notes, rule_by="Task"))


def at_least_sync(context: Context, dataset: str, arm: str) -> Finding:
    """Whether an arm's best score is at most 0.1 below the synchronous one."""
    task = TASK_OF[dataset]
    gap = below(context, arm, task=task)
    text = f"{each(context, 'Sync', arm, task=task)}; {gap.text()} below"
    return sized(context, gap.below(POINTS), text, f"below by at most 0.1, as the claim says; {SEEDS}", task=task)


@judge(PAPER, "table_2", "cifar_quality")
def cifar_quality(context: Context) -> Finding:
    """PipeMare without warm-up."""
    return at_least_sync(context, "CIFAR10", "T1+T2")


@judge(PAPER, "table_2", "imagenet_quality")
def imagenet_quality(context: Context) -> Finding:
    """PipeMareW."""
    return at_least_sync(context, "ImageNet", "T1+T2+W")


@judge(PAPER, "table_2", "iwslt_quality")
def iwslt_quality(context: Context) -> Finding:
    """PipeMareW."""
    return at_least_sync(context, "IWSLT14", "T1+T2+W")


@judge(PAPER, "table_2", "wmt_quality")
def wmt_quality(context: Context) -> Finding:
    """PipeMareW."""
    return at_least_sync(context, "WMT17", "T1+T2+W")


@judge(PAPER, "table_2", "iwslt_pipedream_fails")
def iwslt_pipedream_fails(context: Context) -> Finding:
    """BLEU about 0."""
    return about_zero(context, "PipeDream", "translation")


@judge(PAPER, "table_2", "wmt_pipedream_fails")
def wmt_pipedream_fails(context: Context) -> Finding:
    """BLEU about 0."""
    return about_zero(context, "PipeDream", "WMT17")


@judge(PAPER, "table_2", "imagenet_pipedream_below")
def imagenet_pipedream_below(context: Context) -> Finding:
    """The best accuracies."""
    gap = below(context, "PipeDream", "T1+T2", task="ImageNet")
    text = f"{each(context, 'PipeDream', 'T1+T2', task='ImageNet')}; PipeDream {gap.text()} below"
    return sized(context, gap.above(), text, SEEDS, task="ImageNet")


@judge(PAPER, "table_2", "gpipe_utilisations")
def gpipe_utilisations(context: Context) -> Finding:
    """All rows but PipeMareW's, to whole percents; the last of WMT's for GPipe's own microbatches."""
    wrong, texts = [], []
    for row in context.result.reported:
        if row["method"] == "PipeMareW":
            continue
        ours = 100 * utilisation(context, row["dataset"], row["method"])
        if abs(ours - row["util"]) > 0.5:
            wrong.append(f"{row['dataset']} {row['method']} {ours:.1f} for {row['util']}")
        if row["method"] == "GPipe":
            texts.append(f"{row['dataset']} {ours:.1f}")
    text = "; ".join(wrong) or f"GPipe {', '.join(texts)} %, the others 100 %"
    return exact(not wrong, text, "half a unit of the last printed digit")


def printed(context: Context, dataset: str, method: str) -> float:
    """The paper's percent."""
    return float(next(r["util"] for r in context.result.reported if (r["dataset"], r["method"]) == (dataset, method)))


@judge(PAPER, "table_2", "cifar_gain")
def cifar_gain(context: Context) -> Finding:
    """No warm-up: of the schedules alone."""
    value = utilisation(context, "CIFAR10", "PipeMare") / utilisation(context, "CIFAR10", "GPipe")
    return exact(abs(value - 14.3) <= 0.05 + 1e-9, f"{value:.2f} times", "half a unit of the last printed digit")


def gain(context: Context, dataset: str) -> Finding:
    """PipeMareW's utilisation over GPipe's, against what the printed percents allow."""
    alone = utilisation(context, dataset, "GPipe")
    ratios = [value / alone for value in warmed_up(context, dataset).values()]
    top, bottom = printed(context, dataset, "PipeMareW"), printed(context, dataset, "GPipe")
    low, high = (top - 0.5) / (bottom + 0.5), (top + 0.5) / (bottom - 0.5)
    value = fmean(ratios)
    text = f"{value:.2f} times, until {goal(context, TASK_OF[dataset]):.1f} is reached"
    why = f"{low:.2f} to {high:.2f}, of {top:g} % over {bottom:g} %, each within half a percent; the mean over seeds"
    return sized(context, low <= value <= high, text, why, task=TASK_OF[dataset])


@judge(PAPER, "table_2", "imagenet_gain")
def imagenet_gain(context: Context) -> Finding:
    """33 % over 13 %."""
    return gain(context, "ImageNet")


@judge(PAPER, "table_2", "iwslt_gain")
def iwslt_gain(context: Context) -> Finding:
    """42 % over 17 %."""
    return gain(context, "IWSLT14")


@judge(PAPER, "table_2", "wmt_gain")
def wmt_gain(context: Context) -> Finding:
    """96 % over 56 %."""
    return gain(context, "WMT17")


@judge(PAPER, "table_2", "t2_memory")
def t2_memory(context: Context) -> Finding:
    """What a training step holds with T2 over what it holds without."""
    ratios = {
        name: memory_of(context, dataset, "PipeMare") for name, dataset in (("SGD", "CIFAR10"), ("Adam", "IWSLT14"))
    }
    holds = abs(ratios["SGD"] - 1.33) <= 0.005 and abs(ratios["Adam"] - 1.25) <= 0.005
    text = ", ".join(f"{name} {value:.3f}x" for name, value in ratios.items())
    return exact(holds, text, "half a unit of the last printed digit")


@judge(PAPER, "table_2", "memory_order")
def memory_order(context: Context) -> Finding:
    """Every data set."""
    texts, holds = [], True
    for dataset in DATASETS:
        ratios = {method: memory_of(context, dataset, method) for method in ("PipeDream", "PipeMare", "GPipe")}
        holds &= ratios["PipeDream"] > ratios["PipeMare"] > ratios["GPipe"]
        texts.append(f"{dataset} " + " > ".join(f"{value:.2f}x" for value in ratios.values()))
    return exact(holds, "PipeDream, PipeMare, GPipe: " + "; ".join(texts))


@judge(PAPER, "table_2", "pipedream_memory")
def pipedream_memory(context: Context) -> Finding:
    """Counted, against every printed ratio."""
    texts, holds = [], True
    for row in context.result.reported:
        if row["method"] == "PipeDream":
            ours = memory_of(context, row["dataset"], "PipeDream")
            holds &= abs(ours - row["memory"]) <= 0.005
            texts.append(f"{row['dataset']} {ours:.2f}x (printed {row['memory']:.2f}x)")
    return exact(holds, ", ".join(texts), "half a unit of the last printed digit")


@judge(PAPER, "table_2", "pipedream_twice")
def pipedream_twice(context: Context) -> Finding:
    """Counted."""
    ratios = {d: memory_of(context, d, "PipeDream") / memory_of(context, d, "PipeMare") for d in ("IWSLT14", "WMT17")}
    text = ", ".join(f"{dataset} {value:.2f} times" for dataset, value in ratios.items())
    return exact(min(ratios.values()) > 2, text)


@drawing(PAPER, "text_headline")
def headline(context: Context) -> Drawn:
    """Ratios on CIFAR-10."""

    def gain_() -> float:
        alone = pipeline(context, "GPipe")["utilisation"]
        return float(pipeline(context, "PipeMare")["utilisation"] / alone)

    said = context.result.reported
    rows = [
        ("utilisation, PipeMare over GPipe", said["utilisation"], or_none(gain_)),
        ("memory, PipeDream over PipeMare with T1", said["memory"], or_none(lambda: pipedream_over(context, 0.0))),
        ("memory, PipeDream over PipeMare with T1 and T2", None, or_none(lambda: pipedream_over(context, 1.0))),
    ]
    cols = [
        Col("Ratio", lambda row: row[0]),
        Col("paper", lambda row: row[1], "{:.1f}x"),
        Col("ours", lambda row: row[2], "{:.2f}x"),
    ]
    notes = ["the paper's 2.7 is over PipeMare without T2's buffer, and not what its formula gives"]
    return Drawn(table=table(rows, cols, context.result.caption, notes))


def pipedream_over(context: Context, average: float) -> float:
    """PipeDream's memory on CIFAR-10 over PipeMare's, with so many of T2's averages."""
    base, extra = held(context, "images")
    return memory_of(context, "CIFAR10", "PipeDream") * base / (base + average * extra)


@judge(PAPER, "text_headline", "utilisation")
def headline_utilisation(context: Context) -> Finding:
    """Of the schedules, against the formula and the printed number."""
    rows = {row["method"]: row for row in pipelines(context)}
    P, N = rows["GPipe"]["stages"], rows["GPipe"]["microbatches"]
    value, formula = rows["PipeMare"]["utilisation"] / rows["GPipe"]["utilisation"], (N + P - 1) / N
    text = f"{value:.3f} times at P = {P}, N = {N}, where the formula gives {formula:.3f}"
    holds = abs(value - 14.25) <= 0.005 and abs(value - formula) < 1e-9
    return exact(holds, text, "14.25 to half a unit of its last digit, which rounds to 14.3")


@judge(PAPER, "text_headline", "memory")
def headline_memory(context: Context) -> Finding:
    """Counted, over both forms of PipeMare."""
    ratios = [pipedream_over(context, average) for average in (0.0, 1.0)]
    text = f"{ratios[0]:.2f} times PipeMare's memory with T1 alone, {ratios[1]:.2f} times that with T1 and T2"
    holds = any(abs(value - context.result.reported["memory"]) <= 0.05 for value in ratios)
    return exact(holds, text, "2.7 to half a unit of its last digit, with or without T2's buffer")


VARIANTS = ("T1", "T1+T2", "T1+T2+W")


def variants(context: Context, task: str) -> list[str]:
    """PipeMare's variants that a task has."""
    return [arm for arm in VARIANTS if context.select(task=task, arm=arm)]


def best_variant(context: Context, task: str) -> tuple[str, Difference]:
    """The variant with the best mean, and how far it stays below Sync."""
    means = {arm: fmean(best(context, task=task, arm=arm).values()) for arm in variants(context, task)}
    arm = max(means, key=lambda one: means[one])
    return arm, below(context, arm, task=task)


@judge(PAPER, "text_quality_bound", "within")
def within(context: Context) -> Finding:
    """The larger of both image tasks' gaps."""
    return bound(context, IMAGES, POINTS, f"below by at most {EQUAL_POINTS}")


@judge(PAPER, "text_quality_bound", "translation_matches")
def translation_matches(context: Context) -> Finding:
    """Both translation tasks'."""
    return bound(context, ("translation", "WMT17"), BLEU, f"below by {EQUAL_BLEU}")


def bound(context: Context, tasks: tuple[str, ...], most: float, words: str) -> Finding:
    """Whether the best variants stay within a bound of Sync."""
    texts, holds = [], []
    for task in tasks:
        arm, gap = best_variant(context, task)
        holds.append(gap.below(most))
        texts.append(f"{DATASET_OF[task]}: {arm} {gap.text()} below Sync")
    return sized(context, all_of(holds), "; ".join(texts), words)


@drawing(PAPER, "text_quality_bound")
def quality_bound(context: Context) -> Drawn:
    """A row per task and variant."""
    rows = [(task, arm) for task in TASK_OF.values() for arm in variants(context, task)]

    def gap(row: tuple[str, str]) -> str | None:
        try:
            return below(context, row[1], task=row[0]).text()
        except NotLogged:
            return None

    cols = [
        Col("Task", lambda row: DATASET_OF[row[0]]),
        Col("Method", lambda row: row[1]),
        Col("best accuracy (%) or BLEU", lambda row: cell(context, task=row[0], arm=row[1])),
        Col("below Sync", gap),
    ]
    notes = [f"the paper: at most {context.result.reported['max_top1_difference']} points below on images"]
    trained = [name for task in TASK_OF.values() if (name := trained_as(context, task))]
    notes += [f"trained here: {'; '.join(trained)}"] if trained else []
    notes += reasons(context)
    return Drawn(table=table(rows, cols, context.result.caption, notes, rule_by="Task"))


ALONG = {"epochs": "epochs", "time": "time (epochs of a fully used pipeline)"}


def epochs_and_time(context: Context, tasks: tuple[str, ...], order: Callable[[str], Any]) -> Drawn:
    """Score against epochs and against normalised time, two panels per task."""
    rows: list[dict[str, Any]] = []
    x: dict[str, Axis] = {}
    y: dict[str, Axis] = {}
    for task in tasks:
        alone = or_none(lambda task=task: gpipe(context, DATASET_OF[task])["utilisation"])  # type: ignore[misc]
        where = title(context, task, stages=False)
        items = sorted(context.select(task=task), key=lambda item: order(item.arm.labels["arm"]))
        for item in items:
            if item.log is None:
                continue
            times = [time for time, _ in normalised(item, alone)] if alone else []
            line = {"line": item.arm.labels["arm"], "seed": item.arm.seed}
            for i, row in enumerate(evaluations(item.log)):
                rows.append(line | {"panel": f"{where}: epochs", "x": row["epoch"], "score": value_of(row)})
                if alone:
                    rows.append(line | {"panel": f"{where}: time", "x": times[i], "score": value_of(row)})
        y |= {f"{where}: {what}": Axis("score", metric(task)) for what in ALONG}
        x |= {f"{where}: {what}": Axis("x", along) for what, along in ALONG.items()}
    if not rows:
        return nothing(context)
    rows.sort(key=lambda row: list(y).index(row["panel"]))
    return Drawn.of(Lines(x, y, line="line", panel="panel", styles=STYLES | {"PipeDream": (4, 4)}), rows)


@drawing(PAPER, "figure_11")
def figure_11(context: Context) -> Drawn:
    """ImageNet and WMT17."""
    arms = list(ARMS.values())
    return epochs_and_time(context, ("ImageNet", "WMT17"), arms.index)


@drawing(PAPER, "figure_15")
def figure_15(context: Context) -> Drawn:
    """By warm-up epochs, which the synchronous baseline has throughout."""
    return epochs_and_time(context, ("translation",), lambda arm: -1 if arm == "Sync" else number(arm))


@judge(PAPER, "figure_11", "imagenet_accuracy")
def imagenet_accuracy(context: Context) -> Finding:
    """The best accuracies."""
    return imagenet_pipedream_below(context)


@judge(PAPER, "figure_11", "imagenet_speed")
def imagenet_speed(context: Context) -> Finding:
    """Mean accuracy over the epochs; both run at full utilisation."""
    gap = Difference.of(*(area(context, task="ImageNet", arm=arm) for arm in ("T1+T2", "PipeDream")))
    text = f"mean accuracy over the epochs: PipeMare above PipeDream by {gap.text()}"
    return sized(context, gap.above(), text, SEEDS, task="ImageNet")


@judge(PAPER, "figure_11", "imagenet_warmup")
def imagenet_warmup(context: Context) -> Finding:
    """The best accuracies, of runs of as many epochs."""
    gap = below(context, "T1+T2+W", task="ImageNet")
    ends = {
        arm: {evaluations(log_in(item))[-1]["epoch"] for item in runs_of(context, task="ImageNet", arm=arm).values()}
        for arm in ("Sync", "T1+T2+W")
    }
    text = f"{each(context, 'Sync', 'T1+T2+W', task='ImageNet')}; {gap.text()} below after as many epochs"
    holds = all_of((gap.below(POINTS), ends["Sync"] == ends["T1+T2+W"]))
    return sized(context, holds, text, f"below by at most {EQUAL_POINTS}", task="ImageNet")


@judge(PAPER, "figure_11", "pipedream_near_zero")
def pipedream_near_zero(context: Context) -> Finding:
    """BLEU close to 0."""
    return about_zero(context, "PipeDream", "WMT17")


@judge(PAPER, "figure_11", "wmt_warmup")
def wmt_warmup(context: Context) -> Finding:
    """The best BLEU."""
    gap = below(context, "T1+T2+W", task="WMT17")
    text = f"{each(context, 'Sync', 'T1+T2+W', task='WMT17')}; {gap.text()} below"
    return sized(context, gap.below(1e-9), text, SEEDS, task="WMT17")


def epochs_by_warmup(context: Context) -> tuple[list[str], dict[str, BySeed], float]:
    """The arms by W, the epochs that each takes to the target score, and that score.

    A run that never gets there counts as one that does right after its end; where none does nothing can be told.
    """
    arms, target = grid(context, "W", "translation"), goal(context, "translation")
    by_arm: dict[str, BySeed] = {}
    reached = False
    for arm in arms:
        by_arm[arm] = {}
        for seed, item in runs_of(context, task="translation", arm=arm).items():
            epochs = epochs_to(item, target)
            reached |= epochs is not None
            by_arm[arm][seed] = evaluations(log_in(item))[-1]["epoch"] + 1 if epochs is None else epochs
    if not reached:
        raise NotLogged(f"no run reaches {target:.1f} BLEU")
    return arms, by_arm, target


@judge(PAPER, "figure_15", "fewer_epochs")
def fewer_epochs(context: Context) -> Finding:
    """Each W takes no more epochs than the smaller one before it, and the largest fewer than the smallest."""
    arms, by_arm, target = epochs_by_warmup(context)
    steps = [Difference.of(by_arm[a], by_arm[b]) for a, b in zip(arms[:-1], arms[1:], strict=True)]
    whole = Difference.of(by_arm[arms[0]], by_arm[arms[-1]])
    text = f"epochs to {target:.1f} BLEU: " + ", ".join(f"{arm} {fmean(by_arm[arm].values()):.2f}" for arm in arms)
    holds = all_of([*(step.above(-1e-9) for step in steps), whole.above()])
    return trend(context, holds, text, f"a good BLEU: the target of table 2, as a share of Sync's best; {SEEDS}")


@judge(PAPER, "figure_15", "lower_utilisation")
def lower_utilisation(context: Context) -> Finding:
    """Amortised until the same BLEU, at the paper's P and N."""
    arms, _, target = epochs_by_warmup(context)
    alone = gpipe(context, "IWSLT14")["utilisation"]
    utilisations = [amortised(context, alone, target, task="translation", arm=arm) for arm in arms]
    steps = [Difference.of(a, b) for a, b in zip(utilisations[:-1], utilisations[1:], strict=True)]
    text = f"until {target:.1f} BLEU: " + ", ".join(
        f"{arm} {100 * fmean(value.values()):.0f} %" for arm, value in zip(arms, utilisations, strict=True)
    )
    return trend(context, all_of(step.above() for step in steps), text, f"amortised as in section 4; {SEEDS}")
