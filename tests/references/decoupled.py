"""Decoupled backpropagation, iteration by iteration as its two papers count it (Huo et al. 2018, both).

DDG (*Decoupled Parallel Backpropagation with Convergence Guarantee*, arXiv 1804.10574) and features replay (*Training
Neural Networks Using Features Replay*, arXiv 1807.04511) split a network into modules 1..K. At iteration t all modules
run forward on minibatch t; then, without waiting for each other, module k runs backward on minibatch t - K + k, by the
error gradient that module k + 1 sent at iteration t - 1. DDG keeps what the forward of that minibatch computed; features
replay keeps the module's input alone and computes its activations again with the weights of iteration t.

One microbatch; the rate, constant in both papers' epochs, goes by the number of a module's update.
"""

from . import machine


def train(problem, replay):
    K, kept, sent = problem.P, {}, {}
    assert problem.N == 1
    for t in range(problem.steps + K - 1):
        now = {k: problem.versions[k][-1] for k in problem.stages}
        if t < problem.steps:  # play
            x, target = problem.microbatch(t, 0)
            for k in problem.stages:
                y = machine.stage_forward(now[k], x, last=k == K)
                kept[k, t] = x, y, now[k]
                x = y
            problem.losses.append(machine.loss({"outputs": [x]}, target))
        arriving, sent = sent, {}
        for k in problem.stages:
            minibatch = t - K + k
            if not 0 <= minibatch < problem.steps:
                continue
            x, y, weights = kept.pop((k, minibatch))
            if replay:
                weights, y = now[k], machine.stage_forward(now[k], x, last=k == K)
            if k == K:
                _, target = problem.microbatch(minibatch, 0)
                error = machine.softmax(y)
                error[range(len(target)), target] -= 1.0
                error /= len(target)
            else:
                error = arriving[k] * (1.0 - y * y)
            sent[k - 1] = error @ weights[0]
            gradient = error.T @ x, error.sum(axis=0)
            problem.versions[k].append(problem.update(k, minibatch, gradient, problem.lr(minibatch)))


def train_ddg(problem):
    train(problem, replay=False)


def train_features_replay(problem):
    train(problem, replay=True)
