"""Of the leaderboard's claims that rest on several conditions, each that their case leaves alone."""

from __future__ import annotations

from dataclasses import replace

from pipelag.experiments import Arm
from pipelag.results.context import Context
from pipelag.results.logs import RunLog
from tests.results.cases.leaderboard import DEEP, SMALLER, ending, networks, over_rates, searched
from tests.results.made_up import Pair, both, part, trained


@part("leaderboard", "table_6", "none_diverges_deep")
def whatever_the_common_rate_does() -> Pair:
    """None diverges at the common rate, and one with warm-up."""

    def value(arm: Arm, lost: bool) -> float:
        name, training = arm.labels["arm"], arm.labels["training"]
        common = {"as figure 1": {"1F1B, latest weights": 50.0}} if lost else {}
        warm = {"warm-up": DEEP["warm-up"] | {"PipeOptim": 0.0}} if lost else {}
        return (DEEP | common | warm)[training].get(name, 80.0 if name == "sequential" else 65.0)

    return both("leaderboard", "table_6", ending(lambda arm: value(arm, False)), ending(lambda arm: value(arm, True)))


@part("leaderboard", "table_6", "none_diverges_deep", becomes=None)
def something_to_mend() -> Pair:
    """None diverges anywhere."""

    def value(arm: Arm, common: float) -> float:
        name, training = arm.labels["arm"], arm.labels["training"]
        return common if (name, training) == ("1F1B, latest weights", "as figure 1") else 65.0

    return both("leaderboard", "table_6", ending(lambda arm: value(arm, 0.0)), ending(lambda arm: value(arm, 50.0)))


@part("leaderboard", "table_5", "bleu_not_told_apart", becomes=None)
def seeds_near_one_another() -> Pair:
    """The means are as near, and the seeds scatter over ten BLEU."""

    def scattered(arm: Arm) -> RunLog | None:
        learns = arm.labels["what"] == "learning" and arm.labels["network"] == "fairseq's"
        return trained(bleu=89.8 + 5.0 * (arm.seed - 1), seconds=20.0) if learns else networks()(arm)

    return both("leaderboard", "table_5", networks(), scattered)


@part("leaderboard", "table_4", "staleness_wants_less", becomes=None)
def of_several_seeds() -> Pair:
    """One says so."""
    holds, _ = over_rates(SMALLER, SMALLER)
    one = [
        item if not item.arm.seed else replace(item, log=None, arm=replace(item.arm, left_out="x"))
        for item in holds.items
    ]
    return holds, replace(holds, items=one)


@part("leaderboard", "table_4", "staleness_wants_less", becomes=None)
def every_seed_the_same() -> Pair:
    """One of three wants the common rate."""
    (holds, _), (_, common) = over_rates(SMALLER, SMALLER), over_rates(SMALLER, SMALLER | {"Stale weights": "1"})
    mixed = [other if item.arm.seed == 2 else item for item, other in zip(holds.items, common.items, strict=True)]
    return holds, replace(holds, items=mixed)


SPECTRAIN = "SpecTrain on 1F1B"


def at_rates(end: float, **rates: str) -> Context:
    """Table 4: where SpecTrain ends, sequential training at 90 and all others at 70, at rates that the search finds."""
    names = {"spectrain": SPECTRAIN, "others": "PipeDream"}
    own = {names[key]: rate for key, rate in rates.items()}
    context, _ = searched("table_4", {"sequential": 90.0, SPECTRAIN: end}, {}, 70.0, own)
    return context


@part("leaderboard", "table_4", "spectrain_ahead_at_own_rate", becomes=None)
def another_may_want_more() -> Pair:
    """What SpecTrain is ahead of would perhaps end higher at a rate beyond those tried, as SpecTrain would."""
    return at_rates(80.0, spectrain="2"), at_rates(80.0, others="2")


@part("leaderboard", "table_4", "spectrain_ahead_at_own_rate", becomes=None)
def it_may_want_less() -> Pair:
    """It is below, and would perhaps end higher at a rate beyond those tried."""
    return at_rates(80.0, spectrain="1/4"), at_rates(60.0, spectrain="1/4")


@part("leaderboard", "table_4", "spectrain_ahead_at_own_rate")
def below_whatever_others_want() -> Pair:
    return at_rates(80.0), at_rates(60.0, others="2")
