"""Comparisons for the leaderboard's judges: final accuracies by seed, of runs that may have diverged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import fmean
from typing import TypeVar

from pipelag.results import colours
from pipelag.results.context import Accuracy, Context, seeds_in_words
from pipelag.results.judging import SEEDS, Difference, all_of, minus, spread_over, trend
from pipelag.results.learning import LEAST_BLEU, best_bleu, learns_nothing
from pipelag.results.logs import Item
from pipelag.results.verdict import Finding, NotLogged, if_logged

Run = TypeVar("Run")
Price = tuple[Mapping[int, float], Mapping[int, float]]  # accuracies by seed: of a baseline, of an arm

PAPER = "leaderboard"
WITH = " with "  # separates a method and its optimizer in an arm's name
BASELINE, UNREMEDIED = "sequential", "1F1B, latest weights"
STYLES = {
    BASELINE: (colours.BASELINE, 0),
    UNREMEDIED: (colours.UNMENDED, 1),
    "PipeDream": (colours.PIPEDREAM, 2),
    "Stale weights": (colours.STALE_WEIGHTS, 3),
    "SpecTrain on 1F1B": (colours.SPECTRAIN, 4),
    "PipeOptim": (colours.PIPEOPTIM, 5),
    "PipeMare T1+T2": (colours.PIPEMARE, 6),
    "LWP_w + SC": (colours.TWO_BW, 7),  # PipeDream-2BW's colour, since that method is not drawn here
}
MEANINGS = {  # of names, and of parts of names; docs/glossary.md says more
    "LWP": "LWP: linear weight prediction, along the optimizer's velocity (LWP_v) or the last step made (LWP_w)",
    "SC": "SC: spike compensation, a step with momentum's share of the updates that were missed",
    "DC-ASGD": "DC-ASGD: gradients corrected to first order for how far the weights have moved since they were read",
    "ASP": "ASP: asynchronous data parallelism, whose workers hold all stages and wait for none",
    "ZB-H1": "ZB-H1: DAPPLE's updates, with gradients of weights computed while a stage would wait",
    "XPipe": "XPipe: prediction by Adam's moments, whatever the optimizer",
    "T1": "T1: a stage's learning rate is at first divided by its delay",
    "T2": "T2: backwards read weights that are moved back towards those of their forwards",
}
LAST = "Methods that diverge with some seed are listed below all that do not."
PAIRED = f"a run that diverges ranks below any that does not; {SEEDS}"


def base_of(arm: str) -> str:
    """The sequential training that an arm is compared with: the one with the optimizer in the arm's name, if any."""
    return BASELINE + "".join(arm.partition(WITH)[1:])


def rate_of(item: Item) -> float:
    """A run's initial learning rate."""
    assert item.arm.spec.optimizer is not None
    return item.arm.spec.optimizer.lr


def loss_of(item: Item) -> float:
    """A run's mean training loss between its last two evaluations; infinite if it diverged."""
    assert item.log is not None
    reached = item.log.rows[-1].get("loss") if item.log.rows and item.log.accuracy is not None else None
    return inf if reached is None else reached


def ranked(losses: Collection[float]) -> tuple[int, float]:
    """The sort key of runs by training loss: how many diverge (their loss is infinite), then the mean of the others."""
    ends = [loss for loss in losses if loss < inf]
    return len(losses) - len(ends), fmean(ends) if ends else inf


def shared_seeds(items: Iterable[Item], point: Callable[[Item], Hashable]) -> set[int]:
    """The seeds that every point of a figure has. point: what a run is a point of."""
    seeds: dict[Hashable, set[int]] = {}
    for item in items:
        seeds.setdefault(point(item), set()).add(item.arm.seed)
    return set.intersection(*seeds.values()) if seeds else set()


def place(items: Iterable[Item]) -> tuple[float, float]:
    """The sort key of an arm in a table: the most accurate first.

    Arms that diverge with some seed come after all others, those with a larger share of such seeds later; arms without
    logs come last.
    """
    logs = [item.log for item in items if item.log is not None]
    ends = [log.accuracy for log in logs if log.accuracy is not None]
    return (1 - len(ends) / len(logs), -fmean(ends) if ends else 0.0) if logs else (2.0, 0.0)


def meanings(arms: Iterable[str]) -> list[str]:
    """A note that explains the short names of the methods in a table or figure; empty if there are none."""
    parts = {part for arm in arms for word in arm.split() for part in (word.partition("_")[0], *word.split("+"))}
    explained = [meaning for name, meaning in MEANINGS.items() if name in parts]
    return [f"{'; '.join(explained)}."] if explained else []


def spread(context: Context, what: str = "Accuracy") -> str:
    """A table's note on what ± beside an accuracy, or beside another value (`what`), is."""
    return spread_over(what, context.over_seeds)


def dashes(context: Context) -> list[str]:
    """A note on a table's dashes, the runs that the scale leaves out; empty if none are. The footer omits it then.

    Further seeds of runs that have a log leave no dash; the footer names them.
    """
    why = replace(context, items=[i for i in context.items if i.log is not None or not context.seeded(i)]).left_out()
    return [f"–: not run here; {why}."] if why else []


def with_momentum(context: Context, arm: str) -> str:
    """An arm's name in a table. NAdam gets its beta1, which differs between tables."""
    specs = [item.arm.spec.optimizer for item in context.select(arm=arm)]
    momenta = {spec.betas[0] for spec in specs if spec is not None and spec.name == "nadam" and spec.betas}
    return f"{arm} ({', '.join(f'beta1 = {beta:g}' for beta in sorted(momenta))})" if momenta else arm


def unlearned(context: Context) -> list[str]:
    """A note on the runs that neither diverge nor learn, by the rule of `learning.learned`; empty if there are none."""
    arms = context.counted(learns_nothing)
    if not arms:
        return []
    translates = any(best_bleu(log) is not None for log in context.logs())
    if not translates:
        return [f"Runs that do not learn (they end at most a tenth of the way from chance to 100 %): {arms}."]
    words = f"Runs that do not learn to translate (no evaluation reaches a BLEU of {LEAST_BLEU:g}): {arms}. "
    return [words + "Even a few fixed words, written for every sentence, have some accuracy of words."]


def score(context: Context, arm: str, **labels: str) -> dict[int, float]:
    """An arm's final accuracy by seed. A diverged run counts as 0, since it has learned nothing that lasts.

    Seeds that the scale leaves out are missing; comparisons use the seeds that both arms have.

    Raises:
        NotLogged: a seed that the scale asks for has no log, or there is none at all.
    """
    accuracies: dict[int, float] = {}
    for item in context.select(what="learning", arm=arm, **labels):
        if item.log is None and item.arm.left_out:
            continue
        if item.log is None:
            raise NotLogged(f"{arm}, seed {item.arm.seed}, has no log")
        accuracies[item.arm.seed] = item.log.accuracy or 0.0
    if not accuracies:
        raise NotLogged(f"{arm} has no log")
    return accuracies


def end_text(context: Context, **labels: str) -> str | None:
    """A table's cell: the accuracy of the runs that end, and how many diverge; None without a log."""
    items = context.logged(**labels)
    if not items:
        return None
    accuracy = Accuracy.of(items, usual=context.usual_seeds)
    return accuracy.text() if accuracy.values else f"{len(items)} of {len(items)} diverge"


def ended(*scores: Mapping[int, float]) -> list[int]:
    """The seeds with which none of these arms diverges. scores: accuracies by seed, 0 for a diverged run."""
    return [seed for seed in scores[0] if all(values.get(seed, 0) > 0 for values in scores)]


def above(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[bool | None, str]:
    """Whether arm a ends above arm b, and by how much in words; from accuracies by seed, 0 for a diverged run.

    A run that diverges is below any that does not, but not by a number of points. So the paired test uses the seeds
    with which neither diverges, and the answer is None if it disagrees with the seeds with which only one does.
    """
    outcomes: set[bool | None] = {a[seed] > 0 for seed in a if seed in b and (a[seed] > 0) != (b[seed] > 0)}
    seeds = ended(a, b)
    words = "unknown (with no seed do both finish)"
    if seeds:
        gain = Difference.of({seed: a[seed] for seed in seeds}, {seed: b[seed] for seed in seeds})
        outcomes.add(gain.above())
        words = gain.text()
    return outcomes.pop() if len(outcomes) == 1 else None, words


def cheaper(before: Price, after: Price) -> tuple[bool | None, tuple[float, float] | None, str]:
    """Whether an arm loses fewer points below its baseline in the second pair of baseline and arm than in the first.

    Returns the answer, both losses in points, and the difference in words, over the seeds with which none of the four
    diverges. If any run diverges, the answer is None; if one does with each seed, the losses are None, too.

    Raises:
        NotLogged: the four have no seed in common.
    """
    every = (*before, *after)
    seeds = ended(*every)
    if not seeds:
        if not set.intersection(*map(set, every)):
            raise NotLogged("the arms and their baselines have no seed in common")
        return None, None, "unknown (with no seed do all of them finish)"
    prices = [{seed: minus(base[seed], arm[seed]) for seed in seeds} for base, arm in (before, after)]
    less = Difference.of(*prices)
    whole = all(value > 0 for values in every for value in values.values())
    old, new = (fmean(price.values()) for price in prices)
    size = replace(less, mean=abs(less.mean)).text().lstrip("+")
    words = f"less by {size}" if less.mean >= 0 else f"more by {size}"
    return less.above() if whole else None, (old, new), words


def lost(price: Callable[[], Price]) -> str | None:
    """How far an arm ends below its baseline, in words; None without the logs."""
    return if_logged(lambda: above(*price())[1])


def diverging(ends: Mapping[str, Mapping[int, float]]) -> str:
    """Which arms diverge and with how many seeds, in words; or empty. ends: accuracies by seed, by arm."""
    gone_of = {arm: [accuracy == 0 for accuracy in values.values()] for arm, values in ends.items()}
    words = ", ".join(f"{arm} {sum(gone)} of {len(gone)}" for arm, gone in gone_of.items() if any(gone))
    return f"; runs that diverge: {words}" if words else ""


def mean_text(name: str, values: Mapping[int, float], told: bool = False) -> str:
    """An arm and its mean over the runs that do not diverge, in words, with their number if some do.

    told: say the number of runs all the same, because it differs between arms.
    """
    ends = [value for value in values.values() if value > 0]
    some = f" ({seeds_in_words(len(ends))})" if told else ""
    some = f" (of {len(ends)} of {len(values)} seeds)" if len(ends) < len(values) else some
    return f"{name} {fmean(ends):.2f} %{some}" if ends else f"{name} diverges"


def means_text(ends: Mapping[str, Mapping[int, float]]) -> str:
    """Arms and their means in words (`mean_text`); with the number of seeds if it differs between them."""
    told = len(set(map(len, ends.values()))) > 1
    return ", ".join(mean_text(name, values, told) for name, values in ends.items())


def compared(
    context: Context, pairs: Sequence[tuple[str, str]], **labels: str
) -> tuple[bool | None, str, dict[str, dict[int, float]]]:
    """Whether in each pair of arms the first ends above the second (`above`), by how much in words, and the scores.

    labels: select the runs.
    """
    ends = {arm: score(context, arm, **labels) for pair in pairs for arm in pair}
    gains = {pair: above(*(ends[arm] for arm in pair)) for pair in pairs}
    words = "; ".join(f"{first} minus {second}: {gain}" for (first, second), (_, gain) in gains.items())
    return all_of(outcome for outcome, _ in gains.values()), words, ends


def judged(context: Context, pairs: Sequence[tuple[str, str]], **labels: str) -> Finding:
    """The finding on whether in each pair of arms the first ends above the second. labels: select the runs."""
    holds, words, ends = compared(context, pairs, **labels)
    return trend(context, holds, f"{means_text(ends)}; {words}{diverging(ends)}", PAIRED, what="learning")


def judged_runs(
    context: Context,
    pairs: Mapping[str, tuple[Run, Run]],
    ends: Callable[[Run], Mapping[int, float]],
    named: Callable[[Run], str],
    **labels: str,
) -> Finding:
    """The finding on whether in each pair of runs the first ends above the second.

    pairs: by their names in the sentence. ends: a run's accuracies by seed. named: a run in words.
    labels: select the runs whose shortfalls the sentence names.
    """
    scores = {run: ends(run) for pair in pairs.values() for run in pair}
    gains = {name: above(*(scores[run] for run in pair)) for name, pair in pairs.items()}
    words = "; ".join(f"{name}: {gain}" for name, (_, gain) in gains.items())
    gone = diverging({named(run): values for run, values in scores.items()})
    return trend(
        context,
        all_of(holds for holds, _ in gains.values()),
        f"{words} points{gone}",
        PAIRED,
        what="learning",
        **labels,
    )


def priced(context: Context, prices: Mapping[str, Mapping[str, Price]]) -> Finding:
    """The finding on whether at each place the second of two arms costs fewer points than the first (`cheaper`).

    prices: by place and arm; both occur in the sentence.
    """
    outcomes: list[bool | None] = []
    words: list[str] = []
    scores: dict[str, Mapping[int, float]] = {}
    for place, arms in prices.items():
        holds, costs, less = cheaper(*arms.values())
        outcomes.append(holds)
        each = [f"{arm} {cost:.2f}" for arm, cost in zip(arms, costs, strict=True)] if costs else list(arms)
        words.append(f"{place}: {', '.join(each)}, {less}")
        for arm, (base, end) in arms.items():
            scores |= {f"{place}, {arm}": end, f"{place}, sequential beside {arm}": base}
    text = f"points below sequential training: {'; '.join(words)}{diverging(scores)}"
    return trend(context, all_of(outcomes), text, PAIRED, what="learning")
