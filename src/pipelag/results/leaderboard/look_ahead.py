"""Table 9: the Nesterov look-ahead over more stages, and what it owes to its momentum."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from pipelag.report.tables import Cell, Col
from pipelag.report.tables import table as tabulated
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.leaderboard.depth import BASELINE
from pipelag.results.leaderboard.scores import PAPER, Price, end_text, lost, priced, score, told
from pipelag.results.verdict import Finding, judge

ADAM, ADAMW, NADAM = "Adam", "AdamW", "NAdam"
STASHING = "PipeDream"
DEEPER = ("8", "16")
DEPTHS = ("4", *DEEPER)
NOTES = [
    "Below sequential training with the same optimizer: mean ± half the 95 % interval over seeds, paired.",
    "PyTorch's NAdam grows the share of its average in a step from half of beta1 on: here a good part of every step is "
    "the newest gradient.",
]


@drawing(PAPER, "table_9")
def table(context: Context) -> Drawn:
    """A line per optimizer and method; sequential training first."""
    rows: list[dict[str, Cell]] = []
    for optimizer in (ADAMW, ADAM, NADAM):
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


@judge(PAPER, "table_9", "look_ahead_over_pipeoptim")
def over_pipeoptim(context: Context) -> Finding:
    """Where table 2 has four stages."""
    return told_apart(context, *[((STASHING, NADAM, stages), ("PipeOptim", ADAMW, stages)) for stages in DEEPER])


@judge(PAPER, "table_9", "look_ahead_pays_for_depth")
def pays_for_depth(context: Context) -> Finding:
    """The shallowest against the deepest."""
    return told_apart(context, ((STASHING, NADAM, "4"), (STASHING, NADAM, "16")))


def stashing(context: Context, dear: str, cheap: str, depths: Iterable[str]) -> Finding:
    """Whether stashing costs fewer points with the second optimizer than with the first, over each number of stages."""
    names = {optimizer: f"{STASHING} with {optimizer}" for optimizer in (dear, cheap)}
    return priced(
        context,
        {f"{n} stages": {name: price(context, STASHING, each, n) for each, name in names.items()} for n in depths},
    )


@judge(PAPER, "table_9", "look_ahead_not_momentum")
def not_momentum(context: Context) -> Finding:
    """NAdam against Adam with its beta1; their own sequential training ends far apart."""
    return stashing(context, ADAM, NADAM, DEPTHS)


@judge(PAPER, "table_9", "look_ahead_hides_delay")
def hides_delay(context: Context) -> Finding:
    """Where table 2 has four stages."""
    return stashing(context, ADAMW, NADAM, DEEPER)


@judge(PAPER, "table_9", "momentum_alone")
def momentum_alone(context: Context) -> Finding:
    """A longer average holds older gradients."""
    return stashing(context, ADAM, ADAMW, DEPTHS)
