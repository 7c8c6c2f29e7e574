"""Rows of sampled kernels (paper, the line "Generate"): distributions on the support, whatever the weights."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import special, stats
from tests.safe_psrl.cases import spec_of

from safe_psrl import Constraint
from safe_psrl.posterior.draws import draw_kernel, gamma_draw, log_gamma_draw
from safe_psrl.posterior.streams import POSTERIOR, stream_of

LEAST_PRIOR, GREATEST_PRIOR = 1e-300, 2.0**53


def rows(alpha: list[float], draws: int, counts: list[int] | None = None) -> np.ndarray:
    """[draws, S]: independent rows of one pair."""
    prior = np.broadcast_to(np.array(alpha), (1, draws, 1, len(alpha))).copy()
    seen = np.broadcast_to(np.array(counts or [0] * len(alpha), np.int64), prior.shape).copy()
    p = np.full(prior.shape, np.nan)
    draw_kernel(stream_of(1, 1, POSTERIOR), prior, seen, p)
    return p[0, :, 0]


def assert_mean(drawn: np.ndarray, alpha: np.ndarray) -> None:
    """Within 4.5 standard errors of alpha / w, the Dirichlet's variance being m (1 - m) / (w + 1)."""
    mean = alpha / alpha.sum()
    error = np.sqrt(mean * (1 - mean) / (alpha.sum() + 1) / len(drawn))
    assert (abs(drawn.mean(axis=0) - mean) <= 4.5 * error + 1e-15).all()


@given(
    arrays.arrays(np.float64, st.integers(1, 8), elements=st.sampled_from([0.0, 1e-300, 1e-6, 1e-3, 0.1, 1.0, 50.0, 2.0**53])),
    st.integers(0, 2**40),
    st.integers(0, 2**63 - 1),
)
def test_rows_are_distributions_on_the_support(alpha: np.ndarray, count: int, seed: int) -> None:
    """Rows sum to 1 and are 0 where the prior is 0; a row without support, of an unavailable action, is all 0."""
    prior = alpha.reshape(1, 1, 1, -1)
    counts = np.zeros(prior.shape, np.int64)
    counts[..., -1] = count
    p = np.full(prior.shape, np.nan)
    draw_kernel(stream_of(seed, 1, POSTERIOR), prior, counts, p)
    assert (p[prior == 0] == 0).all()
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1.0 if alpha.any() else 0.0, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-100, 1e-300])
def test_tiny_weights_give_finite_rows_of_the_right_mean(scale: float) -> None:
    """Gamma draws of tiny weights all underflow; the row is then nearly a corner, each with its share of the weight."""
    alpha = np.array([0.5, 0.3, 0.2]) * scale
    drawn = rows(alpha.tolist(), 20_000)
    assert np.isfinite(drawn).all()
    assert drawn.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    assert_mean(drawn, alpha)
    assert (drawn.max(axis=1) > 0.999).mean() >= 1 - 20 * scale


def test_rows_have_the_moments_of_a_dirichlet() -> None:
    """Mean alpha / w, variance m (1 - m) / (w + 1), covariance -m m' / (w + 1)."""
    alpha = np.array([0.1, 0.5, 1.4, 2.0])
    drawn, mean = rows(alpha.tolist(), 40_000), alpha / 4
    assert_mean(drawn, alpha)
    assert np.cov(drawn.T) == pytest.approx((np.diag(mean) - np.outer(mean, mean)) / 5, abs=1e-3)


def log_gamma_cdf(log_draws: np.ndarray, shape: float) -> np.ndarray:
    """P(log G <= y); below exp(-30) by the series x^a / Gamma(a + 1), where x itself would underflow."""
    series = np.exp(np.minimum(shape * log_draws - special.gammaln(shape + 1), 0))
    return np.where(log_draws < -30, series, stats.gamma.cdf(np.exp(np.maximum(log_draws, -30)), shape))


@pytest.mark.parametrize("shape", [1e-6, 1e-3, 0.1, 0.3, 0.999, 1.0, 1.1, 2.0, 17.5, 1e3, 1e6])
def test_gamma_draws_have_the_exact_distribution(shape: float) -> None:
    """Kolmogorov and Smirnov's test against scipy's distribution, at a fixed seed: below, at and above shape 1."""
    stream = stream_of(5, 1, POSTERIOR)
    log_draws = np.array([log_gamma_draw(stream, shape) for _ in range(20_000)])
    assert np.isfinite(log_draws).all()
    assert stats.kstest(log_draws, lambda y: log_gamma_cdf(y, shape)).pvalue > 1e-3


def test_gamma_draws_of_the_greatest_weight_are_normal() -> None:
    """At shape 2^53, Gamma(a) is normal with mean and variance a."""
    stream, shape = stream_of(6, 1, POSTERIOR), GREATEST_PRIOR
    draws = np.array([gamma_draw(stream, shape) for _ in range(20_000)])
    assert stats.kstest((draws - shape) / math.sqrt(shape), "norm").pvalue > 1e-3


def test_an_observation_outweighs_a_tiny_prior() -> None:
    """After one visit, a prior of 1e-300 leaves nothing to the other next states."""
    drawn = rows([1e-300, 1e-300], 100, [0, 1])
    assert drawn[:, 1] == pytest.approx(1.0, abs=1e-15)


def test_huge_counts_give_the_frequencies() -> None:
    """With 2^40 observations a row is their frequencies, to the Dirichlet's small deviation."""
    counts = [2**40, 2**39, 0, 2**38]
    drawn = rows([0.1] * 4, 2000, counts)
    assert drawn.sum(axis=1) == pytest.approx(1.0, abs=1e-12)
    assert_mean(drawn, 0.1 + np.array(counts, float))
    deviation = math.sqrt(4 / 7 * 3 / 7 / (7 * 2**38))
    assert drawn[:, 0].std() == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize("prior", [0.0, -1.0, 5e-324, 1e-308, 1e300])
def test_weights_that_no_row_can_be_drawn_from_are_refused(prior: float) -> None:
    """Below 1e-300 logarithms overflow; above 2^53 an observation would be lost to rounding, and sums overflow."""
    with pytest.raises(ValueError, match="dirichlet_prior"):
        spec_of(1, [[0], [0]], Constraint("c", [[0], [0]], 1, 0), dirichlet_prior=prior)
