"""The rows of table 1: a model on a cluster, with the logs of its plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

from pipelag.results.context import Context
from pipelag.results.logs import RunLog
from pipelag.results.plans import ALONE, COSTS, config_of, planned, samples_per_second

LANGUAGE = "AWD-LM"
TRAINED_ON = 16  # GPUs of the training runs, except the language model's


@dataclass(frozen=True)
class Entry:
    """A row of table 1.

    paper: its printed cells. log: the log of data parallelism and of the search for a plan. piped: the log of the
    pipelines. The two logs differ only for the language model, whose minibatch of 80 is 20 on each GPU under data
    parallelism and 80 in a pipeline.
    """

    paper: Mapping[str, Any]
    log: RunLog | None
    piped: RunLog | None
    note: str = ""

    @property
    def name(self) -> str:
        """The row's model and servers, in words."""
        return f"{self.paper['model']} on {self.paper['servers']}"

    @property
    def trained(self) -> bool:
        """Whether our training runs belong to this row, because they have as many GPUs.

        The language model's do, since it has only one row.
        """
        return self.paper["model"] == LANGUAGE or (self.log is not None and self.log.summary["workers"] == TRAINED_ON)

    def config(self, reading: str) -> str | None:
        """The plan that a search found."""
        return config_of(self.log, reading)

    def rate_of(self, plan: str) -> float | None:
        """The speedup of a plan, by name, over data parallelism, in samples per second."""
        source = self.log if plan == ALONE else self.piped
        rate, alone = samples_per_second(source, plan), samples_per_second(self.log, ALONE)
        return rate / alone if rate and alone else None

    def speedup(self, reading: str) -> float | None:
        """The speedup per epoch of the plan that a search found over data parallelism, by timed rates."""
        config = self.config(reading)
        if self.piped is not self.log and config == "straight":  # found and timed with different profiles
            return self.rate_of("straight")
        plan, alone = samples_per_second(self.log, reading), samples_per_second(self.log, ALONE)
        return plan / alone if plan and alone else None

    @property
    def papers(self) -> str:
        """The paper's plan, by its name in our logs."""
        config = str(self.paper["config"])
        return ALONE if config.isdigit() else config

    def papers_plan(self) -> float | None:
        """The timed speedup of the paper's plan."""
        return self.rate_of(self.papers)

    def tied(self, reading: str) -> bool:
        """Whether a search found another plan than the paper's, which its cost predicts to be just as fast."""
        found, papers = planned(self.log, reading), planned(self.log, self.papers)
        if not found or not papers or str(found["config"]) == str(self.paper["config"]):
            return False
        times = [row.get("predicted", {}).get(COSTS[reading]) for row in (found, papers)]
        return None not in times and isclose(*times, rel_tol=1e-9)

    def small_minibatches(self, readings: Iterable[str]) -> Iterator[str]:
        """Notes on found plans that have fewer samples in all than the row's name says.

        The language model's search has 20 samples for each replica of the first stage; only the straight pipeline is
        timed with 80.
        """
        if self.log is None or self.piped is self.log:
            return
        for config in dict.fromkeys(map(self.config, readings)):
            if config is None or "-" not in config:  # a straight pipeline, or data parallelism
                continue
            size, replicas = self.log.summary["batch"], int(config.split("-")[0])
            each = f"minibatches of {size}, one for each replica of the first stage, so {size * replicas} in all"
            yield f"{self.paper['model']} ({self.note}), {config}: {each}"


def entries(context: Context, extra: bool = False) -> Iterator[Entry]:
    """The rows of table 1. extra: with a further row for the language model with a minibatch of 80 on each GPU."""
    for paper in context.paper.results["table_1"].reported:
        labels = {"model": paper["model"], "servers": paper["servers"], "what": "plan"}
        if paper["model"] != LANGUAGE:
            log = context.log(**labels)
            yield Entry(paper, log, log)
            continue
        yield Entry(paper, context.log(**labels, batch="20"), context.log(**labels, batch="80"), "80 in all")
        if extra:
            log = context.log(**labels, batch="80")
            yield Entry(paper | dict.fromkeys(("epoch", "tta")), log, log, "80 per GPU")


def unpublished(context: Context, model: str) -> str:
    """A note that a model's plans rest on a data sheet at every scale, because no profile is published; or empty."""
    plans = {"what": "plan", "model": model}  # not the trainings, which read no profile
    rests = any(item.log is not None and not item.arm.spec.published for item in context.select(**plans))
    return "; profile: a data sheet's, none is published" if rests and not context.shortfall(**plans) else ""
