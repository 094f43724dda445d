"""Every method trains as `tests.references`, written from the papers alone: equal to 1e-12 over 24 updates.

The references keep every version and spell out every read, in double precision; they share no line with pipelag.
Compared are three and four stages, 1, 2, 4 and 8 microbatches, SGD with momentum and L2, Adam with L2, AdamW, a
learning rate that falls, and several phases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pipelag
from pipelag.methods import Method, get
from pipelag.stage.phase import Phase
from tests import references

STEPS, SAMPLES, SIZES = 24, 16, (5, 6, 4, 7)
SGD = {"name": "sgd", "lr": 0.15, "momentum": 0.9, "weight_decay": 0.01}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": SGD,
    "damped": {**SGD, "dampening": 0.9, "lr": 1.0},
    "plain": {"name": "sgd", "lr": 0.2, "momentum": 0.0, "weight_decay": 0.01},
    "adam": {"name": "adam", "lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": 0.01},
    "adamw": {"name": "adamw", "lr": 0.02, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": 0.1},
}


class Apart:
    """A setting with one value for matrices and another for vectors.

    The references calculate with it as with a number: against an array it takes the value for the array's dimensions.
    """

    __array_ufunc__ = None  # NumPy then leaves operations on this class to the class

    def __init__(self, matrices: float, vectors: float) -> None:
        self.matrices, self.vectors = matrices, vectors

    def _of(self, what: Callable[[Any], Any], other: Any = 0.0) -> Any:
        if isinstance(other, np.ndarray):
            return what(self.matrices if other.ndim > 1 else self.vectors)
        return Apart(what(self.matrices), what(self.vectors))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Apart):
            return Apart(self.matrices * other.matrices, self.vectors * other.vectors)
        return self._of(lambda setting: setting * other, other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return self._of(lambda setting: setting + other, other)

    __radd__ = __add__

    def __rsub__(self, other: float) -> Any:
        return self._of(lambda setting: other - setting)

    def __rtruediv__(self, other: Any) -> Any:
        return self._of(lambda setting: other / setting, other)

    def __truediv__(self, other: Any) -> Any:
        return self * other**-1

    def __pow__(self, exponent: int) -> Any:
        return self._of(lambda setting: setting**exponent)


OPTIMIZERS |= {
    "sgd, apart": {
        "name": "sgd",
        "lr": Apart(0.15, 0.3),
        "momentum": Apart(0.9, 0.5),
        "weight_decay": Apart(0.01, 0.0),
    },
    "plain, apart": {"name": "sgd", "lr": Apart(0.2, 0.3), "weight_decay": Apart(0.02, 0.0)},
    "adam, apart": {
        "name": "adam",
        "lr": Apart(0.02, 0.01),
        "betas": (Apart(0.9, 0.8), Apart(0.99, 0.9)),
        "eps": Apart(1e-4, 1e-3),
        "weight_decay": Apart(0.01, 0.0),
    },
    "adamw, apart": {
        "name": "adamw",
        "lr": Apart(0.02, 0.03),
        "betas": (0.9, 0.99),
        "eps": 1e-4,
        "weight_decay": Apart(0.1, 0.0),
    },
}


def parted(setting: Any, kind: str) -> Any:
    """A setting's value for matrices or for vectors; tuples of settings part by part."""
    if isinstance(setting, tuple):
        return tuple(parted(each, kind) for each in setting)
    return getattr(setting, kind) if isinstance(setting, Apart) else setting


def optimizer_of(params: Any, name: str, **settings: Any) -> torch.optim.Optimizer:
    """torch's optimizer; if settings differ between matrices and vectors, each stage has a parameter group for each."""
    if parted(tuple(settings.values()), "matrices") == tuple(settings.values()):
        return MAKERS[name](params, **settings)
    groups = [
        group
        | {key: parted(value, kind) for key, value in settings.items()}
        | {"params": [p for p in group["params"] if (p.dim() > 1) == (kind == "matrices")]}
        for group in params
        for kind in ("matrices", "vectors")
    ]
    return MAKERS[name](groups, lr=0.0)


MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def falling(t: int) -> float:
    """Rate factors of a warm-up over four updates and a drop at update 13."""
    return min(1.0, (t + 1) / 4) * (1.0 if t < 13 else 0.3)


def problem(stages: int, seed: int = 0) -> tuple[list[Any], list[Any]]:
    draw = np.random.default_rng(seed)
    sizes = [SIZES[i % 4] for i in range(stages)] + [3]
    parameters = [
        (draw.normal(size=(out, into)) / np.sqrt(into), 0.1 * draw.normal(size=out))
        for into, out in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    inputs = [draw.normal(size=(SAMPLES, sizes[0])) for _ in range(STEPS)]
    return parameters, [(x, (x[:, 0] + x[:, 1] ** 2 > 0.5).astype(int) + (x[:, 2] > 1)) for x in inputs]


def ours(phases: Sequence[Phase], parameters: list[Any], batches: list[Any], optimizer: dict[str, Any]) -> Any:
    """(weights per stage, losses) that pipelag trains."""
    layers = []
    for W, b in parameters:
        linear = nn.Linear(W.shape[1], W.shape[0], dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(W))
            linear.bias.copy_(torch.from_numpy(b))
        layers.append(nn.Sequential(linear, nn.Tanh()))
    layers[-1] = layers[-1][:1]
    settings = {key: value for key, value in optimizer.items() if key != "name"}
    run = pipelag.train(
        layers,
        [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in batches],
        phases=phases,
        optimizer=lambda params: optimizer_of(params, optimizer["name"], **settings),
        rate=falling,
    )
    weights = [tuple(p.detach().numpy() for p in layer.parameters()) for layer in run.model]
    return weights, [row["loss"] for row in run.metrics]


def compare(
    phases: Sequence[tuple[Method, str, int, int, dict[str, Any]]],
    stages: int,
    optimizer: str = "sgd",
    recompute: int = 0,
) -> None:
    """Train these phases with pipelag and with the references, and compare losses and weights.

    phases: (method, reference, steps, microbatches, the reference's settings).
    """
    parameters, batches = problem(stages)
    cuts = tuple(range(1, stages))
    compared = [Phase(method, steps, cuts, microbatches=n, recompute=recompute) for method, _, steps, n, _ in phases]
    weights, losses = ours(compared, parameters, batches, OPTIMIZERS[optimizer])
    expected = references.run_phases(
        [(name, steps, n, settings) for _, name, steps, n, settings in phases],
        parameters,
        batches,
        optimizer=OPTIMIZERS[optimizer],
        rate=falling,
    )
    np.testing.assert_allclose(losses, expected["losses"], rtol=0, atol=1e-12)
    for computed, referred in zip(weights, expected["weights"][-1], strict=True):
        for a, b in zip(computed, referred, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    moved = max(np.abs(a - b).max() for a, b in zip(weights[0], parameters[0], strict=True))
    assert moved > 0.05  # or nothing was compared


Case = tuple[Method, str, dict[str, Any]]
K, D = 10, 0.3
T = {"T1": True, "T2": True, "K": K, "D": D}
CASES: dict[str, Case] = {
    "stale_weights": (get("stale_weights"), "stale_weights", {}),
    "stale_weights_stashed": (get("stale_weights_stashed"), "stale_weights_stashed", {}),
    "pipedream": (get("pipedream"), "pipedream", {}),
    "vertical sync": (get("pipedream_vertical_sync"), "pipedream_vertical_sync", {}),
    "1f1b": (get("1f1b"), "1f1b", {}),
    "gpipe": (get("gpipe"), "gpipe", {}),
    "1f1b_flush": (get("1f1b_flush"), "plain", {}),
    "sequential": (get("sequential"), "plain", {}),
    "dualpipe": (get("dualpipe"), "dualpipe", {}),
    "figure 8c": (get("dualpipe_stashed"), "figure_8c", {"entering": "microbatch"}),
    "pipemare, neither": (get("pipemare_naive"), "pipemare", {}),
    "pipemare, stashed": (get("pipedream_cycle"), "pipemare", {"stash": True}),
    "T1": (get("pipemare_t1", annealing=K), "pipemare", {"T1": True, "K": K}),
    "T2": (get("pipemare_t2", decay=D), "pipemare", {"T2": True, "D": D}),
    "T1+T2": (get("pipemare", annealing=K, decay=D), "pipemare", T),
    "T1+T2, own": (get("pipemare", annealing=K, decay=D, reading="own"), "pipemare", {**T, "correction": "own"}),
    "queue, T1+T2": (get("pipemare", annealing=K, decay=D, queue=True), "pipemare", {**T, "form": "queue"}),
    "queue, T1": (get("pipemare_t1", annealing=K, queue=True), "pipemare", {"T1": True, "K": K, "form": "queue"}),
    "queue, stashed": (get("pipedream_cycle", queue=True), "pipemare", {"stash": True, "form": "queue"}),
    "pipeoptim": (get("pipeoptim"), "pipeoptim", {}),
    "pipeoptim, s + 1": (get("pipeoptim_s_plus_1"), "pipeoptim", {"s": "one_more"}),
    "spectrain": (get("spectrain"), "spectrain", {}),
    "spectrain, batch order": (get("spectrain_batch_order"), "spectrain_batch_order", {}),
    "spectrain, smoothed": (get("spectrain_smoothed"), "spectrain", {"velocity": "equation_1"}),
    "lwp_v": (get("lwp_v"), "lwp_v", {}),
    "lwp_w": (get("lwp_w"), "lwp_w", {}),
}
UNSPLIT: dict[str, Case] = {
    "spectrain on 1F1B": (get("spectrain_1f1b"), "spectrain_1f1b", {}),
    "xpipe": (get("xpipe"), "xpipe", {}),
    "dc_asgd": (get("dc_asgd", strength=0.3), "dc_asgd", {"lam": 0.3}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_methods(case: str, stages: int, microbatches: int) -> None:
    method, reference, settings = CASES[case]
    compare([(method, reference, STEPS, microbatches, settings)], stages)


@pytest.mark.parametrize("case", ["stale_weights", "pipedream", "T1+T2", "pipeoptim", "spectrain", "lwp_v", "lwp_w"])
@pytest.mark.parametrize("optimizer", ["damped", "adam", "adamw"])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_optimizers(case: str, optimizer: str, microbatches: int) -> None:
    method, reference, settings = CASES[case]
    compare([(method, reference, STEPS, microbatches, settings)], 4, optimizer)


@pytest.mark.parametrize("case", UNSPLIT)
@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_methods_whose_minibatch_is_one_piece(case: str, stages: int, optimizer: str) -> None:
    method, reference, settings = UNSPLIT[case]
    compare([(method, reference, STEPS, 1, settings)], stages, optimizer)


@pytest.mark.parametrize("stages", [3, 4])
def test_methods_over_sgd(stages: int) -> None:
    compare([(get("pipeoptim_literal"), "pipeoptim", STEPS, 1, {"direction": "literal"})], stages)
    compare([(get("pipeoptim_literal"), "pipeoptim", STEPS, 4, {"direction": "literal"})], stages, "damped")
    compare([(get("spike_compensation"), "spike_compensation", STEPS, 1, {})], stages)
    compare([(get("lwp_sc"), "lwp_w", STEPS, 1, {"spike_compensation": True})], stages)
    compare([(get("nesterov_async", gamma=0.6), "nesterov_async", STEPS, 1, {"gamma": 0.6})], stages, "plain")
    compare([(get("spectrain_smoothed"), "spectrain", STEPS, 2, {"velocity": "equation_1"})], stages, "plain")
    compare([(get("spectrain"), "spectrain", STEPS, 1, {"velocity": "equation_1"})], stages, "plain")


APART = [
    *(("T1+T2", kind, 4) for kind in ("sgd, apart", "adamw, apart")),
    *((case, kind, 4) for case in ("pipedream", "spectrain", "lwp_v") for kind in ("sgd, apart", "adam, apart")),
    *(("pipeoptim", kind, 4) for kind in ("sgd, apart", "adam, apart", "adamw, apart")),
    *((case, "plain, apart", 4) for case in ("spectrain, smoothed", "lwp_w")),
    *((case, kind, 1) for case in UNSPLIT for kind in ("sgd, apart", "adam, apart")),
]


@pytest.mark.parametrize(("case", "optimizer", "microbatches"), APART)
def test_groups_within_a_stage(case: str, optimizer: str, microbatches: int) -> None:
    """Methods follow each parameter group's own rate, momentum and decay; matrices and vectors are a group each."""
    method, reference, settings = (CASES | UNSPLIT)[case]
    compare([(method, reference, STEPS, microbatches, settings)], 4, optimizer)


def test_groups_within_a_stage_over_sgd() -> None:
    compare([(get("pipeoptim_literal"), "pipeoptim", STEPS, 1, {"direction": "literal"})], 4, "sgd, apart")
    compare([(get("spike_compensation"), "spike_compensation", STEPS, 1, {})], 4, "sgd, apart")
    compare([(get("nesterov_async", gamma=0.6), "nesterov_async", STEPS, 1, {"gamma": 0.6})], 4, "plain, apart")
    compare([(get("hogwild"), "hogwild", STEPS, 1, {"taus": delays_of(get("hogwild"), 4)})], 4, "sgd, apart")
    compare([(get("gpipe"), "gpipe", 7, 1, {}), (get("pipeoptim"), "pipeoptim", STEPS - 7, 1, {})], 4, "sgd, apart")


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize("stages", [3, 4])
def test_double_buffering(stages: int, microbatches: int) -> None:
    compare([(get("pipedream_2bw"), "pipedream_2bw", STEPS, microbatches, {})], stages)


@pytest.mark.parametrize("stages", [3, 4])
def test_asynchronous_data_parallelism(stages: int) -> None:
    compare([(get("asp"), "asp", STEPS, 1, {"workers": stages})], stages)


@pytest.mark.parametrize("segment", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize("stages", [4, 5])
@pytest.mark.parametrize("remedies", ["neither", "T1+T2", "T1+T2, own"])
def test_recomputation_in_segments(segment: int, microbatches: int, stages: int, remedies: str) -> None:
    case = CASES["pipemare, neither" if remedies == "neither" else remedies]
    settings = {**case[2], "segment": segment, "tau_recomp": "own" if remedies == "T1+T2, own" else "largest"}
    compare([(case[0], "pipemare", STEPS, microbatches, settings)], stages, recompute=segment)


@pytest.mark.parametrize("stages", [3, 4, 7])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_decoupled_backpropagation(stages: int, optimizer: str) -> None:
    """DDG trains as PipeDream, and Features Replay as 1F1B with recomputation.

    What they keep tells them apart: 1F1B is not Features Replay without recomputation, and not DDG with it.
    """
    compare([(get("pipedream"), "ddg", STEPS, 1, {})], stages, optimizer)
    compare([(get("1f1b"), "features_replay", STEPS, 1, {})], stages, optimizer, recompute=1)
    with pytest.raises(AssertionError, match="Not equal"):
        compare([(get("1f1b"), "features_replay", STEPS, 1, {})], stages, optimizer)
    with pytest.raises(AssertionError, match="Not equal"):
        compare([(get("1f1b"), "ddg", STEPS, 1, {})], stages, optimizer, recompute=1)


def delays_of(method: Method, stages: int, seed: int = 0) -> list[list[int]]:
    assert method.random is not None
    return [method.random.draw(method.taus(stages), seed, t) for t in range(STEPS)]


@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("name", ["hogwild", "hogwild_mixed"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_random_delays(stages: int, name: str, optimizer: str) -> None:
    for annealing in (None, K):
        method = get(name, annealing=annealing, microbatches=2)
        settings: dict[str, Any] = {"taus": delays_of(method, stages)}
        if annealing:
            means = [-(-(2 * (stages - i) + 1) // 2) for i in range(1, stages + 1)]
            settings |= {"T1": True, "K": K, "mean_delays": means}
        compare([(method, name, STEPS, 1, settings)], stages, optimizer)


@pytest.mark.parametrize("case", ["stale_weights", "pipedream", "T1+T2", "pipeoptim", "spectrain", "lwp_w"])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_phases(case: str, microbatches: int) -> None:
    """A phase keeps momentum from the one before and begins anew with what belongs to its method.

    The phases are a synchronous one, the method, and the method once more.
    """
    method, reference, settings = CASES[case]
    gpipe = (get("gpipe"), "gpipe", 7, microbatches, {})
    once_more = (method, reference, STEPS - 17, microbatches, settings)
    compare([gpipe, (method, reference, 10, microbatches, settings), once_more], 4)
    compare([(CASES["1f1b"][0], "1f1b", 9, microbatches, {}), (method, reference, 15, microbatches, settings)], 3)
