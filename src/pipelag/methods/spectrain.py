"""DualPipe and SpecTrain: *Efficient and Robust Parallel DNN Training through Model Parallelism on Multi-GPU
Platform*, section 3.

DualPipe runs a forward and a backward of two minibatches in every time unit (the cycle schedule). SpecTrain replaces
the weights of a pass by those foreseen for the time unit in which the minibatch will be done:

    v_t = gamma v_{t-1} + (1 - gamma) g_t      W^_{t+s} = W_t - s lr v_{t-1}       (equations 1 and 4)
    s = 2N - k - 2 in the forward, s = k in the backward of GPU k = 0 .. N-1       (equations 5 and 6)

v is the optimizer's own momentum buffer, at the scale in which it steps (ambiguity E3). On GPU k > 0 the s of
equation 5 looks beyond the weights at the minibatch's own update, because versions are counted in time units (E2):
`spectrain_batch_order` is the consistent alternative. On 1F1B, s counts versions: floor(k/2) + N - k - 1 and
floor(k/2), as in the authors' public port (E1).
"""

from dataclasses import replace

from pipelag.methods.base import Method, register
from pipelag.methods.reads import Predict
from pipelag.schedules.library import cycle as build
from pipelag.schedules.library import one_f_one_b

dualpipe = register(
    Method(
        name="dualpipe",
        summary="forward and backward of two minibatches per time unit, latest weights in both (vanilla DualPipe)",
        source="spectrain section 3.1, Figures 6b and 8b",
        build=build,
    )
)

dualpipe_stashed = register(
    replace(
        dualpipe,
        name="dualpipe_stashed",
        summary="DualPipe with one version per minibatch on all GPUs, the one its first forward read",
        source="spectrain Figure 8c (ambiguity E6)",
        held=lambda stage, live: live[0],
        backward_reads="stashed",
    )
)

spectrain = register(
    replace(
        dualpipe,
        name="spectrain",
        summary="DualPipe with weights foreseen from the smoothed gradient: s = 2N-k-2 forward, k backward",
        source="spectrain section 3.3, equations 3 to 6",
        forward_reads=Predict("velocity", lambda stage, stages, delay: 2 * stages - (stage - 1) - 2),
        backward_reads=Predict("velocity", lambda stage, stages, delay: stage - 1),
    )
)

batch_order = register(
    replace(
        dualpipe,
        name="spectrain_batch_order",
        summary="variant of SpecTrain whose s counts a stage's own updates: 2(N-1-k) forward, 0 backward",
        source="spectrain section 3.3, ambiguity E2",
        forward_reads=Predict("velocity", lambda stage, stages, delay: delay),
    )
)

on_1f1b = register(
    Method(
        name="spectrain_1f1b",
        summary="SpecTrain's prediction on 1F1B: s = floor(k/2)+N-k-1 forward, floor(k/2) backward",
        source="pipeoptim section III-B, equation 6; spectrain ambiguity E1",
        build=one_f_one_b,
        forward_reads=Predict("velocity", lambda stage, stages, delay: (stage - 1) // 2 + stages - stage),
        backward_reads=Predict("velocity", lambda stage, stages, delay: (stage - 1) // 2),
    )
)
