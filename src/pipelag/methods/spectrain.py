"""DualPipe and SpecTrain: *Efficient and Robust Parallel DNN Training through Model Parallelism on Multi-GPU
Platform*, section 3.

DualPipe runs the forward of one minibatch and the backward of another in every time unit (the cycle schedule).
SpecTrain replaces the weights that a pass reads by those predicted for the time unit in which the minibatch is done:

    v_t = gamma v_{t-1} + (1 - gamma) g_t      W^_{t+s} = W_t - s lr v_{t-1}       (equations 1 and 4)
    s = 2N - k - 2 in the forward, s = k in the backward of GPU k = 0 .. N-1       (equations 5 and 6)

s counts "the time units between current pipeline stage and the time a batch completes its round trip". Here it is
derived from the schedule, as the number of updates that the stage makes until then; the formulas are tests. v is the
optimizer's own momentum buffer, at the scale at which the optimizer steps (ambiguity E3), and lr is the rate of the
coming update. `spectrain_smoothed` keeps the v of equation 1 itself, with v_0 = 0, whatever the optimizer; it is meant
for an optimizer that steps along raw or damped gradients (E4).

On GPU k > 0 the s of equation 5 aims beyond the minibatch's own update, since the paper counts versions in time units
(E2). `spectrain_batch_order` is the consistent alternative. On 1F1B, s counts whole rounds, floor(k/2) + N - k - 1 and
floor(k/2), as the authors' public port does (E1); counted as in equations 5 and 6, the latter would be ceil(k/2).

`dualpipe_stashed` is figure 8c. Let t be the time unit in which a minibatch enters the pipeline: on every GPU and in
both passes the minibatch reads W_t, "the version of weights at time unit t" (section 3.2). At that time GPU k has made
k updates more than GPU 0 (E6).
"""

from dataclasses import replace

from pipelag.methods.base import Method, register
from pipelag.methods.reads import Predict
from pipelag.schedules.library import cycle as build
from pipelag.schedules.library import one_f_one_b

dualpipe = register(
    Method(
        name="dualpipe",
        summary="per time unit a forward and a backward, of two minibatches; latest weights in both (vanilla DualPipe)",
        source="spectrain section 3.1, Figures 6b and 8b",
        build=build,
    )
)

dualpipe_stashed = register(
    replace(
        dualpipe,
        name="dualpipe_stashed",
        summary="DualPipe with one version per minibatch on all GPUs, that of the time unit in which it entered",
        source="spectrain Figure 8c (ambiguity E6)",
        held=lambda stage, live: live.entry_lags[stage - 1],
        backward_reads="stashed",
        revision=2,  # counts versions by time unit
    )
)

spectrain = register(
    replace(
        dualpipe,
        name="spectrain",
        summary="DualPipe with weights predicted by the smoothed gradient: s = 2N-k-2 (forward), k (backward)",
        source="spectrain section 3.3, equations 3 to 6",
        forward_reads=Predict("velocity", "round trip"),
        backward_reads=Predict("velocity", "round trip"),
        revision=2,  # predicts at the coming update's rate
    )
)

smoothed = register(
    replace(
        spectrain,
        name="spectrain_smoothed",
        summary="variant of SpecTrain with a smoothed gradient of its own, v_0 = 0 and v = 0.9 v + 0.1 g",
        source="spectrain section 3.3, equation 1 (ambiguities E3, E4)",
        forward_reads=Predict("average", "round trip"),
        backward_reads=Predict("average", "round trip"),
    )
)

batch_order = register(
    replace(
        dualpipe,
        name="spectrain_batch_order",
        summary="variant of SpecTrain whose s counts a stage's own updates: 2(N-1-k) (forward), 0 (backward)",
        source="spectrain section 3.3, ambiguity E2",
        forward_reads=Predict("velocity", "own update"),
        revision=2,
    )
)

on_1f1b = register(
    Method(
        name="spectrain_1f1b",
        summary="SpecTrain's prediction on 1F1B: s = floor(k/2)+N-k-1 (forward), floor(k/2) (backward)",
        source="pipeoptim section III-B, equation 6; spectrain ambiguity E1",
        build=one_f_one_b,
        forward_reads=Predict("velocity", "round trip"),
        backward_reads=Predict("velocity", "round trip"),
        revision=2,  # predicts at the coming update's rate
    )
)
