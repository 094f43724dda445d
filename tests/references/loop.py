"""What all the methods share: the problem, with every version of every stage's weights kept for ever, and the plain loop."""

import numpy as np

from . import machine, optimizers


class Problem:
    """versions[i][v]: weights of stage i (1..P) after v updates.  states[i][v]: its optimizer's state after v updates.
    Update t (0-based in this phase) makes version t + 1 and uses lr(t) = rate(first + t) * base."""

    def __init__(self, parameters, batches, microbatches, optimizer, rate, steps, first=0, stage_optimizers=None):
        self.P, self.N, self.steps, self.first = len(parameters), microbatches, steps, first
        self.stages = range(1, self.P + 1)
        self.batches, self.rate, self.base = batches, rate, optimizer["lr"]
        self.optimizer = stage_optimizers or {i: optimizers.make(optimizer) for i in self.stages}
        self.versions = {i: [tuple(np.array(a, dtype=np.float64) for a in parameters[i - 1])] for i in self.stages}
        self.states = {i: [self.optimizer[i].state] for i in self.stages}
        self.losses = []

    def lr(self, t):
        return self.rate(self.first + t) * self.base

    def microbatch(self, t, k):
        x, target = self.batches[self.first + t]
        assert len(x) % self.N == 0, "N equal microbatches"
        size = len(x) // self.N
        return np.asarray(x, dtype=np.float64)[k * size : (k + 1) * size], np.asarray(target)[k * size : (k + 1) * size]

    def update(self, i, t, gradient, lr):
        """The optimizer's own step: version t -> version t + 1."""
        return self.optimizer[i].step(self.versions[i][t], gradient, lr)

    def weights(self):
        return [[self.versions[i][v] for i in self.stages] for v in range(self.steps + 1)]


def mean(tuples):
    return tuple(sum(arrays) / len(tuples) for arrays in zip(*tuples))


def train(
    problem,
    forward_weights,
    backward_weights,
    learning_rate=None,
    recomputed=None,
    compensate=None,
    update=None,
    after=None,
):
    """forward_weights(i, t, k), backward_weights(i, t, k): what stage i computes with for microbatch k of minibatch t.
    learning_rate(i, t); recomputed(activations, t, k) -> activations; compensate(i, t, k, g) -> g;
    update(i, t, g, lr) -> weights; after(i, t): called when version t + 1 exists."""
    update = update or problem.update
    learning_rate = learning_rate or (lambda i, t: problem.lr(t))
    for t in range(problem.steps):
        gradients, losses = {i: [] for i in problem.stages}, []
        for k in range(problem.N):
            x, target = problem.microbatch(t, k)
            activations = machine.forward([forward_weights(i, t, k) for i in problem.stages], x)
            losses.append(machine.loss(activations, target))
            if recomputed:
                activations = recomputed(activations, t, k)
            g = machine.backward(activations, [backward_weights(i, t, k) for i in problem.stages], target)
            for i in problem.stages:
                gradients[i].append(compensate(i, t, k, g[i - 1]) if compensate else g[i - 1])
        problem.losses.append(sum(losses) / len(losses))
        for i in problem.stages:
            assert len(problem.versions[i]) == t + 1
            problem.versions[i].append(update(i, t, mean(gradients[i]), learning_rate(i, t)))
            problem.states[i].append(problem.optimizer[i].state)
            if after:
                after(i, t)


def predicted(w, distance, lr, direction):
    """w - lr * distance * direction; the weights themselves while there is no direction."""
    if direction is None:
        return w
    return optimizers.each(lambda w, d: w - lr * distance * d, w, direction)
