"""The leaderboard's claims, made true and false."""

from __future__ import annotations

from collections.abc import Callable

from pipelag.experiments import Arm
from pipelag.results.logs import RunLog
from tests.results.made_up import Pair, both, case, trained

ORDER = {  # accuracies in which every claim of table 1 holds
    "sequential": 95.0,
    "1F1B, latest weights": 70.0,
    "Stale weights": 50.0,
    "PipeMare, no remedy": 45.0,
    "PipeDream": 85.0,
    "SpecTrain": 88.0,
    "PipeOptim": 87.0,
    "PipeMare T1": 80.0,
    "LWP_w + SC": 92.0,
}


def accuracies(values: dict[str, float], noise: float = 0.3) -> Callable[[Arm], RunLog | None]:
    """Learning runs that end there, 60 where nothing is said; seeds differ by a little."""

    def make(arm: Arm) -> RunLog | None:
        if arm.labels["what"] != "learning":
            return None
        return trained(values.get(arm.labels["arm"], 60.0) + noise * (arm.seed - 1) * (1 + len(arm.labels["arm"]) % 3))

    return make


def table(result: str, fails: dict[str, float]) -> Pair:
    return both("leaderboard", result, accuracies(ORDER), accuracies({**ORDER, **fails}))


@case("leaderboard", "table_1", "staleness_costs")
def staleness_costs() -> Pair:
    return table("table_1", {"Stale weights": 96.0})


@case("leaderboard", "table_1", "remedies_help")
def remedies_help() -> Pair:
    lost = {"PipeMare T1": 30.0, "PipeMare T2": 30.0, "PipeMare T1+T2": 30.0}
    return table("table_1", lost)


@case("leaderboard", "table_1", "newer_beat_five")
def newer_beat_five() -> Pair:
    return table("table_1", {"PipeOptim": 94.0})


@case("leaderboard", "table_2", "pipeoptim_beats_pipedream")
def with_adamw() -> Pair:
    return table("table_2", {"PipeOptim": 80.0})


@case("leaderboard", "table_3", "pipeoptim_beats_pipedream")
def on_a_transformer() -> Pair:
    return table("table_3", {"PipeOptim": 80.0})


@case("leaderboard", "table_3", "t1_beats_naive")
def t1_beats_naive() -> Pair:
    return table("table_3", {"PipeMare T1": 30.0})
