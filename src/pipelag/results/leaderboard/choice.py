"""Table 8 and figure 3: the accuracy that each remedy still loses, over few and many stages.

With two optimizers and on two networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from pipelag.report.frames import Axis, Lines
from pipelag.report.tables import Cell, Col
from pipelag.results.context import Context, seeds_in_words
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.leaderboard.board import LOOK_AHEAD, SEQUENTIAL_NADAM
from pipelag.results.leaderboard.deep import REMEDIES
from pipelag.results.leaderboard.scores import (
    BASELINE,
    PAPER,
    STYLES,
    UNREMEDIED,
    WITH,
    Price,
    base_of,
    ended,
    judged_runs,
    lost,
    meanings,
    priced,
    unlearned,
    with_momentum,
)
from pipelag.results.logs import Item
from pipelag.results.verdict import Finding, NotLogged, judge

GROUPS = {  # of runs, by the label `work`; each is compared with its own sequential training
    "half": "ResNet-20, SGD at half the rate",
    "adamw": "ResNet-20, AdamW or NAdam",
    "words": "Transformer, AdamW or NAdam",
}
BASELINES = (BASELINE, SEQUENTIAL_NADAM)
BY_NADAM = {"1F1B": UNREMEDIED, "PipeDream": "PipeDream", "PipeOptim": "PipeOptim"}  # drawn as solid lines
SPECTRAIN, OPTIM = "SpecTrain on 1F1B", "PipeOptim"
NOTES = [
    "Weight copies: of the first of four stages, the live weights among them.",
]


def stages_of(item: Item) -> int:
    """The number of a run's stages."""
    return item.arm.spec.phases[0].stages


def of_baseline(item: Item) -> bool:
    """Whether a run is sequential training."""
    return item.arm.labels["arm"] in BASELINES


@drawing(PAPER, "table_8")
def table(context: Context) -> Drawn:
    """A row per method, with the pipeline without a remedy first."""
    works = {
        (work, stages): f"{stages} stages"
        for work in GROUPS
        for stages in sorted({stages_of(item) for item in context.select(work=work) if not of_baseline(item)})
    }
    arms = [arm for arm in context.values("arm") if arm not in BASELINES]
    rows: list[dict[str, Cell]] = []
    for arm in sorted(arms, key=lambda arm: arm != UNREMEDIED):
        costs = {f"{work} {stages}": cost(context, arm, work, stages) for work, stages in works}
        rows.append({"method": with_momentum(context, arm), "copies": copies(context, arm), **costs})
    columns = [Col("method", "method"), Col("weight copies", "copies")]
    columns += [Col(title, f"{work} {stages}", group=GROUPS[work]) for (work, stages), title in works.items()]
    mean = f"Mean ± half the 95 % interval over {context.over_seeds}, paired; of the Transformer the accuracy of words"
    notes = [f"{mean}. –: not among these runs.", *NOTES, *meanings(arms), *unlearned(context)]
    return Drawn.tabled(context, rows, columns, notes)


def ends(context: Context, arm: str, work: str, stages: int, drawn: bool = False) -> dict[int, float]:
    """An arm's accuracies by seed, over this many stages, in one group of runs.

    Sequential training's are the same for any number of stages.

    Args:
        work: the key of `GROUPS`.
        drawn: take the seeds that have a log, for a drawing; a judge needs all that the scale asks for.

    Raises:
        NotLogged: a seed, or with `drawn` every seed, has no log.
    """
    items = [i for i in context.select(arm=arm, work=work) if of_baseline(i) or stages_of(i) == stages]
    accuracies = {item.arm.seed: item.log.accuracy or 0.0 for item in items if item.log is not None}
    missing = [item.arm.seed for item in items if item.log is None and not item.arm.left_out]
    if missing and not drawn:
        raise NotLogged(f"{arm} over {stages} stages, seed {missing[0]}, has no log ({GROUPS[work]})")
    if not accuracies:
        raise NotLogged(f"{arm} over {stages} stages has no log ({GROUPS[work]})")
    return accuracies


def with_baseline(context: Context, arm: str, work: str, stages: int, drawn: bool = False) -> Price:
    """The accuracies by seed of sequential training with an arm's optimizer, and those of the arm (see `ends`)."""
    return ends(context, base_of(arm), work, stages, drawn), ends(context, arm, work, stages, drawn)


def cost(context: Context, arm: str, work: str, stages: int) -> str | None:
    """How far an arm ends below sequential training of the same group, in words; None without the logs."""
    text = lost(partial(with_baseline, context, arm, work, stages, drawn=True))
    return text and text.removesuffix(f" ({seeds_in_words(context.usual_seeds)})")


def copies(context: Context, arm: str) -> int | None:
    """The number of weight versions that the first of four stages keeps; None if it is not logged."""
    logs = [item.log for item in context.select(arm=arm) if item.log is not None and stages_of(item) == 4]
    counts = logs[0].phase.get("weight_copies") if logs else None
    return counts[0] if counts else None


Run = tuple[str, str, int]  # arm, work, stages


def told_apart(context: Context, pairs: Mapping[str, tuple[Run, Run]]) -> Finding:
    """Whether in each pair of runs the first ends above the second, paired over seeds. pairs: by their names."""
    works = {work for pair in pairs.values() for _, work, _ in pair}
    only = {"work": works.pop()} if len(works) == 1 else {}  # name the shortfalls of these runs alone
    return judged_runs(
        context, pairs, lambda run: ends(context, *run), lambda run: f"{run[0]} over {run[2]} stages", **only
    )


def deepened(context: Context) -> dict[tuple[str, str], set[int]]:
    """The numbers of stages by arm and work, where there are several; arms without a remedy come first."""
    depths: dict[tuple[str, str], set[int]] = {}
    for item in context.items:
        if (item.log is not None or not item.arm.left_out) and not of_baseline(item):
            depths.setdefault((item.arm.labels["arm"], item.arm.labels["work"]), set()).add(stages_of(item))
    several = [run for run, stages in depths.items() if len(stages) > 1]
    return {run: depths[run] for run in sorted(several, key=lambda run: run[0] != UNREMEDIED)}


@drawing(PAPER, "figure_3")
def left_over_stages(context: Context) -> Drawn:
    """Points lost against the number of stages: a panel per group of runs, a line per remedy.

    Of a line only the seeds are shown that all its points have.
    """
    rows: list[dict[str, Any]] = []
    for (arm, work), depths in deepened(context).items():
        prices: dict[int, Price] = {}
        for stages in sorted(depths):
            with suppress(NotLogged):  # the baseline may have no log
                prices[stages] = with_baseline(context, arm, work, stages, drawn=True)
        both = [base.keys() & end.keys() for base, end in prices.values()]
        shared = set.intersection(*map(set, both)) if both else set()
        for stages, (base, end) in prices.items():
            row = {"method": arm, "work": GROUPS[work], "stages": stages}
            seeds = [seed for seed in ended(base, end) if seed in shared or not shared]
            rows += [row | {"lost": base[seed] - end[seed], "seed": seed} for seed in seeds]
    chart = Lines(
        Axis("stages", "stages", log=True, ticks=(4, 8, 16)),
        Axis("lost", "points below sequential"),
        line="method",
        panel="work",
        levels={BASELINE: 0.0},
        styles=STYLES | {f"{each}{WITH}NAdam": (STYLES[arm][0], 0) for each, arm in BY_NADAM.items()},
        shared_y=True,
        height=2.8,
    )
    return Drawn.of(chart, rows)


@judge(PAPER, "figure_3", "depth_costs_each")
def depth_costs_all(context: Context) -> Finding:
    """Holds if every arm trained over 4 and 16 stages loses more points below sequential training over 16."""
    runs = {f"{arm}, {GROUPS[work]}": (arm, work) for arm, work in deepened(context)}
    if not runs:
        raise NotLogged("no method has logs over several numbers of stages")
    prices = {name: {f"{n} stages": with_baseline(context, *run, n) for n in (16, 4)} for name, run in runs.items()}
    return priced(context, prices)


@judge(PAPER, "table_8", "depth_costs_each")
def depth_costs_each(context: Context) -> Finding:
    """Holds if the pipeline without a remedy, and with each remedy, ends higher over 4 stages than over 16."""
    arms = (UNREMEDIED, *REMEDIES)
    return told_apart(context, {f"{arm}: 4 stages minus 16": ((arm, "half", 4), (arm, "half", 16)) for arm in arms})


@judge(PAPER, "table_8", "spectrain_ahead_with_sgd")
def spectrain_ahead(context: Context) -> Finding:
    """Holds if SpecTrain ends above PipeOptim with SGD, over each number of stages."""
    return told_apart(
        context,
        {
            f"{stages} stages: {SPECTRAIN} minus {OPTIM}": ((SPECTRAIN, "half", stages), (OPTIM, "half", stages))
            for stages in (4, 8, 16)
        },
    )


@judge(PAPER, "table_8", "look_ahead_ahead_of_all")
def look_ahead_ahead(context: Context) -> Finding:
    """Holds if the look-ahead with NAdam costs fewer points than SpecTrain with SGD, over each number of stages.

    Each is compared with sequential training with its own optimizer.
    """
    arms = {SPECTRAIN: "half", LOOK_AHEAD: "adamw"}
    return priced(
        context,
        {f"{n} stages": {arm: with_baseline(context, arm, work, n) for arm, work in arms.items()} for n in (8, 16)},
    )


@judge(PAPER, "table_8", "pipeoptim_ahead_with_adamw")
def pipeoptim_ahead(context: Context) -> Finding:
    """Holds if PipeOptim ends above SpecTrain with AdamW, on both networks."""
    return told_apart(
        context,
        {
            f"{GROUPS[work]}, {stages} stages: {OPTIM} minus {SPECTRAIN}": (
                (OPTIM, work, stages),
                (SPECTRAIN, work, stages),
            )
            for work, stages in (("adamw", 4), ("words", 8))
        },
    )
