"""DualPipe and SpecTrain (2018).  GPU k = i - 1 of N_gpu = P; 'we issue a forward and backward task concurrently in a pipeline
time unit' (3.1): lockstep, wait = 0 ('At the end of the pipeline ... a forward task and backward task would have to be executed
in sequence'); 'Gradients are buffered first and applied to weights later after both tasks finish'.

Equation 4:  W_hat_{t+s} = W_t - s eta v_{t-1}.  Equation 5 (forward): s = 2N - k - 2.  Equation 6 (backward): s = k.
'The version difference s is defined as the number of time units between current pipeline stage and the time a batch completes
its round trip.'  With microbatches: the version of the stage that is present when the minibatch's LAST microbatch finishes its
round trip at GPU 0, less the version present at the pass (= equations 5 and 6 with one microbatch).
"""

from . import clock, loop, optimizers
from .optimizers import each
from .pipedream import pipeline as pipeline_1f1b


def pipeline(problem):
    return clock.lockstep(problem.P, problem.N, clock.long_enough(problem.P, problem.steps), wait=0)


def train_dualpipe(problem):
    """Vanilla DualPipe, figure 8b: every pass with what is there in its time unit."""
    c, w = pipeline(problem), problem.versions
    loop.train(problem, lambda i, t, k: w[i][c.forward(i, t, k)], lambda i, t, k: w[i][c.backward(i, t, k)])


def train_figure_8c(problem, entering="minibatch"):
    """3.3: 'use the earliest version of weights throughout the entire round trip ... For example, in Figure 8c, the 5-th batch
    uses W_5 in every pipeline stage of its round trip', W_t being 'the version of weights at time unit t': what each GPU held
    when the minibatch (its first microbatch; or each "microbatch" by itself) entered GPU 0."""
    c, w = pipeline(problem), problem.versions

    def weights(i, t, k):
        return w[i][c.entered(i, t * problem.N + (0 if entering == "minibatch" else k))]

    loop.train(problem, weights, weights)


class Velocity:
    """ "optimizer": the optimizer's own momentum buffer (Adam: exp_avg).  "equation_1": v_t = gamma v_{t-1} + (1 - gamma) g_t
    kept apart, v_0 = 0 at the phase's start, g_t the gradient that the optimizer steps along (l2=True) or that of the loss."""

    def __init__(self, problem, kind, gamma, l2):
        self.problem, self.kind, self.gamma, self.l2 = problem, kind, gamma, l2
        self.v = {i: [each(lambda a: 0.0 * a, problem.versions[i][0])] for i in problem.stages}

    def at(self, i, version):
        if self.kind == "optimizer":
            return optimizers.velocity(self.problem.optimizer[i], self.problem.states[i][version])
        assert self.kind == "equation_1"
        return self.v[i][version]

    def update(self, i, t, g, lr):
        new = self.problem.update(i, t, g, lr)
        g = self.problem.optimizer[i].state["gradient"] if self.l2 else g
        self.v[i].append(each(lambda v, g: self.gamma * v + (1.0 - self.gamma) * g, self.v[i][t], g))
        return new


def train_predicting(problem, c, s_forward, s_backward, velocity, gamma, l2):
    w, v = problem.versions, Velocity(problem, velocity, gamma, l2)

    def forward_weights(i, t, k):
        now = c.forward(i, t, k)
        return loop.predicted(w[i][now], s_forward(i, t, k), problem.lr(now), v.at(i, now))

    def backward_weights(i, t, k):
        now = c.backward(i, t, k)
        return loop.predicted(w[i][now], s_backward(i, t, k), problem.lr(now), v.at(i, now))

    loop.train(problem, forward_weights, backward_weights, update=v.update)


def train_spectrain(problem, velocity="optimizer", gamma=0.9, l2=True, fill="steady"):
    """Equations 4 to 6, both passes.  fill: "steady", s of the full pipeline always, as the equations have it; "actual": the
    target version less the version really there."""
    c = pipeline(problem)

    def s_forward(i, t, k):
        at = t if fill == "actual" else c.late
        return c.left(i, at) - c.forward(i, at, k)  # one microbatch: 2N - k - 2

    def s_backward(i, t, k):
        at = t if fill == "actual" else c.late
        return c.left(i, at) - c.backward(i, at, k)  # one microbatch: k

    train_predicting(problem, c, s_forward, s_backward, velocity, gamma, l2)


def train_batch_order(problem, velocity="optimizer", gamma=0.9, l2=True, fill="steady"):
    """Ambiguity E2's variant: staleness-free per batch: the version that the minibatch's own update starts from.
    s_fwd = 2(N - 1 - k), s_bwd = 0."""
    c = pipeline(problem)

    def s_forward(i, t, k):
        at = t if fill == "actual" else c.late
        return at - c.forward(i, at, k)

    train_predicting(problem, c, s_forward, lambda i, t, k: 0, velocity, gamma, l2)


def train_1f1b(problem, velocity="optimizer", gamma=0.9, l2=True):
    """SpecTrain on 1F1B, ambiguity E1: s_fwd = floor(k/2) + N - k - 1, s_bwd = floor(k/2)."""
    assert problem.N == 1, "s is known for one microbatch per minibatch only"
    c = pipeline_1f1b(problem)
    train_predicting(
        problem, c, lambda i, t, k: (i - 1) // 2 + problem.P - i, lambda i, t, k: (i - 1) // 2, velocity, gamma, l2
    )
