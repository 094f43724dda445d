"""How well the runs of PipeMare's tasks have learned, in numbers and in words: accuracy of images, BLEU."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from pipelag.results.logs import Context, RunLog
from pipelag.results.verdict import log_of

CHANCE = 1.5  # an arm that ends below this many times chance (10 % of ten classes) has not learned
TASKS = {"images": "test accuracy (%)", "translation": "BLEU"}
TASK_OF = {"CIFAR10": "images", "IWSLT14": "translation"}  # of the paper's data sets


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


def gaps(context: Context, arms: Sequence[str], task: str = "images") -> tuple[dict[str, float], str]:
    """How far arms stay below Sync, and that in words."""
    sync = needed(context, arm="Sync", task=task)
    found = {arm: sync - needed(context, arm=arm, task=task) for arm in arms}
    text = f"Sync {sync:.1f}; " + ", ".join(f"{arm} {outcome(context, arm=arm, task=task)}" for arm in arms)
    return found, text


def area(context: Context, arm: str) -> float:
    """Mean BLEU over the epochs: high for an arm that converges early."""
    return mean(value for _, value in points(log_of(context, arm=arm, task="translation")))


def trained_on(context: Context, task: str) -> str:
    """What a task is here: data set, model and stages."""
    for item in context.select(task=task):
        spec = item.arm.spec
        if item.log is not None and spec.model is not None:
            return f"{task} on {item.log.summary['data']['title']}, {spec.model.name}, {stages_of(context, task)}"
    return ""
