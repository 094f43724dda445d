"""The quadratic model: eigenvalues against running the recurrence, lemmas against eigenvalues, refusals."""

from __future__ import annotations

from math import pi, sin
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelag.errors import PipelagError
from pipelag.runs.kinds import options, theory
from pipelag.runs.kinds.theory import study
from pipelag.runs.spec import RunSpec
from pipelag.theory import quadratic as q
from pipelag.theory.quadratic import corrected, free_of_delta


@given(st.integers(0, 60), st.floats(0.1, 10))
@example(12, 1.0)  # its root crosses at a point of the grid
@settings(max_examples=40)
def test_lemma_1_is_exact(tau: int, curvature: float) -> None:
    bound = 2 / curvature * sin(pi / (4 * tau + 2))
    model = q.delayed(tau, curvature)
    assert q.largest_stable(model) == pytest.approx(bound, rel=1e-9)
    assert model.radius(0.99 * bound) < 1 < model.radius(1.01 * bound)


@pytest.mark.parametrize(
    ("delta", "expected"), [(0.0, 0.1494), (3.0, 0.0545), (5.0, 0.0380)]
)  # ambiguity B9: from a grid of 5e-5
def test_discrepancy_shrinks_the_stable_range(delta: float, expected: float) -> None:
    largest = q.largest_stable(q.with_discrepancy(10, 6, delta))
    assert largest == pytest.approx(expected, abs=1.5e-4)
    model = q.with_discrepancy(10, 6, delta)
    assert model.radius(largest - 1e-4) < 1 < model.radius(largest + 1e-4)


def test_t2_restores_part_of_it() -> None:
    assert q.largest_stable(q.corrected(10, 6, 5.0, q.decay(0.1, 4))) == pytest.approx(0.1036, abs=1e-4)
    gamma = q.theory_decay(30)
    for delta, expected in ((1.0, 0.0361), (10.0, 0.0094), (50.0, 0.0020), (-1.0, 0.0421)):
        assert q.largest_stable(q.corrected(40, 10, delta, gamma)) == pytest.approx(expected, abs=1.5e-4)


@pytest.mark.parametrize("delta", [0.0, 2.0])
@pytest.mark.parametrize(("forward", "backward"), [(4, 0), (5, 3), (3, 3)])
def test_the_polynomial_is_that_of_the_recurrence(forward: int, backward: int, delta: float) -> None:
    """The growth of a noiseless run is the largest eigenvalue."""
    alpha = 0.2
    ring = list(np.random.default_rng(0).standard_normal(forward + 1))
    for _ in range(400):
        gradient = (1 + delta) * ring[-1 - forward] - delta * ring[-1 - backward]
        ring.append(ring[-1] - alpha * gradient)
        scale = max(abs(value) for value in ring[-forward - 2 :])
        ring = [value / scale for value in ring[-forward - 2 :]]
    growths = []
    for _ in range(4000):  # oscillating modes: the mean growth over many steps
        ring.append(ring[-1] - alpha * ((1 + delta) * ring[-1 - forward] - delta * ring[-1 - backward]))
        scale = max(abs(value) for value in ring[-forward - 2 :])
        growths.append(np.log(scale))
        ring = [value / scale for value in ring[-forward - 2 :]]
    radius = q.with_discrepancy(forward, backward, delta).radius(alpha)
    assert np.exp(np.mean(growths)) == pytest.approx(radius, abs=2e-3)


def test_t2s_polynomial_is_that_of_the_recurrence() -> None:
    forward, delta, alpha = 5, 2.0, 0.12
    gamma = q.decay(0.3, forward)
    ring, average, growths = list(np.random.default_rng(1).standard_normal(forward + 1)), 0.0, []
    for step in range(6000):
        read = ring[-1] - forward * average
        fresh = ring[-1] - alpha * ((1 + delta) * ring[-1 - forward] - delta * read)
        average = gamma * average + (1 - gamma) * (fresh - ring[-1])
        ring = [*ring[-forward:], fresh]
        scale = max(*(abs(value) for value in ring), abs(average))
        ring, average = [value / scale for value in ring], average / scale
        if step >= 1000:
            growths.append(np.log(scale))
    expected = q.corrected(forward, 0, delta, gamma).radius(alpha)
    assert np.exp(np.mean(growths)) == pytest.approx(expected, abs=2e-3)


def test_lemmas_2_and_3_bound_the_stable_range() -> None:
    for tau in (2, 7, 30):
        for delta in (0.1, 1.0, 20.0):
            assert q.largest_stable(q.with_discrepancy(tau, tau // 2, delta)) <= q.lemma_2(tau, tau // 2, delta)
        for beta in (0.0, 0.5, 0.99):
            assert q.largest_stable(q.with_momentum(tau, beta)) <= q.lemma_3(tau)
        assert q.largest_stable(q.with_momentum(tau, 0.0)) == pytest.approx(q.lemma_1(tau))


@pytest.mark.parametrize(
    ("forward", "backward", "delta", "curvature"), [(10, 6, 5.0, 1.0), (10, 6, 0.01, 1.0), (7, 0, 0.3, 2.5)]
)
def test_lemmas_2_and_3_are_as_printed(forward: int, backward: int, delta: float, curvature: float) -> None:
    """Sections 3.2 and B.2: a looser bound would hold as well."""
    by_discrepancy, by_delay = 2 / (delta * (forward - backward)), 2 / curvature * sin(pi / (4 * forward + 2))
    assert q.lemma_2(forward, backward, delta, curvature) == pytest.approx(min(by_discrepancy, by_delay))
    assert q.lemma_3(forward, curvature) == pytest.approx(4 / curvature * sin(pi / (4 * forward + 2)))


@pytest.mark.parametrize("gap", [1, 4, 30])
def test_the_theorys_decay_rids_the_expansion_of_delta(gap: int) -> None:
    """B.4: the term in Delta has the factor 1 + gamma - (1 - gamma)(tau_fwd - tau_bkwd)."""
    gamma = q.theory_decay(gap)
    assert 1 + gamma - (1 - gamma) * gap == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("w", [0.3 + 0.9j, -1.1 + 0.2j, 0.7])
def test_the_polynomial_with_recomputation_is_the_printed_one(w: complex) -> None:
    """D.1, at the delays and sensitivities of Figure 16; without T2 every read is of the weights as they were."""
    forward, backward, recompute, delta, phi, gamma, curvature, alpha = 10, 1, 4, 10.0, -5.0, 0.77, 1.5, 0.03
    back, again = w ** (forward - backward), w ** (forward - recompute)
    printed = (w - 1) * (w - gamma) * w**forward + alpha * (curvature + delta) * (w - gamma)
    printed -= alpha * (delta - phi) * back * (w - gamma)
    printed += alpha * (delta - phi) * back * (forward - backward) * (1 - gamma) * (w - 1)
    printed -= alpha * phi * again * (w - gamma)
    printed += alpha * phi * again * (forward - recompute) * (1 - gamma) * (w - 1)
    model = q.recomputed(forward, backward, recompute, delta, phi, gamma, curvature)
    assert model.at(alpha)(w) == pytest.approx(printed)
    plain = w ** (forward + 1) - w**forward + alpha * (curvature + delta - (delta - phi) * back - phi * again)
    assert q.recomputed_plainly(forward, backward, recompute, delta, phi, curvature).at(alpha)(w) == pytest.approx(
        plain
    )


def test_trajectories_end_where_the_eigenvalues_say() -> None:
    stable = q.trajectories(10, 10, 0.0, 0.14, 2000, seed=0, runs=4)
    unstable = q.trajectories(10, 10, 0.0, 0.17, 2000, seed=0, runs=4)
    assert stable[-100:].mean() < 100 < unstable[-100:].mean()


@pytest.mark.filterwarnings("error::RuntimeWarning")  # NumPy's; not all, as an earlier test may have left a file open
def test_a_trajectory_that_diverges_beyond_all_numbers_says_nothing_else() -> None:
    losses = q.trajectories(5, 2, 0.3, 1e6, 300, seed=0)
    assert np.isfinite(losses[:20]).all() and not np.isfinite(losses[-1]).any()


@pytest.mark.parametrize(("forward", "backward"), [(3, 1), (2, 2), (4, 0)])
def test_trajectories_are_those_of_equation_5(forward: int, backward: int) -> None:
    """From w = 1, with noise of its own in every run; the loss is lambda w^2 / 2."""
    delta, alpha, curvature, steps, runs = 1.5, 0.1, 2.0, 12, 3
    w = [np.ones(runs)] * (forward + 1)
    for noise in np.random.default_rng(4).standard_normal((steps, runs)):
        gradient = (curvature + delta) * w[-1 - forward] - delta * w[-1 - backward] + noise
        w.append(w[-1] - alpha * gradient)
    losses = q.trajectories(forward, backward, delta, alpha, steps, seed=4, curvature=curvature, runs=runs)
    assert losses == pytest.approx(curvature / 2 * np.array(w[forward:]) ** 2)


def test_regression_diverges_beyond_the_bound() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((256, 3))
    targets = inputs @ np.ones(3)
    top = float(np.linalg.eigvalsh(inputs.T @ inputs / 256).max())
    bound = q.lemma_1(4, top)
    losses = q.regression_losses(inputs, targets, [0.5 * bound, 1.6 * bound], 4, 3000, seed=0)
    assert losses[0] < 1e-3
    assert np.isnan(losses[1])


@pytest.mark.parametrize("tau", [0, 1, 3])
def test_the_regression_is_delayed_sgd_sample_by_sample(tau: int) -> None:
    rng = np.random.default_rng(1)
    inputs, targets, alpha = rng.standard_normal((20, 3)), rng.standard_normal(20), 0.2
    w = [np.zeros(3)] * (tau + 1)
    for pick in np.random.default_rng(6).integers(20, size=(7, 5)):
        gradients = [(inputs[i] @ w[-1 - tau] - targets[i]) * inputs[i] for i in pick]
        w.append(w[-1] - alpha * np.mean(gradients, axis=0))
    expected = np.mean((inputs @ w[-1] - targets) ** 2) / 2
    losses = q.regression_losses(inputs, targets, [alpha], tau, 7, seed=6, batch=5)
    assert losses == pytest.approx([expected])


def test_momentum_without_a_delay_is_heavy_balls(beta: float = 0.5, curvature: float = 2.0) -> None:
    """x^2 - (1 + beta - alpha lambda) x + beta: stable below 2 (1 + beta) / lambda, within lemma 3's bound."""
    model = q.with_momentum(0, beta, curvature)
    assert model.at(0.1).coef == pytest.approx([beta, -(1 + beta - 0.1 * curvature), 1.0])
    assert q.largest_stable(model) == pytest.approx(2 * (1 + beta) / curvature)
    assert q.largest_stable(model) <= q.lemma_3(0, curvature)


def test_bad_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelagError, match="from 0 on"):
        q.delayed(-1)
    with pytest.raises(PipelagError, match="cannot be below"):
        q.with_discrepancy(3, 5, 1.0)
    with pytest.raises(PipelagError, match="cannot be below"):
        q.trajectories(3, 5, 1.0, 0.1, 10, 0)
    with pytest.raises(PipelagError, match="decay D should be between 0 and 1"):
        q.decay(1.0, 3)
    with pytest.raises(PipelagError, match="momentum should be between"):
        q.with_momentum(3, 1.5)
    with pytest.raises(PipelagError, match="a forward delay above the backward's, not delays of 3 and 3"):
        q.lemma_2(3, 3, 1.0)
    with pytest.raises(PipelagError, match="lemma 2 needs a sensitivity Delta above 0, not 0"):
        q.lemma_2(3, 1, 0.0)
    with pytest.raises(
        PipelagError, match="greater than the backward's, not greater by 0: there is nothing to correct"
    ):
        q.decay(0.5, 0)
    with pytest.raises(PipelagError, match="the decay of T2's average should be from 0 to below 1, not 1"):
        q.corrected(3, 1, 1.0, 1.0)
    with pytest.raises(ValueError, match="did you mean 'radius'"):
        RunSpec(kind="theory", options={"study": "radii"})
    with pytest.raises(ValueError, match="option 'alphas' of a theory run is missing"):
        RunSpec(kind="theory", options={"study": "radius", "forward": 3})
    momentum = {"study": "radius", "forward": 3, "momentum": 0.9, "alphas": [0.1, 0.2, 2]}
    assert RunSpec(kind="theory", options=momentum | {"curvature": 2.0}).steps == 0
    with pytest.raises(
        ValueError, match="the model with momentum takes only a forward delay and a curvature; leave delta out"
    ):
        RunSpec(kind="theory", options=momentum | {"delta": 5.0})


def test_the_regression_reads_a_named_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, 3))
    text = "".join(f"{r.sum():.4f} " + " ".join(f"{i + 1}:{v:.4f}" for i, v in enumerate(r)) + "\n" for r in rows)
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "cpusmall").write_text(text)
    monkeypatch.setenv("PIPELAG_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setenv("PIPELAG_DATA", str(tmp_path / "downloads"))
    options = {"study": "regression", "alphas": [0.01, 0.02, 2], "taus": [1], "steps": 50, "data": "cpusmall"}
    summary = study(RunSpec(kind="theory", options=options), tmp_path / "run", "cpu", 1)
    assert summary["rows"] == 2 and summary["data"]["release"].startswith("not verified ")
    by_name = (tmp_path / "run" / "metrics.jsonl").read_text()
    by_file = options | {"data": None, "file": str(tmp_path / "mirror" / "cpusmall")}
    study(RunSpec(kind="theory", options=by_file), tmp_path / "again", "cpu", 1)
    assert (tmp_path / "again" / "metrics.jsonl").read_text() == by_name
    with pytest.raises(PipelagError, match="unknown downloadable data set 'cpusmal'; did you mean 'cpusmall'"):
        study(RunSpec(kind="theory", options=options | {"data": "cpusmal"}), tmp_path / "bad", "cpu", 1)
    (tmp_path / "mirror" / "cpusmall").write_text("no numbers\n")
    with pytest.raises(PipelagError, match="when it was first seen"):
        study(RunSpec(kind="theory", options=options), tmp_path / "bad", "cpu", 1)


def test_every_study_has_typed_options() -> None:
    assert set(theory.STUDIES) == set(options.STUDIES)


@pytest.mark.parametrize(("gap", "backward"), [(1, 0), (2, 3), (7, 0), (30, 10)])
def test_the_gamma_free_of_delta_is_that_of_the_appendix(gap: int, backward: int) -> None:
    """B.4: p(1), p'(1) and p''(1) as printed there, over step sizes, curvatures and Deltas."""
    gamma = free_of_delta(backward + gap, backward)
    assert gamma == pytest.approx(1 - 2 / (gap + 1), abs=1e-12)
    alpha, curvature = 0.01, 3.0
    for delta in (-5.0, 0.0, 100.0):
        p = corrected(backward + gap, backward, delta, gamma, curvature).at(alpha)
        assert p(1.0) == pytest.approx(alpha * curvature * (1 - gamma), abs=1e-9)
        assert p.deriv(1)(1.0) == pytest.approx(alpha * curvature + 1 - gamma, abs=1e-9)
        assert p.deriv(2)(1.0) == pytest.approx(2 * (backward + gap) * (1 - gamma) + 2, abs=1e-9)
    other = corrected(backward + gap, backward, 100.0, 0.9, curvature).at(alpha)
    assert gamma != 0.9 and abs(other.deriv(2)(1.0) - 2 * (backward + gap) * 0.1 - 2) > 0.1
