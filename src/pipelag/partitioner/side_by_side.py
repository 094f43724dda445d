"""Time arms side by side over one network: a log row for each, on every number of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.pipelined import Pipelined, straight_plan
from pipelag.partitioner.placed import Row
from pipelag.partitioner.plan import Plan
from pipelag.partitioner.replicated import Replicated


def arm_rows(
    arms: Sequence[Arm], ground: Ground, workers: Sequence[int], cuts: Sequence[int] | None = None
) -> Iterator[Row]:
    """One row (`Placed.row`) per number of GPUs and arm.

    Args:
        cuts: the cuts of the straight plan that all pipelines share; None: the partitioner's.

    Raises:
        PipelagError: cuts that do not fit the network, or more GPUs than it has layers.
    """
    for count in workers:
        for samples in (arm.samples(count, ground.batch) for arm in arms):
            if samples:
                ground.profiles.at(samples)  # make all that are needed before `sizes` draws a line through two
    for count in workers:
        plan: Plan | None = None
        for arm in arms:
            if arm.method.data_parallel:
                yield Replicated(arm, ground, count).row()
                continue
            plan = plan or straight_plan(ground, count, cuts)
            yield Pipelined(arm, ground, plan).row()
