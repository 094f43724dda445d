"""The quadratic model of delayed SGD (PipeMare section 3, appendix B): f(w) = lambda w^2 / 2 with stale gradients.

Each variant's characteristic polynomial is A(x) + alpha B(x), linear in the step size alpha. Delayed SGD is stable if
all roots of the polynomial, the eigenvalues of its companion matrix, lie inside the unit circle. The roots move
continuously with alpha, so stability ends where a root crosses the circle: at x = exp(i omega) with real alpha = -A/B.
`largest_stable` finds that alpha.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import pi, sin

import numpy as np
from numpy.polynomial import Polynomial

from pipelag.errors import PipelagError


@dataclass(frozen=True)
class Characteristic:
    """The characteristic polynomial A(x) + alpha B(x), with A = `constant` and B = `slope`."""

    constant: Polynomial
    slope: Polynomial

    def at(self, alpha: float) -> Polynomial:
        """The polynomial at a step size."""
        a, b = (np.asarray(part.coef, dtype=float) for part in (self.constant, self.slope))
        coefficients = np.zeros(max(len(a), len(b)))
        coefficients[: len(a)] = a
        coefficients[: len(b)] += alpha * b
        return Polynomial(coefficients)

    def radius(self, alpha: float) -> float:
        """The largest absolute eigenvalue of the companion matrix at this step size."""
        return float(np.abs(companion_eigenvalues(self.at(alpha))).max())


def companion_eigenvalues(polynomial: Polynomial) -> np.ndarray:
    """The eigenvalues of a polynomial's companion matrix, which are its roots."""
    coefficients = polynomial.trim().coef
    degree = len(coefficients) - 1
    companion = np.zeros((degree, degree))
    companion[0] = -coefficients[-2::-1] / coefficients[-1]
    companion[np.arange(1, degree), np.arange(degree - 1)] = 1
    return np.linalg.eigvals(companion)


def _sum(*terms: tuple[int, float]) -> Polynomial:
    """The sum of terms (power of x, coefficient), added in this order: numpy's own sums of polynomials take longer."""
    coefficients = [0.0] * (1 + max((power for power, coefficient in terms if coefficient), default=0))
    for power, coefficient in terms:
        if coefficient:
            coefficients[power] += coefficient
    return Polynomial(coefficients)


def _check(tau: int, *others: int) -> None:
    for delay in (tau, *others):
        if delay < 0:
            raise PipelagError(f"a delay should be a number of steps from 0 on, not {delay}")
    if others and tau < max(others):
        raise PipelagError(f"the forward's delay {tau} cannot be below the backward's or the recomputation's {others}")


def delayed(tau: int, curvature: float = 1.0) -> Characteristic:
    """w' = w - alpha lambda w_{t - tau} (section 3, equation 3): x^(tau+1) - x^tau + alpha lambda."""
    _check(tau)
    return Characteristic(_sum((tau + 1, 1.0), (tau, -1.0)), _sum((0, curvature)))


def with_momentum(tau: int, beta: float, curvature: float = 1.0) -> Characteristic:
    """With momentum (B.2): x^(tau+1) - (1+beta) x^tau + beta x^(tau-1) + alpha lambda; for tau = 0, multiplied by x."""
    _check(tau)
    if not 0 <= beta <= 1:
        raise PipelagError(f"momentum should be between 0 and 1, not {beta}")
    low = max(tau - 1, 0)
    constant = _sum((low + 2, 1.0), (low + 1, -(1 + beta)), (low, beta))
    return Characteristic(constant, _sum((low + 1 - tau, curvature)))


def with_discrepancy(forward: int, backward: int, delta: float, curvature: float = 1.0) -> Characteristic:
    """Forward and backward with different delays (3.2, equation 5): gradient (lambda + Delta) w_f - Delta w_b."""
    _check(forward, backward)
    slope = _sum((0, curvature + delta), (forward - backward, -delta))
    return Characteristic(_sum((forward + 1, 1.0), (forward, -1.0)), slope)


def corrected(forward: int, backward: int, delta: float, gamma: float, curvature: float = 1.0) -> Characteristic:
    """With T2's correction (B.4): the backward reads w_b - (tau_f - tau_b) * (the averaged step)."""
    return recomputed(forward, backward, backward, delta, 0.0, gamma, curvature)


def recomputed(
    forward: int, backward: int, recompute: int, delta: float, phi: float, gamma: float, curvature: float = 1.0
) -> Characteristic:
    """With recomputation, w_b and w_r corrected by T2 (D.1).

    The gradient is (lambda + Delta) w_f - (Delta - Phi) w_b - Phi w_r.
    """
    _check(forward, backward, recompute)
    if not 0 <= gamma < 1:
        raise PipelagError(f"the decay of T2's average should be from 0 to below 1, not {gamma}")

    def read(weight: float, age: int) -> tuple[tuple[int, float], tuple[int, float]]:
        """weight x^gap (x - gamma - gap (1 - gamma) (x - 1))."""
        gap = forward - age
        moved = gap * (1 - gamma)
        return (gap, weight * (moved - gamma)), (gap + 1, weight * (1 - moved))

    # A = (x - 1) (x - gamma) x^forward
    constant = _sum((forward + 2, 1.0), (forward + 1, -1 - gamma), (forward, gamma))
    all_read = (*read(-(delta - phi), backward), *read(-phi, recompute))
    return Characteristic(constant, _sum((0, (curvature + delta) * -gamma), (1, curvature + delta), *all_read))


def recomputed_plainly(
    forward: int, backward: int, recompute: int, delta: float, phi: float, curvature: float = 1.0
) -> Characteristic:
    """With recomputation and no correction: weights with three delays in one gradient (D.1)."""
    _check(forward, backward, recompute)
    slope = _sum((0, curvature + delta), (forward - backward, -(delta - phi)), (forward - recompute, -phi))
    return Characteristic(_sum((forward + 1, 1.0), (forward, -1.0)), slope)


def decay(d: float, gap: int) -> float:
    """T2's gamma = D^(1 / gap), with gap = tau_f - tau_b (section 3.2)."""
    if not 0 < d < 1:
        raise PipelagError(f"the decay D should be between 0 and 1, not {d}")
    if gap < 1:
        raise PipelagError(
            f"the forward's delay should be greater than the backward's, not greater by {gap}: there is nothing to "
            "correct"
        )
    return float(d ** (1 / gap))


def theory_decay(gap: int) -> float:
    """gamma = 1 - 2 / (tau_f - tau_b + 1), with which the expansion at omega = 1 is free of Delta (B.4)."""
    return 1 - 2 / (gap + 1)


def depends_on_delta(forward: int, backward: int, gamma: float) -> tuple[float, float, float]:
    """What Delta multiplies in the corrected polynomial's value at omega = 1 and in its first two derivatives (B.4).

    At a step size and a curvature of 1, neither of which changes where these are 0.
    """
    with_delta, without = (corrected(forward, backward, delta, gamma).slope for delta in (1.0, 0.0))
    part = with_delta - without
    return float(part(1.0)), float(part.deriv(1)(1.0)), float(part.deriv(2)(1.0))


def free_of_delta(forward: int, backward: int) -> float:
    """The gamma at which the second derivative at omega = 1 does not depend on Delta, found on the polynomial (B.4).

    That derivative is linear in gamma, so two values of it give its zero.
    """
    at_zero, at_half = (depends_on_delta(forward, backward, gamma)[2] for gamma in (0.0, 0.5))
    return 0.5 * at_zero / (at_zero - at_half)


def on_circle(polynomial: Polynomial) -> Callable[[np.ndarray], np.ndarray]:
    """The polynomial at exp(i omega) as a function of omega. Only nonzero terms are summed, of which there are few."""
    (powers,) = polynomial.coef.nonzero()
    factors = polynomial.coef[powers]
    return lambda omega: np.exp(1j * np.multiply.outer(omega, powers)) @ factors


def imaginary_part(model: Characteristic) -> tuple[np.ndarray, np.ndarray]:
    """The imaginary part of -A(x) conj(B(x)) at x = exp(i omega), whose sign is that of -A/B's, as a sum of few sines.

    A and B have real coefficients, so their product, with powers x^(i-j), has the part sum(factors sin(powers omega)).

    Returns:
        powers, from 1 on, and factors.
    """
    a, b = np.asarray(model.constant.coef, dtype=float), np.asarray(model.slope.coef, dtype=float)
    product, middle = np.convolve(a, b[::-1]), len(b) - 1  # the index of x^0
    after, before = product[middle + 1 :], product[:middle][::-1]
    odd = np.zeros(max(len(after), len(before)))
    odd[: len(after)] += after
    odd[: len(before)] -= before
    (places,) = odd.nonzero()
    return places + 1, -odd[places]


@lru_cache(maxsize=4)
def _grid(points: int) -> np.ndarray:
    """The upper half circle in so many steps, without omega = 0."""
    return np.linspace(0, np.pi, points + 1)[1:]


@lru_cache(maxsize=128)
def _sines(points: int, power: int) -> np.ndarray:
    """sin(power omega) on the grid: sweeps over thousands of models ask for the same few."""
    return np.sin(_grid(points) * power)


def polished(model: Characteristic, omegas: np.ndarray) -> np.ndarray:
    """Refine zeros of the imaginary part to a float's last digits, by two Newton steps on A and B themselves.

    Near omega = 0, sines with large factors cancel, and `imaginary_part` is good to no more than ten digits there.
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
    """(alpha, omega) for every root on the unit circle at a positive step size, in order of alpha.

    -A/B at exp(i omega) is evaluated at `points` points of the upper half circle. Where its imaginary part changes
    sign, bisection and then Newton steps (`polished`) find the zero.
    """
    omegas = _grid(points)
    powers, factors = imaginary_part(model)
    sines = np.empty((points, len(powers)))
    for place, power in enumerate(powers):
        sines[:, place] = _sines(points, int(power))
    values = sines @ factors
    (changes,) = np.nonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    low, high, below = omegas[changes], omegas[changes + 1], np.sign(values[changes])
    for _ in range(24):  # to half of the digits; each Newton step doubles them
        middle = (low + high) / 2
        same = np.sign(np.sin(np.multiply.outer(middle, powers)) @ factors) == below
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    zeros = [*polished(model, low), *omegas[:-1][values[:-1] == 0]]  # and zeros on the grid itself
    if abs(values[-1]) < 1e-9:  # omega = pi, where both polynomials are real
        zeros.append(np.pi)
    there = np.array(zeros, dtype=float)
    divisors = on_circle(model.slope)(there)
    there, divisors = there[abs(divisors) > 1e-12], divisors[abs(divisors) > 1e-12]
    alphas = (-on_circle(model.constant)(there) / divisors).real
    return sorted((float(alpha), float(omega)) for alpha, omega in zip(alphas, there, strict=True) if alpha > 1e-12)


def largest_stable(model: Characteristic, points: int = 20_000) -> float:
    """The largest step size below which all are stable; 0 if there is none, infinity if all step sizes are stable.

    Stability can change only at a crossing. The eigenvalues between two crossings show whether that interval is stable.
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
    """Lemma 1: without discrepancy, the largest stable step size is (2 / lambda) sin(pi / (4 tau + 2))."""
    return 2 / curvature * sin(pi / (4 * tau + 2))


def lemma_2(forward: int, backward: int, delta: float, curvature: float = 1.0) -> float:
    """Lemma 2: with discrepancy, some step size up to min(2 / (Delta (tau_f - tau_b)), lemma 1's bound) is unstable."""
    if delta <= 0:
        raise PipelagError(f"lemma 2 needs a sensitivity Delta above 0, not {delta}")
    if forward <= backward:
        raise PipelagError(
            f"lemma 2 needs a forward delay above the backward's, not delays of {forward} and {backward}"
        )
    return min(2 / (delta * (forward - backward)), lemma_1(forward, curvature))


def lemma_3(tau: int, curvature: float = 1.0) -> float:
    """Lemma 3: with any momentum, some step size up to (4 / lambda) sin(pi / (4 tau + 2)) is unstable."""
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
    """Losses of delayed SGD with N(0, 1) gradient noise, from w = 1: an array (steps + 1, runs) (Figures 5a and 6a)."""
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
    """The final loss of delayed SGD on least squares, one per step size in `alphas`; NaN if it diverged (Figure 5b).

    Every step uses `batch` random samples, the same for all step sizes. The loss is half the mean squared error over
    all samples.
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
