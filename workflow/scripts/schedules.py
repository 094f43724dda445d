"""`make picture`: draw how synchronous pipelines lose their bubble, docs/images/zero_bubble.svg.

Over the same network on as many workers; bubbles, activations and staleness in the titles are the timed executor's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelag import methods
from pipelag.report.style import save
from pipelag.report.timelines import stacked
from pipelag.timing.breakdown import steady_seconds
from pipelag.timing.costs import uniform
from pipelag.timing.timed import time_schedule
from pipelag.timing.trace import row_of

WORKERS, MICROBATCHES, UNTIL = 4, 8, 36
PASS = 1.0  # of a stage if there is one per worker: F, B and W alike
PANELS = {
    "1f1b_flush": "1F1B with a flush",
    "zb_h1": "ZB-H1",
    "zb_h2": "ZB-H2",
    "zb_v": "ZB-V (letters: a worker's second stage)",
    "pipedream": "PipeDream (no flush)",
}


def main(out: Path) -> None:
    """Write the picture."""
    panels = {title(name): (rows(name), [f"worker {1 + w}" for w in range(WORKERS)]) for name in PANELS}
    figure = stacked(panels, number, "time (one forward pass = 1)", lambda row: row["minibatch"] == 0, UNTIL)
    save(figure, out.with_suffix(""), (out.suffix,))


def chunks(name: str) -> int:
    """Stages per worker."""
    return 2 if name == "zb_v" else 1


def costs(name: str) -> list[Any]:
    """The costs of the stages."""
    one = PASS / chunks(name)
    return uniform(WORKERS * chunks(name), one, 2 * one, weight_gradient=one, kept_bytes=1 / chunks(name))


def rows(name: str) -> list[dict[str, Any]]:
    """The passes of two minibatches, with whether they are of a worker's second stage."""
    plan = methods.get(name).schedule(WORKERS * chunks(name), 2, MICROBATCHES)
    spans = [span for span in time_schedule(plan, costs(name)).spans if span.action.kind != "U"]
    return [row_of(*span, MICROBATCHES) | {"second": span.action.stage > WORKERS} for span in spans]


def number(row: Mapping[str, Any]) -> str:
    """The microbatch within its minibatch: a number from 1, or a letter for a worker's second stage."""
    place = row["microbatch"] % MICROBATCHES
    return "abcdefgh"[place] if row["second"] else str(1 + place)


def title(name: str) -> str:
    """What a schedule buys and costs, in the steady state."""
    method, stages = methods.get(name), WORKERS * chunks(name)
    seconds = steady_seconds(lambda count: method.schedule(stages, count, MICROBATCHES), costs(name))
    bubble = round(100 * (1 - 3 * PASS * MICROBATCHES / seconds))
    kept = max(time_schedule(method.schedule(stages, 3, MICROBATCHES), costs(name)).peak_memory)
    late = max(method.delays(stages, MICROBATCHES).forward)
    copies = max(method.weight_copies(stages, MICROBATCHES))
    stale = f"weights {late} update late, {copies} copies" if late else "no staleness"
    return f"{PANELS[name]}: {bubble} % bubble, activations of {kept:g} microbatches, {stale}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
