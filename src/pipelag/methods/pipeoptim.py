"""PipeOptim: *Ensuring Effective 1F1B Schedule with Optimizer-Dependent Weight Prediction*, section III; and XPipe.

    W^_{t+s} = W_t - lr * s * DeltaW_t        s = D - rank - 1        (equations 3 to 5)

in the forward only; the backward reads the weights then current, which is what the forward foresaw. s is "the number of
weight updates performed between" the two passes (section III-A): derived from the schedule, so that with microbatches
it is what happens there, for each microbatch. lr is the coming update's. DeltaW is the direction of the optimizer's
last update (table I); `pipelag.methods.prediction` has the rule of each optimizer. The last gradient counted again, as
the public code does for SGD (ambiguity D2), is `pipeoptim_literal`; s = D - rank, as it has (D3), `pipeoptim_s_plus_1`.

XPipe uses Adam's moments whatever the optimizer: W^ = W_t - lr s mbar / sqrt(vbar + eps), eps inside the root (equation
6, its two symbols put right, ambiguity D1); over an optimizer without moments they are kept of the gradient that it
steps along, its L2 term included. Its s is SpecTrain's on 1F1B, in both passes: that is what table II's two versions on
every GPU, the last one included, need.
"""

from dataclasses import replace

from pipelag.methods.base import Method, register
from pipelag.methods.reads import Predict
from pipelag.schedules.library import one_f_one_b

pipeoptim = register(
    Method(
        name="pipeoptim",
        summary="1F1B with forward weights predicted by the optimizer's own rule, s = D-rank-1; no stashing",
        source="pipeoptim section III, Algorithm 1, Figure 2",
        build=one_f_one_b,
        forward_reads=Predict("update"),
        revision=2,  # predicts by the coming update's rate, and as far as microbatches are apart
    )
)

one_more = register(
    replace(
        pipeoptim,
        name="pipeoptim_s_plus_1",
        summary="variant of PipeOptim as its public code has it: s = D-rank",
        source="pipeoptim ambiguity D3",
        forward_reads=Predict("update", lambda stage, stages, lag: lag + 1 if stages > 1 else 0),
    )
)

literal = register(
    replace(
        pipeoptim,
        name="pipeoptim_literal",
        summary="variant of PipeOptim over SGD that counts the last gradient again, as its public code does",
        source="pipeoptim ambiguity D2",
        forward_reads=Predict("update again"),
    )
)

xpipe = register(
    replace(
        pipeoptim,
        name="xpipe",
        summary="1F1B with weights predicted from Adam's moments in both passes, whatever the optimizer",
        source="pipeoptim section III-B, equation 6 (XPipe: arXiv 1911.04610)",
        forward_reads=Predict("moments", "round trip"),
        backward_reads=Predict("moments", "round trip"),
    )
)
