"""Pipelined Training with Stale Weights of Deep CNNs (ICLR 2020 submission), section 3.

P = K + 1 partitions.  Section 3: 'Forward stage FS_i and backward stage BKS_{K-i+2} correspond to the same set of layers.'
'with the exception of the FS_{K+1} and backward stage BKS_1, which are assigned to the same accelerator to reduce weight
staleness by an execution cycle': the last partition runs both passes of a mini-batch in one cycle (lockstep, wait = 0).
'we define the Degree of Staleness as 2(K - i + 1)'.
"""

from . import clock, loop


def printed_staleness(P, i):
    K = P - 1
    return 2 * (K - i + 1)


def pipeline(problem):
    return clock.lockstep(problem.P, problem.N, clock.long_enough(problem.P, problem.steps), wait=0)


def factors(problem, stage_factors):
    return lambda i, t: problem.lr(t) * (1.0 if stage_factors is None else stage_factors[i - 1])


def train(problem, stage_factors=None):
    """Forward reads what is there in its cycle, backward what is there in ITS cycle, with the activations that were saved.
    'we do not maintain multiple copies of weights during training' (section 7).
    stage_factors: a factor on the learning rate per stage (Table 7 has another rate for BKS_2 = stage 1)."""
    c, w = pipeline(problem), problem.versions

    def forward_weights(i, t, k):
        return w[i][c.forward(i, t, k)]  # = w[i][max(0, t - 2(K - i + 1))] without microbatches

    def backward_weights(i, t, k):
        return w[i][c.backward(i, t, k)]  # = w[i][t]

    loop.train(problem, forward_weights, backward_weights, learning_rate=factors(problem, stage_factors))


def train_stashed(problem, stage_factors=None):
    """The other way to read 'A forward stage FS_i and backward stage BKS_{K-i+2} use the same weights that are 2(K - i + 1)
    cycles old': the backward uses the version that this mini-batch's forward read."""
    c, w = pipeline(problem), problem.versions

    def weights(i, t, k):
        return w[i][c.forward(i, t, k)]

    loop.train(problem, weights, weights, learning_rate=factors(problem, stage_factors))
