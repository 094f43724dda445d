"""The kinds of runs, by name: the fields that each needs in a spec, its options, and its function. No torch.

A user's own kind is a function (spec, folder, device, threads) -> summary, and a line:

    register(Kind("sweep", "what it is for", needs=("model",), options=SweepOptions, home="my_module:sweep"))

The function writes its log with `pipelag.runs.folder.RunFolder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from pipelag.errors import PipelagError
from pipelag.partitioner.options import PlanOptions
from pipelag.registry import free
from pipelag.runs.kinds import options
from pipelag.typed import Typed, checked


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    needs: the fields that its specs must have.
    fields: the fields that its specs may have beside kind, options and seed; None: any.
    options: the class of `spec.options`, or a function from the options to that class.
    home: "module:function", called with (spec, folder, device, threads); returns the summary that it has written.
    computes: whether it needs torch; on_gpu: whether it runs on the device asked for (otherwise `device` is "cpu").
    times: whether it measures times on this machine, so that nothing else should run there.
    revisions: from the options to the revisions of what they name and whose meaning has changed; part of a run's id.
    """

    name: str
    summary: str
    needs: tuple[str, ...]
    options: type[Typed] | Callable[[Mapping[str, Any]], type[Typed]]
    home: str
    fields: tuple[str, ...] | None = None
    computes: bool = True
    on_gpu: bool = False
    times: bool = False
    revisions: Callable[[Mapping[str, Any]], dict[str, int]] = lambda options: {}

    def check(self, given: Mapping[str, Any]) -> Typed:
        """The options of a spec, typed; raises `PipelagError` for an unknown option or a wrong value."""
        model, content = self.options, dict(given)
        if not isinstance(model, type):
            model = model(content)
            content.pop("study", None)
        return checked(model, content, f"option of a {self.name} run")

    def carry_out(self, *args: Any) -> dict[str, Any]:
        """Call the function that `home` names; returns its summary."""
        summary: dict[str, Any] = resolve_name(self.home)(*args)
        return summary


KINDS: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Register a kind by its name.

    Raises:
        PipelagError: the name is taken, or the kind opens data and its options are no `TaskOptions`.
    """
    free("kind of runs", kind.name, KINDS)
    asked = kind.options
    if "data" in kind.needs and isinstance(asked, type) and not issubclass(asked, options.TaskOptions):
        raise PipelagError(
            f"runs of kind '{kind.name}' read data; derive {asked.__name__} from pipelag.runs.kinds.options.TaskOptions"
        )
    KINDS[kind.name] = kind
    return kind


TRAINED = ("model", "data", "optimizer", "phases")
HERE = "pipelag.runs.kinds"
register(
    Kind(
        "train",
        "train and evaluate",
        TRAINED,
        options.TrainOptions,
        f"{HERE}.train:train",
        on_gpu=True,
    )
)
register(
    Kind(
        "speed",
        "time one worker against several, interleaved, in one launch; or over links of several rates",
        TRAINED,
        options.SpeedOptions,
        f"{HERE}.speed:measure",
        on_gpu=True,
        times=True,
    )
)
register(
    Kind(
        "profile",
        "time every layer",
        ("model", "data"),
        options.ProfileOptions,
        f"{HERE}.profile:profile",
        fields=("model", "data", "batch", "optimizer", "lr_schedule", "evaluate_every"),  # a training's setup
        on_gpu=True,
        times=True,
    )
)
register(
    Kind(
        "count",
        "count weights and activations",
        ("model",),
        options.CountOptions,
        f"{HERE}.count:count",
        fields=("model", "batch"),
    )
)
register(
    Kind(
        "timeline",
        "lay out a schedule in time",
        ("phases",),
        options.TimelineOptions,
        f"{HERE}.timeline:lay_out",
        fields=("phases",),
        computes=False,
    )
)


def revised_plans(given: Mapping[str, Any]) -> dict[str, int]:
    """The revisions of what these options of a plan name.

    depths, 2: with fewer minibatches in flight than NOAM, every stage holds its share of them.
    roofline, 2: an embedding reads only the rows that it looks up; neither the input nor frozen layers get a gradient.
    """
    source = given.get("profile")
    by_roofline = isinstance(source, Mapping) and source.get("roofline") and not source.get("published")
    return ({"depths": 2} if given.get("depths") else {}) | ({"roofline": 2} if by_roofline else {})


register(
    Kind(
        "partition",
        "partition a profile over a cluster, and time what comes out",
        ("model",),
        PlanOptions,
        f"{HERE}.partition:partition",
        fields=("model", "batch", "optimizer"),
        revisions=revised_plans,
    )
)
REVISED_STUDIES = {"caching": 2, "lemmas": 2, "at_scale": 3}


def revised_studies(given: Mapping[str, Any]) -> dict[str, int]:
    """The revisions of what these options of a study name; roofline, 2: as for plans."""
    named = isinstance(given.get("model"), Mapping) and "name" in given["model"]
    by_roofline = {"roofline": 2} if given.get("study") == "at_scale" and named else {}
    return {name: n for name, n in REVISED_STUDIES.items() if given.get("study") == name} | by_roofline


register(
    Kind(
        "theory",
        "compute what a theory says",
        ("options",),
        options.study_of,
        f"{HERE}.theory:study",
        fields=(),
        computes=False,
        revisions=revised_studies,
    )
)
