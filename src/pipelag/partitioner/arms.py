"""Arms: methods with their settings, which are timed side by side over one network and one cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipelag import methods
from pipelag.errors import PipelagError
from pipelag.methods import Method
from pipelag.partitioner.cluster import Cluster
from pipelag.partitioner.options import ArmOptions
from pipelag.stage.optimizers import OptimizerFactory
from pipelag.timing.by_batch import Profiles
from pipelag.timing.rehearsal import Moved
from pipelag.timing.sheets import Device
from pipelag.typed import checked


@dataclass(frozen=True)
class Ground:
    """What the arms of a run share: the network, the cluster, the device and the optimizer.

    memory: bytes of a GPU's memory.
    batch: samples of a minibatch, for arms that do not give their own.
    moving: how copying, predicting and updating weights is charged: "separate" or "fused" (see `Moved`), or "free".
    """

    profiles: Profiles
    cluster: Cluster
    device: Device
    memory: float
    optimizer: OptimizerFactory
    batch: int
    moving: Literal["separate", "fused", "free"] = "separate"

    def seconds(self, moved: Moved, weights: float) -> float:
        """The seconds that a GPU takes to move these bytes, given per byte of weights, for so many bytes of weights."""
        times = {"separate": moved.separate, "fused": moved.fused, "free": 0.0}[self.moving]
        return times * weights / self.device.bandwidth


@dataclass(frozen=True)
class Arm:
    """A method with its settings, under the name that its rows have."""

    name: str
    method: Method
    options: ArmOptions

    @classmethod
    def of(cls, name: str, content: Any) -> Arm:
        """Read an arm from a run's options.

        Raises:
            PipelagError: an unknown method or setting (the message names the nearest), or settings that contradict
                each other.
        """
        options = checked(ArmOptions, content, f"setting of the arm '{name}',")
        method = methods.get(options.method, **options.settings)
        if method.random is not None or method.workers == "server":
            raise PipelagError(
                f"the arm '{name}' cannot be timed, because '{method.name}' has no schedule; take a pipeline or bsp"
            )
        if method.data_parallel and (options.clock != "free" or options.microbatches > 1):
            raise PipelagError(
                f"the arm '{name}' is data parallel, so it has no clock and no microbatches; leave them out"
            )
        if not method.data_parallel and options.gather is not None:
            raise PipelagError(f"the arm '{name}' is a pipeline, which sums no gradients; leave gather out")
        return cls(name, method, options)

    def parts(self, workers: int) -> int:
        """The number of parts of a minibatch: one per GPU in data parallelism, otherwise the microbatches."""
        return workers if self.method.data_parallel else self.options.microbatches

    def samples(self, workers: int, batch: int) -> int | None:
        """The number of samples in a pass; None: as many as fit. `batch` applies where the arm gives none."""
        whole = self.options.batch or batch
        return whole // self.parts(workers) if isinstance(whole, int) else None

    def check(self, workers: int, batch: int) -> None:
        """Refuse an arm that cannot work on so many GPUs; `batch` applies where the arm gives none."""
        whole, parts = self.options.batch or batch, self.parts(workers)
        if isinstance(whole, int) and whole % parts:
            over = f"{workers} GPUs" if self.method.data_parallel else f"{parts} microbatches"
            raise PipelagError(f"the arm '{self.name}' cannot divide a minibatch of {whole} equally over {over}")
        if not self.method.data_parallel:
            self.method.weight_copies(workers, self.options.microbatches)
            schedule = self.method.schedule(workers, 1, self.options.microbatches)
            if self.options.recompute and any(schedule.split):
                raise PipelagError(
                    f"the arm '{self.name}' recomputes activations, but '{self.method.name}' keeps them until it "
                    "computes the gradients of the weights (W); leave recompute out"
                )


def checked_arms(
    arms: Mapping[str, Any], cluster: Cluster, workers: Sequence[int], batch: int, cuts: Sequence[int] | None
) -> list[Arm]:
    """The arms of a run's options.

    Raises:
        PipelagError: an arm that cannot work on one of these numbers of GPUs, or cuts for another number of stages.
    """
    for count in workers:
        if not 1 <= count <= cluster.workers:
            raise PipelagError(f"the arms can use 1 to {cluster.workers} GPUs (the cluster has no more), not {count}")
    if cuts is not None and list(workers) != [len(cuts) + 1]:
        raise PipelagError(
            f"the cuts {list(cuts)} make {len(cuts) + 1} stages, but the arms use {', '.join(map(str, workers))} "
            "GPUs; leave the cuts out, and the partitioner will choose them"
        )
    chosen = [Arm.of(name, content) for name, content in arms.items()]
    for arm in chosen:
        for count in workers:
            arm.check(count, batch)
    return chosen
