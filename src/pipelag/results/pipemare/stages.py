"""Figures 2 and 3: utilisation, memory and quality against the number of stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import linear_regression
from typing import Any

from pipelag.experiments import arms, load_scale
from pipelag.report.frames import Axis, Lines
from pipelag.results import colours, titles
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import SEEDS, Difference, all_of, exact, extent, gaps, listing, ordered, sized, trend
from pipelag.results.pipemare.costs import BYTES, amortised, goal, layers_of, memory, missed, pipelines
from pipelag.results.pipemare.quality import (
    BLEU,
    DATASET_OF,
    EQUAL_BLEU,
    EQUAL_POINTS,
    POINTS,
    at_the_end,
    below,
    best,
    diverging,
    evaluated,
    final,
    mean_text,
    metric,
    outcomes,
    title,
)
from pipelag.results.verdict import Finding, NotLogged, if_logged, judge

PAPER = "pipemare"
TASK = {"figure_2": "images", "figure_3": "translation"}
STYLES = {
    "GPipe": (colours.BASELINE, 0),
    "PipeDream": (colours.PIPEDREAM, 1),
    "PipeMare": (colours.PIPEMARE, 2),
    "PipeMareW": (colours.PIPEMARE_W, 3),
}


@dataclass(frozen=True)
class Trained:
    """A number of stages that runs are trained with: here, and in the paper's run with the same label."""

    setup: str
    stages: int
    paper: int


def trained_stages(context: Context) -> list[Trained]:
    """The numbers of stages that are trained here, in ascending order."""
    here = stages_by_setup(context, [i.arm for i in context.items])
    there = stages_by_setup(context, arms(context.paper, context.name, load_scale("paper")))
    return sorted((Trained(s, P, there[s]) for s, P in here.items()), key=lambda each: each.stages)


def stages_by_setup(context: Context, some: list[Any]) -> dict[str, int]:
    """The stages of the training runs among these arms, by the label of their setup."""
    return {arm.labels["setup"]: arm.spec.phases[0].stages for arm in some if arm.spec.phases}


def methods(context: Context) -> list[str]:
    """The methods that are trained."""
    return [arm for arm in context.values("arm") if context.select(arm=arm, task=TASK[context.name])]


def logged(context: Context) -> list[dict[str, Any]]:
    """All logged pipelines, sorted by their stages."""
    return sorted(pipelines(context), key=lambda row: row["stages"])


def of_method(context: Context, method: str) -> list[dict[str, Any]]:
    """A method's logged pipelines, sorted by their stages."""
    return [row for row in logged(context) if row["method"] == method]


def megabytes(context: Context, method: str, row: Mapping[str, Any]) -> float:
    """Weight and optimizer memory in MiB of a method's pipeline over the counted parameters of the figure's model."""
    task = TASK[context.name]
    return BYTES * memory(context, method, task, row, layers_of(context, DATASET_OF[task])) / 2**20


@drawing(PAPER, "figure_2", "figure_3")
def over_stages(context: Context) -> Drawn:
    """Three panels: utilisation and memory of the paper's pipelines, and scores of what is trained here."""
    task = TASK[context.name]
    try:
        micro = {row["microbatches"] for row in logged(context)}
        used, held = hardware_rows(context)
    except NotLogged:
        micro, used, held = set(), [], []
    model = titles.network({"images": "resnet50", "translation": "transformer"}[task])
    pipeline = f"{model}, {' or '.join(map(str, sorted(micro)))} microbatches"
    runs = [item.arm.spec for item in context.logged(task=task)]
    pieces = sorted({spec.phases[-1].microbatches for spec in runs if spec.phases})
    trained = f"Trained: {title(context, task, stages=False)}"
    trained += f", {' and '.join(map(str, pieces))} microbatches" if pieces else ""
    names = [f"{pipeline}: utilisation", f"{pipeline}: memory", trained]
    scores = [
        {"method": method, "stages": each.stages, "value": value, "seed": seed}
        for method in methods(context)
        for each in trained_stages(context)
        for seed, value in scores_of(context, method, each.setup).items()
    ]
    rows = [{"panel": panel} | row for panel, some in zip(names, (used, held, scores), strict=True) for row in some]
    rows.sort(key=lambda row: (names.index(row["panel"]), list(STYLES).index(row["method"])))
    of_so_many = f" of {count} evaluations" if (count := evaluated(context)) else ""
    y = [
        Axis("value", "utilisation (%)", limits=(0, 105)),
        Axis("value", "weight + optimizer memory (MiB)", limits=(0, None)),
        Axis("value", f"best {metric(task)}{of_so_many}", limits=(0, None)),
    ]
    chart = Lines(
        Axis("stages", "pipeline stages", limits=(0, None)),
        dict(zip(names, y, strict=True)),
        line="method",
        panel="panel",
        styles=STYLES,
    )
    return Drawn.of(chart, rows, note=" ".join(below_stages(context)))


def below_stages(context: Context) -> list[str]:
    """Notes on PipeMareW's runs that never reach their target, and on the last evaluations of all."""
    task = TASK[context.name]
    warm = trained_stages(context) if "PipeMareW" in methods(context) else []
    whys: dict[str, dict[int, str]] = {}  # the best scores by stages
    for each in warm:
        if short := missed(context, task, "PipeMareW", "GPipe", setup=each.setup):
            whys.setdefault(short[0], {})[each.stages] = short[1]
    where = {why: f"At P = {listing(bests)}, " if len(warm) > 1 else "" for why, bests in whys.items()}
    notes = [f"{where[why]}{why} {listing(bests.values())}." for why, bests in whys.items()]
    ends = {
        method: listing(
            f"{mean_text(list(last.values()))} at P = {each.stages}"
            for each in trained_stages(context)
            if (last := scores_of(context, method, each.setup, final))
        )
        for method in methods(context)
    }
    told = "; ".join(f"{method} {scores}" for method, scores in ends.items() if scores)
    return notes + ([f"At the last evaluation: {told}."] if told else [])


def scores_of(
    context: Context, method: str, setup: str, measure: Callable[..., dict[int, float]] = best
) -> dict[int, float]:
    """Best scores by seed, or those of another measure; empty without logs."""
    return if_logged(lambda: measure(context, arm=method, setup=setup, task=TASK[context.name])) or {}


def hardware_rows(context: Context) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The points of the panels of utilisation and of memory."""
    used, held = [], []
    for method in ("GPipe", "PipeDream", "PipeMare"):
        for row in of_method(context, method):
            point = {"method": method, "stages": row["stages"], "seed": 0}
            used.append(point | {"value": 100 * row["utilisation"]})
            held.append(point | {"value": megabytes(context, method, row)})
            if method == "PipeMare" and "PipeMareW" in methods(context):
                held.append(held[-1] | {"method": "PipeMareW"})
    if "PipeMareW" in methods(context):
        used += [row for each in trained_stages(context) for row in warmed_up(context, each)]
    return used, held


def warmed_up(context: Context, trained: Trained) -> list[dict[str, Any]]:
    """PipeMareW's utilisation at the paper's stages, amortised over the epochs that runs here take to their target."""
    try:
        alone = next(row["utilisation"] for row in of_method(context, "GPipe") if row["stages"] == trained.paper)
        task = TASK[context.name]
        target = goal(context, task, "GPipe", setup=trained.setup)
        utilisations = amortised(context, alone, target, task=task, arm="PipeMareW", setup=trained.setup)
    except (NotLogged, StopIteration):
        return []
    point = {"method": "PipeMareW", "stages": trained.paper}
    return [point | {"value": 100 * value, "seed": seed} for seed, value in utilisations.items()]


def of_both_figures(claim: str) -> Callable[[Callable[[Context], Finding]], Callable[[Context], Finding]]:
    """Register a judge for a claim of both figures."""

    def add(function: Callable[[Context], Finding]) -> Callable[[Context], Finding]:
        for figure in TASK:
            judge(PAPER, figure, claim)(function)
        return function

    return add


@of_both_figures("gpipe_utilisation_falls")
def utilisation_falls(context: Context) -> Finding:
    """Holds if GPipe's utilisation falls at every step to more stages, over three numbers of stages at least."""
    rows = of_method(context, "GPipe")
    values = [row["utilisation"] for row in rows]
    falling = all(a > b for a, b in pairwise(values))
    text = ", ".join(f"P = {row['stages']}: {100 * row['utilisation']:.0f} %" for row in rows)
    return exact(falling and len(values) > 2, f"GPipe {text}")


@of_both_figures("others_stay_full")
def others_stay_full(context: Context) -> Finding:
    """Holds if PipeDream's and PipeMare's utilisation is 1 at every number of stages."""
    utilisations = {m: [row["utilisation"] for row in of_method(context, m)] for m in ("PipeDream", "PipeMare")}
    worst = min(value for values in utilisations.values() for value in values)
    text = ", ".join(f"{m} {extent(100 * min(v), 100 * max(v), '.0f')} %" for m, v in utilisations.items())
    return exact(worst > 1 - 1e-9, f"{text} over {len(utilisations['PipeMare'])} numbers of stages")


@of_both_figures("pipedream_memory_grows")
def memory_grows(context: Context) -> Finding:
    """Holds if PipeDream's memory grows with every step to more stages, and lies near a straight line.

    Near is within a tenth of the range. The memory is that of the weight copies which the schedule makes necessary.
    """
    points = [(row["stages"], megabytes(context, "PipeDream", row)) for row in of_method(context, "PipeDream")]
    growing = all(a[1] < b[1] for a, b in pairwise(points))
    slope, intercept = linear_regression(*zip(*points, strict=True))
    reach = max(y for _, y in points) - min(y for _, y in points)
    off = max(abs(y - intercept - slope * x) for x, y in points)
    share = off / reach if reach else float("inf")
    text = f"from {points[0][1]:.0f} MiB (P = {points[0][0]}) to {points[-1][1]:.0f} MiB (P = {points[-1][0]})"
    why = "linear: no point further from the straight line than a tenth of the range"
    return exact(growing and share <= 0.1, f"{text}; off the line by at most {100 * share:.0f} % of the range", why)


@of_both_figures("other_memory_constant")
def memory_constant(context: Context) -> Finding:
    """Holds if GPipe's and PipeMare's memory is the same at every number of stages."""
    texts, holds = [], True
    for method in ("GPipe", "PipeMare"):
        sizes = [megabytes(context, method, row) for row in of_method(context, method)]
        holds &= max(sizes) - min(sizes) < 1e-6
        texts.append(f"{method} {extent(min(sizes), max(sizes), '.0f')} MiB")
    return exact(holds, ", ".join(texts))


def trained_over_several(context: Context) -> list[Trained]:
    """`trained_stages`, of which there are two or more."""
    trained = trained_stages(context)
    if len({each.stages for each in trained}) < 2:
        raise NotLogged("only one number of stages is trained")
    return trained


def falls(context: Context, method: str) -> Finding:
    """Judge whether a method's best score falls at every step to more stages."""
    trained = trained_over_several(context)
    holds, steps = ordered([best(context, arm=method, setup=each.setup) for each in trained])
    texts = [f"P = {each.stages}: {outcomes(context, arm=method, setup=each.setup)}" for each in trained]
    _, ends = ordered([final(context, arm=method, setup=each.setup) for each in trained])
    text = f"{method} at {', '.join(texts)}; steps of {steps}, at the last evaluation {ends}"
    return trend(context, holds, text, SEEDS, task=TASK[context.name])


of_both_figures("falls_with_stages_here")(partial(falls, method="PipeMare"))
of_both_figures("stashing_falls_with_stages_here")(partial(falls, method="PipeDream"))


@judge(PAPER, "figure_3", "loses_less_here")
def loses_less(context: Context) -> Finding:
    """Holds if PipeMare's best BLEU falls by less than PipeDream's from the fewest stages to the most."""
    few, *_, many = trained_over_several(context)
    ends = {m: [best(context, arm=m, setup=each.setup) for each in (few, many)] for m in ("PipeDream", "PipeMare")}
    less = Difference.of(*(gaps(*scores) for scores in ends.values()))
    lost = ", ".join(f"{m} by {Difference.of(*scores).text()}" for m, scores in ends.items())
    text = f"from P = {few.stages} to P = {many.stages} the best BLEU falls: {lost}; PipeMare's by {less.text()} less"
    text += "".join(diverging(context, *ends, setup=each.setup, task="translation") for each in (few, many))
    return trend(context, less.above(), text, SEEDS, task="translation")


def close(context: Context, bound: float, words: str) -> Finding:
    """Judge whether PipeMare's best score is at most a bound below each other's, at every number of stages.

    To be within the bound of every other method is to be within it of the best one.
    """
    texts, holds = [], []
    for each in trained_stages(context):
        where = {"setup": each.setup, "task": TASK[context.name]}
        gaps = {m: below(context, "PipeMare", m, **where) for m in methods(context) if m != "PipeMare"}
        holds += [gap.below(bound) for gap in gaps.values()]
        apart = ", ".join(
            f"below {m} by {gap.text()}, {at_the_end(context, m, 'PipeMare', **where)}" for m, gap in gaps.items()
        )
        texts.append(f"P = {each.stages}: PipeMare {outcomes(context, arm='PipeMare', **where)}, {apart}")
    return sized(
        context, all_of(holds), "; ".join(texts), f"below the best by at most {words}", task=TASK[context.name]
    )


judge(PAPER, "figure_2", "accuracy_within")(partial(close, bound=POINTS, words=EQUAL_POINTS))
# The paper prints 0.4 as the gap that T1 and T2 leave, so close can mean no less.
_words = "0.4 BLEU, the gap that the paper prints, and half a unit of its last digit"
judge(PAPER, "figure_3", "close_to_best")(partial(close, bound=0.4 + 0.05, words=_words))


@judge(PAPER, "figure_3", "warmup_closes_gap")
def warmup_closes_gap(context: Context) -> Finding:
    """Holds if PipeMareW's best BLEU is above PipeMare's and less than 0.4 below GPipe's, at every number of stages."""
    texts, holds = [], []
    for each in trained_stages(context):
        where = {"setup": each.setup, "task": "translation"}
        sync, plain, warm = (best(context, arm=m, **where) for m in ("GPipe", "PipeMare", "PipeMareW"))
        gain, gap = Difference.of(warm, plain), Difference.of(sync, warm)
        ends = [at_the_end(context, *pair, **where) for pair in (("PipeMareW", "PipeMare"), ("GPipe", "PipeMareW"))]
        holds += [gain.above(), gap.below(BLEU)]
        text = f"W adds {gain.text()}, {ends[0]}, and stays {gap.text()} below GPipe, {ends[1]}"
        texts.append(f"P = {each.stages}: {text}")
    why = f"above PipeMare, and below GPipe by {EQUAL_BLEU}"
    return sized(context, all_of(holds), "; ".join(texts), why, task="translation")
