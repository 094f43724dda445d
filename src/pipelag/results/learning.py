"""Whether runs have learned anything: judges ask this before they compare how well or how fast arms learn."""

from __future__ import annotations

from pipelag.results.context import Context
from pipelag.results.logs import RunLog
from pipelag.results.verdict import NotLogged

LEAST_BLEU = 1.0  # a model that answers every sentence with the same few words stays below this


def learned(context: Context, named: str, /, **labels: str) -> None:
    """Raise `NotLogged` unless every logged run with these labels has learned something.

    A classifier has learned if it ends more than a tenth of the way from chance to 100 %; a translation if one of its
    evaluations reaches a BLEU of 1. Judges ask this before they compare how well or how fast an arm learns that learns
    in its paper: if it does not learn at this scale, the comparison would say nothing. Logs that hold neither the
    number of classes nor a BLEU pass.
    """
    for item in context.select(**labels):
        if item.log is None:
            continue
        bleu, classes = best_bleu(item.log), classes_of(item.log)
        if bleu is not None and bleu < LEAST_BLEU:
            words = f"its best of all evaluations is a BLEU of {bleu:.2f}"
            raise NotLogged(f"{named} does not learn to translate here: seed {item.arm.seed}: {words}")
        end = item.log.accuracy
        if classes and (end is None or near_chance(end, classes)):
            how = "diverges" if end is None else f"ends at an accuracy of {end:.1f} % over {classes} classes"
            raise NotLogged(f"{named} does not learn here, while in the paper it does: seed {item.arm.seed} {how}")


def best_bleu(log: RunLog) -> float | None:
    """The best BLEU of a run's evaluations; None if the run is not a translation."""
    bleu: float | None = (log.summary.get("best") or {}).get("bleu")
    return bleu


def classes_of(log: RunLog) -> int | None:
    """The number of classes in a run's data; None if it is not logged."""
    classes: int | None = log.data.get("classes")
    return classes


def near_chance(accuracy: float, classes: int) -> bool:
    """Whether an accuracy in percent is at most a tenth of the way from chance to 100 %."""
    chance = 100 / classes
    return accuracy <= chance + (100 - chance) / 10


def learns_nothing(log: RunLog) -> bool:
    """Whether a run ends near chance, by the rule of `learned`."""
    if log.accuracy is None:
        return False
    bleu, classes = best_bleu(log), classes_of(log)
    return (bleu is not None and bleu < LEAST_BLEU) or bool(classes and near_chance(log.accuracy, classes))
