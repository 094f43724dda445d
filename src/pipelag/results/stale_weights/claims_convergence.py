"""Claims about how fast runs converge: figure 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from pipelag.results.context import Context
from pipelag.results.judging import all_of, sized
from pipelag.results.learning import learned
from pipelag.results.logs import RunLog
from pipelag.results.stale_weights.reading import BASELINE, PAPER, as_run, every_log, pipelined
from pipelag.results.verdict import Finding, Judge, NotLogged, judge

DISTANCES = (2.0, 1.0, 0.5)  # points below an arm's final accuracy
ALIKE = 1.5  # the greatest ratio of two numbers of iterations that count as alike


def iterations(logs: Sequence[RunLog], distance: float) -> float:
    """The iterations until runs first come within `distance` points of their own final accuracy; mean over seeds."""
    steps = []
    for log in logs:
        if not log.rows:
            raise NotLogged(f"{log.folder} has no evaluation")
        goal = log.rows[-1]["accuracy"] - distance
        steps.append(next(row["step"] for row in log.rows if row["accuracy"] >= goal))
    return fmean(steps)


def unlearned(arms: Mapping[str, Sequence[RunLog]], baseline: Sequence[RunLog]) -> list[str]:
    """Arms that diverge or end at most at half of the baseline's accuracy. A flat curve there is not convergence."""
    goal = fmean(log.accuracy or 0.0 for log in baseline) / 2
    return [arm for arm, logs in arms.items() if any(log.accuracy is None or log.accuracy <= goal for log in logs)]


def alike(context: Context, arms: Sequence[str], to: Sequence[str], baseline: str, **labels: str) -> Finding:
    """Whether arms converge in about as many iterations as the arms `to`.

    Each arm is measured against its own final accuracy, because the paper lets arms end at different accuracies. The
    paper does not say how near counts as converged, so three distances are tried: the claim holds for a pair if the
    iterations are alike at all three, fails if at none, and cannot be judged otherwise. Iterations are alike within a
    factor of 1.5, or within one evaluation.
    """
    learned(context, baseline, arm=baseline, **labels)
    logs = {arm: every_log(context, arm=arm, **labels) for arm in dict.fromkeys([*to, *arms])}
    tolerance = f"{ALIKE:g} times as many or as few, at each of three distances; one evaluation more or less"
    lost_arms = unlearned(logs, every_log(context, arm=baseline, **labels))
    if lost_arms:
        why = f"{', '.join(as_run(context, arm) for arm in lost_arms)}: diverges or ends below half of {baseline}"
        return sized(context, False, why, tolerance, **labels)
    by_arm = {arm: [iterations(each, distance) for distance in DISTANCES] for arm, each in logs.items()}
    resolution = min(each[0].rows[0]["step"] for each in logs.values())
    outcomes = []
    for arm in arms:
        for other in to:
            same = [
                max(a, b) <= ALIKE * min(a, b) or abs(a - b) <= resolution
                for a, b in zip(by_arm[arm], by_arm[other], strict=True)
            ]
            outcomes.append(True if all(same) else None if any(same) else False)
    words = "; ".join(
        f"{as_run(context, arm)} after {', '.join(f'{steps:,.0f}' for steps in each)}" for arm, each in by_arm.items()
    )
    why = f"iterations to within {', '.join(f'{d:g}' for d in DISTANCES)} points of an arm's own end: {words}"
    return sized(context, all_of(outcomes), why, tolerance, **labels)


def converges_alike(model: str) -> Judge:
    """A judge that decides whether every pipelined arm of a model converges as fast as the baseline (`alike`)."""

    def judged(context: Context) -> Finding:
        return alike(context, pipelined(context, model), [BASELINE], BASELINE, model=model)

    return judged


for _figure, _model in (("5a", "LeNet-5"), ("5b", "AlexNet"), ("5c", "VGG-16"), ("5d", "ResNet-20")):
    judge(PAPER, f"figure_{_figure}", "converges_alike")(converges_alike(_model))


@judge(PAPER, "figure_5b", "all_converge")
def all_converge(context: Context) -> Finding:
    """Holds if every arm of AlexNet learns (`unlearned`) and its curve is flat at the end.

    A curve is flat if the mean of its last tenth is within a point of the mean of the tenth before.
    """
    learned(context, BASELINE, model="AlexNet", arm=BASELINE)
    logs = {arm: every_log(context, model="AlexNet", arm=arm) for arm in pipelined(context, "AlexNet")}
    tolerance = "a point between the last tenth of the evaluations and the tenth before; above half of the baseline"
    lost_arms = unlearned(logs, every_log(context, model="AlexNet", arm=BASELINE))
    if lost_arms:
        why = f"{', '.join(as_run(context, arm) for arm in lost_arms)}: diverges or ends below half of the baseline"
        return sized(context, False, why, tolerance, model="AlexNet")
    moves = {}
    for arm, each in logs.items():
        values = [fmean(rows) for rows in zip(*([row["accuracy"] for row in log.rows] for log in each), strict=True)]
        if len(values) < 2:
            raise NotLogged(f"AlexNet's {arm} is evaluated once; whether it still moves takes two evaluations")
        tenth = max(1, len(values) // 10)
        moves[arm] = fmean(values[-tenth:]) - fmean(values[-2 * tenth : -tenth])
    why = ", ".join(f"{arm} {move:+.2f}" for arm, move in moves.items())
    holds = all(abs(move) <= 1 for move in moves.values())
    return sized(context, holds, f"points gained in the last tenth: {why}", tolerance, model="AlexNet")
