"""Remedies newer than the five papers, from the formulas of METHODS_BEYOND.md alone, all on 1F1B.

D: delay of the stage in updates = the largest lag of its microbatches (P - i with one microbatch per minibatch).
stashing=False: the backward computes with the latest weights; True: with what the forward computed with.
"""

from . import loop, optimizers
from .optimizers import each
from .pipedream import pipeline


def spike(problem, c):
    """SC_D: v <- m v + g;  w <- w - eta (a v + b g), a = m^D, b = (1 - m^D) / (1 - m)."""

    def update(i, t, g, lr):
        optimizer, D = problem.optimizer[i], c.lag(i, 0)
        assert isinstance(optimizer, optimizers.Momentum) and optimizer.dampening == 0.0, "SC is for SGD with momentum"
        optimizer.step(problem.versions[i][t], g, lr)  # for its state: v and g (L2 included); its weights are dropped
        m, v, g = optimizer.momentum, optimizer.state["m"], optimizer.state["gradient"]
        a, b = m**D, (1.0 - m**D) / (1.0 - m)
        return each(lambda w, v, g: w - lr * (a * v + b * g), problem.versions[i][t], v, g)

    return update


def run(problem, c, read, stashing, update=None, compensate=None):
    def backward_weights(i, t, k):
        return read(i, t, k) if stashing else problem.versions[i][c.backward(i, t, k)]

    loop.train(problem, read, backward_weights, update=update, compensate=compensate)


def train_spike_compensation(problem, stashing=False):
    c = pipeline(problem)
    run(problem, c, lambda i, t, k: problem.versions[i][c.forward(i, t, k)], stashing, update=spike(problem, c))


def distance(c, i, t, k, horizon, per, fill):
    if per == "largest":
        return horizon * c.lag(i, 0)
    return horizon * (c.lag(i, k) if fill == "steady" else t - c.forward(i, t, k))


def train_lwp_v(problem, horizon=1, per="microbatch", stashing=False, spike_compensation=False, fill="steady"):
    """LWP_v: forward with w - eta T v, T = horizon * D (1 or 2); D of each "microbatch" or the stage's "largest"."""
    c, w = pipeline(problem), problem.versions

    def read(i, t, k):
        v = c.forward(i, t, k)
        d = optimizers.velocity(problem.optimizer[i], problem.states[i][v])
        return loop.predicted(w[i][v], distance(c, i, t, k, horizon, per, fill), problem.lr(v), d)

    run(problem, c, read, stashing, update=spike(problem, c) if spike_compensation else None)


def train_lwp_w(problem, horizon=1, per="microbatch", stashing=False, spike_compensation=False, fill="steady"):
    """LWP_w: forward with w_v + T (w_v - w_{v-1}); w_{-1} = w_0."""
    c, w = pipeline(problem), problem.versions

    def read(i, t, k):
        v = c.forward(i, t, k)
        T = distance(c, i, t, k, horizon, per, fill)
        return each(lambda now, before: now + T * (now - before), w[i][v], w[i][max(0, v - 1)])

    run(problem, c, read, stashing, update=spike(problem, c) if spike_compensation else None)


def train_nesterov(problem, gamma=0.99):
    """d_t = gamma_t (w_t - w_{t-1}); both passes at w_v + d_v (stashed); w_{t+1} = w_t + d_t - eta (1 - gamma_t) grad.
    gamma: a number or gamma(t), t = 0, 1, ... in this phase.  Of the optimizer only lr and L2 (at w_t) are used."""
    c, w = pipeline(problem), problem.versions
    at = gamma if callable(gamma) else (lambda t: gamma)

    def d(i, v):
        return each(lambda now, before: at(v) * (now - before), w[i][v], w[i][max(0, v - 1)])

    def read(i, t, k):
        v = c.forward(i, t, k)
        return each(lambda w, d: w + d, w[i][v], d(i, v))

    def update(i, t, g, lr):
        wd = problem.optimizer[i].weight_decay
        g = each(lambda w, g: g + wd * w, w[i][t], g)
        return each(lambda w, d, g: w + d - lr * (1.0 - at(t)) * g, w[i][t], d(i, t), g)

    run(problem, c, read, True, update=update)


def train_dc_asgd(problem, lam):
    """g + lambda g * g * (w_now - w_stale), elementwise, per microbatch; stashing.  w_now: version t, which the update starts
    from; w_stale: what this microbatch's passes computed with."""
    c, w = pipeline(problem), problem.versions

    def read(i, t, k):
        return w[i][c.forward(i, t, k)]

    def compensate(i, t, k, g):
        return each(lambda g, now, stale: g + lam * g * g * (now - stale), g, w[i][t], read(i, t, k))

    run(problem, c, read, True, compensate=compensate)
