"""PipeMare (MLSys 2021).

Section 2:   w_{t+1} = w_t - alpha grad f_t(u_fwd,t, u_bkwd,t),  (u_fwd,t)_i = (w_{t - tau_fwd,i})_i,  (u_bkwd,t)_i = (w_{t - tau_bkwd,i})_i
A.1:         tau_fwd,i = ceil((2(P - i) + 1) / N),  tau_bkwd,i = 0;  PipeDream: tau_bkwd,i = tau_fwd,i;  GPipe: both 0.
A.2:         'the activation memory cached by stage i is proportional to the number of stages between forward and backward,
             i.e., O(2(P - i) + 1)': the last stage's backward comes one cycle after its forward (lockstep, wait = 1).
"""

from . import clock, loop, machine
from .optimizers import each


def printed_tau(P, N, i):
    return -(-(2 * (P - i) + 1) // N)


def segment_of(P, S, i):
    """(first, last) stage of stage i's segment; segments of S stages from stage 1 on, the last may be shorter."""
    first = (i - 1) // S * S + 1
    return first, min(first + S - 1, P)


def step_size(problem, tau, T1, K):
    """T1, equation 4: 'In SGD step k, assign the following step size to pipeline stage i: alpha_k,i = alpha_k,base / tau_i^p_k
    where p_k = 1 - min(k / K, 1)'.  k = 0, 1, ... from the start of this phase."""

    def learning_rate(i, k):
        if not T1:
            return problem.lr(k)
        return problem.lr(k) / tau[i] ** (1.0 - min(k / K, 1.0))

    return learning_rate


def train(
    problem,
    T1=False,
    T2=False,
    K=None,
    D=None,
    form="pipeline",
    correction="printed",
    stash=False,
    segment=None,
    tau_recomp="own",
    loss_gradient="recomputed",
    fill="steady",
    taus=None,
):
    """form "pipeline": every microbatch reads what is there in its cycle; "queue": section 4.1's simulator, 'a queue of stale
    weight values that represents the delay one would get in each pipeline stage': one integer delay per stage and minibatch
    (taus gives other integers than the printed ones, queue form only).
    stash: PipeDream on this pipeline.  segment: PipeMare Recompute with segments of that many stages.
    correction: T2's tau_fwd is the "printed" one for all microbatches or each microbatch's "own" lag; gamma from the printed.
    tau_recomp (in T2's distance for the recomputation): the microbatch's "own" or the "largest" of the minibatch.
    fill: an "own" lag is that of the full pipeline ("steady") or what the microbatch really saw while filling ("actual").
    loss_gradient: d loss / d logits from the "recomputed" logits of the last stage or from those of the "forward"."""
    assert form in ("pipeline", "queue") and correction in ("printed", "own") and (taus is None or form == "queue")
    assert not (stash and (T2 or segment)), "stashing leaves nothing to correct or to recompute"
    P, N, w = problem.P, problem.N, problem.versions
    c = clock.lockstep(P, N, clock.long_enough(P, problem.steps), wait=1)
    tau = {i: printed_tau(P, N, i) if taus is None else taus[i - 1] for i in problem.stages}
    gamma = {i: D ** (1.0 / tau[i]) if T2 and tau[i] else 0.0 for i in problem.stages}
    delta = {i: [each(lambda a: 0.0 * a, w[i][0])] for i in problem.stages}  # delta[i][v]; delta_0 = 0

    def forward_version(i, t, k):
        return c.forward(i, t, k) if form == "pipeline" else max(0, t - tau[i])

    def forward_lag(i, t, k):  # the tau_fwd of T2's corrections
        if form == "queue" or correction == "printed":
            return tau[i]
        return c.lag(i, k) if fill == "steady" else t - c.forward(i, t, k)

    def corrected(i, v, distance):  # w_v - distance * delta_v
        return each(lambda w, d: w - distance * d, w[i][v], delta[i][v]) if T2 else w[i][v]

    def forward_weights(i, t, k):
        return w[i][forward_version(i, t, k)]

    def backward_weights(i, t, k):
        if stash:
            return w[i][forward_version(i, t, k)]
        return corrected(
            i, t, forward_lag(i, t, k) - 0
        )  # T2: w_{t - tau_bkwd} - (tau_fwd - tau_bkwd) delta_t, tau_bkwd = 0

    def recompute_weights(i, t, k):
        """D.1: (u_recomp,t)_i = (w_{t - tau_recomp,i})_i - (tau_fwd,i - tau_recomp,i) delta, with the delta of the version
        that is recomputed (the printed polynomial has it there; the text's delta_t does not exist yet in that cycle)."""
        _, end = segment_of(P, segment, i)
        if form == "queue":
            lag = c.recompute_lag(i, 0, end)
            version = max(0, t - lag)
        else:
            lag = c.recompute_lag(i, k if tau_recomp == "own" else 0, end)
            version = c.recompute(i, t, k, end)
            if fill == "actual" and tau_recomp == "own":
                lag = t - version
        return corrected(i, version, forward_lag(i, t, k) - lag)

    def recomputed(activations, t, k):
        """A.3: every segment runs forward again from the kept input of its first stage."""
        weights = [recompute_weights(i, t, k) for i in problem.stages]
        result = activations
        for i in problem.stages:
            first, last = segment_of(P, segment, i)
            if i == first:
                result = machine.recompute(result, weights, first, last)
        if loss_gradient == "forward":
            result["outputs"][-1] = activations["outputs"][-1]
        return result

    def after(i, t):
        """delta_{t+1,i} = gamma_i delta_{t,i} + (1 - gamma_i)(w_{t+1,i} - w_{t,i})"""
        delta[i].append(
            each(lambda d, old, new: gamma[i] * d + (1.0 - gamma[i]) * (new - old), delta[i][t], w[i][t], w[i][t + 1])
        )

    loop.train(
        problem,
        forward_weights,
        backward_weights,
        learning_rate=step_size(problem, tau, T1, K),
        recomputed=recomputed if segment else None,
        after=after,
    )


def mean_delay(problem, taus, mean_delays):
    """E, 'our learning rate rescheduling heuristic': T1 with each stage's mean delay (not below 1)."""
    if mean_delays is None:
        mean_delays = [sum(row[i - 1] for row in taus[: problem.steps]) / problem.steps for i in problem.stages]
    return {i: max(1.0, mean_delays[i - 1]) for i in problem.stages}


def whole_gradient(problem, u, version):
    """grad f_u(w_version) of every stage, all stages at one version, and f_u(w_version)."""
    weights = [problem.versions[i][version] for i in problem.stages]
    gradients, losses = {i: [] for i in problem.stages}, []
    for k in range(problem.N):
        x, target = problem.microbatch(u, k)
        activations = machine.forward(weights, x)
        losses.append(machine.loss(activations, target))
        g = machine.backward(activations, weights, target)
        for i in problem.stages:
            gradients[i].append(g[i - 1])
    return {i: loop.mean(gradients[i]) for i in problem.stages}, sum(losses) / len(losses)


def train_hogwild(problem, taus, T1=False, K=None, mean_delays=None, data="delayed"):
    """Appendix E, equation 16: w_{i,t+1} = w_{i,t} - alpha [grad f_{t - tau_i}(w_{t - tau_i})]_i: block i of the update is block
    i of the whole gradient of minibatch u = t - tau_i at version u.  taus[t][i - 1] given, u clamped at 0.
    data "current": as the sentence below equation 16 prints it, [grad f_t(w_{t - tau_i})]_i.
    losses[t] is f_t(w_t) in both."""
    w = problem.versions
    learning_rate = step_size(problem, mean_delay(problem, taus, mean_delays), T1, K)
    for t in range(problem.steps):
        problem.losses.append(whole_gradient(problem, t, t)[1])
        new = {}
        for i in problem.stages:
            u = max(0, t - taus[t][i - 1])
            g, _ = whole_gradient(problem, u if data == "delayed" else t, u)
            new[i] = problem.update(i, t, g[i], learning_rate(i, t))
        for i in problem.stages:
            w[i].append(new[i])
            problem.states[i].append(problem.optimizer[i].state)


def train_hogwild_mixed(problem, taus, T1=False, K=None, mean_delays=None):
    """Not the paper's: one pass of minibatch t in which stage i reads version t - tau_i in both passes."""
    w = problem.versions

    def weights(i, t, k):
        return w[i][max(0, t - taus[t][i - 1])]

    loop.train(
        problem, weights, weights, learning_rate=step_size(problem, mean_delay(problem, taus, mean_delays), T1, K)
    )
