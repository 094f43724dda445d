"""An arm on a number of GPUs: the cost of moving its weights, its memory by kind, the largest batch that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.plan import PlanStage
from pipelag.timing.layers import LayerTime
from pipelag.timing.memory import (
    StageMemory,
    held_at_peak,
    microbatches_under_way,
    most_that_fit,
    states_by_part,
)
from pipelag.timing.rehearsal import rehearse

Row = dict[str, Any]
GIB = 2**30


def check_parts(method: Method, splits: bool, layers: Sequence[LayerTime]) -> None:
    """Refuse a method that splits its backwards, if the profile does not say how long their parts take."""
    if splits and any(layer.weight_ms is None for layer in layers):
        raise PipelagError(
            f"'{method.name}' computes the gradients of weights apart from the rest of a backward (W), and the profile "
            "does not say how long they take (weight_ms)"
        )


class Placed:
    """An arm on `workers` GPUs; the subclasses time it.

    Args:
        stages: the layers of each stage; data parallelism has one stage with all layers.
        replicas: the number of workers of each stage, if any stage has several; otherwise empty.

    Raises:
        PipelagError: the method's schedule has W actions, and the profile does not say how long they take.
    """

    def __init__(
        self, arm: Arm, ground: Ground, workers: int, stages: Sequence[PlanStage], replicas: Sequence[int] = ()
    ) -> None:
        self.arm, self.ground, self.workers, self.stages = arm, ground, workers, stages
        self.method, self.options, self.parts = arm.method, arm.options, arm.parts(workers)
        self.cluster = ground.cluster.first(workers)
        layers = ground.profiles.at(ground.batch).layers
        tensors = [[layer.weight_bytes for layer in layers[one.first - 1 : one.last]] for one in stages]
        self.weights = [float(sum(sizes)) for sizes in tensors]
        count, microbatches = len(stages), self.options.microbatches
        self.rehearsed = [
            rehearse(self.method, ground.optimizer, number, count, microbatches, replicas)
            for number in range(1, count + 1)
        ]
        self.held = [one.held(sizes) for one, sizes in zip(self.rehearsed, tensors, strict=True)]
        self.copies = self.method.weight_copies(count, microbatches, replicas)
        rounds = math.prod(replicas)  # a schedule has whole rounds
        minibatches = -(-4 * max(count, sum(replicas)) // rounds) * rounds
        schedule = self.method.schedule(count, minibatches, microbatches, replicas)
        self.under_way, by_worker = microbatches_under_way(schedule), states_by_part(schedule)
        self.states = [np.concatenate([by_worker[worker] for worker in workers]) for workers in schedule.replicas]
        self.splits = any(schedule.split)
        check_parts(self.method, self.splits, layers)

    def charge(self, stage: int, *kinds: str) -> float:
        """The seconds per minibatch that a stage (from 0) spends on moving weights, for these kinds of `moved`."""
        return sum(self.ground.seconds(self.rehearsed[stage].moved[kind], self.weights[stage]) for kind in kinds)

    def memory(self, samples: int) -> list[StageMemory]:
        """The peak memory of a worker of each stage, with `samples` in a pass."""
        sizes = self.ground.profiles.sizes(samples)
        rows = []
        for number, stage in enumerate(self.stages):
            passes = sizes.passes(stage.first, stage.last, samples * self.ground.profiles.input_bytes)
            rows.append(
                StageMemory(
                    weights=self.weights[number],
                    versions=(self.copies[number] - 1) * self.weights[number],
                    remembered=self.held[number].remembered,
                    gradients=self.weights[number],
                    optimizer=self.held[number].optimizer,
                    rings=self.held[number].copies,
                    **held_at_peak(self.states[number], [passes], self.options.recompute),
                )
            )
        return rows

    def largest(self, executor: bool = False) -> Row:
        """The largest minibatch that fits into every GPU, exact to one sample of a pass, and what fills the fullest.

        Args:
            executor: count the memory that this package's executors hold (`StageMemory.rings`).
        """
        memory = self.ground.memory
        samples = most_that_fit(lambda count: max(stage.total(executor) for stage in self.memory(count)), memory)
        if samples is None:
            return {"batch": None, "samples": None, "why": "however many samples a pass has, they fit"}
        stages = list(enumerate(self.memory(max(1, samples)), start=1))
        number, fullest = max(stages, key=lambda pair: pair[1].total(executor))
        part = fullest.largest_part(executor)
        row: Row = {"batch": samples * self.parts, "samples": samples, "stage": number, "part": part}
        if not samples:
            row["why"] = (
                f"with one sample stage {number} holds {fullest.total(executor) / GIB:.3g} GiB, of which the largest "
                f"part, {part}, is {fullest.parts(executor)[part] / GIB:.3g} GiB, and a GPU has {memory / GIB:.3g} GiB"
            )
        return row

    def one_gpu(self, samples: int) -> float:
        """The seconds that one of the arm's minibatches takes on a single GPU."""
        profile = self.ground.profiles.at(samples)
        step = self.ground.seconds(self.rehearsed[0].moved["step"], sum(self.weights))
        return self.parts * sum(layer.total_ms for layer in profile.layers) / 1e3 + step

    def timed(self, samples: int) -> Row:
        """The seconds per minibatch, how each stage spends them, and the bytes that are sent."""
        raise NotImplementedError

    def row(self) -> Row:
        """The arm's row of the log; without times if its minibatch is "largest" and not even one sample fits.

        Raises:
            PipelagError: the minibatch is "largest", and any number of samples fits.
        """
        options, most = self.options, self.largest()
        batch = most["batch"] if options.batch == "largest" else options.batch or self.ground.batch
        if batch is None:
            raise PipelagError(
                f"the arm '{self.arm.name}' has no largest batch: {most['why']}; give the batch as a number"
            )
        row: Row = {
            "arm": self.arm.name,
            "method": self.method.name,
            "workers": self.workers,
            "batch": batch,
            "microbatches": options.microbatches,
            "recompute": options.recompute,
            "gpu_memory": self.ground.memory,
            "largest": most,
            "largest_executor": self.largest(executor=True),
        }
        if not batch:
            return row
        samples = batch // self.parts
        memory = self.memory(samples)
        row |= {"fits": max(stage.total() for stage in memory) <= self.ground.memory} | self.timed(samples)
        row["samples_per_second"] = batch / row["seconds"]
        row["speedup"] = self.one_gpu(samples) / row["seconds"]
        for number, (stage, kinds) in enumerate(zip(row["stages"], memory, strict=True)):
            parts = asdict(kinds)
            stage |= {"versions": self.copies[number], "moved": self.moved_bytes(number)}
            stage |= {"rings": parts.pop("rings"), "memory": parts}
        return row

    def moved_bytes(self, stage: int) -> dict[str, float]:
        """The bytes per minibatch that a stage (from 0) moves to copy and predict weights, without optimizer steps."""
        policy = [self.rehearsed[stage].moved[kind] for kind in ("F", "B", "U")]
        return {
            "separate": sum(one.separate for one in policy) * self.weights[stage],
            "fused": sum(one.fused for one in policy) * self.weights[stage],
        }
