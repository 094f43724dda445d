"""PipeOptim, and XPipe as PipeOptim's equation 6 describes it, on 1F1B.  rank k = i - 1, depth D = P.

Equation 5:  W_hat_{t+s} = W_t - lr s DeltaW_t        Equation 4:  s = D - rank - 1        DeltaW: Table I
'only the forward pass of each mini-batch uses the predicted weights, while the backward propagation is performed normally
using the available weights'.  lr is the rate of the coming update (the one that makes version v + 1 from version v read).
"""

from . import loop, optimizers
from .pipedream import pipeline


def train(problem, direction="table_1", s="paper", fill="steady"):
    """direction "literal": ambiguity D2, SGDM's last gradient counted again.
    s "paper": 'the number of weight updates performed between' the microbatch's forward and its backward, read off the clock;
    "one_more": ambiguity D3, D - rank (one more on every rank, the last included).
    fill "steady": while the pipeline fills, s is that of the full pipeline, as equation 4 has it; "actual": as counted."""
    c, w = pipeline(problem), problem.versions
    delta_w = {"table_1": optimizers.table_1_direction, "literal": optimizers.table_1_direction_literal}[direction]
    more = {"paper": 0, "one_more": 1}[s]

    def difference(i, t, k):
        return (c.lag(i, k) if fill == "steady" else t - c.forward(i, t, k)) + more

    def forward_weights(i, t, k):
        v = c.forward(i, t, k)
        return loop.predicted(
            w[i][v], difference(i, t, k), problem.lr(v), delta_w(problem.optimizer[i], problem.states[i][v])
        )

    def backward_weights(i, t, k):
        return w[i][c.backward(i, t, k)]  # = w[i][t]

    loop.train(problem, forward_weights, backward_weights)


def train_xpipe(problem):
    """Equation 6, moments put right (D1): W_hat = W_t - lr s mbar_{t-1} / sqrt(vbar_{t-1} + eps), whatever the optimizer.
    'both SpecTrain and XPipe require weight prediction to be performed twice - once during the forward pass and once during
    the backward propagation'.  s_fwd = floor(k/2) + D - k - 1, s_bwd = floor(k/2) (D5, E1).
    The moments are Adam's own, or over SGD a pair kept apart (0.9, 0.999, eps 1e-8, from 0 at the phase's start) of the
    gradient that the optimizer steps along."""
    assert problem.N == 1, "s is known for one microbatch per minibatch only"
    c, w = pipeline(problem), problem.versions
    moments, apart = {}, {}
    for i in problem.stages:
        has_moments = isinstance(problem.optimizer[i], optimizers.Adam)
        apart[i] = None if has_moments else optimizers.Adam()  # only its m, v and count are used
        moments[i] = problem.states[i] if has_moments else [None]

    def predict(i, v, s):
        adam = apart[i] or problem.optimizer[i]
        d = optimizers.xpipe_direction(moments[i][v], adam.betas, adam.eps)
        return loop.predicted(w[i][v], s, problem.lr(v), d)

    def forward_weights(i, t, k):
        rank = i - 1
        return predict(i, c.forward(i, t, k), rank // 2 + problem.P - rank - 1)

    def backward_weights(i, t, k):
        rank = i - 1
        return predict(i, c.backward(i, t, k), rank // 2)

    def after(i, t):
        if apart[i]:
            apart[i].step(w[i][t], problem.states[i][t + 1]["gradient"], 0.0)
            moments[i].append(apart[i].state)

    loop.train(problem, forward_weights, backward_weights, after=after)
