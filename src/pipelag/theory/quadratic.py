"""The quadratic model of delayed SGD (PipeMare section 3, appendix B): f(w) = lambda w^2 / 2 with stale gradients.

Each variant's characteristic polynomial is A(x) + alpha B(x), linear in the step size alpha. Delayed SGD is stable
where all its roots, the eigenvalues of the companion matrix, lie inside the unit circle. Roots move with alpha
continuously, so stability ends where one crosses the circle: at x = exp(i omega) with alpha = -A/B real, which
`largest_stable` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, sin

import numpy as np
from numpy.polynomial import Polynomial

from pipelag.errors import PipelagError


@dataclass(frozen=True)
class Characteristic:
    """A(x) + alpha B(x)."""

    constant: Polynomial
    slope: Polynomial

    def at(self, alpha: float) -> Polynomial:
        """The polynomial at a step size."""
        return self.constant + alpha * self.slope

    def radius(self, alpha: float) -> float:
        """The largest absolute eigenvalue of the companion matrix at this step size."""
        return float(np.abs(companion_eigenvalues(self.at(alpha))).max())


def companion_eigenvalues(polynomial: Polynomial) -> np.ndarray:
    """The eigenvalues of a polynomial's companion matrix: its roots."""
    coefficients = polynomial.trim().coef
    degree = len(coefficients) - 1
    companion = np.zeros((degree, degree))
    companion[0] = -coefficients[-2::-1] / coefficients[-1]
    companion[np.arange(1, degree), np.arange(degree - 1)] = 1
    return np.linalg.eigvals(companion)


def _x(power: int) -> Polynomial:
    return Polynomial([0.0] * power + [1.0])


def _check(tau: int, *others: int) -> None:
    for delay in (tau, *others):
        if delay < 0:
            raise PipelagError(f"a delay should be a number of steps from 0 on, not {delay}")
    if others and tau < max(others):
        raise PipelagError(f"the forward's delay {tau} cannot be below the backward's or the recomputation's {others}")


def delayed(tau: int, curvature: float = 1.0) -> Characteristic:
    """w' = w - alpha lambda w_{t - tau} (section 3, equation 3): x^(tau+1) - x^tau + alpha lambda."""
    _check(tau)
    return Characteristic(_x(tau + 1) - _x(tau), Polynomial([curvature]))


def with_momentum(tau: int, beta: float, curvature: float = 1.0) -> Characteristic:
    """With momentum (B.2): x^(tau+1) - (1+beta) x^tau + beta x^(tau-1) + alpha lambda, without a delay times x."""
    _check(tau)
    if not 0 <= beta <= 1:
        raise PipelagError(f"momentum should be between 0 and 1, not {beta}")
    low = max(tau - 1, 0)
    return Characteristic(_x(low + 2) - (1 + beta) * _x(low + 1) + beta * _x(low), curvature * _x(low + 1 - tau))


def with_discrepancy(forward: int, backward: int, delta: float, curvature: float = 1.0) -> Characteristic:
    """Forward and backward of different ages (3.2, equation 5): the gradient is (lambda + Delta) w_f - Delta w_b."""
    _check(forward, backward)
    slope = Polynomial([curvature + delta]) - delta * _x(forward - backward)
    return Characteristic(_x(forward + 1) - _x(forward), slope)


def corrected(forward: int, backward: int, delta: float, gamma: float, curvature: float = 1.0) -> Characteristic:
    """With T2's correction (B.4): the backward reads w_b - (tau_f - tau_b) times the averaged step."""
    return recomputed(forward, backward, backward, delta, 0.0, gamma, curvature)


def recomputed(
    forward: int, backward: int, recompute: int, delta: float, phi: float, gamma: float, curvature: float = 1.0
) -> Characteristic:
    """With recomputation, corrected alike (D.1): gradient (l + Delta) w_f - (Delta - Phi) w_b - Phi w_r."""
    _check(forward, backward, recompute)
    if not 0 <= gamma < 1:
        raise PipelagError(f"the decay of T2's average should be from 0 to below 1, not {gamma}")
    smooth, ones = Polynomial([-gamma, 1.0]), Polynomial([-1.0, 1.0])

    def read(weight: float, age: int) -> Polynomial:
        gap = forward - age
        return weight * _x(gap) * (smooth - gap * (1 - gamma) * ones)

    slope = (curvature + delta) * smooth - read(delta - phi, backward) - read(phi, recompute)
    return Characteristic(ones * smooth * _x(forward), slope)


def recomputed_plainly(
    forward: int, backward: int, recompute: int, delta: float, phi: float, curvature: float = 1.0
) -> Characteristic:
    """With recomputation and no correction: three ages of weights in one gradient (D.1)."""
    _check(forward, backward, recompute)
    slope = Polynomial([curvature + delta]) - (delta - phi) * _x(forward - backward) - phi * _x(forward - recompute)
    return Characteristic(_x(forward + 1) - _x(forward), slope)


def decay(d: float, gap: int) -> float:
    """gamma = D^(1 / (tau_f - tau_b)) (section 3.2)."""
    if not 0 < d < 1:
        raise PipelagError(f"the decay D should be between 0 and 1, not {d}")
    if gap < 1:
        raise PipelagError(
            f"the forward's delay should be greater than the backward's, not greater by {gap}: there is nothing to "
            "correct"
        )
    return float(d ** (1 / gap))


def theory_decay(gap: int) -> float:
    """gamma = 1 - 2 / (tau_f - tau_b + 1), at which the expansion at omega = 1 is free of Delta (B.4)."""
    return 1 - 2 / (gap + 1)


def on_circle(polynomial: Polynomial) -> Callable[[np.ndarray], np.ndarray]:
    """The polynomial at exp(i omega), as a function of omega; the models' have few terms, so only those are summed."""
    (powers,) = polynomial.coef.nonzero()
    factors = polynomial.coef[powers]
    return lambda omega: np.exp(1j * np.multiply.outer(omega, powers)) @ factors


def imaginary_part(model: Characteristic) -> Callable[[np.ndarray], np.ndarray]:
    """That of -A(x) times B(x)'s conjugate at x = exp(i omega), whose sign is that of -A/B's, as a function of omega.

    A and B have real coefficients: of their product with powers x^(i-j) a sum of sines is left, of few terms.
    """
    a, b = np.asarray(model.constant.coef, dtype=float), np.asarray(model.slope.coef, dtype=float)
    product, middle = np.convolve(a, b[::-1]), len(b) - 1  # the place of x^0
    after, before = product[middle + 1 :], product[:middle][::-1]
    odd = np.zeros(max(len(after), len(before)))
    odd[: len(after)] += after
    odd[: len(before)] -= before
    (places,) = odd.nonzero()
    factors = -odd[places]
    return lambda omega: np.sin(np.multiply.outer(omega, places + 1)) @ factors


def polished(model: Characteristic, omegas: np.ndarray) -> np.ndarray:
    """Zeros of the imaginary part to a float's last digits: two of Newton's steps by A and B themselves.

    Near omega = 0 sines of large factors cancel each other, and what is left of them is no better than ten digits.
    """
    constant, slope = on_circle(model.constant), on_circle(model.slope)

    def imaginary(omega: np.ndarray) -> np.ndarray:
        return (-constant(omega) * slope(omega).conj()).imag

    for _ in range(2):
        aside = 1e-6 * omegas
        steep = (imaginary(omegas + aside) - imaginary(omegas - aside)) / (2 * aside)
        step = np.divide(imaginary(omegas), steep, out=np.zeros_like(omegas), where=steep != 0)
        omegas = np.where(abs(step) < aside, omegas - step, omegas)
    return omegas


def crossings(model: Characteristic, points: int = 20_000) -> list[tuple[float, float]]:
    """(alpha, omega) for every root on the unit circle at a positive step size, by growing alpha.

    -A/B at exp(i omega) is followed around the half circle; where its imaginary part changes sign, its zero is found by
    bisection, and then by Newton's steps (`polished`).
    """
    omegas = np.linspace(0, np.pi, points + 1)[1:]
    imaginary = imaginary_part(model)
    values = imaginary(omegas)
    (changes,) = np.nonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    low, high, below = omegas[changes], omegas[changes + 1], np.sign(values[changes])
    for _ in range(24):  # all of them at once, to the half of the digits that Newton's first step doubles
        middle = (low + high) / 2
        same = np.sign(imaginary(middle)) == below
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    zeros = [*polished(model, low), *omegas[:-1][values[:-1] == 0]]  # and those that lie on the grid
    if abs(values[-1]) < 1e-9:  # omega = pi: both polynomials are real there
        zeros.append(np.pi)
    there = np.array(zeros, dtype=float)
    divisors = on_circle(model.slope)(there)
    there, divisors = there[abs(divisors) > 1e-12], divisors[abs(divisors) > 1e-12]
    alphas = (-on_circle(model.constant)(there) / divisors).real
    return sorted((float(alpha), float(omega)) for alpha, omega in zip(alphas, there, strict=True) if alpha > 1e-12)


def largest_stable(model: Characteristic, points: int = 20_000) -> float:
    """The step size up to which all smaller ones are stable; 0 where none is, infinity where all are.

    Stability can change only at a crossing; the eigenvalues between two crossings say which side is stable.
    """
    bounds = [0.0, *(alpha for alpha, _ in crossings(model, points))]
    for i, low in enumerate(bounds):
        high = bounds[i + 1] if i + 1 < len(bounds) else 2 * low + 1
        if high - low < 1e-12:
            continue
        if model.radius((low + high) / 2) > 1 + 1e-12:
            return low
    return float("inf")


def lemma_1(tau: int, curvature: float = 1.0) -> float:
    """The largest stable step size without discrepancy: (2 / lambda) sin(pi / (4 tau + 2))."""
    return 2 / curvature * sin(pi / (4 * tau + 2))


def lemma_2(forward: int, backward: int, delta: float, curvature: float = 1.0) -> float:
    """With discrepancy, an unstable step size exists up to here: min(2 / (Delta (t_f - t_b)), lemma 1's)."""
    if delta <= 0:
        raise PipelagError(f"lemma 2 needs a sensitivity Delta above 0, not {delta}")
    if forward <= backward:
        raise PipelagError(
            f"lemma 2 needs a forward delay above the backward's, not delays of {forward} and {backward}"
        )
    return min(2 / (delta * (forward - backward)), lemma_1(forward, curvature))


def lemma_3(tau: int, curvature: float = 1.0) -> float:
    """With any momentum, an unstable step size exists up to here: (4 / lambda) sin(pi / (4 tau + 2))."""
    return 2 * lemma_1(tau, curvature)


def trajectories(
    forward: int,
    backward: int,
    delta: float,
    alpha: float,
    steps: int,
    seed: int,
    curvature: float = 1.0,
    runs: int = 1,
) -> np.ndarray:
    """Losses (steps + 1, runs) of delayed SGD with N(0, 1) gradient noise, from w = 1 (Figures 5a and 6a)."""
    _check(forward, backward)
    rng = np.random.default_rng(seed)
    weights = np.ones((forward + 1, runs))  # a ring of the last tau_f + 1 versions
    losses = np.empty((steps + 1, runs))
    losses[0] = curvature / 2
    for step in range(steps):
        now = weights[step % (forward + 1)]
        old = weights[(step - forward) % (forward + 1)]
        back = weights[(step - backward) % (forward + 1)]
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = (curvature + delta) * old - delta * back + rng.standard_normal(runs)
            fresh = now - alpha * gradient
            losses[step + 1] = curvature * fresh**2 / 2
        weights[(step + 1) % (forward + 1)] = fresh
    return losses


def regression_losses(
    inputs: np.ndarray,
    targets: np.ndarray,
    alphas: Sequence[float],
    tau: int,
    steps: int,
    seed: int,
    batch: int = 64,
) -> np.ndarray:
    """The final loss of delayed SGD on least squares, for every step size at once; NaN where it diverged (Figure 5b).

    `batch` random samples per step, the same for all step sizes; the loss is half the mean squared error over all.
    """
    rng = np.random.default_rng(seed)
    count, features = inputs.shape
    rates = np.asarray(alphas)[:, None]
    ring = np.zeros((tau + 1, len(alphas), features))
    picks = rng.integers(count, size=(steps, batch))
    with np.errstate(over="ignore", invalid="ignore"):
        for step, pick in enumerate(picks):
            x = inputs[pick]
            old = ring[(step - tau) % (tau + 1)]
            error = old @ x.T - targets[pick]
            ring[(step + 1) % (tau + 1)] = ring[step % (tau + 1)] - rates * (error @ x) / batch
        final = ring[steps % (tau + 1)]
        losses = ((final @ inputs.T - targets) ** 2).mean(1) / 2
    start = float((targets**2).mean() / 2)
    return np.where(np.isfinite(losses) & (losses < 1e3 * start), losses, np.nan)
