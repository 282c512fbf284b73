"""Noise is as private as it claims, by second formulas and by enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.integrate import quad
from scipy.stats import chisquare, kstest, norm

from carvyfl.core.errors import CarvyError
from carvyfl.privacy import noise as module
from carvyfl.privacy.noise import (
    STEP,
    GaussianNoise,
    exact_product,
    failure,
    noise_scale,
    secure_noise,
    simulated_noise,
    spent_epsilon,
    to_units,
)

LENGTH = round(1 / STEP)


def hockey_stick(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    """δ of two distributions on the same finite set."""
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def lattice(scale: float, shift: tuple[int, ...], reach: int) -> np.ndarray:
    """Probabilities of the discrete Gaussian around ``shift`` on a cube of whole numbers."""
    numbers = np.arange(-reach, reach + 1)
    one = [np.exp(-((numbers - centre) ** 2) / (2 * scale**2)) for centre in shift]
    total = np.exp(-(np.arange(-40 * math.ceil(scale), 40 * math.ceil(scale)) ** 2) / 2 / scale**2)
    product = one[0]
    for factor in one[1:]:
        product = np.multiply.outer(product, factor)
    return np.asarray(product / total.sum() ** len(shift))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("signal", [0.1, 0.5, 2.0])
def test_the_formula_is_the_integral_of_the_hockey_stick(epsilon: float, signal: float) -> None:
    def excess(y: float) -> float:
        return max(norm.pdf(y - signal) - math.exp(epsilon) * norm.pdf(y), 0.0)

    start = epsilon / signal + signal / 2  # the densities' ratio is exp(ε) here
    integral, _ = quad(excess, start, start + 40, epsabs=1e-18, limit=500)
    assert failure(epsilon, signal) == pytest.approx(integral, rel=1e-6, abs=1e-17)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("shift", [(5, 0), (4, 3), (0, 5), (-3, 4)])
def test_noise_in_two_dimensions_is_private(epsilon: float, shift: tuple[int, ...]) -> None:
    noise = GaussianNoise(epsilon, 1e-3, squared_sensitivity=25)
    reach = math.ceil(9 * noise.scale)
    there, here = (lattice(noise.scale, at, reach) for at in (shift, (0, 0)))
    assert there.sum() == pytest.approx(1, abs=1e-9)
    assert hockey_stick(there, here, epsilon) <= 1e-3
    assert hockey_stick(here, there, epsilon) <= 1e-3


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_on_the_grid_of_messages_nothing_is_wasted(epsilon: float) -> None:
    noise = GaussianNoise(epsilon, 1e-5, squared_sensitivity=LENGTH**2)
    reach = math.ceil(9 * noise.scale)
    there, here = (lattice(noise.scale, (at,), reach) for at in (LENGTH, 0))
    delta = hockey_stick(there, here, epsilon)
    assert 0.999e-5 <= delta <= 1e-5


def test_composition_by_squares_is_that_of_two_messages() -> None:
    """Two messages with shifts 3 and 4 are one of two numbers with shift (3, 4)."""
    scale, epsilon = 6.0, 1.0
    reach = math.ceil(9 * scale)
    there, here = (lattice(scale, at, reach) for at in ((3, 4), (0, 0)))
    delta = hockey_stick(there, here, epsilon)
    assert failure(epsilon, math.hypot(3 / scale, 4 / scale)) == pytest.approx(delta, rel=0.02)


@given(st.floats(0.01, 90), st.sampled_from([1e-12, 1e-5, 1e-2]))
def test_scale_and_epsilon_are_inverse(epsilon: float, delta: float) -> None:
    scale = noise_scale(epsilon, delta)
    assert failure(epsilon, 1 / scale) == pytest.approx(delta, rel=1e-3)
    assert spent_epsilon(1 / scale, delta) == pytest.approx(epsilon, rel=1e-5)


finite = st.floats(-1e3, 1e3, width=32)
wild = st.floats(width=64) | st.sampled_from([math.nan, math.inf, -math.inf, 1e300, 5e-324])


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=40), elements=wild))
def test_no_row_is_longer_than_the_bound(rows: np.ndarray) -> None:
    for row in to_units(rows):
        assert sum(int(number) ** 2 for number in row) <= LENGTH**2  # exact: Python's integers


def test_no_unit_vector_is_longer_than_the_bound() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 64))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    units = to_units(rows)
    lengths = [sum(int(number) ** 2 for number in row) for row in units]
    assert max(lengths) <= LENGTH**2
    assert min(lengths) >= 0.98 * LENGTH**2
    assert np.abs(units * STEP - rows).max() < 1.001 * STEP


@given(arrays(np.float32, (4, 7), elements=finite))
def test_a_row_depends_on_nothing_else(rows: np.ndarray) -> None:
    together = to_units(rows)
    for row, alone in zip(rows, together, strict=True):
        assert (to_units(row[None])[0] == alone).all()
        assert (
            np.abs(alone * STEP - row / max(np.linalg.norm(row.astype(float)), 1)).max()
            < 1.001 * STEP
        )


@pytest.mark.parametrize("width", [1, 7, 64, 257])
def test_other_rows_do_not_change_the_last_bit(width: int) -> None:
    rows = np.random.default_rng(0).normal(size=(1500, width)) * 3 / np.sqrt(width)
    together = to_units(rows)
    alone = np.vstack([to_units(row[None]) for row in rows])
    assert (together == alone).all()
    assert (to_units(np.asfortranarray(rows)[::-1])[::-1] == together).all()


@pytest.mark.parametrize("shape", [(1, 3), (37, 5), (1000, 64), (4097, 10)])
def test_a_product_is_exact_and_that_of_each_row_alone(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=shape) * np.exp(rng.normal(size=shape[1]) * 4)
    rows = rng.normal(size=(200, shape[0])).astype(np.float32) * np.exp(rng.normal(size=(200, 1)))
    rows[3] = 0
    together = exact_product(rows, matrix)
    alone = np.vstack([exact_product(row[None], matrix) for row in rows])
    assert (together == alone).all()
    shuffled = rng.permutation(shape[0])
    assert (exact_product(rows[:, shuffled], matrix[shuffled]) == together).all()
    size = np.abs(rows).max(axis=1, keepdims=True) * np.abs(matrix).max(axis=0) * np.sqrt(shape[0])
    assert (np.abs(together - rows.astype(np.float64) @ matrix) <= 2e-5 * size).all()


def test_a_row_that_is_not_finite_disturbs_no_other() -> None:
    rows = np.array([[np.nan, 1.0], [1.0, 2.0], [np.inf, 0.0], [1e308, 1e308]])
    product = exact_product(rows, np.array([[1.0, 3.0], [2.0, 1.0]]))
    assert product[1].tolist() == [5.0, 5.0]
    assert (to_units(product)[[0, 2, 3]] == 0).all()


@pytest.mark.parametrize("scale", [0.7, 3.0, 8526.35])
def test_the_table_is_the_discrete_gaussian(scale: float) -> None:
    """Against probabilities in extended precision, which the table does not use."""
    table = module._cumulative(scale)
    sizes = np.arange(len(table))
    exact = np.exp(-(np.longdouble(sizes) ** 2) / (2 * np.longdouble(scale) ** 2))
    exact[1:] *= 2
    exact /= exact.sum()
    parts = np.diff(np.concatenate([[np.uint64(0)], table]))
    drawn = parts.astype(np.longdouble) / np.longdouble(int(table[-1]))
    assert np.abs(drawn - exact).sum() / 2 < 1e-12
    assert table[-1] < 2**63


def test_simulated_noise_has_the_probabilities_of_the_discrete_gaussian() -> None:
    drawn = simulated_noise(200_000, 1.5)
    numbers = np.arange(-5, 6)
    expected = np.exp(-(numbers**2) / (2 * 1.5**2))
    seen = np.array([(drawn == number).sum() for number in numbers])
    assert seen.sum() > 199_500
    assert chisquare(seen, expected / expected.sum() * seen.sum()).pvalue > 1e-6
    large = simulated_noise(20_000, 8526.35)
    assert kstest(large / 8526.35, "norm").pvalue > 1e-6
    assert len(set(simulated_noise(100, 1e5))) > 90


def test_random_bits_beyond_the_table_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = itertools.chain(
        [b"\xff" * 8, b"\x02" + b"\0" * 7], itertools.repeat(b"\x03" + b"\0" * 7)
    )

    def bits(count: int) -> bytes:
        return b"".join(next(words) for _ in range(count // 8))

    monkeypatch.setattr("secrets.token_bytes", bits)
    assert simulated_noise(2, 5.0).tolist() == [0, 0]


def test_secure_noise_is_that_of_opendp_and_its_accountant_agrees() -> None:
    dp = pytest.importorskip("opendp.prelude")
    noise = GaussianNoise(2.0, 1e-5, squared_sensitivity=LENGTH**2)
    drawn = secure_noise(5000, noise.scale)
    assert drawn.dtype == np.int64
    assert kstest(drawn / noise.scale, "norm").pvalue > 1e-6
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=float)
    measured = space >> dp.m.then_gaussian(scale=noise.scale)
    assert measured.map(float(LENGTH)) == pytest.approx((LENGTH / noise.scale) ** 2 / 2, rel=1e-9)
    profile = dp.c.make_zCDP_to_approxDP(measured).map(float(LENGTH))
    assert 2.0 <= profile.epsilon(1e-5) <= 2.3  # a bound for all mechanisms of this divergence


def test_without_opendp_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opendp.prelude", None)
    with pytest.raises(CarvyError, match=r"pip install 'carvyfl\[private\]'"):
        secure_noise(3, 1.0)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0, 1e-5), (-1, 1e-5), (math.nan, 1e-5), (math.inf, 1e-5), (1e6, 1e-5), (1, 0), (1, 0.5)],
)
def test_absurd_budgets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(CarvyError, match="must be"):
        GaussianNoise(epsilon, delta, 1)


def test_noise_beyond_64_bits_is_cut_off() -> None:
    noise = GaussianNoise(1.0, 1e-5, 1)
    huge = noise.add(np.array([2**62, -(2**62)]), lambda count, scale: np.full(count, 2**62))
    assert huge.tolist() == [2**62, 0]
