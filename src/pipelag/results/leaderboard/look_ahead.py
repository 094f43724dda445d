"""Tables 9 and 11: the Nesterov look-ahead over more stages and on a Transformer, and controls for its other traits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pipelag.report.tables import Cell, Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.leaderboard.scores import (
    BASELINE,
    PAPER,
    UNREMEDIED,
    Price,
    end_text,
    judged_runs,
    lost,
    priced,
    score,
    spread,
    unlearned,
)
from pipelag.results.verdict import Finding, Judge, judge

ADAM, ADAMW, NADAM, LOW = "Adam", "AdamW", "NAdam", "Adam of less momentum"
WARM, MEMORY, SLOW = "AdamW warmed up", "AdamW of more memory", "NAdam of less momentum"
STASHING, PREDICTING = "PipeDream", "PipeOptim"
DEEPER: Sequence[str] = ("8", "16")
DEPTHS: Sequence[str] = ("4", *DEEPER)
WORDS: Sequence[str] = ("8",)  # stages of the Transformer
NOTES = [
    "Below sequential training with the same optimizer: mean ± half the 95 % interval over seeds, paired.",
    "PyTorch's NAdam raises the share of its momentum average in a step from half of beta1 on, so in runs of some "
    "thousand updates the newest gradient is a good part of every step.",
]


@drawing(PAPER, "table_9", "table_11")
def table(context: Context) -> Drawn:
    """A row per optimizer and method, with sequential training first."""
    rows: list[dict[str, Cell]] = []
    numbers = sorted(context.values("stages"), key=int)
    for optimizer in (ADAMW, WARM, MEMORY, LOW, ADAM, SLOW, NADAM):
        for arm in context.values("arm", optimizer=optimizer):
            row: dict[str, Cell] = {"optimizer": title(context, optimizer), "method": arm}
            for stages in numbers:
                row[stages] = end_text(context, arm=arm, optimizer=optimizer, stages=stages)
                if arm != BASELINE:
                    row[f"lost {stages}"] = lost(partial(price, context, arm, optimizer, stages))
            rows.append(row)
    notes = [spread(context), *NOTES, *unlearned(context)]
    columns = [Col("optimizer", "optimizer"), Col("method", "method"), Col("1 stage", "1", group="accuracy %")]
    columns += [Col(f"{stages} stages", stages, group="accuracy %") for stages in numbers[1:]]
    columns += [Col(f"{stages} stages", f"lost {stages}", group="below sequential, points") for stages in numbers[1:]]
    return Drawn.tabled(context, rows, columns, notes, rule_by="optimizer")


def title(context: Context, optimizer: str) -> str:
    """An optimizer with its settings apart from the rate; with beta2 only if the runs differ in it."""
    specs = {item.arm.labels["optimizer"]: item.arm.spec.optimizer for item in context.items}
    spec = specs[optimizer]
    assert spec is not None
    several = len({other.betas[1] for other in specs.values() if other is not None and other.betas}) > 1
    parts = [f"beta{n} = {beta:g}" for n, beta in enumerate(spec.betas or (), 1) if n == 1 or several]
    parts += [f"weight decay {spec.weight_decay:g}"] if spec.weight_decay else []
    return ", ".join([optimizer, *parts])


def ends(context: Context, arm: str, optimizer: str, stages: str) -> dict[int, float]:
    """An arm's accuracies by seed over this many stages; sequential training always has one."""
    return score(context, arm, optimizer=optimizer, stages="1" if arm == BASELINE else stages)


def price(context: Context, arm: str, optimizer: str, stages: str) -> Price:
    """The accuracies by seed of sequential training with this optimizer, and those of the arm."""
    return ends(context, BASELINE, optimizer, stages), ends(context, arm, optimizer, stages)


Run = tuple[str, str, str]  # arm, optimizer, stages


def named(run: Run) -> str:
    """A run in words."""
    return f"{run[0]} with {run[1]}" + (f" over {run[2]} stages" if run[0] != BASELINE else "")


def told_apart(context: Context, *pairs: tuple[Run, Run]) -> Finding:
    """Whether in each pair of runs the first ends above the second, paired over seeds."""
    words = {f"{named(one)} minus {named(other)}": (one, other) for one, other in pairs}
    return judged_runs(context, words, lambda run: ends(context, *run), named)


def ahead(one: tuple[str, str], others: Sequence[tuple[str, str]], depths: Sequence[str]) -> Judge:
    """A judge that decides whether one method and optimizer end above each of the others, at each number of stages."""
    return lambda context: told_apart(
        context, *[((*one, stages), (*other, stages)) for stages in depths for other in others]
    )


def cheaper(arm: str, dear: str, cheap: str, depths: Sequence[str]) -> Judge:
    """A judge that decides whether an arm costs fewer points with optimizer `cheap` than with `dear`, at each depth.

    Points below sequential training with the same optimizer.
    """
    names = {optimizer: f"{arm} with {optimizer}" for optimizer in (dear, cheap)}
    return lambda context: priced(
        context, {f"{n} stages": {name: price(context, arm, each, n) for each, name in names.items()} for n in depths}
    )


for _result, _depths in (("table_9", DEEPER), ("table_11", WORDS)):
    judge(PAPER, _result, "look_ahead_needs_stashing")(ahead((STASHING, NADAM), [(UNREMEDIED, NADAM)], _depths))
    judge(PAPER, _result, "prediction_over_look_ahead")(ahead((PREDICTING, NADAM), [(STASHING, NADAM)], _depths))
    judge(PAPER, _result, "look_ahead_hides_delay")(cheaper(STASHING, ADAMW, NADAM, _depths))  # four stages: table 2

judge(PAPER, "table_9", "momentum_helps_look_ahead")(ahead((UNREMEDIED, NADAM), [(UNREMEDIED, SLOW)], DEEPER))
# One copy of the weights against two.
judge(PAPER, "table_9", "less_momentum_ahead")(ahead((UNREMEDIED, SLOW), [(PREDICTING, ADAMW)], DEEPER))
judge(PAPER, "table_9", "look_ahead_alone")(ahead((UNREMEDIED, NADAM), [(PREDICTING, ADAMW)], DEEPER))
judge(PAPER, "table_11", "look_ahead_alone")(ahead((UNREMEDIED, NADAM), [(PREDICTING, ADAMW), ("XPipe", ADAMW)], WORDS))
judge(PAPER, "table_9", "look_ahead_over_pipeoptim")(ahead((STASHING, NADAM), [(PREDICTING, ADAMW)], DEEPER))

judge(PAPER, "table_9", "pipeoptim_over_stashing")(ahead((PREDICTING, ADAMW), [(STASHING, ADAMW)], DEEPER))
judge(PAPER, "table_9", "pipeoptim_over_none")(ahead((PREDICTING, ADAMW), [(UNREMEDIED, ADAMW)], DEEPER))

for _claim, _dear, _cheap, _depths in (
    ("look_ahead_not_momentum", ADAM, NADAM, DEPTHS),  # points lost, as their sequential trainings end far apart
    ("look_ahead_not_newest", LOW, NADAM, DEEPER),  # both weigh the newest gradient about equally in a step
    ("look_ahead_not_warmup", WARM, NADAM, ("8",)),  # PyTorch's NAdam starts with a small share of its average
    ("momentum_alone", ADAM, ADAMW, DEPTHS),  # a longer average holds older gradients
):
    judge(PAPER, "table_9", _claim)(cheaper(STASHING, _dear, _cheap, _depths))
for _claim, _dear, _cheap in (
    ("none_cheaper", ADAMW, NADAM),
    ("look_ahead_not_momentum", ADAM, NADAM),
    ("look_ahead_not_memory", MEMORY, NADAM),
    ("less_momentum_cheaper", MEMORY, SLOW),
):
    judge(PAPER, "table_11", _claim)(cheaper(UNREMEDIED, _dear, _cheap, WORDS))
judge(PAPER, "table_11", "less_momentum_ahead")(ahead((UNREMEDIED, SLOW), [(UNREMEDIED, ADAMW)], WORDS))
judge(PAPER, "table_11", "less_momentum_over_pipeoptim")(ahead((UNREMEDIED, SLOW), [(PREDICTING, ADAMW)], WORDS))
judge(PAPER, "table_11", "momentum_costs_alone")(ahead((BASELINE, ADAMW), [(BASELINE, NADAM)], ("1",)))


@judge(PAPER, "table_9", "less_momentum_cheaper")
def less_momentum_cheaper(context: Context) -> Finding:
    """Holds if NAdam of less momentum costs fewer points than AdamW, with and without stashing, at each depth.

    The two differ only in the look-ahead and in AdamW's weight decay of 0.01.
    """
    places = {f"{arm}, {stages} stages": (arm, stages) for arm in (UNREMEDIED, STASHING) for stages in DEEPER}
    return priced(
        context,
        {
            place: {f"{arm} with {each}": price(context, arm, each, stages) for each in (ADAMW, SLOW)}
            for place, (arm, stages) in places.items()
        },
    )


@judge(PAPER, "table_11", "look_ahead_pays")
def pays(context: Context) -> Finding:
    """Holds if with NAdam sequential training ends above each pipeline: without a remedy, PipeDream and PipeOptim."""
    arms = (UNREMEDIED, STASHING, PREDICTING)
    return told_apart(context, *[((BASELINE, NADAM, "1"), (arm, NADAM, WORDS[0])) for arm in arms])


@judge(PAPER, "table_9", "look_ahead_pays_for_depth")
def pays_for_depth(context: Context) -> Finding:
    """Holds if PipeDream with NAdam ends higher over 4 stages than over 16."""
    return told_apart(context, ((STASHING, NADAM, "4"), (STASHING, NADAM, "16")))
