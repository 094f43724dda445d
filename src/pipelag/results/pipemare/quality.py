"""How well PipeMare's runs have learned, by seed (accuracy on images, BLEU of translations), and comparisons of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from pipelag.results import titles
from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, every_run
from pipelag.results.logs import Item, RunLog
from pipelag.results.verdict import NotLogged

# The tasks in the runs' labels, by the paper's data sets.
TASK_OF = {"CIFAR10": "images", "ImageNet": "ImageNet", "IWSLT14": "translation", "WMT17": "WMT17"}
DATASET_OF = {task: dataset for dataset, task in TASK_OF.items()}
IMAGES = ("images", "ImageNet")
CHANCE = 15.0  # %, one and a half times chance over ten classes; an arm that ends at or below it has not learned

# What the paper calls equal: at most 0.1 points of accuracy apart (section 4), and less than 0.4 BLEU, which it calls a
# noticeable gap (section 4.3).
POINTS, BLEU = 0.1 + 1e-9, 0.4 - 1e-9
EQUAL_POINTS = f"0.1 points, the paper's own bound (section 4); {SEEDS}"
EQUAL_BLEU = f"less than 0.4 BLEU, which the paper calls a noticeable gap (section 4.3); {SEEDS}"

BySeed = dict[int, float]


def equal(task: str) -> tuple[float, str]:
    """How far apart two scores may be that the paper calls equal, on this task; and the same in words."""
    return (POINTS, EQUAL_POINTS) if task in IMAGES else (BLEU, EQUAL_BLEU)


def value_of(row: Mapping[str, Any]) -> float:
    """An evaluation's score: BLEU, or accuracy on images in percent."""
    return float(row.get("bleu", row["accuracy"]))


def metric(task: str) -> str:
    """What a task's score measures, with its unit, for an axis."""
    return "test accuracy (%)" if task in IMAGES else "BLEU"


def named(labels: Mapping[str, str]) -> str:
    """Labels in words for a sentence; a task is named by the paper's data set."""
    first = [DATASET_OF.get(labels.get("task", ""), ""), labels.get("arm", "")]
    others = [further(key, value) for key, value in labels.items() if key not in ("task", "arm")]
    return " ".join(filter(None, [*first, *others]))


def further(key: str, value: str) -> str:
    """A label other than task and arm in words; empty where its value is the usual one."""
    if key == "split":
        return "with twice the stages" if value == "2" else ""
    if key == "checkpoints":
        return "without recomputation" if value == "none" else f"with {value} checkpoints"
    if key == "length":
        return f"trained {value}" + ("" if value == "once" else " as long")
    if key == "setup":  # the suffix, as in `transformer_few`, tells the number of stages
        return f"over {value.partition('_')[2]} stages" if value.endswith(("_few", "_some")) else ""
    return f"{key} {value}"


def runs_of(context: Context, **labels: str) -> dict[int, Item]:
    """The runs with these labels by seed; raises `NotLogged`, with the reason, if a seed has no log."""
    return every_run(context, named(labels), **labels)


def by_seed(context: Context, value: Callable[[Item], float], **labels: str) -> BySeed:
    """A value of each run with these labels, by seed."""
    return {seed: value(item) for seed, item in runs_of(context, **labels).items()}


def log_in(item: Item) -> RunLog:
    """The log of a run that has one."""
    assert item.log is not None
    return item.log


def scored(item: Item) -> list[dict[str, Any]]:
    """The evaluations of a run that has a log."""
    return log_in(item).evaluations("accuracy")


def last_evaluation(log: RunLog) -> dict[str, Any]:
    """The last evaluation of a run.

    Raises:
        NotLogged: the run diverged before its first evaluation.
    """
    rows = log.evaluations("accuracy")
    if not rows:
        raise NotLogged("a run diverged before its first evaluation")
    return rows[-1]


def summarised(item: Item, which: str) -> float:
    """The "best" or the "final" score of a run's summary, with its sampling error; 0 where there is none."""
    log = log_in(item)
    score = log.summary.get(which)
    if not score:
        return 0.0
    return log.bleu(score) if "bleu" in score else log.share(value_of(score))


def best(context: Context, **labels: str) -> BySeed:
    """Each seed's best score over the epochs (section 4.1), even if the run diverged later; 0 without evaluations."""
    return by_seed(context, lambda item: summarised(item, "best"), **labels)


def final(context: Context, **labels: str) -> BySeed:
    """Each seed's score at the end; 0 for a run that diverged."""
    return by_seed(context, lambda item: summarised(item, "final"), **labels)


def area(context: Context, **labels: str) -> BySeed:
    """Each seed's mean score over the epochs, high for an arm that converges early.

    Evaluations that a run missed because it diverged count as 0.
    """

    def value(item: Item) -> float:
        log = log_in(item)
        values = [value_of(row) for row in log.evaluations("accuracy")]
        asked = item.arm.spec.steps // item.arm.spec.evaluate_every if item.arm.spec.evaluate_every else 1
        return sum(values) / max(1, len(values), 0 if log.diverged_at is None else asked)

    return by_seed(context, value, **labels)


def diverged(item: Item) -> bool:
    """Whether a run on images diverged: a loss is not finite, or it ends within one and a half times chance."""
    log = log_in(item)
    return log.diverged_at is not None or value_of(log.summary["final"]) <= CHANCE


def outcomes(context: Context, **labels: str) -> str:
    """Best scores in words: mean, standard deviation, how many runs diverged, and at which step the first did."""
    try:
        items = list(runs_of(context, **labels).values())
    except NotLogged as missing:
        return str(missing)
    text = mean_text(list(best(context, **labels).values()))
    steps = [step for item in items if (step := log_in(item).diverged_at) is not None]
    if not steps:
        return text
    which = f"{len(steps)} of {len(items)} diverged" if len(items) > 1 else "diverged"
    return f"{text}, {which} at step {min(steps):,}"


def cell(context: Context, **labels: str) -> str | None:
    """`outcomes` for a table: "left out" where the scale leaves the runs out, None where they have no log."""
    items = context.select(**labels)
    if items and all(item.arm.left_out and item.log is None for item in items):
        return "left out"
    return outcomes(context, **labels) if any(item.log for item in items) else None


def last_cell(context: Context, **labels: str) -> str | None:
    """The scores of the last evaluations for a table, of seeds that did not diverge; `cell` counts those that did."""
    ended = [log for log in context.logs(**labels) if log.diverged_at is None]
    if not ended:
        return cell(context, **labels) if not context.logs(**labels) else "diverged"
    try:
        runs = runs_of(context, **labels)
    except NotLogged as missing:
        return str(missing)
    return mean_text([summarised(item, "final") for item in runs.values() if log_in(item).diverged_at is None])


def reasons(context: Context) -> list[str]:
    """Notes on why tasks are left out; the footer names runs that are left out of the others."""
    why = {labels["task"]: item.arm.left_out for item in context.items if "task" in (labels := item.arm.labels)}
    why = {task: text for task, text in why.items() if text and not context.logged(task=task)}
    return [f"{DATASET_OF.get(task, task)} left out: {text}" for task, text in why.items()]


def mean_text(values: list[float]) -> str:
    """The mean, with the standard deviation in brackets where there are several values.

    It is called sd, because ± stands for half a 95 % interval (`Difference`).
    """
    return f"{fmean(values):.1f}" + (f" (sd {stdev(values):.1f})" if len(values) > 1 else "")


def below(context: Context, arm: str, than: str = "Sync", **labels: str) -> Difference:
    """How far an arm's best score is below another's, paired over seeds."""
    return Difference.of(best(context, arm=than, **labels), best(context, arm=arm, **labels))


def at_the_end(context: Context, arm: str, than: str, **labels: str) -> str:
    """How far one arm's last evaluation is above another's, in words, for a sentence that compares their best scores.

    It decides nothing. A best score flatters an arm whose curve goes up and down, so a reader should see both.
    """
    step = Difference.of(final(context, arm=arm, **labels), final(context, arm=than, **labels))
    return f"at the last evaluation {step.text()}"


def evaluated(context: Context) -> str:
    """How many test evaluations each logged run has that did not diverge, in words; empty without logs."""
    runs = [item.log for item in context.logged() if item.arm.spec.kind == "train"]
    counts = sorted({len(log.evaluations("accuracy")) for log in runs if log is not None and log.diverged_at is None})
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else ""


def best_of(context: Context) -> str:
    """The title of a column of best scores: of how many evaluations they are the best."""
    count = evaluated(context)
    return f"best of {count} evaluations" if count else "best evaluation"


CHOSEN = (
    "the best score is the highest of all test evaluations, as in the paper (section 4.1): where a curve "
    "fluctuates, it lies above the last value"
)


def diverging(context: Context, *arms: str, **labels: str) -> str:
    """Which of these arms' runs diverged, in words, for a sentence that does not give their `outcomes`; or empty."""
    some = [item for item in context.select(**labels) if item.arm.labels["arm"] in arms]
    words = replace(context, items=some).counted(lambda log: log.diverged_at is not None)
    return f"; diverged: {words}" if words else ""


def outcomes_of(context: Context, *arms: str, **labels: str) -> str:
    """The outcomes of several arms, in words."""
    return ", ".join(f"{arm} {outcomes(context, arm=arm, **labels)}" for arm in arms)


def spec_stages(item: Item) -> int:
    """The stages of a run's last phase."""
    return item.arm.spec.phases[-1].stages


def title(context: Context, task: str, stages: bool = True) -> str:
    """The title of a task's panel: model, data set and, with `stages`, the numbers of stages, from the logs."""
    items = [item for item in context.logged(task=task) if item.arm.spec.model is not None]
    if not items:
        return DATASET_OF.get(task, task)
    spec = items[0].arm.spec
    assert spec.model is not None
    name = titles.network(spec.model.name)
    name = f"{name} (small)" if {"blocks", "width"} & set(spec.model.options) else name
    name = f"{name}, {log_in(items[0]).summary['data']['title']}"
    counts = sorted({spec_stages(item) for item in items})
    return name + (f", {' and '.join(map(str, counts))} stages" if stages else "")


def trained_as(context: Context, words: str, tasks: Iterable[str] = tuple(DATASET_OF)) -> list[str]:
    """A note, after some words, with the `title` of what is trained here for each task; none without logs."""
    trained = [title(context, task) for task in tasks if context.logged(task=task)]
    return [f"{words}: {'; '.join(trained)}"] if trained else []
