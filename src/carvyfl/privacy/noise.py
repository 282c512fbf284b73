"""Gaussian noise for differential privacy, in whole numbers.

Values are multiples of :data:`STEP` and handled as integers, their units. Sums of integers are
exact, and so are the sensitivity and what the noise hides: nothing depends on the rounding of
floating-point numbers (Mironov, 2012; Casacuberta et al., 2022).

The noise is the discrete Gaussian of Canonne, Kamath and Steinke (2020). With scale √(σ² + 9) it
differs by a factor below 1 + 10⁻⁷⁰ from a function of the values plus *continuous* noise of scale
σ: that noise, followed for each number by a discrete Gaussian of scale 3 around it. So the
analytic formula of Balle and Wang (2018) holds for it, in any dimension. The proof stands in
docs/concepts/privacy.md.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carvyfl.core.checks import positive
from carvyfl.core.errors import CarvyError

STEP = 2.0**-12
"""All values of a private message are multiples of this number, before and after the noise."""
SMOOTHING = 3.0  # in units: the scale at which the integers look like the real line
MARGIN = 1 + 1e-9  # covers the solver's tolerance and the last digits of the normal integral
EPSILONS = 0.01, 100.0
DELTAS = 1e-12, 0.1
FINE = 2.0**-20  # the grid on which lengths are computed; exact up to 8,192 numbers
AT_ONCE = 1024  # rows that are rounded together
TABLE = 1 << 24  # the most entries of a table of probabilities, 128 MB

Units = npt.NDArray[np.int64]
Sampler = Callable[[int, float], Units]
"""A function of a count and a scale in units that draws so many discrete Gaussian numbers."""


@dataclass(frozen=True)
class GaussianNoise:
    """Noise that makes integer vectors (ε, δ)-differentially private.

    Parameters
    ----------
    epsilon, delta
        The guarantee for one message.
    squared_sensitivity
        The largest squared distance, in units, between the vectors of two neighbours.
    """

    epsilon: float
    delta: float
    squared_sensitivity: int

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)

    @functools.cached_property
    def signal(self) -> float:
        """Sensitivity by scale of the noise; signals of repeated messages add up in squares."""
        return 1 / (noise_scale(self.epsilon, self.delta) * MARGIN)

    @property
    def scale(self) -> float:
        """The scale of the discrete Gaussian, in units."""
        return math.hypot(math.sqrt(self.squared_sensitivity) / self.signal, SMOOTHING)

    def add(self, units: Units, sampler: Sampler) -> Units:
        """Return integers plus noise; what leaves 64 bits is cut off, which costs no privacy."""
        limit = 1 << 61
        noise = sampler(units.size, self.scale).reshape(units.shape)
        return np.clip(units, -limit, limit) + np.clip(noise, -limit, limit)


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse an ε or a δ that protects nothing, or hides everything."""
    low, high = EPSILONS
    if not low <= positive(epsilon, "`epsilon`") <= high:
        raise CarvyError(
            f"`epsilon` must be from {low:g} to {high:g}, not {epsilon:g}: above, nothing is "
            "private; below, nothing is left but noise"
        )
    low, high = DELTAS
    if not low <= positive(delta, "`delta`") <= high:
        raise CarvyError(f"`delta` must be from {low:g} to {high:g}, not {delta:g}")


def failure(epsilon: float, signal: float) -> float:
    """Return the least δ for ε under Gaussian noise of scale 1/signal and sensitivity 1.

    Balle and Wang (2018): δ = Φ(a - b) - exp(ε) Φ(-a - b) with a = signal/2 and b = ε/signal.
    """
    from scipy.special import log_ndtr  # it takes a moment to load, and few runs need it

    a, b = signal / 2, epsilon / signal
    return float(np.exp(log_ndtr(a - b)) - np.exp(epsilon + log_ndtr(-a - b)))


def noise_scale(epsilon: float, delta: float) -> float:
    """Return the least scale of Gaussian noise that is (ε, δ)-private at sensitivity 1."""
    return _root(lambda scale: failure(epsilon, 1 / scale) - delta)


def spent_epsilon(signal: float, delta: float) -> float:
    """Return the least ε at which Gaussian noise of scale 1/signal is (ε, δ)-private."""
    if failure(0.0, signal) <= delta:
        return 0.0
    return _root(lambda epsilon: failure(epsilon, signal) - delta)


def _root(excess: Callable[[float], float]) -> float:
    """Return where a falling function of a positive number crosses 0."""
    from scipy.optimize import brentq

    return float(np.exp(brentq(lambda x: excess(math.exp(x)), -20, 20, xtol=1e-13)))


def to_units(vectors: npt.NDArray[np.floating]) -> Units:
    """Round vectors, shape (n, d), to whole units; none is longer than 1 afterwards.

    A longer vector is scaled down, one that is not finite becomes 0, and one that the rounding has
    made too long is rounded towards 0. Each row depends on that row alone.
    """
    units = np.empty(vectors.shape, np.int64)
    for start in range(0, len(vectors), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        units[part] = _rounded(vectors[part].astype(np.float64))
    return units


def _rounded(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round rows to whole units.

    Only whole numbers are squared and summed, exactly and so in any order: how NumPy sums hangs on
    the number of rows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.abs(rows).max(axis=1, initial=1.0, keepdims=True)
        lengths = largest * np.sqrt(_squared(np.rint(rows / largest / FINE)))[:, None] * FINE
        rows = np.where(np.isfinite(lengths), rows / np.maximum(lengths, 1.0), 0.0) / STEP
    units, limit = np.rint(rows), STEP**-2
    long = _squared(units) > limit
    units[long] = np.trunc(rows[long])
    while (long := _squared(units) > limit).any():  # by the last bits of a division
        units[long] -= np.sign(units[long])
    return units


def _squared(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def exact_product(
    rows: npt.NDArray[np.floating], matrix: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Multiply rows, shape (n, F), by a matrix, shape (F, d), each as if it were alone.

    How a matrix product is rounded hangs on the number of rows, so one sample could change the last
    bits of another one's vector. Here each row and each column is first rounded to whole numbers
    of some 20 bits; their products add up exactly, in any order.
    """
    bits = (53 - math.ceil(math.log2(max(len(matrix), 1)))) // 2
    left, rows_step = _whole(np.asarray(rows, np.float64), bits, axis=1)
    right, columns_step = _whole(np.asarray(matrix, np.float64), bits, axis=0)
    with np.errstate(over="ignore", invalid="ignore"):  # rows that are not finite stay so
        product: npt.NDArray[np.float64] = (left @ right) * rows_step * columns_step
    return product


def _whole(
    numbers: npt.NDArray[np.float64], bits: int, axis: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return whole numbers below 2 to the power of bits, and the power of 2 that each is times."""
    _, exponents = np.frexp(np.abs(numbers).max(axis=axis, initial=0.0, keepdims=True))
    steps = np.ldexp(1.0, exponents - bits)
    return np.rint(numbers / steps), steps


def secure_noise(count: int, scale: float) -> Units:
    """Draw discrete Gaussian numbers with OpenDP's exact sampler and the system's random bits."""
    try:
        import opendp.prelude as dp
    except ImportError as error:
        raise CarvyError(
            "a private message needs OpenDP's sampler; install it with: pip install "
            "'carvyfl[private]'"
        ) from error
    dp.enable_features("contrib")  # where OpenDP keeps what is proved, but not yet by all of them
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=float)
    return np.array((space >> dp.m.then_gaussian(scale=scale))([0] * count), np.int64)


def simulated_noise(count: int, scale: float) -> Units:
    """Draw discrete Gaussian numbers from a table, for simulations.

    A hundred times as fast as :func:`secure_noise`, from the system's random bits as well. A
    number is off the exact distribution by less than 10⁻¹² in total variation. The time it takes
    depends on the numbers, and nobody but the authors has checked it.
    """
    table, noise = _cumulative(scale), np.empty(count, np.int64)
    for start in range(0, count, 1 << 20):
        part = noise[start : start + (1 << 20)]
        part[:] = _from_table(table, len(part))
    return noise


def _from_table(table: npt.NDArray[np.uint64], count: int) -> Units:
    """Draw numbers by the inverse of their distribution; the lowest random bit is the sign."""
    bits = np.frombuffer(secrets.token_bytes(8 * count), np.uint64)
    sizes = np.searchsorted(table, bits >> np.uint64(1), side="right").astype(np.int64)
    again = sizes == len(table)  # a random number beyond the sum of all: one in a million
    numbers = np.where(bits & np.uint64(1), -sizes, sizes)
    if again.any():
        numbers[again] = _from_table(table, int(again.sum()))
    return numbers


@functools.lru_cache(maxsize=4)
def _cumulative(scale: float) -> npt.NDArray[np.uint64]:
    """Return the sums of the probabilities of 0, ±1, ±2 …, in parts of 2⁶³; they end below it."""
    size = math.ceil(9.5 * scale) + 1
    if size > TABLE:
        raise CarvyError(f"noise of {scale:,.0f} units is too large to simulate; raise `epsilon`")
    weights = np.exp(-np.square(np.arange(size) / scale) / 2)
    weights[1:] *= 2
    weights *= 2.0**63 * (1 - 2.0**-20) / weights.sum()
    return np.cumsum(np.rint(weights).astype(np.uint64))
