"""What methods cost in accuracy, from logs: each trained arm against the same training without staleness."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pipelag.experiments import Arm, Paper, Scale, all_arms, arms
from pipelag.results.judging import Difference
from pipelag.results.logs import Item
from pipelag.runs.spec import PhaseSpec

Trained = tuple[Item, PhaseSpec]


@dataclass(frozen=True)
class Evidence:
    """A method's loss of accuracy in one result.

    source, scale: the paper, result and scale of the logs. model, data, optimizer, stages, runs: of the method's runs,
    the last one their ids. staleness: the updates that each stage's forwards miss.
    baseline: the method without staleness that it is compared with.
    loss: the baseline's final accuracy minus the method's, in percentage points, over the seeds that both have. A
    diverged run counts with an accuracy of 0, as on the leaderboard. diverged: the number of such runs.
    """

    method: str
    source: str
    scale: str
    model: str
    data: str
    optimizer: str
    stages: int
    staleness: tuple[int, ...]
    runs: tuple[str, ...]
    baseline: str
    loss: Difference
    diverged: int

    def text(self) -> str:
        """The loss with half its 95 % interval, and how many runs diverged."""
        spread = "" if self.loss.error is None else f" ± {self.loss.error:.2f}"
        lost = f", {self.diverged} of {self.loss.seeds} diverged" if self.diverged else ""
        return f"{self.loss.mean:.2f}{spread}{lost}"

    def origin(self) -> str:
        """Where the evidence comes from, in words."""
        seeds = f"{self.loss.seeds} seeds" if self.loss.seeds > 1 else "one seed"
        return (
            f"{self.source}, {self.scale} scale: {self.model} on {self.data} with {self.optimizer}, "
            f"{self.stages} stages, {seeds}, against {self.baseline}"
        )


def gathered(papers: Iterable[Paper], scales: Iterable[Scale]) -> Iterator[Evidence]:
    """All evidence in the logs of these papers' results, in the order of papers, scales and results."""
    scales = list(scales)
    for paper in papers:
        for scale in scales:
            for result, runs in all_arms(paper, scale).items():
                yield from _of_runs(f"{paper.id} {result}", runs, scale)


def of_result(paper: Paper, result: str, scale: Scale) -> Iterator[Evidence]:
    """The evidence of one result: its runs of one phase, compared with runs of the same `work_of` without staleness."""
    return _of_runs(f"{paper.id} {result}", arms(paper, result, scale), scale)


def _of_runs(source: str, asked: Iterable[Arm], scale: Scale) -> Iterator[Evidence]:
    logged: list[Trained] = []
    for arm in asked:
        if arm.spec.kind == "train" and len(arm.spec.phases) == 1 and not arm.left_out:
            item = Item.of(arm, scale)
            if item.log is not None and "phases" in item.log.summary:
                logged.append((item, arm.spec.phases[0]))
    for _, group in groupby(sorted(logged, key=work_of), key=work_of):
        by_arm: dict[tuple[str, str], list[Trained]] = {}
        for item, phase in group:
            by_arm.setdefault((item.arm.labels.get("arm", ""), phase.model_dump_json()), []).append((item, phase))
        base = baseline(list(by_arm.values()))
        ends = accuracies(base or [])
        for runs in by_arm.values():
            paired = [run for run in runs if run[0].arm.seed in ends]
            if base is not None and runs is not base and paired:
                yield compared(source, scale, base, paired)


def work_of(run: Trained) -> str:
    """What runs must share to be compared: model, data, minibatch size, kind of optimizer, and labels.

    The labels of the arm and of its number of stages may differ, since sequential training has no stages.
    """
    item, spec = run[0], run[0].arm.spec
    labels = sorted((key, value) for key, value in item.arm.labels.items() if key not in ("arm", "stages"))
    optimizer = spec.optimizer.name if spec.optimizer is not None else ""
    return repr((labels, spec.model, spec.data, spec.batch, optimizer))


def baseline(arms: Sequence[list[Trained]]) -> list[Trained] | None:
    """The arm without staleness: sequential training if it was run, else the first arm whose logs show no delay."""
    plain = [runs for runs in arms if not any(stale(item) for item, _ in runs)]
    return next((runs for runs in plain if runs[0][1].method == "sequential"), plain[0] if plain else None)


def stale(item: Item) -> bool:
    """Whether some pass of a run misses updates, by its log."""
    assert item.log is not None
    return any((*item.log.phase["forward_delays"], *item.log.phase["backward_delays"]))


def compared(source: str, scale: Scale, base: list[Trained], runs: list[Trained]) -> Evidence:
    """The evidence from an arm's runs. The baseline must have all their seeds."""
    (item, phase), spec = runs[0], runs[0][0].arm.spec
    assert item.log is not None and spec.model is not None and spec.data is not None and spec.optimizer is not None
    return Evidence(
        phase.method,
        source,
        scale.name,
        spec.model.name,
        str(item.log.data.get("title", spec.data.name)),
        spec.optimizer.name,
        phase.stages,
        tuple(item.log.phase["forward_delays"]),
        tuple(run.arm.spec.id for run, _ in runs),
        base[0][1].method,
        Difference.of(accuracies(base), accuracies(runs)),
        sum(run.log is not None and run.log.accuracy is None for run, _ in runs),
    )


def accuracies(runs: list[Trained]) -> dict[int, float]:
    """Final accuracy by seed; a diverged run counts as 0."""
    return {item.arm.seed: item.log.accuracy or 0.0 for item, _ in runs if item.log is not None}


def nearest(evidence: Iterable[Evidence], method: str, optimizer: str, model: str, stages: int) -> Evidence | None:
    """A method's evidence from the most similar training: by optimizer, then model, then number of stages."""

    def unlike(one: Evidence) -> tuple[bool, bool, int]:
        return one.optimizer != optimizer, one.model != model, abs(one.stages - stages)

    return min((one for one in evidence if one.method == method), key=unlike, default=None)
