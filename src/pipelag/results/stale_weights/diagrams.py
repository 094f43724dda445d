"""Figures 1-4: the partition and the schedules without and with pipelining, drawn from `timeline` logs."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

from pipelag.report.figures import partition, registers, space_time
from pipelag.results.context import Context
from pipelag.results.drawing import Drawn, drawing, not_logged
from pipelag.results.stale_weights.reading import PAPER, accelerator_names


@drawing(PAPER, "figure_1")
def figure_1(context: Context) -> Drawn:
    """Eight layers in four partitions on four accelerators."""
    log = context.log()
    if log is None:
        return not_logged()
    cuts = [0, *context.items[0].arm.spec.phases[0].cuts, 8]
    stages = [list(range(a + 1, b + 1)) for a, b in pairwise(cuts)]
    owners = [
        f"A{next(r['worker'] for r in log.rows if r['stage'] == s and r['kind'] == 'F')}" for s in range(1, len(cuts))
    ]
    data = pd.DataFrame({"partition": [f"P{i}" for i in range(len(stages))], "layers": stages, "accelerator": owners})
    return Drawn(figure=partition(stages, owners), data=data)


@drawing(PAPER, "figure_2", "figure_4")
def timelines(context: Context) -> Drawn:
    """Space-time diagrams of training without a pipeline (one accelerator at a time) and with one."""
    log = context.log(minibatches="5") if context.name == "figure_4" else context.log()
    if log is None:
        return not_logged()
    names = accelerator_names(log)
    if context.name == "figure_2":
        names = [f"A{worker}" for worker in range(len(names))]
    return Drawn(figure=space_time(log.rows, names, versions=context.name == "figure_4"), data=pd.DataFrame(log.rows))


@drawing(PAPER, "figure_3")
def figure_3(context: Context) -> Drawn:
    """The stages of one register pair and the accelerators that perform them."""
    log = context.log()
    if log is None:
        return not_logged()
    names = accelerator_names(log)
    owner = {stage: name.split(":")[0] for name in names for stage in name.split(": ")[1].split("+")}
    data = pd.DataFrame({"stage": list(owner), "accelerator": list(owner.values())})
    return Drawn(figure=registers(log.summary["stages"], owner), data=data)
