"""fairseq's Transformer beside ours: sizes, first loss from the same weights, translations, and the cost of delays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TypeVar

from pipelag.report.tables import Cell, Col
from pipelag.results.context import Context, seeds_in_words
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import Difference, all_of, exact, logs_by_seed, trend, with_spread
from pipelag.results.leaderboard.scores import PAIRED, above, spread
from pipelag.results.learning import learned
from pipelag.results.logs import RunLog
from pipelag.results.verdict import Finding, NotLogged, judge, log_of

PAPER, RESULT = "leaderboard", "table_5"
NETWORKS = ("ours", "fairseq's")
PLAIN, STALE = "sequential", "PipeMare T1+T2"
# Both networks add the same numbers in different orders, and each sum is rounded to float32's 24 bits, 6e-8 of its
# value. Over the hundred nested sums between a word and its loss, that can add up to 1e-5.
ROUNDING = 1e-5
SHOWN = 2.0  # BLEU; networks that differ by less count as alike, and seeds that cannot exclude more decide nothing

BySeed = dict[int, float]
T = TypeVar("T")


def by_seed(context: Context, value: Callable[[RunLog], T], **labels: str) -> dict[int, T]:
    """A value of each run with these labels, by seed; raises `NotLogged`, with the reason, if a seed has no log."""
    named = ", ".join(f"{key} {label}" for key, label in labels.items() if key != "what")
    return {seed: value(log) for seed, log in logs_by_seed(context, named, **labels).items()}


def paired(ours: Mapping[int, T], theirs: Mapping[int, T]) -> tuple[dict[int, T], dict[int, T]]:
    """The values of the seeds that both have; raises `NotLogged` if there is none."""
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        raise NotLogged("the two networks have no seed in common")
    return {seed: ours[seed] for seed in shared}, {seed: theirs[seed] for seed in shared}


def bleu(log: RunLog) -> float:
    """A run's final BLEU; 0 if it diverged."""
    final = log.summary.get("final")
    return log.bleu(final) if final else 0.0


def loss(log: RunLog) -> float:
    """A run's final training loss, averaged since the evaluation before the last."""
    final = log.summary.get("final")
    if not final:
        raise NotLogged(f"a run diverged at step {log.diverged_at}")
    return float(final["loss"])


# The table -----------------------------------------------------------------------------------------------------------

Key = tuple[str, str, str, str]  # pipeline, network, initial weights, the generator that translates


def mean_of(context: Context, values: list[float], digits: int) -> str | None:
    """The mean, with the standard deviation if there are several values, and their number where it is not the usual.

    None without any value.
    """
    if not values:
        return None
    other = f" ({seeds_in_words(len(values))})" if len(values) != context.usual_seeds else ""
    return with_spread(values, f"{{:.{digits}f}}") + other


def row_of(context: Context, key: Key) -> dict[str, Cell]:
    """One row: the runs with this pipeline, network, initial weights and generator."""
    arm, network, start, writer = key
    items = context.select(what="learning", arm=arm, network=network, start=start, writer=writer)
    logs = [item.log for item in items if item.log is not None]
    row: dict[str, Cell] = {"pipeline": arm, "network": network, "start": start, "writer": writer}
    if not logs:
        return row | {"bleu": "left out" if any(item.arm.left_out for item in items) else None}
    ended = [log for log in logs if log.summary.get("final")]
    row |= {
        "bleu": mean_of(context, [bleu(log) for log in logs], 1),
        "accuracy": mean_of(context, [log.summary["final"]["accuracy"] for log in ended], 2),
        "loss": mean_of(context, [loss(log) for log in ended], 3),
    }
    timed = context.log(what="pass", network=network)
    if timed is not None:
        row["milliseconds"] = sum(layer["forward_ms"] + layer["backward_ms"] for layer in timed.rows)
    if start == "ours":  # both networks computed the first minibatch from our initial weights
        first = [loss(log) for log in context.logs(what="first", network=network) if log.summary.get("final")]
        row["first"] = fmean(first) if first else None
    return row


COLUMNS = [
    Col("pipeline", "pipeline"),
    Col("network", "network"),
    Col("initial weights", "start"),
    Col("translated by", "writer"),
    Col("first minibatch", "first", "{:.6f}", "training loss"),
    Col("last evaluation", "loss", "{:.3f}", "training loss"),
    Col("accuracy of words, %", "accuracy"),
    Col("BLEU", "bleu"),
    Col("ms per minibatch", "milliseconds", "{:.1f}"),
]


@drawing(PAPER, RESULT)
def table(context: Context) -> Drawn:
    """A row for each pipeline, network, initial weights and generator."""
    names = ("arm", "network", "start", "writer")
    keys = [tuple(item.arm.labels[name] for name in names) for item in context.select(what="learning")]
    ordered: list[Key] = sorted(dict.fromkeys(keys), key=lambda key: key[0] != PLAIN)  # type: ignore[arg-type]
    rows = [row_of(context, key) for key in ordered]
    return Drawn.tabled(context, rows, COLUMNS, notes(context), rule_by="pipeline")


def notes(context: Context) -> list[str]:
    """Notes on what was compared, from the logs, and on the runs that are left out."""
    runs = context.select(what="learning")
    trained = {(item.arm.spec.steps, item.log.summary["data"]["title"]) for item in runs if item.log is not None}
    sentences = [f"{steps:,} updates on {data}." for steps, data in sorted(trained)]
    logs = {network: context.log(what="sizes", network=network) for network in NETWORKS}
    counts = {name: log.summary for name, log in logs.items() if log is not None}
    if counts:
        sizes = (f"{name} {size['parameters']:,} in {size['layers']} layers" for name, size in counts.items())
        sentences.append(f"Parameters with the sizes of transformer_iwslt_de_en: {', '.join(sizes)}.")
    if any(item.log is not None for item in runs):
        sentences.append(spread(context, "Loss at the end, accuracy, BLEU"))
    sentences.append(
        "Loss of the first minibatch: the mean over seeds, without dropout, both networks with our initial weights. "
        "Training loss at the end: since the evaluation before."
    )
    sentences.append(
        "ms per minibatch: forward and backward of all layers, each timed by itself on this machine, summed."
    )
    why = context.left_out()
    return sentences + ([f"Left out: {why}."] if why else [])


# Claims --------------------------------------------------------------------------------------------------------------


@judge(PAPER, RESULT, "same_sizes")
def same_sizes(context: Context) -> Finding:
    """Holds if both networks have the same number of parameters in every layer."""
    counts = {}
    for network in NETWORKS:
        log = log_of(context, what="sizes", network=network)
        counts[network] = [row["parameters"] for row in log.rows]
    ours, theirs = (counts[network] for network in NETWORKS)
    unlike = sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))
    why = f"ours {sum(ours):,} in {len(ours)} layers, fairseq's {sum(theirs):,} in {len(theirs)}; {unlike} differ"
    return exact(unlike == 0, why)


@judge(PAPER, RESULT, "same_first_loss")
def same_first_loss(context: Context) -> Finding:
    """Holds if both networks have the same loss of the first minibatch from the same weights, with every seed.

    Up to the rounding of float32 in two orders of summation.
    """
    ours, theirs = paired(*(by_seed(context, loss, what="first", network=network) for network in NETWORKS))
    off = {seed: abs(theirs[seed] - ours[seed]) / ours[seed] for seed in ours}
    why = ", ".join(f"seed {seed}: {ours[seed]:.7f} and {theirs[seed]:.7f}" for seed in ours)
    holds = max(off.values()) <= ROUNDING
    why += f"; at most {max(off.values()):.1e} of the loss apart"
    return exact(holds, why, f"{ROUNDING:.0e} of the loss, what float32 rounds in two orders of the same sums")


@judge(PAPER, RESULT, "same_translations")
def same_translations(context: Context) -> Finding:
    """Holds if both generators give the same BLEU for the same training run, at every evaluation with every seed.

    The run is trained with delays: it leaves uncertain translations, for which two beam searches could well differ.
    """
    same = {"what": "learning", "arm": STALE, "network": "ours", "start": "ours"}

    def evaluations(log: RunLog) -> list[dict[str, float]]:
        return [row for row in log.rows if "bleu" in row]

    ours, theirs = paired(*(by_seed(context, evaluations, **same, writer=writer) for writer in NETWORKS))
    if any([row["loss"] for row in rows] != [row["loss"] for row in theirs[seed]] for seed, rows in ours.items()):
        raise NotLogged("the two runs were not trained alike to the last bit, so they are not one network")
    pairs = [(seed, a, b) for seed, rows in ours.items() for a, b in zip(rows, theirs[seed], strict=True)]
    if not pairs:
        raise NotLogged("no evaluation of the two runs has a BLEU")
    alike = sum(a["bleu"] == b["bleu"] for _, a, b in pairs)
    why = f"{alike} of {len(pairs)} evaluations have the same BLEU"
    if alike < len(pairs):
        seed, a, b = max(pairs, key=lambda pair: abs(pair[1]["bleu"] - pair[2]["bleu"]))
        off = abs(a["bleu"] - b["bleu"])
        why += (
            f"; furthest apart, by {off:.4f}: {a['bleu']:.4f} and {b['bleu']:.4f} (seed {seed}, update {a['step']:,})"
        )
    return exact(alike == len(pairs), why)


def compared(context: Context, arm: str, network: str) -> BySeed:
    """The BLEU by seed of a network with its own initial weights and its own generator."""
    return by_seed(context, bleu, what="learning", arm=arm, network=network, start=network, writer=network)


def learning(context: Context, arm: str, network: str) -> BySeed:
    """`compared`; raises `NotLogged` if a run diverges or does not learn, as such networks are alike."""
    labels = {"what": "learning", "arm": arm, "network": network, "start": network, "writer": network}
    for log in context.logs(**labels):
        if log.diverged_at is not None:
            raise NotLogged(f"{arm} training of {network} network diverged at step {log.diverged_at:,}")
    learned(context, f"{arm} training of {network} network", **labels)
    return compared(context, arm, network)


@judge(PAPER, RESULT, "bleu_not_told_apart")
def bleu_not_told_apart(context: Context) -> Finding:
    """Holds if the interval of the difference in BLEU is within 2 (`SHOWN`); fails if it is wholly beyond.

    Each network has its own initial weights; seeds pair the runs because they choose the minibatches. If the interval
    is too wide to exclude a difference of 2, or a run diverges or does not learn, the claim cannot be judged.
    """
    ours, theirs = paired(*(learning(context, PLAIN, network) for network in NETWORKS))
    gap = Difference.of(theirs, ours)
    holds: bool | None = None
    if gap.error is not None and abs(gap.mean) - gap.error > SHOWN:
        holds = False
    elif gap.error is not None and abs(gap.mean) + gap.error <= SHOWN:
        holds = True
    why = f"fairseq's {fmean(theirs.values()):.1f}, ours {fmean(ours.values()):.1f}: {gap.text()}"
    tolerance = f"the 95 % interval of Student's t over paired seeds holds nothing beyond {SHOWN:.0f} BLEU"
    return trend(context, holds, why, tolerance, what="learning", arm=PLAIN)


@judge(PAPER, RESULT, "delays_cost_both")
def delays_cost_both(context: Context) -> Finding:
    """Holds if both networks end with a higher BLEU without delays than with them, each paired over seeds."""
    costs = {
        network: above(compared(context, PLAIN, network), compared(context, STALE, network)) for network in NETWORKS
    }
    why = "; ".join(f"{network}: {cost} BLEU without delays" for network, (_, cost) in costs.items())
    return trend(context, all_of(holds for holds, _ in costs.values()), why, PAIRED, what="learning")
