"""Table 9: the Nesterov look-ahead over more stages, what it owes to its momentum and to the stashing of weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pipelag.report.tables import Cell, Col
from pipelag.report.tables import table as tabulated
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.leaderboard.scores import BASELINE, PAPER, UNREMEDIED, Price, end_text, lost, priced, score, told
from pipelag.results.verdict import Finding, Judge, judge

ADAM, ADAMW, NADAM, LOW = "Adam", "AdamW", "NAdam", "Adam of less momentum"
WARM = "AdamW warmed up"
STASHING, PREDICTING = "PipeDream", "PipeOptim"
DEEPER = ("8", "16")
DEPTHS = ("4", *DEEPER)
NOTES = [
    "Below sequential training with the same optimizer: mean ± half the 95 % interval over seeds, paired.",
    "PyTorch's NAdam grows the share of its average in a step from half of beta1 on: in runs of some thousand updates "
    "a good part of every step is the newest gradient.",
]


@drawing(PAPER, "table_9")
def table(context: Context) -> Drawn:
    """A line per optimizer and method; sequential training first."""
    rows: list[dict[str, Cell]] = []
    for optimizer in (ADAMW, WARM, LOW, ADAM, NADAM):
        for arm in dict.fromkeys(item.arm.labels["arm"] for item in context.select(optimizer=optimizer)):
            row: dict[str, Cell] = {"optimizer": title(context, optimizer), "method": arm}
            for stages in context.values("stages"):
                row[stages] = end_text(context, arm=arm, optimizer=optimizer, stages=stages)
                if arm != BASELINE:
                    row[f"lost {stages}"] = lost(partial(price, context, arm, optimizer, stages))
            rows.append(row)
    columns = [Col("optimizer", "optimizer"), Col("method", "method"), Col("1 stage", "1", group="accuracy %")]
    columns += [Col(f"{stages} stages", stages, group="accuracy %") for stages in DEPTHS]
    columns += [Col(f"{stages} stages", f"lost {stages}", group="below sequential, points") for stages in DEPTHS]
    return Drawn(table=tabulated(rows, columns, context.result.caption, NOTES, rule_by="optimizer"))


def title(context: Context, optimizer: str) -> str:
    """An optimizer with what its runs set of it beside the rate."""
    spec = context.select(optimizer=optimizer)[0].arm.spec.optimizer
    assert spec is not None
    parts = [f"beta1 = {spec.betas[0]:g}"] if spec.betas else []
    parts += [f"weight decay {spec.weight_decay:g}"] if spec.weight_decay else []
    return ", ".join([optimizer, *parts])


def ends(context: Context, arm: str, optimizer: str, stages: str) -> dict[int, float]:
    """An arm's accuracies by seed; sequential training has one stage however many are asked for."""
    return score(context, arm, optimizer=optimizer, stages="1" if arm == BASELINE else stages)


def price(context: Context, arm: str, optimizer: str, stages: str) -> Price:
    """Accuracies by seed of sequential training with this optimizer, and of the arm."""
    return ends(context, BASELINE, optimizer, stages), ends(context, arm, optimizer, stages)


Run = tuple[str, str, str]  # arm, optimizer, stages


def named(run: Run) -> str:
    """A run in words."""
    return f"{run[0]} with {run[1]} over {run[2]} stages"


def told_apart(context: Context, *pairs: tuple[Run, Run]) -> Finding:
    """Whether in each pair the first ends above the second."""
    words = {f"{named(one)} above {named(other)}": (one, other) for one, other in pairs}
    return told(context, words, lambda run: ends(context, *run), named)


def deeper(one: tuple[str, str], other: tuple[str, str]) -> Judge:
    """A judge: whether one method with its optimizer ends above another, over eight and over sixteen stages."""
    return lambda context: told_apart(context, *[((*one, stages), (*other, stages)) for stages in DEEPER])


def cheaper_stashing(dear: str, cheap: str, depths: Sequence[str]) -> Judge:
    """A judge: whether stashing costs fewer points with the second optimizer than with the first, at each depth."""
    names = {optimizer: f"{STASHING} with {optimizer}" for optimizer in (dear, cheap)}
    return lambda context: priced(
        context,
        {f"{n} stages": {name: price(context, STASHING, each, n) for each, name in names.items()} for n in depths},
    )


for _claim, _one, _other in (
    ("look_ahead_over_pipeoptim", (STASHING, NADAM), (PREDICTING, ADAMW)),
    ("look_ahead_alone", (UNREMEDIED, NADAM), (PREDICTING, ADAMW)),  # one copy of the weights against two
    ("look_ahead_needs_stashing", (STASHING, NADAM), (UNREMEDIED, NADAM)),
    ("prediction_over_look_ahead", (PREDICTING, NADAM), (STASHING, NADAM)),
):
    judge(PAPER, "table_9", _claim)(deeper(_one, _other))

for _claim, _dear, _cheap, _depths in (
    ("look_ahead_hides_delay", ADAMW, NADAM, DEEPER),  # table 2 has four stages
    ("look_ahead_not_momentum", ADAM, NADAM, DEPTHS),  # their own sequential training ends far apart
    ("look_ahead_not_newest", LOW, NADAM, DEEPER),  # about as much of the newest gradient in a step
    ("look_ahead_not_warmup", WARM, NADAM, ("8",)),  # PyTorch's NAdam begins with a small part of its average
    ("momentum_alone", ADAM, ADAMW, DEPTHS),  # a longer average holds older gradients
):
    judge(PAPER, "table_9", _claim)(cheaper_stashing(_dear, _cheap, _depths))


@judge(PAPER, "table_9", "look_ahead_pays_for_depth")
def pays_for_depth(context: Context) -> Finding:
    """The shallowest against the deepest."""
    return told_apart(context, ((STASHING, NADAM, "4"), (STASHING, NADAM, "16")))
