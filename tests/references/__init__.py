"""Naive references for every method, in plain NumPy, written from the papers' texts by a reader who had not seen pipelag."""

from . import beyond, decoupled, pipedream, pipemare, pipeoptim, spectrain, stale_weights
from .loop import Problem

METHODS = {
    "stale_weights": stale_weights.train,
    "stale_weights_stashed": stale_weights.train_stashed,
    "pipedream": pipedream.train_stashing,
    "pipedream_vertical_sync": pipedream.train_vertical_sync,
    "1f1b": pipedream.train_no_stashing,
    "pipedream_2bw": pipedream.train_2bw,
    "gpipe": pipedream.train_plain,
    "bsp": pipedream.train_plain,
    "plain": pipedream.train_plain,
    "asp": pipedream.train_asp,
    "pipemare": pipemare.train,
    "hogwild": pipemare.train_hogwild,
    "hogwild_mixed": pipemare.train_hogwild_mixed,
    "pipeoptim": pipeoptim.train,
    "xpipe": pipeoptim.train_xpipe,
    "dualpipe": spectrain.train_dualpipe,
    "figure_8c": spectrain.train_figure_8c,
    "spectrain": spectrain.train_spectrain,
    "spectrain_batch_order": spectrain.train_batch_order,
    "spectrain_1f1b": spectrain.train_1f1b,
    "spike_compensation": beyond.train_spike_compensation,
    "lwp_v": beyond.train_lwp_v,
    "lwp_w": beyond.train_lwp_w,
    "nesterov_async": beyond.train_nesterov,
    "dc_asgd": beyond.train_dc_asgd,
    "ddg": decoupled.train_ddg,
    "features_replay": decoupled.train_features_replay,
}


def run(method, parameters, batches, *, microbatches=1, optimizer, rate=lambda t: 1.0, steps, **settings):
    """-> {"weights": weights[t][i - 1] = (W, b) of stage i after t updates, t = 0..steps;  "losses": losses[t], t < steps}"""
    return run_phases([(method, steps, microbatches, settings)], parameters, batches, optimizer=optimizer, rate=rate)


def run_phases(phases, parameters, batches, *, optimizer, rate=lambda t: 1.0):
    """phases: [(method, steps, microbatches, settings), ...].  Between phases the pipeline drains: every minibatch in flight
    makes its update; the next phase starts with an empty pipeline from the weights left, its version 0.  Optimizer state stays
    with its weights; rate and batches go on counting; what belongs to a method (T1's k, T2's delta, moments or velocities kept
    apart) starts anew."""
    weights, losses, stage_optimizers = None, [], None
    for method, steps, microbatches, settings in phases:
        problem = Problem(
            parameters if weights is None else weights[-1],
            batches,
            microbatches,
            optimizer,
            rate,
            steps,
            first=len(losses),
            stage_optimizers=stage_optimizers,
        )
        METHODS[method](problem, **settings)
        weights = problem.weights() if weights is None else weights + problem.weights()[1:]
        losses, stage_optimizers = losses + problem.losses, problem.optimizer
    return {"weights": weights, "losses": losses}
