"""Data parallelism with strong scaling: one minibatch, divided over the GPUs (SpecTrain section 2.2)."""

from __future__ import annotations

from dataclasses import asdict

from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.cluster import GATHER, wait_free
from pipelag.partitioner.placed import Placed, Row
from pipelag.partitioner.plan import PlanStage
from pipelag.timing.breakdown import shares
from pipelag.timing.costs import summed_bytes


class Replicated(Placed):
    """The whole model on every GPU. Gradients are summed in a ring, or by a server that is the first of the GPUs.

    The server's link carries 2 (N-1) |w|, that of another GPU 2 |w|; in a ring each sends 2 (N-1)/N |w|. With a server
    the others wait while it updates the weights.
    """

    def __init__(self, arm: Arm, ground: Ground, workers: int) -> None:
        layers = len(ground.profiles.at(ground.batch).layers)
        super().__init__(arm, ground, workers, [PlanStage(1, layers, workers)])
        self.gather = arm.options.gather or "ring"

    def summing(self, size: float) -> float:
        """Seconds until gradients of `size` bytes are summed and everywhere."""
        link, count = self.cluster.link(0, self.workers - 1), self.workers
        return GATHER[self.gather](size, count, link.bandwidth, link.latency) if count > 1 else 0.0

    def timed(self, samples: int) -> Row:
        """See `Placed`."""
        layers = self.ground.profiles.at(samples).layers
        forward = sum(layer.forward_ms for layer in layers) / 1e3
        again = forward * self.options.recompute  # before the first gradient is there
        passes = [layer.backward_ms / 1e3 for layer in layers]
        backward, update = again + sum(passes), self.charge(0, "step")
        if self.options.overlap:
            ready = wait_free(passes, [layer.weight_bytes for layer in layers], self.summing, again)
            summed = max(0.0, ready - backward)  # two sums of the same passes, in another order
        else:
            summed = self.summing(self.weights[0])
        unhindered = forward + backward + update
        period = unhindered + summed
        divided = []
        for gpu in range(self.workers):
            served = self.gather == "server" and gpu > 0
            transfer = summed / (self.workers - 1) if served else summed
            divided.append(asdict(shares(period, unhindered, unhindered - update * served, transfer)))
        seconds = {"forward": forward, "backward": backward, "policy": 0.0, "update": update}
        return {
            "gather": self.gather,
            "seconds": period,
            "unhindered": unhindered,
            "bytes": summed_bytes(self.weights[0], self.workers),
            "stages": [{"stage": 1, "first": 1, "last": len(layers), "seconds": seconds, "shares": divided[0]}],
            "gpus": divided,
        }

    def one_gpu(self, samples: int) -> float:
        """Seconds of the undivided minibatch."""
        profile = self.ground.profiles.at(samples * self.workers)
        return sum(layer.total_ms for layer in profile.layers) / 1e3 + self.charge(0, "step")
