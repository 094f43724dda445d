"""The time of data parallelism with strong scaling: one minibatch, divided over the GPUs (SpecTrain section 2.2)."""

from __future__ import annotations

from dataclasses import asdict

from pipelag.partitioner.arms import Arm, Ground
from pipelag.partitioner.cluster import GATHER, wait_free
from pipelag.partitioner.placed import Placed, Row
from pipelag.partitioner.plan import PlanStage
from pipelag.timing.breakdown import shares
from pipelag.timing.costs import summed_bytes


class Replicated(Placed):
    """The whole model on each of N GPUs, whose gradients are summed in a ring, or by the first GPU as a server.

    In a ring each GPU sends 2 (N-1)/N |w|. The server's link carries 2 (N-1) |w|, that of every other GPU 2 |w|, and
    the others wait while the server updates the weights.
    """

    def __init__(self, arm: Arm, ground: Ground, workers: int) -> None:
        layers = len(ground.profiles.at(ground.batch).layers)
        super().__init__(arm, ground, workers, [PlanStage(1, layers, workers)])
        self.gather = arm.options.gather or "ring"

    def summing(self, size: float) -> float:
        """The seconds until every GPU has the sum of gradients of `size` bytes."""
        link, count = self.cluster.link(0, self.workers - 1), self.workers
        return GATHER[self.gather](size, count, link.bandwidth, link.latency) if count > 1 else 0.0

    def timed(self, samples: int) -> Row:
        """See `Placed.timed`."""
        layers = self.ground.profiles.at(samples).layers
        forward = sum(layer.forward_ms for layer in layers) / 1e3
        again = forward * self.options.recompute  # before the first gradient is ready
        passes = [layer.backward_ms / 1e3 for layer in layers]
        backward, update = again + sum(passes), self.charge(0, "step")
        if self.options.overlap:
            ready = wait_free(passes, [layer.weight_bytes for layer in layers], self.summing, again)
            summed = max(0.0, ready - backward)  # both add up the same passes, and may differ by rounding
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
        """The seconds of the undivided minibatch on a single GPU."""
        profile = self.ground.profiles.at(samples * self.workers)
        return sum(layer.total_ms for layer in profile.layers) / 1e3 + self.charge(0, "step")
