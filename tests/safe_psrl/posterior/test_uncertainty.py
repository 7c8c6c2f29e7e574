"""The bounds on a policy's cost, against drawing kernels from the posterior and looking, and against all kernels."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from tests.safe_psrl.cases import random_case

from safe_psrl import CmdpSpec
from safe_psrl.planning.evaluation import as_probabilities, evaluate_policy, occupancy, state_occupancy
from safe_psrl.posterior.uncertainty import (
    Belief,
    Observed,
    belief_of,
    cautious_costs,
    certain_bound,
    confident_bound,
    cost_covariance,
    course_of,
    least_cautious_cost,
    upper_signals,
)
from safe_psrl.problem.documents import spec_from_document, spec_to_document
from safe_psrl.problem.support import EVERY_STATE

VARIANTS = [{}, {"masked": True}, {"step_signals": True}, {"per_step": True, "step_signals": True}]


def random_policy(spec: CmdpSpec, seed: int) -> np.ndarray:
    """[H, S]: available actions."""
    keys = np.random.default_rng(seed).random((spec.horizon, spec.num_states, spec.num_actions))
    return np.where(spec.available_actions, keys, -1.0).argmax(axis=-1).astype(np.int32)


def random_counts(spec: CmdpSpec, p: np.ndarray, size: int, seed: int) -> np.ndarray:
    """[L, S, A, S]: what about `size` visits of each pair have shown."""
    rng = np.random.default_rng(seed)
    visits = rng.integers(size // 2, 2 * size, p.shape[:3])
    possible = np.where(p.sum(axis=-1, keepdims=True) > 0, p, 1 / spec.num_states)
    counts = rng.multinomial(visits, possible)
    return np.where(spec.support, counts, 0)


def belief_without_doubt(spec: CmdpSpec, counts: np.ndarray) -> Belief:
    belief = belief_of(spec.dirichlet_prior, spec.next_states, counts)
    belief.doubt[:] = 0.0
    return belief


def sigma_of(spec: CmdpSpec, counts: np.ndarray, policy: np.ndarray) -> float:
    belief = belief_without_doubt(spec, counts)
    course = course_of(belief, spec.signals[1], policy, spec.initial_distribution)
    return math.sqrt(cost_covariance(belief, course, course, True))


def sampled_costs(spec: CmdpSpec, counts: np.ndarray, policies: list[np.ndarray], draws: int) -> np.ndarray:
    """[draws, policies]: their costs on kernels drawn from the posterior."""
    rng = np.random.default_rng(0)
    values, costs = np.empty((2, spec.num_states)), np.empty((draws, len(policies)))
    for i in range(draws):
        gammas = rng.standard_gamma(spec.dirichlet_prior + counts)
        kernel = gammas / np.where((total := gammas.sum(axis=-1, keepdims=True)) > 0, total, 1.0)
        for j, policy in enumerate(policies):
            evaluate_policy(kernel, spec.next_states, spec.signals, policy, values)
            costs[i, j] = spec.initial_distribution @ values[1]
    return costs


@pytest.mark.parametrize("variant", VARIANTS)
def test_sigma_is_the_spread_of_the_cost_over_the_posterior(variant: dict) -> None:
    """At large counts, to 10 %: the delta method is exact in that limit, and 4,000 draws know a deviation to 1 %."""
    for seed in range(4):
        spec, p = random_case(seed, (4, 3, 5), **variant)
        policy, counts = random_policy(spec, seed), random_counts(spec, p, 400, seed)
        costs = sampled_costs(spec, counts, [policy], 4_000)
        assert sigma_of(spec, counts, policy) == pytest.approx(costs.std(), rel=0.1), seed


def test_covariance_of_two_policies() -> None:
    """Against the posterior's draws, to a twentieth of the product of the deviations."""
    for seed in range(4):
        spec, p = random_case(seed, (4, 3, 5))
        policies, counts = [random_policy(spec, seed), random_policy(spec, seed + 50)], random_counts(spec, p, 400, seed)
        belief = belief_without_doubt(spec, counts)
        first, second = (course_of(belief, spec.signals[1], policy, spec.initial_distribution) for policy in policies)
        drawn = np.cov(sampled_costs(spec, counts, policies, 4_000).T)
        tolerance = 0.05 * math.sqrt(drawn[0, 0] * drawn[1, 1])
        assert cost_covariance(belief, first, second, False) == pytest.approx(drawn[0, 1], abs=tolerance)
        assert cost_covariance(belief, second, first, False) == pytest.approx(
            cost_covariance(belief, first, second, False), rel=1e-9
        )


def test_sigma_of_one_row_by_hand() -> None:
    """Two steps from state 0 to state 1 or 2, of which 1 costs 1: sigma^2 = m (1 - m)/(w + 1) for the one row that matters."""
    cost = np.array([[[0.0], [1.0], [0.0]]])
    prior = np.zeros((1, 3, 1, 3))
    prior[0, 0, 0, 1:] = prior[0, 1, 0, 1] = prior[0, 2, 0, 2] = 0.5
    counts = np.zeros(prior.shape, np.int64)
    counts[0, 0, 0] = [0, 3, 5]
    belief, start, policy = belief_of(prior, EVERY_STATE, counts), np.array([1.0, 0.0, 0.0]), np.zeros((2, 3), np.int32)
    share = 3.5 / 9
    course = course_of(belief, cost, policy, start)
    assert cost_covariance(belief, course, course, True) == pytest.approx(share * (1 - share) / 10, rel=1e-12)
    doubt = (1 + 8 / 8) ** -2
    cautious = (1 - doubt) * share + doubt
    expected = cautious + 2 * math.sqrt(share * (1 - share) / 10)
    assert confident_bound(belief, course, start, 2.0) == pytest.approx(expected, rel=1e-12)
    assert certain_bound(belief, cost, policy, start) == 1.0


def test_sigma_falls_as_counts_grow() -> None:
    """A hundred times the same observations: about a tenth."""
    spec, p = random_case(2, (4, 3, 5))
    policy, counts = random_policy(spec, 2), random_counts(spec, p, 30, 2)
    sigmas = [sigma_of(spec, counts * factor, policy) for factor in (1, 4, 25, 100)]
    assert sigmas == sorted(sigmas, reverse=True)
    assert sigmas[3] == pytest.approx(sigmas[0] / 10, rel=0.1)


def test_pairs_that_are_never_played_do_not_count() -> None:
    """Whatever is unknown about other actions is no uncertainty of a policy that never plays them."""
    spec, p = random_case(3, (4, 3, 5))
    policy, counts = np.zeros((5, 4), np.int32), random_counts(spec, p, 50, 3)
    less = counts.copy()
    less[:, :, 1:] = 0
    assert sigma_of(spec, less, policy) == sigma_of(spec, counts, policy) > 0


def test_kernels_by_the_step_are_rows_of_their_own() -> None:
    """The same counts at every step: the steps' variances add up, where one shared row moves all steps together."""
    shared, p = random_case(4, (4, 3, 5))
    shared_counts = random_counts(shared, p, 100, 4)
    spec = spec_from_document(spec_to_document(shared) | {"stationary": False})
    policy = random_policy(spec, 4)
    counts = np.repeat(shared_counts, 5, axis=0)
    found = sigma_of(spec, counts, policy)
    assert found == pytest.approx(sampled_costs(spec, counts, [policy], 4_000).std(), rel=0.1)
    assert found != pytest.approx(sigma_of(shared, shared_counts, policy), rel=0.01)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_posteriors_mean_and_doubt(variant: dict) -> None:
    """Prior and counts, normalised; 0 outside the support; the weight is their sum; doubt is 1 without visits."""
    spec, p = random_case(6, (5, 2, 3), **variant)
    counts = random_counts(spec, p, 20, 6)
    counts[:, 0] = 0
    belief = belief_of(spec.dirichlet_prior, spec.next_states, counts)
    alpha = spec.dirichlet_prior + counts
    assert belief.weight == pytest.approx(alpha.sum(axis=-1), rel=1e-12)
    assert belief.mean == pytest.approx(alpha / alpha.sum(axis=-1, keepdims=True), rel=1e-12)
    assert not belief.mean[~spec.support].any()
    assert (belief.doubt[:, 0] == 1.0).all()
    assert belief.doubt == pytest.approx((1 + counts.sum(axis=-1) / 8) ** -2.0)


def test_a_row_without_next_states_stays_0() -> None:
    """An unavailable action may have none."""
    prior, counts = np.array([[[[0.1, 0.3], [0.0, 0.0]]] * 2]), np.zeros((1, 2, 2, 2), np.int64)
    belief = belief_of(prior, EVERY_STATE, counts)
    assert belief.mean[0, 0].tolist() == [[pytest.approx(0.25), pytest.approx(0.75)], [0.0, 0.0]]
    assert belief.weight[0, 0].tolist() == [pytest.approx(0.4), 0.0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_kernel_costs_more_than_the_certain_bound(variant: dict) -> None:
    """On 300 kernels with nearly certain rows; and the policy of least cost in the worst case has the least bound."""
    spec, _ = random_case(8, (4, 3, 5), **variant)
    rng, values, start = np.random.default_rng(8), np.empty((2, 4)), spec.initial_distribution
    belief = belief_of(spec.dirichlet_prior, spec.next_states, np.zeros(spec.dirichlet_prior.shape, np.int64))
    policy = random_policy(spec, 8)
    bound = certain_bound(belief, spec.signals[1], policy, start)
    for _ in range(300):
        gammas = np.where(spec.support, rng.gamma(0.05, size=spec.support.shape) + 1e-300, 0.0)
        kernel = gammas / np.where((total := gammas.sum(axis=-1, keepdims=True)) > 0, total, 1.0)
        evaluate_policy(kernel, spec.next_states, spec.signals, policy, values)
        assert start @ values[1] <= bound + 1e-9
    safest = np.empty_like(policy)
    least = least_cautious_cost(
        belief, np.ones_like(belief.doubt), spec.signals[1], spec.available_actions, safest, start, np.zeros(1, np.bool_)
    )
    assert least == pytest.approx(certain_bound(belief, spec.signals[1], safest, start), rel=1e-12)
    assert least <= bound


@pytest.mark.parametrize("variant", VARIANTS)
def test_occupancy_and_cost_to_go(variant: dict) -> None:
    """One somewhere at each step; its expectation of the cost is the cost-to-go of the start."""
    spec, p = random_case(7, (5, 3, 6), **variant)
    policy = random_policy(spec, 7)
    reached = state_occupancy(p, spec.next_states, policy, spec.initial_distribution)
    visits = occupancy(p, spec.next_states, as_probabilities(policy, 3), spec.initial_distribution)
    assert reached == pytest.approx(visits.sum(axis=-1), abs=1e-12)
    belief = Belief(p, np.ones(p.shape[:3]), np.zeros(p.shape[:3]), spec.next_states)
    ahead = cautious_costs(belief, belief.doubt, spec.signals[1], policy)
    assert (visits * spec.signals[1]).sum() == pytest.approx(spec.initial_distribution @ ahead[0], rel=1e-12)
    assert ahead[6].tolist() == [0.0] * 5


def upper_signal(signal: np.ndarray, learned: np.ndarray, sums: np.ndarray, visits: np.ndarray, z: float) -> np.ndarray:
    """Beside a reward that stays as it is, though it is learned too."""
    reward = np.zeros(signal.shape)
    signals, all_learned, all_sums = np.stack([reward, signal]), np.stack([learned] * 2), np.stack([reward, sums])
    both = upper_signals(Observed(np.empty((0, 0, 0, 0)), signals, all_learned, all_sums, visits), z)
    assert both[0].tolist() == reward.tolist()
    return both[1]


def test_the_upper_bound_of_a_learned_signal() -> None:
    """1 where nothing was seen; above the mean, towards it as observations grow; known entries are left alone."""
    z = NormalDist().inv_cdf(0.98)
    visits = np.array([[[0, 10, 1_000, 5]]])
    sums = np.array([[[0.0, 1.0, 10.0, 2.5]]])
    signal = np.array([[[0.0, 0.1, 0.01, 0.3]]])
    learned = np.array([[[True, True, True, False]]])
    upper = upper_signal(signal, learned, sums, visits, z)[0, 0]
    assert upper[0] == 1.0
    assert 0.1 < upper[1] < 0.5
    assert 0.01 < upper[2] < 0.02
    assert upper[3] == 0.3


@pytest.mark.parametrize("mean", [0.01, 0.1, 0.5, 0.9])
def test_the_upper_bound_holds_as_often_as_it_says(mean: float) -> None:
    """Of 20,000 samples of 200 observations, to a percent: Wilson's interval is not exact."""
    z, rng = NormalDist().inv_cdf(0.98), np.random.default_rng(1)
    sums = rng.binomial(200, mean, 20_000).astype(np.float64)[None, None]
    visits, learned = np.full(sums.shape, 200), np.ones(sums.shape, np.bool_)
    upper = upper_signal(np.zeros(sums.shape), learned, sums, visits, z)
    assert (upper >= mean).mean() >= 0.97
