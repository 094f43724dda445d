"""Table 6: many stages at half the learning rate, and with a warm-up of the rate."""

from __future__ import annotations

from collections.abc import Sequence

from pipelag.report.tables import Cell, Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import all_of, trend
from pipelag.results.leaderboard.scores import (
    BASELINE,
    PAIRED,
    PAPER,
    UNREMEDIED,
    above,
    compared,
    dashes,
    diverging,
    end_text,
    mean_text,
    means_text,
    score,
    spread,
    unlearned,
)
from pipelag.results.verdict import Finding, Judge, judge

REMEDIES = ("PipeDream", "SpecTrain on 1F1B", "PipeOptim")
COMMON, HALF, WARM = "as figure 1", "half the rate", "warm-up"
SAID = {COMMON: "the common rate"}  # the words for it in a sentence
DEEP = "16"


@drawing(PAPER, "table_6")
def table(context: Context) -> Drawn:
    """A row per number of stages and method, with the accuracies of each kind of training."""
    trainings = context.values("training")
    rows: list[dict[str, Cell]] = []
    for stages in sorted(context.values("stages"), key=int):
        for arm in context.values("arm", stages=stages):
            ends = {training: end_text(context, arm=arm, stages=stages, training=training) for training in trainings}
            rows.append({"stages": stages, "method": arm, **ends})
    columns = [Col("stages", "stages"), Col("method", "method")]
    columns += [Col(training, training, group="accuracy %") for training in trainings]
    notes = [spread(context), *unlearned(context), *dashes(context)]
    return Drawn.tabled(context, rows, columns, notes, rule_by="stages")


def saved_by(training: str) -> Judge:
    """A judge that decides whether 16 stages without a remedy end higher with this training than at the common rate."""

    def judged(context: Context) -> Finding:
        ends = {
            SAID.get(each, each): score(context, UNREMEDIED, stages=DEEP, training=each) for each in (training, COMMON)
        }
        holds, gain = above(*ends.values())
        text = f"{DEEP} stages, {UNREMEDIED}: {means_text(ends)}; {' minus '.join(ends)}: {gain}{diverging(ends)}"
        return trend(context, holds, text, PAIRED, what="learning")

    return judged


judge(PAPER, "table_6", "warmup_saves_deep")(saved_by(WARM))
judge(PAPER, "table_6", "smaller_rate_saves_deep")(saved_by(HALF))


@judge(PAPER, "table_6", "none_diverges_deep")
def none_diverges(context: Context) -> Finding:
    """Holds if no run over 16 stages diverges at half the rate or with a warm-up, for all four methods.

    If none diverges at the common rate either, there is nothing to mend, and the claim cannot be judged.
    """
    arms, trainings = (UNREMEDIED, *REMEDIES), (COMMON, HALF, WARM)
    lost = {
        training: [end == 0 for arm in arms for end in score(context, arm, stages=DEEP, training=training).values()]
        for training in trainings
    }
    words = ", ".join(f"{SAID.get(training, training)} {sum(gone)} of {len(gone)}" for training, gone in lost.items())
    holds: bool | None = not any(lost[HALF] + lost[WARM])
    if holds and not any(lost[COMMON]):
        holds = None
    return trend(context, holds, f"{DEEP} stages, runs that diverge: {words}", "every run", what="learning")


def ahead(trainings: Sequence[str], pairs: Sequence[tuple[str, str]], stages: str = DEEP) -> Judge:
    """A judge that decides whether in each pair the first arm ends above the second, with each of these trainings."""

    def judged(context: Context) -> Finding:
        outcomes: list[bool | None] = []
        words: list[str] = []
        ends: dict[str, dict[int, float]] = {}
        for training in trainings:
            holds, gains, scores = compared(context, pairs, stages=stages, training=training)
            outcomes.append(holds)
            words.append(f"{training}: {gains}")
            ends |= {f"{arm} ({training})": end for arm, end in scores.items()}
        text = f"{stages} stages, {'; '.join(words)} points{diverging(ends)}"
        return trend(context, all_of(outcomes), text, PAIRED, what="learning")

    return judged


SPECTRAIN_OVER = [("SpecTrain on 1F1B", other) for other in (UNREMEDIED, "PipeDream")]
judge(PAPER, "table_6", "remedies_keep_more_warm")(ahead([WARM], [(arm, UNREMEDIED) for arm in REMEDIES]))
judge(PAPER, "table_6", "spectrain_keeps_more_warm")(ahead([WARM], SPECTRAIN_OVER))
judge(PAPER, "table_6", "spectrain_keeps_more_half")(ahead([HALF], SPECTRAIN_OVER))
judge(PAPER, "table_6", "stashing_below_none_half")(ahead([HALF], [(UNREMEDIED, "PipeDream")]))
judge(PAPER, "table_6", "spectrain_keeps_more_eight")(ahead([HALF, WARM], SPECTRAIN_OVER, stages="8"))


@judge(PAPER, "table_6", "deep_price_remains")
def deep_price_remains(context: Context) -> Finding:
    """Holds if sequential training ends above every method over 16 stages, at half the rate and with a warm-up.

    Each method is compared with sequential training at the same rates.
    """
    words: list[str] = []
    outcomes: list[bool | None] = []
    scores: dict[str, dict[int, float]] = {}
    for training in (HALF, WARM):
        base = score(context, BASELINE, training=training)
        ends = {arm: score(context, arm, stages=DEEP, training=training) for arm in (UNREMEDIED, *REMEDIES)}
        costs = {arm: above(base, end) for arm, end in ends.items()}
        outcomes += [holds for holds, _ in costs.values()]
        scores |= {f"{arm} ({training})": end for arm, end in ends.items()}
        gains = ", ".join(f"{arm} {cost}" for arm, (_, cost) in costs.items())
        words.append(f"{training}, {mean_text(BASELINE, base)}, ahead of {gains}")
    text = f"{DEEP} stages: {'; '.join(words)} points{diverging(scores)}"
    return trend(context, all_of(outcomes), text, PAIRED, what="learning")
