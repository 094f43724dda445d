"""PipeOptim: *Ensuring Effective 1F1B Schedule with Optimizer-Dependent Weight Prediction*, section III; and XPipe.

    W^_{t+s} = W_t - lr * s * DeltaW_t        s = D - rank - 1        (equations 3 to 5)

The forward alone reads predicted weights; the backward reads the current ones, which the forward's prediction aimed at.
s is "the number of weight updates performed between" the two passes (section III-A). Here it is derived from the
schedule for each microbatch. lr is the rate of the coming update. DeltaW is the direction of the optimizer's last
update (table I); `pipelag.methods.prediction` has the rule for each optimizer. The authors' public code differs from
the paper in two ways: for SGD it counts the last gradient twice (ambiguity D2), as `pipeoptim_literal` does, and it has
s = D - rank (D3), as `pipeoptim_s_plus_1` does.

XPipe uses Adam's moments whatever the optimizer: W^ = W_t - lr s mbar / sqrt(vbar + eps), with eps inside the root
(equation 6, whose two moments are interchanged in print, ambiguity D1). For an optimizer that has no moments, they are
computed from the gradient that it steps along, including its L2 term. Both passes predict, with SpecTrain's s on 1F1B:
the two versions that table II counts on every GPU, even on the last one, require this.
"""

from dataclasses import replace

from pipelag.methods.base import Method, register
from pipelag.methods.reads import Predict
from pipelag.schedules.library import one_f_one_b

pipeoptim = register(
    Method(
        name="pipeoptim",
        summary="1F1B with forward weights predicted by the optimizer's own rule s = D-rank-1 updates ahead",
        source="pipeoptim section III, Algorithm 1, Figure 2",
        build=one_f_one_b,
        forward_reads=Predict("update"),
        revision=2,  # predicts at the coming update's rate, with an s for each microbatch
    )
)

one_more = register(
    replace(
        pipeoptim,
        name="pipeoptim_s_plus_1",
        summary="variant of PipeOptim that predicts s = D-rank updates ahead, as its public code does",
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
