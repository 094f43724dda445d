"""Table 3 and figures 4, 7, 8, 12 to 14 and 17 to 19: what T1, T2 and W do, and what they depend on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Col, table
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.judging import SEEDS, Difference, all_of, average, minus, ordered, sized, trend
from pipelag.results.logs import Context, Item
from pipelag.results.pipemare.costs import amortised, epochs_to, goal, gpipe, held, pipeline
from pipelag.results.pipemare.quality import (
    BLEU,
    CHANCE,
    EQUAL_BLEU,
    EQUAL_POINTS,
    POINTS,
    TASK_OF,
    area,
    below,
    best,
    between,
    cell,
    diverged,
    each,
    equal,
    evaluations,
    final,
    log_in,
    mean_text,
    metric,
    outcomes,
    reasons,
    runs_of,
    spec_stages,
    title,
    value_of,
)
from pipelag.results.verdict import Finding, NotLogged, judge

PAPER = "pipemare"
STYLES = {"Sync": (0, 0), "T1": (1, 1), "T1+T2": (2, 2), "T1+T2+W": (3, 3), "no correction": (7, 1)}
DIVERGED = f"diverged: a loss that is no number, or an accuracy of at most {CHANCE:g} % at the end; every seed"


def learning(
    context: Context, name: Callable[[Item], str] = lambda item: item.arm.labels["arm"], **labels: str
) -> list[dict[str, Any]]:
    """A row per evaluation of the runs with these labels: panel (task and model), line, seed, epoch, score."""
    rows = []
    for item in context.select(**labels):
        task = item.arm.labels.get("task", "")
        for row in evaluations(item.log) if item.log else []:
            where = {"panel": title(context, task), "task": task, "line": name(item), "seed": item.arm.seed}
            rows.append(where | {"epoch": row["epoch"], "score": value_of(row), "loss": row.get("loss")})
    return rows


def nothing(context: Context) -> Drawn:
    """An empty frame that says why."""
    return not_logged(textwrap.fill("; ".join(reasons(context)) or "no run is logged", 60))


def axes_of(rows: Sequence[dict[str, Any]]) -> dict[str, Axis]:
    """The y axis of every panel."""
    return {row["panel"]: Axis("score", metric(row["task"])) for row in rows}


def curves(context: Context, rows: list[dict[str, Any]]) -> Drawn:
    """Score against epochs, a panel per task."""
    if not rows:
        return nothing(context)
    return Drawn.of(Lines(Axis("epoch", "epochs"), axes_of(rows), line="line", panel="panel", styles=STYLES), rows)


@drawing(PAPER, "figure_7", "figure_12", "figure_13", "figure_14", "figure_19")
def by_arm(context: Context) -> Drawn:
    """A line per arm."""
    return curves(context, learning(context))


@drawing(PAPER, "figure_8")
def figure_8(context: Context) -> Drawn:
    """The runs of split weights; the panels say their stages."""
    rows = [row for task in ("images", "translation") for row in learning(context, task=task, split="2")]
    stages = {
        row["task"]: max(spec_stages(item) for item in context.select(task=row["task"], split="2")) for row in rows
    }
    for row in rows:
        row["panel"] = f"{title(context, row['task'], stages=False)}, {stages[row['task']]} stages"
    return curves(context, rows)


@drawing(PAPER, "figure_4")
def figure_4(context: Context) -> Drawn:
    """Training loss and accuracy, a line per pipeline."""
    kinds = {"neither": "tau_fwd > tau_bkwd", "Sync": "synchronous"}

    def name(item: Item) -> str:
        arm = item.arm.labels["arm"]
        return f"{spec_stages(item)} stages, {kinds.get(arm, 'tau_fwd = tau_bkwd')}" if arm != "Sync" else "synchronous"

    lines = learning(context, name)
    where = title(context, "images", stages=False)
    rows = [
        row | {"panel": f"{where}: {what}", "score": row[key]}
        for key, what in (("loss", "loss"), ("score", "accuracy"))
        for row in lines
    ]
    y = {
        f"{where}: loss": Axis("score", "training loss", log=True),
        f"{where}: accuracy": Axis("score", metric("images")),
    }
    return Drawn.of(Lines(Axis("epoch", "epochs"), y, line="line", panel="panel"), rows)


def gone(context: Context, **labels: str) -> bool:
    """Whether every seed of an arm on images diverged."""
    return all(diverged(item) for item in runs_of(context, **labels).values())


def kept(context: Context, **labels: str) -> bool:
    """Whether no seed did."""
    return not any(diverged(item) for item in runs_of(context, **labels).values())


@judge(PAPER, "figure_4", "finest_diverges")
def finest_diverges(context: Context) -> Finding:
    """It never gets beyond one and a half times chance."""
    arm = "no discrepancy, finest"
    scores = best(context, task="images", arm=arm)
    text = f"best accuracy {outcomes(context, task='images', arm=arm)}"
    why = f"from the start: no evaluation above {CHANCE:g} %, one and a half times chance; every seed"
    return sized(context, max(scores.values()) <= CHANCE, text, why, task="images", arm=arm)


@judge(PAPER, "figure_4", "plain_does_not")
def plain_does_not(context: Context) -> Finding:
    """It learns, and keeps what it learns."""
    text = f"best accuracy {outcomes(context, task='images', arm='no discrepancy')}"
    holds = kept(context, task="images", arm="no discrepancy")
    return sized(context, holds, text, DIVERGED, task="images", arm="no discrepancy")


@judge(PAPER, "figure_4", "discrepancy_diverges")
def discrepancy_diverges(context: Context) -> Finding:
    """It does, at the rate at which the arm without discrepancy is trained."""
    text = each(context, "neither", "no discrepancy", task="images")
    rates = {
        item.arm.spec.optimizer.lr
        for arm in ("neither", "no discrepancy")
        for item in runs_of(context, task="images", arm=arm).values()
        if item.arm.spec.optimizer is not None
    }
    holds = gone(context, task="images", arm="neither") and len(rates) == 1
    return sized(context, holds, f"best accuracy {text}", DIVERGED, task="images")


@judge(PAPER, "figure_4", "discrepancy_hurts")
def discrepancy_hurts(context: Context) -> Finding:
    """Best accuracies, at the same stages and rate."""
    difference = below(context, "neither", "no discrepancy", task="images")
    text = f"{each(context, 'neither', 'no discrepancy', task='images')}; a difference of {difference.text()}"
    return trend(context, difference.above(), text, SEEDS, task="images")


@judge(PAPER, "figure_4", "delay_hurts")
def delay_hurts(context: Context) -> Finding:
    """Best accuracies without discrepancy: synchronous, a stage per weight, and many."""
    arms = ("Sync", "no discrepancy", "no discrepancy, finest")
    holds, steps = ordered([best(context, task="images", arm=arm) for arm in arms])
    return trend(context, holds, f"{each(context, *arms, task='images')}; steps of {steps}", SEEDS, task="images")


@judge(PAPER, "figure_7", "all_reach_sync")
def all_reach_sync(context: Context) -> Finding:
    """The accuracies at the end of T1 and of T1+T2."""
    sync = final(context, task="images", arm="Sync")
    gaps = {arm: Difference.of(sync, final(context, task="images", arm=arm)) for arm in ("T1", "T1+T2")}
    text = f"Sync ends at {mean_text(list(sync.values()))}; " + ", ".join(
        f"{arm} {gap.text()} below" for arm, gap in gaps.items()
    )
    holds = all_of(equal(gap, POINTS) for gap in gaps.values())
    return sized(context, holds, text, f"equal within {EQUAL_POINTS}", task="images")


@judge(PAPER, "figure_7", "convergence_order")
def convergence_order(context: Context) -> Finding:
    """Mean BLEU over the epochs as a measure of speed."""
    areas = {arm: area(context, task="translation", arm=arm) for arm in ("Sync", "T1+T2+W", "T1+T2", "T1")}
    pairs = (("Sync", "T1+T2"), ("T1+T2+W", "T1+T2"), ("T1+T2", "T1"))
    steps = {pair: Difference.of(areas[pair[0]], areas[pair[1]]) for pair in pairs}
    text = "mean BLEU over the epochs: " + ", ".join(f"{a} above {b} by {d.text()}" for (a, b), d in steps.items())
    return sized(context, all_of(d.above() for d in steps.values()), text, SEEDS, task="translation")


@judge(PAPER, "figure_7", "stable_over_seeds")
def stable_over_seeds(context: Context) -> Finding:
    """The spread of the best score of every arm that is drawn."""
    texts, outcomes_ = [], []
    for task, full in (("images", 100.0), ("translation", 35.0)):
        for arm in dict.fromkeys(item.arm.labels["arm"] for item in context.select(task=task)):
            values = list(best(context, task=task, arm=arm).values())
            if len(values) < 2:
                raise NotLogged("the spread over seeds needs several, and one is trained here")
            outcomes_.append(stdev(values) <= full / 100)
            texts.append(f"{arm} ± {stdev(values):.2f}")
        texts[-1] += f" {metric(task)}"
    why = "negligible: standard deviations of at most 1 % of the figure's axes, which end at 100 % and at 35 BLEU"
    return sized(context, all(outcomes_), ", ".join(texts), why)


@judge(PAPER, "figure_7", "t2_speeds_up")
def t2_speeds_up(context: Context) -> Finding:
    """Mean score over the epochs, both tasks."""
    return higher(context, "T1+T2", "T1", area, "mean score over the epochs")


def higher(
    context: Context,
    arm: str,
    than: str,
    measure: Callable[..., dict[int, float]] = best,
    what: str = "best score",
    tasks: Sequence[str] = ("images", "translation"),
) -> Finding:
    """A trend: an arm is above another in every task."""
    texts, holds = [], []
    for task in tasks:
        step = Difference.of(measure(context, task=task, arm=arm), measure(context, task=task, arm=than))
        holds.append(step.above())
        means = [fmean(measure(context, task=task, arm=one).values()) for one in (arm, than)]
        texts.append(f"{task}: {arm} {means[0]:.1f}, {than} {means[1]:.1f}, a difference of {step.text()}")
    labels = {"task": tasks[0]} if len(tasks) == 1 else {}
    return trend(context, all_of(holds), f"{what}: {'; '.join(texts)}", SEEDS, **labels)


SPLIT = {"split": "2"}


@judge(PAPER, "figure_8", "resnet_needs_t2")
def resnet_needs_t2(context: Context) -> Finding:
    """T1 alone."""
    text = f"best accuracy {each(context, 'T1', 'T1+T2', task='images', **SPLIT)}"
    return sized(context, gone(context, task="images", arm="T1", **SPLIT), text, DIVERGED, task="images", **SPLIT)


@judge(PAPER, "figure_8", "resnet_t2_trains")
def resnet_t2_trains(context: Context) -> Finding:
    """T1+T2."""
    text = f"best accuracy {each(context, 'T1', 'T1+T2', task='images', **SPLIT)}"
    return sized(context, kept(context, task="images", arm="T1+T2", **SPLIT), text, DIVERGED, task="images", **SPLIT)


@judge(PAPER, "figure_8", "transformer_needs_t2")
def transformer_needs_t2(context: Context) -> Finding:
    """T1 at most half of T1+T2."""
    both, alone = (best(context, task="translation", arm=arm, **SPLIT) for arm in ("T1+T2", "T1"))
    half = Difference.of({seed: value / 2 for seed, value in both.items()}, alone)
    text = f"{each(context, 'T1', 'T1+T2', task='translation', **SPLIT)}; T1 below half of T1+T2 by {half.text()}"
    return sized(context, half.above(), text, f"much lower: at most half; {SEEDS}", task="translation", **SPLIT)


def worth(context: Context, task: str, split: str) -> dict[int, float]:
    """What T2 adds to T1, in the best score."""
    both, alone = (best(context, task=task, arm=arm, split=split) for arm in ("T1+T2", "T1"))
    return {seed: minus(both[seed], alone[seed]) for seed in both if seed in alone}


@judge(PAPER, "figure_8", "t2_worth_more")
def t2_worth_more(context: Context) -> Finding:
    """What T2 adds, with split weights against without, in both tasks."""
    texts, holds = [], []
    for task in ("images", "translation"):
        here, there = worth(context, task, "2"), worth(context, task, "1")
        step = Difference.of(here, there)
        holds.append(step.above())
        means = fmean(here.values()), fmean(there.values())
        texts.append(
            f"{task}: T2 adds {means[0]:.1f} with twice the stages, {means[1]:.1f} without: {step.text()} more"
        )
    return trend(context, all_of(holds), "; ".join(texts), SEEDS)


@judge(PAPER, "figure_8", "t1_weakens")
def t1_weakens(context: Context) -> Finding:
    """T1 alone, with split weights against without, in both tasks."""
    texts, holds = [], []
    for task in ("images", "translation"):
        here, there = (best(context, task=task, arm="T1", split=split) for split in ("2", "1"))
        step = Difference.of(there, here)
        holds.append(step.above())
        means = fmean(here.values()), fmean(there.values())
        texts.append(f"{task}: T1 {means[0]:.1f} with twice the stages, {means[1]:.1f} without: {step.text()} less")
    return trend(context, all_of(holds), "; ".join(texts), SEEDS)


@judge(PAPER, "figure_12", "t1_diverges")
def t1_diverges(context: Context) -> Finding:
    """Every seed."""
    text = f"best accuracy {each(context, 'Sync', 'T1', 'T1+T2', task='images')}"
    return sized(context, gone(context, task="images", arm="T1"), text, DIVERGED)


@judge(PAPER, "figure_12", "t2_reaches_sync")
def t2_reaches_sync(context: Context) -> Finding:
    """The best accuracies after the first drop."""

    def after(item: Item) -> float:
        schedule = item.arm.spec.lr_schedule
        drop = schedule.milestones[0] * (schedule.horizon or item.arm.spec.steps)
        return max((value_of(row) for row in evaluations(log_in(item)) if row["step"] > drop), default=0.0)

    sync, both = (
        {seed: after(item) for seed, item in runs_of(context, task="images", arm=arm).items()}
        for arm in ("Sync", "T1+T2")
    )
    gap = Difference.of(sync, both)
    text = f"after the first drop of the rate Sync {fmean(sync.values()):.1f}, T1+T2 {gap.text()} below"
    return sized(context, gap.below(POINTS), text, f"below by at most {EQUAL_POINTS}")


@judge(PAPER, "figure_12", "t2_needed")
def t2_needed(context: Context) -> Finding:
    """T1+T2 above T1."""
    return higher(context, "T1+T2", "T1", tasks=["images"])


def grid(context: Context, key: str, task: str) -> list[str]:
    """The arms of a parameter's grid, by its value."""
    arms = [arm for arm in context.values("arm") if arm.startswith(f"{key} =") and context.select(arm=arm, task=task)]
    return sorted(arms, key=number)


def number(arm: str) -> float:
    """The value of an arm such as "D = 0.1" or "K = 10/200", which is ten."""
    return float(arm.split("= ")[1].split("/")[0])


def ends_of_grid(context: Context, key: str, task: str, many: int) -> tuple[Difference, str]:
    """How much the smallest values of a grid are above the largest, in the mean best score; and all scores."""
    arms = grid(context, key, task)
    scores = {arm: best(context, task=task, arm=arm) for arm in arms}

    def mean(some: Sequence[str]) -> dict[int, float]:
        return {seed: average([scores[arm][seed] for arm in some]) for seed in scores[some[0]]}

    step = Difference.of(mean(arms[:many]), mean(arms[-many:]))
    return step, f"{each(context, *arms, task=task)}; the smallest above the largest by {step.text()}"


@judge(PAPER, "figure_13", "resnet_small_k")
def resnet_small_k(context: Context) -> Finding:
    """The two smallest of the five above the two largest."""
    step, text = ends_of_grid(context, "K", "images", 2)
    return trend(context, step.above(), text, f"the two smallest K against the two largest; {SEEDS}", task="images")


@judge(PAPER, "figure_13", "transformer_large_k")
def transformer_large_k(context: Context) -> Finding:
    """The smallest of the three below the largest."""
    step, text = ends_of_grid(context, "K", "translation", 1)
    holds = Difference(-step.mean, step.error, step.seeds).above()
    return trend(context, holds, text, f"the smallest K against the largest; {SEEDS}", task="translation")


@judge(PAPER, "figure_14", "small_d_converges")
def small_d_converges(context: Context) -> Finding:
    """Mean BLEU over the epochs, every D up to 0.2."""
    plain = area(context, task="translation", arm="no correction")
    arms = [arm for arm in grid(context, "D", "translation") if number(arm) <= 0.2]
    steps = {arm: Difference.of(area(context, task="translation", arm=arm), plain) for arm in arms}
    text = f"mean BLEU over the epochs {fmean(plain.values()):.1f} without correction; " + ", ".join(
        f"{arm} {step.text()}" for arm, step in steps.items()
    )
    return trend(context, all_of(step.above() for step in steps.values()), text, SEEDS, task="translation")


@judge(PAPER, "figure_14", "large_d_worse")
def large_d_worse(context: Context) -> Finding:
    """Mean BLEU over the epochs, D = 0.5, which the caption calls too large to converge faster."""
    plain, large = (area(context, task="translation", arm=arm) for arm in ("no correction", "D = 0.5"))
    step = Difference.of(plain, large)
    text = f"mean BLEU over the epochs {fmean(plain.values()):.1f} without correction, D = 0.5 {step.text()} below"
    return trend(context, step.above(), text, SEEDS, task="translation")


@judge(PAPER, "figure_14", "half_matches")
def half_matches(context: Context) -> Finding:
    """The best accuracies."""
    gap = below(context, "D = 0.5", task="images")
    text = f"{each(context, 'Sync', 'D = 0.5', task='images')}; {gap.text()} below"
    return sized(context, gap.below(POINTS), text, f"below by at most {EQUAL_POINTS}", task="images")


def t1_under_random_delays(context: Context, task: str) -> tuple[Difference, str]:
    """What T1 adds to Hogwild's best score."""
    step = below(context, "Hogwild", "Hogwild+T1", task=task)
    return step, f"{each(context, 'Sync', 'Hogwild', 'Hogwild+T1', task=task)}; T1 adds {step.text()}"


ABOUT = "about: from a half to one and a half times as much"


@judge(PAPER, "figure_19", "cifar_t1_adds")
def cifar_t1_adds(context: Context) -> Finding:
    """About 0.3 points."""
    step, text = t1_under_random_delays(context, "images")
    return sized(context, between(step, 0.15, 0.45), text, f"{ABOUT}; {SEEDS}", task="images")


@judge(PAPER, "figure_19", "iwslt_t1_adds")
def iwslt_t1_adds(context: Context) -> Finding:
    """About 30 BLEU."""
    step, text = t1_under_random_delays(context, "translation")
    return sized(context, between(step, 15, 45), text, f"{ABOUT}; {SEEDS}", task="translation")


@judge(PAPER, "figure_19", "t1_helps_images")
def t1_helps_images(context: Context) -> Finding:
    """The sign."""
    step, text = t1_under_random_delays(context, "images")
    return trend(context, step.above(), text, SEEDS, task="images")


@judge(PAPER, "figure_19", "t1_helps_translation")
def t1_helps_translation(context: Context) -> Finding:
    """The sign."""
    step, text = t1_under_random_delays(context, "translation")
    return trend(context, step.above(), text, SEEDS, task="translation")


def segments(item: Item) -> str:
    """The segments of stages that a run recomputes, in words."""
    size = int(item.arm.spec.phases[-1].recompute)
    return f"{-(-spec_stages(item) // size)} segments" if size else "no recomputation"


@drawing(PAPER, "figure_17", "figure_18")
def by_checkpoints(context: Context) -> Drawn:
    """A panel per method, a line per number of segments."""
    task = "images" if context.name == "figure_17" else "translation"
    rows = []
    for arm in context.values("arm"):
        for row in learning(context, segments, arm=arm):
            rows.append(row | {"panel": arm})
    order = list(dict.fromkeys(row["line"] for row in rows))
    rows.sort(key=lambda row: (row["line"] != "no recomputation", order.index(row["line"])))
    rows.sort(key=lambda row: context.values("arm").index(row["panel"]))
    chart = Lines(Axis("epoch", "epochs"), Axis("score", metric(task)), line="line", panel="panel", shared_y=True)
    return Drawn.of(chart, rows)


def lost(context: Context, arm: str, task: str) -> tuple[dict[str, Difference], str]:
    """What recomputation costs an arm in its best score, by the number of checkpoints; and that in words."""
    plain = best(context, arm=arm, task=task, checkpoints="none")
    counts = [count for count in context.values("checkpoints") if count != "none"]
    steps = {c: Difference.of(plain, best(context, arm=arm, task=task, checkpoints=c)) for c in counts}
    names = {c: segments(next(iter(runs_of(context, arm=arm, task=task, checkpoints=c).values()))) for c in counts}
    text = f"{arm} {mean_text(list(plain.values()))} without; below that by " + ", ".join(
        f"{step.text()} with {names[c]}" for c, step in steps.items()
    )
    return steps, text


def matches(context: Context, arm: str, task: str) -> Finding:
    """Whether recomputation costs an arm nothing."""
    steps, text = lost(context, arm, task)
    bound, words = (POINTS, EQUAL_POINTS) if task == "images" else (BLEU, EQUAL_BLEU)
    holds = all_of(equal(step, bound) for step in steps.values())
    return sized(context, holds, text, f"a match: within {words}", arm=arm)


@judge(PAPER, "figure_17", "t1_matches")
def t1_matches(context: Context) -> Finding:
    """T1 alone."""
    return matches(context, "T1", "images")


@judge(PAPER, "figure_17", "t2_matches")
def images_t2_matches(context: Context) -> Finding:
    """T1+T2."""
    return matches(context, "T1+T2", "images")


@judge(PAPER, "figure_18", "t2_matches")
def translation_t2_matches(context: Context) -> Finding:
    """T1+T2."""
    return matches(context, "T1+T2", "translation")


@judge(PAPER, "figure_18", "w_matches")
def w_matches(context: Context) -> Finding:
    """T1+T2+W."""
    return matches(context, "T1+T2+W", "translation")


@judge(PAPER, "figure_18", "t1_two_stay_low")
def t1_two_stay_low(context: Context) -> Finding:
    """The best BLEU of every seed."""
    scores = best(context, arm="T1", task="translation", checkpoints="few")
    most = context.result.reported["T1_2_checkpoints"]
    text = f"best BLEU {mean_text(list(scores.values()))}"
    return sized(context, max(scores.values()) <= most, text, f"at most {most:g}, every seed", arm="T1")


@judge(PAPER, "figure_18", "t1_twelve_diverge")
def t1_twelve_diverge(context: Context) -> Finding:
    """A loss that is no number, or half of what was reached is lost, after a tenth and before the end of the run."""
    texts, holds = [], True
    for item in runs_of(context, arm="T1", task="translation", checkpoints="some").values():
        log, steps = log_in(item), item.arm.spec.steps
        values = [value_of(row) for row in evaluations(log)]
        top = max(values, default=0.0)
        after = log.diverged_at
        middle = after is not None and steps / 10 < after < steps
        fallen = after is None and values[-1] < top / 2 and values.index(top) < len(values) - 1
        holds &= middle or fallen
        texts.append(
            f"best {top:.1f}, " + (f"diverged at step {after:,}" if after is not None else f"last {values[-1]:.1f}")
        )
    why = (
        "diverges: after a tenth of the run a loss that is no number, or at the end under half of the best; every seed"
    )
    return sized(context, holds, "; ".join(texts), why, arm="T1")


@judge(PAPER, "figure_18", "correction_matters")
def correction_matters(context: Context) -> Finding:
    """What recomputation costs T1 against what it costs T1+T2, on average over the numbers of checkpoints."""

    def cost(arm: str) -> dict[int, float]:
        plain = best(context, arm=arm, task="translation", checkpoints="none")
        counts = [count for count in context.values("checkpoints") if count != "none"]
        each_ = [best(context, arm=arm, task="translation", checkpoints=count) for count in counts]
        return {seed: value - fmean(one[seed] for one in each_) for seed, value in plain.items()}

    without, with_t2 = cost("T1"), cost("T1+T2")
    step = Difference.of(without, with_t2)
    text = (
        f"recomputation costs T1 {fmean(without.values()):.1f} BLEU on average, T1+T2 {fmean(with_t2.values()):.1f}: "
        f"{step.text()} more"
    )
    return trend(context, step.above(), text, SEEDS)


ROWS = ("Sync", "neither")


@drawing(PAPER, "table_3")
def table_3(context: Context) -> Drawn:
    """The paper's rows beside ours, with the two arms that it leaves out."""
    rows: list[dict[str, Any]] = []
    for dataset in ("CIFAR10", "IWSLT14"):
        rows += [{"dataset": dataset, "method": arm} for arm in ROWS]
        rows += [row for row in context.result.reported if row["dataset"] == dataset]
    cols = [
        Col("Task", "dataset"),
        Col("Method", "method"),
        Col("paper", "quality", "{:.1f}", "accuracy (%) or BLEU"),
        Col(
            "ours",
            lambda row: cell(context, task=TASK_OF[row["dataset"]], arm=row["method"]),
            "{}",
            "accuracy (%) or BLEU",
        ),
        Col("paper", "util", "{:.0f}", "utilisation (%)"),
        Col("ours", lambda row: used(context, row), "{:.0f}", "utilisation (%)"),
        Col("paper", "memory", "{:.2f}x", "weight and optimizer memory"),
        Col("ours", lambda row: remembered(context, row), "{:.2f}x", "weight and optimizer memory"),
    ]
    trained = [name for task in ("images", "translation") if (name := trained_as(context, task))]
    notes = [f"ours: {'; '.join(trained)}"] if trained else []
    notes += [
        "utilisation from the schedules of the paper's P and N, of T1+T2+W amortised until the target score; memory "
        "from what a training step holds",
    ]
    notes += [context.releases()] if context.releases() else []
    return Drawn(table=table(rows, cols, context.result.caption, notes, rule_by="Task"))


def trained_as(context: Context, task: str) -> str:
    """What a task is here; empty where nothing of it is logged."""
    return title(context, task) if any(item.log for item in context.select(task=task)) else ""


def used(context: Context, row: dict[str, Any]) -> float | None:
    """Percent utilisation of an arm of the ablation; none without a log or where the target is not reached."""
    dataset, task = row["dataset"], TASK_OF[row["dataset"]]
    try:
        alone = gpipe(context, dataset)["utilisation"]
        if row["method"] == "Sync":
            return float(100 * alone)
        if row["method"] == "T1+T2+W":
            utilisations = amortised(context, alone, goal(context, task), task=task, arm="T1+T2+W")
            return 100 * fmean(utilisations.values())
        return float(100 * pipeline(context, "PipeMare", dataset=dataset, arm="pipeline")["utilisation"])
    except NotLogged:
        return None


def remembered(context: Context, row: dict[str, Any]) -> float | None:
    """Memory over the synchronous pipeline's; none without a log."""
    try:
        base, average = held(context, TASK_OF[row["dataset"]])
    except NotLogged:
        return None
    return (base + (average if "T2" in row["method"] else 0.0)) / base


@judge(PAPER, "table_3", "cifar_t2_below")
def cifar_t2_below(context: Context) -> Finding:
    """The best accuracies."""
    step = below(context, "T2", "T1", task="images")
    text = f"{each(context, 'T2', 'T1', task='images')}; T2 {step.text()} below"
    return sized(context, step.above(), text, SEEDS, task="images")


@judge(PAPER, "table_3", "cifar_t1_as_both")
def cifar_t1_as_both(context: Context) -> Finding:
    """The best accuracies."""
    step = below(context, "T1", "T1+T2", task="images")
    text = f"{each(context, 'T1', 'T1+T2', task='images')}; T1 {step.text()} below"
    return sized(context, equal(step, POINTS), text, f"equal: within {EQUAL_POINTS}", task="images")


@judge(PAPER, "table_3", "cifar_neither_diverges")
def cifar_neither_diverges(context: Context) -> Finding:
    """Every seed."""
    text = f"best accuracy {outcomes(context, task='images', arm='neither')}"
    return sized(context, gone(context, task="images", arm="neither"), text, DIVERGED, task="images")


@judge(PAPER, "table_3", "iwslt_t2_zero")
def iwslt_t2_zero(context: Context) -> Finding:
    """The mean over seeds."""
    return about_zero(context, "T2", "translation")


def about_zero(context: Context, arm: str, task: str) -> Finding:
    """Whether an arm's best BLEU, the mean over seeds, rounds to nothing."""
    scores = best(context, task=task, arm=arm)
    text = f"best BLEU {outcomes(context, task=task, arm=arm)}"
    return sized(context, fmean(scores.values()) < 0.5, text, "about 0: rounds to 0 BLEU", task=task)


@judge(PAPER, "table_3", "iwslt_without_t1")
def iwslt_without_t1(context: Context) -> Finding:
    """Both arms without T1."""
    means = [fmean(best(context, task="translation", arm=arm).values()) for arm in ("neither", "T2")]
    text = f"best BLEU {each(context, 'neither', 'T2', task='translation')}"
    return sized(context, max(means) <= 1.0, text, "at most 1.0, the mean over seeds", task="translation")


@judge(PAPER, "table_3", "iwslt_w_adds")
def iwslt_w_adds(context: Context) -> Finding:
    """About 0.4."""
    step = below(context, "T1+T2", "T1+T2+W", task="translation")
    text = f"{each(context, 'T1+T2', 'T1+T2+W', task='translation')}; W adds {step.text()}"
    return sized(context, between(step, 0.2, 0.6), text, f"{ABOUT}; {SEEDS}", task="translation")


@judge(PAPER, "table_3", "iwslt_w_as_sync")
def iwslt_w_as_sync(context: Context) -> Finding:
    """The best BLEU."""
    step = below(context, "T1+T2+W", task="translation")
    text = f"{each(context, 'Sync', 'T1+T2+W', task='translation')}; {step.text()} below"
    return sized(context, equal(step, BLEU), text, f"equal: within {EQUAL_BLEU}", task="translation")


@judge(PAPER, "table_3", "iwslt_t1_twice")
def iwslt_t1_twice(context: Context) -> Finding:
    """Epochs to the target score, as large a share of our synchronous best as 34.1 is of the paper's 34.5."""
    target = goal(context, "translation")
    ratios = []
    alone = runs_of(context, task="translation", arm="T1")
    for seed, item in runs_of(context, task="translation", arm="Sync").items():
        sync, t1 = epochs_to(item, target), epochs_to(alone[seed], target)
        ratios.append(t1 / sync if sync is not None and t1 is not None else float("inf"))
    text = f"to {target:.1f} BLEU T1 takes " + ", ".join(f"{ratio:.2f}" for ratio in ratios) + " times the epochs"
    text = text.replace("inf", "infinitely many")
    holds = 1.5 <= fmean(ratios) <= 2.5
    return sized(context, holds, text, "about twice: 1.5 to 2.5 times, the mean over seeds", task="translation")


@judge(PAPER, "table_3", "t1_lifts")
def t1_lifts(context: Context) -> Finding:
    """T1 above neither, in both tasks."""
    return higher(context, "T1", "neither")


@judge(PAPER, "table_3", "t2_mends_with_t1")
def t2_mends_with_t1(context: Context) -> Finding:
    """T1+T2 above T2, translation."""
    return higher(context, "T1+T2", "T2", tasks=["translation"])
