"""The kinds of runs, by name: what each needs of a spec, which options it takes, what carries it out. No torch.

A kind of one's own is a function (spec, folder, device, threads) -> summary, and a line:

    register(Kind("sweep", "what it is for", needs=("model",), options=SweepOptions, home="my_module:sweep"))

`pipelag.runs.folder.RunFolder` writes its log.
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

    needs: fields of the spec that it cannot be without.
    fields: those of the spec that it may have beside its options and a seed; None: any.
    options: what `spec.options` may hold; or from the options to that.
    home: "module:function", called with (spec, folder, device, threads); returns the summary that it has written.
    computes: whether it needs torch; on_gpu: whether it works on the device asked for (else `device` is "cpu").
    times: whether it times this machine, and so wants all of it.
    revisions: from the options to what they name that means something else than it once did: part of a run's id.
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
        """The options of a spec, typed; raises `PipelagError` for a misspelt or wrong one."""
        model, content = self.options, dict(given)
        if not isinstance(model, type):
            model = model(content)
            content.pop("study", None)
        return checked(model, content, f"option of a {self.name} run")

    def carry_out(self, *args: Any) -> dict[str, Any]:
        """Call its home."""
        summary: dict[str, Any] = resolve_name(self.home)(*args)
        return summary


KINDS: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Make a kind known by its name; raises `PipelagError` where it is taken."""
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
    """depths, 2: of fewer minibatches than NOAM, every stage holds its share.

    roofline, 2: an embedding reads the rows that it takes, and no gradient goes to a batch or to frozen layers.
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
REVISED_STUDIES = {"caching": 2, "lemmas": 2}


def revised_studies(given: Mapping[str, Any]) -> dict[str, int]:
    """roofline, 2: as of plans."""
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
