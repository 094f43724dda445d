"""The rows of table 1: a model on a cluster, with the logs of its plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelag.results.context import Context
from pipelag.results.logs import RunLog
from pipelag.results.plans import ALONE, config_of, samples_per_second

LANGUAGE = "AWD-LM"
TRAINED_ON = 16  # GPUs of the runs that are trained, but for the language model's


@dataclass(frozen=True)
class Entry:
    """A row of table 1.

    paper: its cells. log: of data parallelism and of the search. piped: of the pipelines; the same, but for the
    language model, whose minibatch of 80 is 20 on each GPU of data parallelism and 80 in a pipeline.
    """

    paper: Mapping[str, Any]
    log: RunLog | None
    piped: RunLog | None
    note: str = ""

    @property
    def name(self) -> str:
        """Model and servers."""
        return f"{self.paper['model']} on {self.paper['servers']}"

    @property
    def trained(self) -> bool:
        """Whether runs that train are of this row: of as many GPUs. The language model has no other row."""
        return self.paper["model"] == LANGUAGE or (self.log is not None and self.log.summary["workers"] == TRAINED_ON)

    def config(self, reading: str) -> str | None:
        """The plan that a search found."""
        return config_of(self.log, reading)

    def rate_of(self, plan: str) -> float | None:
        """Samples per second of a plan by name, over data parallelism's."""
        source = self.log if plan == ALONE else self.piped
        rate, alone = samples_per_second(source, plan), samples_per_second(self.log, ALONE)
        return rate / alone if rate and alone else None

    def speedup(self, reading: str) -> float | None:
        """The found plan's speedup over data parallelism: time per epoch, timed."""
        config = self.config(reading)
        if self.piped is not self.log and config == "straight":  # searched for with one profile, run with the other
            return self.rate_of("straight")
        plan, alone = samples_per_second(self.log, reading), samples_per_second(self.log, ALONE)
        return plan / alone if plan and alone else None

    @property
    def papers(self) -> str:
        """The plan that the paper has, by its name in the logs."""
        config = str(self.paper["config"])
        return ALONE if config.isdigit() else config

    def papers_plan(self) -> float | None:
        """The speedup of the plan that the paper has."""
        return self.rate_of(self.papers)


def entries(context: Context, extra: bool = False) -> Iterator[Entry]:
    """The rows of table 1, as the paper has them; `extra`: also the language model with 80 on each GPU."""
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
    """That a plan rests on a data sheet at every scale, there being no published profile of the model; or empty."""
    rests = any(item.log is not None and not item.arm.spec.published for item in context.select(model=model))
    return "; profile: a data sheet's, none is published" if rests and not context.shortfall(model=model) else ""
