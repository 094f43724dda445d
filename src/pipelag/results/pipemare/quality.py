"""How well PipeMare's runs have learned, by seed: accuracy of images, BLEU of translations; how such are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean, stdev
from typing import Any

from pipelag.results import titles
from pipelag.results.context import Context
from pipelag.results.judging import SEEDS, Difference, every_run
from pipelag.results.logs import Item, RunLog
from pipelag.results.verdict import NotLogged

# Tasks, as the runs' labels have them, and the paper's data sets.
TASK_OF = {"CIFAR10": "images", "ImageNet": "ImageNet", "IWSLT14": "translation", "WMT17": "WMT17"}
DATASET_OF = {task: dataset for dataset, task in TASK_OF.items()}
IMAGES = ("images", "ImageNet")
CHANCE = 15.0  # %: one and a half times what guessing one of ten classes gives; an arm that ends below has not learned

# What the paper calls equal: at most 0.1 points of accuracy (section 4), and less than the 0.4 BLEU that it calls a
# noticeable gap (section 4.3).
POINTS, BLEU = 0.1 + 1e-9, 0.4 - 1e-9
EQUAL_POINTS = f"0.1 points, the paper's own bound (section 4); {SEEDS}"
EQUAL_BLEU = f"less than 0.4 BLEU, which the paper calls a noticeable gap (section 4.3); {SEEDS}"

BySeed = dict[int, float]


def equal(task: str) -> tuple[float, str]:
    """How far apart two scores of a task are that the paper calls equal, and that in words."""
    return (POINTS, EQUAL_POINTS) if task in IMAGES else (BLEU, EQUAL_BLEU)


def value_of(row: Mapping[str, Any]) -> float:
    """BLEU, or accuracy of images in percent."""
    return float(row.get("bleu", row["accuracy"]))


def metric(task: str) -> str:
    """What is measured, with its unit, as an axis says it."""
    return "test accuracy (%)" if task in IMAGES else "BLEU"


def named(labels: Mapping[str, str]) -> str:
    """Labels in a sentence, a task as the paper's data set."""
    first = [DATASET_OF.get(labels.get("task", ""), ""), labels.get("arm", "")]
    others = [further(key, value) for key, value in labels.items() if key not in ("task", "arm")]
    return " ".join(filter(None, [*first, *others]))


def further(key: str, value: str) -> str:
    """A label beside task and arm in a sentence; empty where it is what all have."""
    if key == "split":
        return "with twice the stages" if value == "2" else ""
    if key == "checkpoints":
        return "without recomputation" if value == "none" else f"with {value} checkpoints"
    if key == "length":
        return f"trained {value}" + ("" if value == "once" else " as long")
    if key == "setup":  # `transformer_few`: how many stages
        return f"over {value.partition('_')[2]} stages" if value.endswith(("_few", "_some")) else ""
    return f"{key} {value}"


def runs_of(context: Context, **labels: str) -> dict[int, Item]:
    """The runs with these labels by seed; raises `NotLogged`, with the reason, unless every seed has a log."""
    return every_run(context, named(labels), **labels)


def by_seed(context: Context, value: Callable[[Item], float], **labels: str) -> BySeed:
    """A number of each run with these labels."""
    return {seed: value(item) for seed, item in runs_of(context, **labels).items()}


def log_in(item: Item) -> RunLog:
    """The log of a run that has one."""
    assert item.log is not None
    return item.log


def evaluations(log: RunLog) -> list[dict[str, Any]]:
    """The log lines with a score."""
    return [row for row in log.rows if "accuracy" in row]


def last_evaluation(log: RunLog) -> dict[str, Any]:
    """The last of them; raises `NotLogged` where a run diverged before its first."""
    rows = evaluations(log)
    if not rows:
        raise NotLogged("a run diverged before its first evaluation")
    return rows[-1]


def summarised(item: Item, which: str) -> float:
    """The best or the final score in a run's summary, which knows how sure it is; 0 where there is none."""
    log = log_in(item)
    score = log.summary.get(which)
    if not score:
        return 0.0
    return log.bleu(score) if "bleu" in score else log.share(value_of(score))


def best(context: Context, **labels: str) -> BySeed:
    """The best score over the epochs (section 4.1), also of a run that then diverged; 0 where there was none before."""
    return by_seed(context, lambda item: summarised(item, "best"), **labels)


def final(context: Context, **labels: str) -> BySeed:
    """The score at the end; 0 of a run that diverged."""
    return by_seed(context, lambda item: summarised(item, "final"), **labels)


def area(context: Context, **labels: str) -> BySeed:
    """The mean score over the epochs, high for an arm that converges early; after it diverged it counts as 0."""

    def value(item: Item) -> float:
        log = log_in(item)
        values = [value_of(row) for row in evaluations(log)]
        asked = item.arm.spec.steps // item.arm.spec.evaluate_every if item.arm.spec.evaluate_every else 1
        return sum(values) / max(1, len(values), 0 if log.diverged_at is None else asked)

    return by_seed(context, value, **labels)


def diverged(item: Item) -> bool:
    """Whether a run on images ended without a number, or where it began: within one and a half times chance."""
    log = log_in(item)
    return log.diverged_at is not None or value_of(log.summary["final"]) <= CHANCE


def outcomes(context: Context, **labels: str) -> str:
    """The best scores in words, mean and standard deviation; and how many runs diverged, and when."""
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
    """The same for a table: nothing without a log, which a note explains where the runs are left out."""
    items = context.select(**labels)
    if items and all(item.arm.left_out and item.log is None for item in items):
        return "left out"
    return outcomes(context, **labels) if any(item.log for item in items) else None


def last_cell(context: Context, **labels: str) -> str | None:
    """The scores of the last evaluations for a table, beside `cell`; how many runs diverged is said there."""
    ended = [log for log in context.logs(**labels) if log.diverged_at is None]
    if not ended:
        return cell(context, **labels) if not context.logs(**labels) else "diverged"
    try:
        runs = runs_of(context, **labels)
    except NotLogged as missing:
        return str(missing)
    return mean_text([summarised(item, "final") for item in runs.values() if log_in(item).diverged_at is None])


def reasons(context: Context) -> list[str]:
    """Why runs are left out, by task."""
    why = {item.arm.labels["task"]: item.arm.left_out for item in context.items if item.arm.left_out}
    return [f"{DATASET_OF.get(task, task)} left out: {text}" for task, text in why.items()]


def mean_text(values: list[float]) -> str:
    """Mean, with the standard deviation where there are several; ± would be half an interval (`Difference`)."""
    return f"{fmean(values):.1f}" + (f" (sd {stdev(values):.1f})" if len(values) > 1 else "")


def below(context: Context, arm: str, than: str = "Sync", **labels: str) -> Difference:
    """How far an arm's best score stays below another's."""
    return Difference.of(best(context, arm=than, **labels), best(context, arm=arm, **labels))


def at_the_end(context: Context, arm: str, than: str, **labels: str) -> str:
    """How far an arm is above another by their last evaluations, in words, beside what the best ones say.

    It decides nothing: a best score flatters an arm whose curve goes up and down, so a reader should see both.
    """
    step = Difference.of(final(context, arm=arm, **labels), final(context, arm=than, **labels))
    return f"at the last evaluation {step.text()}"


def evaluated(context: Context) -> str:
    """How many test evaluations the logged runs have that did not diverge, in words; empty without logs."""
    runs = [item.log for item in context.logged() if item.arm.spec.kind == "train"]
    counts = sorted({len(evaluations(log)) for log in runs if log is not None and log.diverged_at is None})
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else ""


def best_of(context: Context) -> str:
    """The title of a column of best scores."""
    count = evaluated(context)
    return f"best of {count} evaluations" if count else "best evaluation"


CHOSEN = (
    "the best score is the highest of all test evaluations, as in the paper (section 4.1): where a curve "
    "fluctuates, it lies above the last value"
)


def outcomes_of(context: Context, *arms: str, **labels: str) -> str:
    """The outcomes of arms, in words."""
    return ", ".join(f"{arm} {outcomes(context, arm=arm, **labels)}" for arm in arms)


def spec_stages(item: Item) -> int:
    """The stages of a run's last phase."""
    return item.arm.spec.phases[-1].stages


def title(context: Context, task: str, stages: bool = True) -> str:
    """What a panel shows: model, data set and number of stages, from the logs."""
    items = [item for item in context.select(task=task) if item.log is not None and item.arm.spec.model is not None]
    if not items:
        return DATASET_OF.get(task, task)
    spec = items[0].arm.spec
    assert spec.model is not None
    name = titles.network(spec.model.name)
    name = f"{name} (small)" if {"blocks", "width"} & set(spec.model.options) else name
    name = f"{name}, {log_in(items[0]).summary['data']['title']}"
    counts = sorted({spec_stages(item) for item in items})
    return name + (f", {' and '.join(map(str, counts))} stages" if stages else "")


def trained_as(context: Context, task: str) -> str:
    """What a task is here; empty where nothing of it is logged."""
    return title(context, task) if any(item.log for item in context.select(task=task)) else ""
