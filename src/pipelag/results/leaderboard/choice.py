"""Table 8: what is left to lose with each remedy, over few stages and many, with two optimizers and on two networks."""

from __future__ import annotations

from pipelag.report.tables import Cell, Col
from pipelag.report.tables import table as tabulated
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.leaderboard.depth import BASELINE, UNREMEDIED
from pipelag.results.leaderboard.scores import PAPER, above, score
from pipelag.results.logs import Item
from pipelag.results.verdict import NotLogged

GROUPS = {  # of the runs of one work; each is compared with its own sequential training
    "half": "ResNet-20, SGD at half the rate",
    "adamw": "ResNet-20, AdamW",
    "words": "Transformer, AdamW",
}
NOTES = [
    "Mean ± half the 95 % interval over seeds, paired, three where nothing else is said; of the Transformer the "
    "accuracy of words. –: not among these runs.",
    "Weight copies: of the first of four stages, the live weights among them.",
]


def stages_of(item: Item) -> int:
    """How many stages a run has."""
    return len(item.arm.spec.phases[0].cuts) + 1


@drawing(PAPER, "table_8")
def table(context: Context) -> Drawn:
    """A line per method; no remedy first."""
    works = {
        (work, stages): f"{stages} stages"
        for work in GROUPS
        for stages in sorted(
            {stages_of(item) for item in context.select(work=work) if item.arm.labels["arm"] != BASELINE}
        )
    }
    arms = [arm for arm in context.values("arm") if arm != BASELINE]
    rows: list[dict[str, Cell]] = []
    for arm in sorted(arms, key=lambda arm: arm != UNREMEDIED):
        costs = {f"{work} {stages}": cost(context, arm, work, stages) for work, stages in works}
        rows.append({"method": arm, "copies": copies(context, arm), **costs})
    columns = [Col("method", "method"), Col("weight copies", "copies")]
    columns += [Col(title, f"{work} {stages}", group=GROUPS[work]) for (work, stages), title in works.items()]
    return Drawn(table=tabulated(rows, columns, context.result.caption, NOTES))


def cost(context: Context, arm: str, work: str, stages: int) -> str | None:
    """How far an arm over so many stages ends below sequential training on the same work; None without the logs."""
    items = [item for item in context.select(arm=arm, work=work) if stages_of(item) == stages]
    ends = {i.arm.seed: i.log.accuracy or 0.0 for i in items if i.log is not None}
    try:
        return above(score(context, BASELINE, work=work), ends)[1].removesuffix(" (3 seeds)") if ends else None
    except NotLogged:
        return None


def copies(context: Context, arm: str) -> int | None:
    """How many versions of its weights the first of four stages keeps."""
    logs = [item.log for item in context.select(arm=arm) if item.log is not None and stages_of(item) == 4]
    counts = logs[0].summary["phases"][0].get("weight_copies") if logs else None
    return counts[0] if counts else None
