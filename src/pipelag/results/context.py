"""The runs of a result as drawings and judges see them: selected by labels, averaged over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from pipelag.experiments import Paper, Result, Scale, arms, load_scale
from pipelag.report.gather import unlike
from pipelag.results import titles
from pipelag.results.logs import Item, RunLog
from pipelag.results.naming import shown_of, told_apart
from pipelag.results.shortfall import shortfall_of, smaller
from pipelag.runs.spec import RunSpec


@dataclass
class Context:
    """Everything that drawing and judging a result needs: the paper's config, the scale and the runs."""

    paper: Paper
    name: str
    result: Result
    scale: Scale
    items: list[Item] = field(default_factory=list)

    @classmethod
    def load(cls, paper: Paper, name: str, scale: Scale) -> Context:
        """Read the logs of a result's runs."""
        items = [Item.of(arm, scale) for arm in arms(paper, name, scale)]
        return cls(paper, name, paper.results[name], scale, items)

    def select(self, **labels: str) -> list[Item]:
        """The runs with these labels."""
        return [i for i in self.items if all(i.arm.labels.get(key) == value for key, value in labels.items())]

    def values(self, key: str, /, **labels: str) -> list[str]:
        """The different values of a label among the runs with these labels, in the order of the config."""
        return list(dict.fromkeys(i.arm.labels[key] for i in self.select(**labels) if key in i.arm.labels))

    def accuracy(self, **labels: str) -> Accuracy:
        """Final accuracies of the runs with these labels, over seeds."""
        return Accuracy.of(self.select(**labels), usual=self.usual_seeds)

    def logged(self, **labels: str) -> list[Item]:
        """The runs with these labels that have a log."""
        return [item for item in self.select(**labels) if item.log is not None]

    def logs(self, **labels: str) -> list[RunLog]:
        """The logs of the runs with these labels, as far as they exist."""
        return [item.log for item in self.select(**labels) if item.log is not None]

    def log(self, **labels: str) -> RunLog | None:
        """The log of the run with these labels; if several fit, the first that exists."""
        return next(iter(self.logs(**labels)), None)

    @cached_property
    def seed_counts(self) -> list[int]:
        """The numbers of seeds that the logged trainings are to have, of each with labels of its own.

        Without the seeds that the scale leaves out.
        """
        logged = {tuple(sorted(item.arm.labels.items())) for item in self.logged() if item.arm.spec.kind == "train"}
        seeds_of: dict[tuple[tuple[str, str], ...], set[int]] = {labels: set() for labels in logged}
        for item in self.items:
            labels = tuple(sorted(item.arm.labels.items()))
            if labels in logged and (item.log is not None or not item.arm.left_out):
                seeds_of[labels].add(item.arm.seed)
        return [len(seeds) for seeds in seeds_of.values()]

    @property
    def usual_seeds(self) -> int:
        """The number of seeds that most logged trainings are to have; 0 without any."""
        return max(self.seed_counts, key=lambda count: (self.seed_counts.count(count), count), default=0)

    @property
    def over_seeds(self) -> str:
        """What a table's means are over, for a note; its other cells say how many seeds they have (`Accuracy.text`)."""
        usual = seeds_in_words(self.usual_seeds)
        if len(set(self.seed_counts)) > 1:
            return f"seeds, {usual.partition(' ')[0]} where nothing else is said"
        return usual if self.usual_seeds else "seeds"

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers (runs with a log, all runs); a run that appears under several labels counts once."""
        ids = {i.arm.spec.id: i.log is not None for i in self.items}
        return sum(ids.values()), len(ids)

    def shortfall(self, **labels: str) -> str:
        """How the runs with these labels fall short of the paper's: the most important reasons, or empty."""
        return shortfall_of(self.beside_full(**labels))

    @property
    def shortfalls(self) -> str:
        """All the ways in which the result's runs fall short of the paper's."""
        return shortfall_of(self.beside_full(), most=None)

    @cached_property
    def _full(self) -> dict[tuple[tuple[str, str], ...], RunSpec]:
        """The runs at the paper's full setting, by labels. Cached, because every claim of a result asks for them."""
        return {tuple(sorted(a.labels.items())): a.spec for a in arms(self.paper, self.name, load_scale("paper"))}

    def beside_full(self, **labels: str) -> list[tuple[RunSpec, RunSpec]]:
        """Pairs of specs for each logged run with these labels: as it was made, and at the paper's full setting."""
        logged = self.logged(**labels)
        pairs = [(item.arm.spec, self._full.get(tuple(sorted(item.arm.labels.items())))) for item in logged]
        return [(spec, theirs) for spec, theirs in pairs if theirs is not None]

    def smaller(self, **labels: str) -> bool:
        """Whether a logged run with these labels trains a narrower or shallower network than the paper's."""
        return any(smaller(*pair) for pair in self.beside_full(**labels))

    @property
    def unlike(self) -> str:
        """The words that introduce how the runs fall short of the paper's."""
        return unlike(self.paper).capitalize()

    def footer(
        self,
        data: pd.DataFrame | None = None,
        spread: str = "bands of one standard deviation",
        whole: bool = False,
        notes: Sequence[str] = (),
    ) -> str:
        """Where the numbers of a figure or table come from, in sentences: training, timed plans, measured times.

        The last sentence names the runs that are left out.

        data: the figure's data, whose seeds are counted; it may show fewer than are logged.
        spread: how the figure shows several seeds.
        whole: name every difference from the paper's runs, since there is room below a table.
        notes: the notes above; if one of them already says what is left out, the footer does not repeat it.
        """
        left_out = self.left_out()
        if any(left_out in note for note in notes):
            left_out = ""
        seeds = 0 if data is None or "seed" not in data else data["seed"].nunique()
        own = f'"{self.result.title}"'  # a note that sends readers to this result
        sentences = (
            self._trained(seeds, spread, whole),
            *dict.fromkeys(item.arm.note for item in self.logged() if own not in item.arm.note),
            self._diverged(),
            self._timed(),
            f"Left out: {left_out}." if left_out else "",
        )
        return " ".join(sentence for sentence in sentences if sentence)

    def _trained(self, shown_seeds: int, spread: str, whole: bool) -> str:
        """The training runs: model, data, length, seeds, and how they fall short of the paper's; or empty."""
        runs = [item for item in self.logged() if item.arm.spec.kind == "train"]
        if not runs:
            return ""
        parts = [*_lengths(runs), _seeds(runs, shown_seeds, spread)]
        simulated = [item.arm.spec for item in runs if item.arm.spec.executor == "simulated"]
        if any(phase.stages > 1 for spec in simulated for phase in spec.phases):
            parts.append("delays simulated in one process")
        short = self.shortfalls if whole else shortfall_of(self.beside_full(), shown=True)
        missing = "; ".join(text for text in (short, self.releases()) if text)
        return "; ".join(parts) + (f". {self.unlike}: {missing}." if missing else ".")

    def _diverged(self) -> str:
        """Which arms diverged, since their curves end early or are missing; or empty."""
        arms = self.counted(lambda log: log.diverged_at is not None)
        return f"Diverged: {arms}." if arms else ""

    def counted(self, which: Callable[[RunLog], bool]) -> str:
        """Which arms have training runs that `which` accepts, and how many of their runs these are; or empty.

        An arm's runs are counted separately for each value of the labels in which they differ: panels, stages, rates.
        """
        arms: dict[str, list[Item]] = {}
        for item in self.logged():
            if item.arm.spec.kind == "train":
                arms.setdefault(item.arm.labels["arm"], []).append(item)
        words = []
        for arm, runs in arms.items():
            labels = dict.fromkeys(key for item in runs for key in item.arm.labels)
            keys = [key for key in labels if len({item.arm.labels.get(key) for item in runs}) > 1]
            counts: dict[str, list[bool]] = {}
            for item in runs:
                place = ", ".join(f"{key} {shown_of(item, key)}" for key in keys if key in item.arm.labels)
                assert item.log is not None
                counts.setdefault(place, []).append(which(item.log))
            gone = {place: f"{sum(hits)} of {len(hits)}" for place, hits in counts.items() if any(hits)}
            if gone:
                words.append(f"{arm} ({'; '.join(': '.join(filter(None, pair)) for pair in gone.items())} runs)")
        return ", ".join(words)

    def _timed(self) -> str:
        """Whether times are simulated (and from which profiles) or measured (and on which device); or empty."""
        logged = [(item.arm.spec, item.log) for item in self.items if item.log is not None]
        published = sorted({spec.published for spec, _ in logged if spec.kind == "partition"}, reverse=True)
        sources = ["the authors' profiles" if theirs else "data sheets" for theirs in published]
        sentences = []
        if sources:
            what = " and ".join(sources)
            machines = sorted({str(log.environment.get("device")) for _, log in logged})
            levels = [level for spec, _ in logged for level in spec.options.get("cluster", {}).get("levels", ())]
            latency = (
                "with the links' latency" if any(one.get("latency") for one in levels) else "without message latency"
            )
            how = {
                "simulated": f"Discrete-event simulation on {what}, {latency}.",
                "counted": f"Counted from {what}.",
                "described": "Taken from the descriptions of the plans' clusters, not measured.",
                "measured": f"Measured on {', '.join(machines)}.",
            }
            sentences.append(how[self.result.source])
        cores = {
            log.environment.get("device") for spec, log in logged if spec.kind in ("speed", "link_speed", "profile")
        }
        if cores:
            sentences.append(f"Measured on {', '.join(sorted(map(str, cores)))}.")
        short = self.shortfall() if cores and not any(spec.kind == "train" for spec, _ in logged) else ""
        return " ".join(sentences) + (f" {self.unlike}: {short}." if short else "")

    def left_out(self) -> str:
        """Which runs this scale leaves out, or whose logs cannot be read, and why; or empty."""
        lacking: dict[str, list[Item]] = {}  # by the reason
        for item in self.items:
            if item.log is None and item.why:
                lacking.setdefault(item.why, []).append(item)
        words = []
        for why, items in lacking.items():
            kinds = {item.arm.spec.kind for item in items}
            others = [item for item in self.items if item.why != why and item.arm.spec.kind in kinds]
            named = told_apart(items, others) or ("further seeds" if all(self.seeded(item) for item in items) else "")
            words.append(f"{named} ({why})" if named else why)
        return "; ".join(words[:3]) + (f"; and {len(words) - 3} more" if len(words) > 3 else "")

    def seeded(self, item: Item) -> bool:
        """Whether the run has a log with another seed."""
        return any(other.arm.labels == item.arm.labels for other in self.items if other.log is not None)

    def releases(self, **labels: str) -> str:
        """How the data differ from the publisher's own files, if another release was read; or empty."""
        trained = [i.log for i in self.select(**labels) if i.log is not None and i.arm.spec.kind == "train"]
        data = [log.summary.get("data") for log in trained]
        notes = {
            f"{d['title']} " + ("" if d["release"].startswith("not verified") else "from another release: ") + d["note"]
            for d in data
            if d and not d["official"]
        }
        return "; ".join(sorted(notes))


def _lengths(runs: Sequence[Item]) -> list[str]:
    """The lengths of the training runs, one entry per network and data set."""
    steps_of: dict[str, list[int]] = {}  # by network and data
    for item in runs:
        spec, log = item.arm.spec, item.log
        assert spec.model is not None and log is not None
        what = f"{titles.network(spec.model.name)} on {log.data.get('title', log.data.get('name', '?'))}"
        steps_of.setdefault(what, []).append(spec.steps)
    replicated = any(max(phase.replicas, default=1) > 1 for item in runs for phase in item.arm.spec.phases)
    unit = "minibatches (a stage with n replicas updates once per n minibatches)" if replicated else "updates"
    return [
        f"{what}, {min(steps):,}" + (f" to {max(steps):,}" if max(steps) > min(steps) else "") + f" {unit}"
        for what, steps in steps_of.items()
    ]


def _seeds(runs: Sequence[Item], shown: int, spread: str) -> str:
    """The number of seeds of the runs with the same labels, in words; no more than are shown, if any are."""
    seeds_of: dict[tuple[tuple[str, str], ...], set[int]] = {}  # by labels
    for item in runs:
        seeds_of.setdefault(tuple(sorted(item.arm.labels.items())), set()).add(item.arm.seed)
    counts = [min(len(seeds), shown or len(seeds)) for seeds in seeds_of.values()]
    fewest, most = min(counts), max(counts)
    if most <= 1:
        return "one seed"
    number = f"{fewest} to {most}" if fewest < most else str(most)
    return f"{number} seeds" + (f", {spread}" if spread else "")


def seeds_in_words(count: int) -> str:
    """A number of seeds in words."""
    return "one seed" if count == 1 else f"{count} seeds"


def ended_at(item: Item) -> float | None:
    """A run's final test accuracy in percent; None without a log or if the run diverged."""
    return item.log.accuracy if item.log is not None else None


@dataclass(frozen=True)
class Accuracy:
    """Accuracies over seeds.

    asked: how many runs there should be. note: why some have no number. fewer: whether the scale leaves out some seeds.
    usual: how many seeds most cells of the table have; 0 if unknown.
    """

    values: tuple[float, ...]
    note: str = ""
    asked: int = 0
    fewer: bool = False
    usual: int = 0

    @classmethod
    def of(cls, items: Iterable[Item], value: Callable[[Item], float | None] = ended_at, usual: int = 0) -> Accuracy:
        """Collect the values of runs; diverged runs, and arms that are left out, show in the note.

        Seeds that the scale leaves out are not missed if the arm has others; those that have a log all the same count.

        Args:
            value: a run's value, or None if it has none.
            usual: `Context.usual_seeds`.
        """
        values, note, diverged = [], "", 0
        runs = list(items)
        asked = [run for run in runs if run.log is not None or not run.arm.left_out] or runs
        for item in asked:
            if item.log is None and item.arm.left_out:
                note = "not run here"
            elif (end := value(item)) is not None:
                values.append(end)
            elif item.log is not None:
                note = f"diverged at step {item.log.diverged_at}"
                diverged += 1
        if values and diverged:
            note = f"{diverged} diverge" if diverged > 1 else "one diverges"
        return cls(tuple(values), note, len(asked), len(asked) < len(runs), usual)

    @property
    def complete(self) -> bool:
        """Whether every seed has a number. The mean of only those that did not diverge would flatter the arm."""
        return len(self.values) == self.asked

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return sum(self.values) / len(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        return float(pd.Series(self.values).std()) if len(self.values) > 1 else None

    def text(self) -> str | None:
        """A table's cell: the mean, with spread and number of seeds as needed; without values the note, or None."""
        if self.mean is None:
            return self.note or None
        mean = f"{self.mean:.2f}" + (f" ± {self.spread:.2f}" if self.spread is not None else "")
        if self.complete:  # marked where other cells are means over more seeds or fewer
            other = self.asked != self.usual if self.usual else self.fewer and self.asked == 1
            return f"{mean} ({seeds_in_words(self.asked)})" if other else mean
        return f"{mean} ({len(self.values)} of {self.asked} seeds{f', {self.note}' if self.note else ''})"
