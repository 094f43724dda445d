"""PipeDream (SOSP 2019), sections 3.2 and 3.3, and the baselines.  n = P stages; N microbatches per minibatch is the paper's
'gradient aggregation where weight gradients are added to a single buffer at a stage for m minibatches before performing a
weight update' (here: the MEAN of the microbatches' gradients)."""

from . import clock, loop


def pipeline(problem):
    return clock.one_forward_one_backward(problem.P, problem.N, clock.long_enough(problem.P, problem.steps))


def train_stashing(problem):
    """'Each stage processes a minibatch using the latest version of weights available in the forward pass ... The same weight
    version is then used to compute the weight update and upstream weight gradient in the minibatch's backward pass.'
    w^(t+1) = w^(t) - v grad f(w_1^(t-n+1), w_2^(t-n+2), ..., w_n^(t))"""
    c, w = pipeline(problem), problem.versions

    def weights(i, t, k):
        return w[i][c.forward(i, t, k)]  # N = 1: w[i][max(0, t - (n - i))]

    loop.train(problem, weights, weights)


def train_vertical_sync(problem):
    """'Each minibatch that enters the pipeline is associated with the latest weight version w^(i-x) seen at the input stage.
    ... Across all stages, the forward pass for b_i uses the stashed weights w^(i-x) ... After performing the backward pass
    for b_i (using stashed weights w^(i-x))'.   w^(t+1) = w^(t) - v grad f(w_1^(t-n+1), ..., w_n^(t-n+1))"""
    c, w = pipeline(problem), problem.versions

    def weights(i, t, k):
        return w[i][c.forward(1, t, k)]  # the version NUMBER that stage 1 saw, on every stage

    loop.train(problem, weights, weights)


def train_no_stashing(problem):
    """3.3: 'In a naively pipelined system, each stage's forward pass for a minibatch is performed using one version of
    parameters and its backward pass is performed using a different version': the latest in both."""
    c, w = pipeline(problem), problem.versions

    def forward_weights(i, t, k):
        return w[i][c.forward(i, t, k)]

    def backward_weights(i, t, k):
        return w[i][c.backward(i, t, k)]  # = w[i][t]

    loop.train(problem, forward_weights, backward_weights)


def train_2bw(problem):
    """PipeDream-2BW (not a seed; ambiguity D6): W^(t+1) = W^(t) - lr grad f(W^(t-1)) on every stage, N >= P."""
    assert problem.N >= problem.P, "PipeDream-2BW needs at least as many microbatches as stages"
    w = problem.versions

    def weights(i, t, k):
        return w[i][max(0, t - 1)]

    loop.train(problem, weights, weights)


def train_plain(problem):
    """w^(t+1) = w^(t) - v grad f(w_1^(t), ..., w_n^(t)).  BSP; and GPipe, whose N microbatches all go forward and backward
    between two updates (flush)."""
    w = problem.versions

    def weights(i, t, k):
        return w[i][t]

    loop.train(problem, weights, weights)


def train_asp(problem, workers):
    """Asynchronous data parallelism: 'workers use the most recent parameter data available'.  Taking turns, a worker's
    gradient is applied when the other n - 1 workers have each made one update since it read."""
    w = problem.versions

    def weights(i, t, k):
        return w[i][max(0, t - (workers - 1))]

    loop.train(problem, weights, weights)
