"""What PipeMare's table 2 leaves out of its memory: the activations that a pipeline caches (appendices A.1, A.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelag.report.tables import Col
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing
from pipelag.results.judging import exact
from pipelag.results.pipemare.costs import BYTES, layers_of, memory, pipeline
from pipelag.results.verdict import Finding, NotLogged, if_logged, judge, log_of

PAPER = "pipemare"
DATASET, TASK = "CIFAR10", "images"
RECOMPUTED = "PipeMare, recomputed"
CLEARLY = 0.9  # "clearly less" is at most this share
GIB = 2**30  # binary units, like the MiB of table 2 and figures 2 and 3


@dataclass(frozen=True)
class Footprint:
    """Gibibytes that a method takes over all stages.

    `held` are weights, gradients, optimizer state and stashed versions; `activations` are cached ones.
    """

    held: float
    activations: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.held + self.activations


def activation_gibibytes(context: Context, counts: Sequence[int]) -> float:
    """Gibibytes of activations where stage i, of one layer, caches those of `counts[i]` microbatches."""
    (table_6,) = (row for row in context.paper.results["table_6"].reported if row["dataset"] == DATASET)
    sizes = [row["activations"] for row in log_of(context, task="weights", dataset=DATASET).rows]
    gibibytes = table_6["microbatch"] * BYTES / GIB  # of one value of every sample
    return sum(count * size for count, size in zip(counts, sizes, strict=True)) * gibibytes


def footprints(context: Context) -> dict[str, Footprint]:
    """Footprints by method.

    PipeDream caches as many activations as PipeMare, by A.2; each stage of GPipe caches those of a whole minibatch.

    Raises:
        NotLogged: the cached activations of so many stages have no log.
    """
    layers = layers_of(context, DATASET)
    caching = [row for row in log_of(context, what="caching").rows if row["stages"] == len(layers)]
    if not caching:
        raise NotLogged(f"what {len(layers)} stages keep of activations has no log")
    rows = {method: pipeline(context, method, dataset=DATASET) for method in ("GPipe", "PipeDream", "PipeMare")}
    without, mended = (caching[0][key] for key in ("without", "with"))
    flushed = [rows["GPipe"]["microbatches"]] * len(layers)
    counts = {"GPipe": flushed, "PipeDream": without, "PipeMare": without, RECOMPUTED: mended}
    by_method = {}
    for method, microbatches in counts.items():
        row = rows["PipeMare" if method == RECOMPUTED else method]
        held = memory(context, method, TASK, row, layers) * BYTES / GIB
        by_method[method] = Footprint(held, activation_gibibytes(context, microbatches))
    return by_method


@drawing(PAPER, "text_activation_memory")
def activation_memory(context: Context) -> Drawn:
    """Memory with activations, a row per method."""
    rows = (if_logged(lambda: footprints(context)) or {}).items()
    cols = [
        Col("Method", lambda row: row[0]),
        Col("weights, gradients, state, kept versions (GiB)", lambda row: row[1].held, "{:.2f}"),
        Col("activations (GiB)", lambda row: row[1].activations, "{:.2f}"),
        Col("together (GiB)", lambda row: row[1].total, "{:.2f}"),
        Col("activations' share (%)", lambda row: 100 * row[1].activations / row[1].total, "{:.0f}"),
    ]
    notes = [
        "activations: the outputs of the layers in float32, by the counts of table 5; GPipe keeps eight microbatches "
        "and does not recompute",
        "PipeDream keeps as many as PipeMare by A.2; its own 1F1B schedule would keep about half",
    ]
    return Drawn.tabled(context, rows, cols, notes)


@judge(PAPER, "text_activation_memory", "major")
def major(context: Context) -> Finding:
    """Holds if activations are more than half of the memory of every method that does not recompute."""
    shares = {m: 100 * f.activations / f.total for m, f in footprints(context).items() if m != RECOMPUTED}
    words = ", ".join(f"{method} {share:.0f} %" for method, share in shares.items())
    return exact(min(shares.values()) > 50, f"activations' share: {words}", "more than half, of each")


@judge(PAPER, "text_activation_memory", "less_than_pipedream_here")
def less_than_pipedream(context: Context) -> Finding:
    """Holds if PipeMare takes at least a tenth less memory than PipeDream in all, without recomputation."""
    sizes = footprints(context)
    share = sizes["PipeMare"].total / sizes["PipeDream"].total
    words = ", ".join(f"{method} {size.total:.2f}" for method, size in sizes.items())
    return exact(share <= CLEARLY, f"GiB in all: {words}; PipeMare over PipeDream {share:.3f}", "clearly: a tenth less")


@judge(PAPER, "text_activation_memory", "more_than_gpipe_here")
def more_than_gpipe(context: Context) -> Finding:
    """Holds if GPipe takes at least a tenth less memory than PipeMare in all, and than PipeMare with recomputation."""
    sizes = footprints(context)
    factors = {method: sizes[method].total / sizes["GPipe"].total for method in ("PipeMare", RECOMPUTED)}
    words = ", ".join(f"{method} {factor:.1f} times" for method, factor in factors.items())
    return exact(
        min(factors.values()) * CLEARLY >= 1, f"of GPipe's memory in all: {words}", "clearly: GPipe's a tenth less"
    )
