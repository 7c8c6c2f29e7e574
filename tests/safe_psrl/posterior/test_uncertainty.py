"""The posterior's uncertainty about a policy's cost, against drawing kernels from the posterior and looking."""

import numpy as np
import pytest
from tests.safe_psrl.cases import random_case

from safe_psrl import CmdpSpec
from safe_psrl.planning.evaluation import evaluate_randomised, occupancy
from safe_psrl.posterior.uncertainty import LARGEST_VARIANCE, cost_deviation, costs_to_go, learned_cost_variance, smoothed_mean
from safe_psrl.problem.documents import spec_from_document, spec_to_document
from safe_psrl.problem.support import EVERY_STATE

VARIANTS = [{}, {"masked": True}, {"step_signals": True}, {"per_step": True, "step_signals": True}]


def random_policy(spec: CmdpSpec, seed: int) -> np.ndarray:
    """[H, S, A]: randomised over the available actions."""
    shape = (spec.horizon, spec.num_states, spec.num_actions)
    weights = np.where(spec.available_actions, np.random.default_rng(seed).gamma(0.5, size=shape) + 1e-9, 0.0)
    return weights / weights.sum(axis=-1, keepdims=True)


def random_counts(spec: CmdpSpec, p: np.ndarray, size: int, seed: int) -> np.ndarray:
    """[L, S, A, S]: what about `size` visits of each pair have shown."""
    rng = np.random.default_rng(seed)
    visits = rng.integers(size // 2, 2 * size, p.shape[:3])
    possible = np.where(p.sum(axis=-1, keepdims=True) > 0, p, 1 / spec.num_states)
    counts = rng.multinomial(visits, possible)
    return np.where(spec.support, counts, 0)


def sigma_of(spec: CmdpSpec, counts: np.ndarray, policy: np.ndarray, cost_visits: np.ndarray | None = None) -> float:
    mean, weight = smoothed_mean(spec.dirichlet_prior, counts, 0.0)
    seen = np.zeros((0, spec.num_states, spec.num_actions), np.int64) if cost_visits is None else cost_visits
    return cost_deviation(mean, spec.next_states, weight, spec.signals[1], policy, spec.initial_distribution, seen)


def sampled_costs(spec: CmdpSpec, counts: np.ndarray, policy: np.ndarray, draws: int) -> np.ndarray:
    """The policy's cost on kernels drawn from the posterior."""
    rng = np.random.default_rng(0)
    values, costs = np.empty((2, spec.num_states)), np.empty(draws)
    for i in range(draws):
        gammas = rng.standard_gamma(spec.dirichlet_prior + counts)
        kernel = gammas / np.where((total := gammas.sum(axis=-1, keepdims=True)) > 0, total, 1.0)
        evaluate_randomised(kernel, spec.next_states, spec.signals, policy, values)
        costs[i] = spec.initial_distribution @ values[1]
    return costs


@pytest.mark.parametrize("variant", VARIANTS)
def test_sigma_is_the_spread_of_the_cost_over_the_posterior(variant: dict) -> None:
    """At large counts, to 10 %: the delta method is exact in that limit, and 4,000 draws know a deviation to 1 %."""
    for seed in range(4):
        spec, p = random_case(seed, (4, 3, 5), **variant)
        policy, counts = random_policy(spec, seed), random_counts(spec, p, 400, seed)
        costs = sampled_costs(spec, counts, policy, 4_000)
        assert sigma_of(spec, counts, policy) == pytest.approx(costs.std(), rel=0.1), seed


def test_sigma_of_one_row_by_hand() -> None:
    """Two steps from state 0 to state 1 or 2, of which 1 costs 1: sigma^2 = m (1 - m)/(w + 1) for the one row that matters."""
    cost = np.array([[0.0], [1.0], [0.0]])
    prior = np.zeros((1, 3, 1, 3))
    prior[0, 0, 0, 1:] = prior[0, 1, 0, 1] = prior[0, 2, 0, 2] = 0.5
    counts = np.zeros(prior.shape, np.int64)
    counts[0, 0, 0] = [0, 3, 5]
    mean, weight = smoothed_mean(prior, counts, 0.0)
    start, none = np.array([1.0, 0.0, 0.0]), np.zeros((0, 3, 1), np.int64)
    share = 3.5 / 9
    found = cost_deviation(mean, EVERY_STATE, weight, cost[None], np.ones((2, 3, 1)), start, none)
    assert found**2 == pytest.approx(share * (1 - share) / 10, rel=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_sigma_of_a_certain_kernel_is_0(variant: dict) -> None:
    """Where each pair has one possible next state, nothing is left to learn of the kernel."""
    spec, p = random_case(1, (4, 3, 5), **variant)
    one = np.zeros(p.shape)
    np.put_along_axis(one, p.argmax(axis=-1)[..., None], 1.0, axis=-1)
    none = np.zeros((0, 4, 3), np.int64)
    policy = random_policy(spec, 1)
    assert (
        cost_deviation(
            one, spec.next_states, np.full(p.shape[:3], 5.0), spec.signals[1], policy, spec.initial_distribution, none
        )
        == 0.0
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_sigma_falls_as_counts_grow(variant: dict) -> None:
    """A hundred times the same observations: about a tenth."""
    spec, p = random_case(2, (4, 3, 5), **variant)
    policy, counts = random_policy(spec, 2), random_counts(spec, p, 30, 2)
    sigmas = [sigma_of(spec, counts * factor, policy) for factor in (1, 4, 25, 100)]
    assert sigmas == sorted(sigmas, reverse=True)
    assert sigmas[3] == pytest.approx(sigmas[0] / 10, rel=0.1)


def test_pairs_that_are_never_played_do_not_count() -> None:
    """Whatever is unknown about action 2 is no uncertainty of a policy that never plays it."""
    spec, p = random_case(3, (4, 3, 5))
    policy, counts = random_policy(spec, 3), random_counts(spec, p, 50, 3)
    policy[:, :, 2] = 0.0
    policy /= policy.sum(axis=-1, keepdims=True)
    less = counts.copy()
    less[:, :, 2] = 0
    assert sigma_of(spec, less, policy) == sigma_of(spec, counts, policy) > 0


def test_kernels_by_the_step_are_rows_of_their_own() -> None:
    """The same counts at every step: the steps' variances add up, where one shared row would move all steps together."""
    shared, p = random_case(4, (4, 3, 5))
    shared_counts = random_counts(shared, p, 100, 4)
    spec = spec_from_document(spec_to_document(shared) | {"stationary": False})
    policy = random_policy(spec, 4)
    counts = np.repeat(shared_counts, 5, axis=0)
    found = sigma_of(spec, counts, policy)
    assert found == pytest.approx(sampled_costs(spec, counts, policy, 4_000).std(), rel=0.1)
    assert 0 < found < sigma_of(shared, shared_counts, policy)


def test_a_learned_cost_adds_its_own_variance() -> None:
    """Each pair's mean has at most variance 1/4 over its observations + 1, times the square of how often it is played."""
    spec, p = random_case(5, (4, 3, 5), learned=True)
    policy, counts = random_policy(spec, 5), random_counts(spec, p, 50, 5)
    seen = counts.sum(axis=-1)
    mean, _ = smoothed_mean(spec.dirichlet_prior, counts, 0.0)
    visits = occupancy(mean, spec.next_states, policy, spec.initial_distribution)
    expected = (visits.sum(axis=0) ** 2 * 0.25 / (seen[0] + 1)).sum()
    known, learned = sigma_of(spec, counts, policy), sigma_of(spec, counts, policy, seen)
    assert LARGEST_VARIANCE == 0.25
    assert learned**2 == pytest.approx(known**2 + expected, rel=1e-12)
    assert learned > known
    assert sigma_of(spec, counts, policy, 100 * seen) < learned


def test_a_learned_cost_by_the_step_is_seen_by_the_step() -> None:
    """With signals of their own, each step's observations count for that step alone."""
    visits = np.random.default_rng(0).dirichlet(np.ones(12), size=5).reshape(5, 4, 3)
    seen = np.random.default_rng(1).integers(0, 9, (5, 4, 3))
    assert learned_cost_variance(visits, seen) == pytest.approx((visits**2 * 0.25 / (seen + 1)).sum(), rel=1e-12)
    assert learned_cost_variance(visits, seen[:0]) == 0.0


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_posteriors_mean(variant: dict) -> None:
    """Prior and counts, normalised; 0 outside the support; the weight is their sum."""
    spec, p = random_case(6, (5, 2, 3), **variant)
    counts = random_counts(spec, p, 20, 6)
    mean, weight = smoothed_mean(spec.dirichlet_prior, counts, 0.0)
    alpha = spec.dirichlet_prior + counts
    assert weight == pytest.approx(alpha.sum(axis=-1), rel=1e-12)
    assert mean == pytest.approx(alpha / alpha.sum(axis=-1, keepdims=True), rel=1e-12)
    assert not mean[~spec.support].any()


def test_a_row_without_next_states_stays_0() -> None:
    """An unavailable action may have none."""
    prior, counts = np.array([[[[0.1, 0.3], [0.0, 0.0]]] * 2]), np.zeros((1, 2, 2, 2), np.int64)
    mean, weight = smoothed_mean(prior, counts, 0.0)
    assert mean[0, 0].tolist() == [[pytest.approx(0.25), pytest.approx(0.75)], [0.0, 0.0]]
    assert weight[0, 0].tolist() == [pytest.approx(0.4), 0.0]


def test_smoothing_adds_observations_spread_over_the_support() -> None:
    """Of the mean only: a row is not better known for it. What cannot happen stays so."""
    prior, counts = np.array([[[[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]] * 3]), np.zeros((1, 3, 2, 3), np.int64)
    counts[0, :, 0] = [9, 0, 0]
    mean, weight = smoothed_mean(prior, counts, 6.0)
    assert mean[0, 0].tolist() == [[pytest.approx(12.5 / 16), pytest.approx(3.5 / 16), 0.0], [0.0, 0.0, 0.0]]
    assert weight[0, 0].tolist() == [10.0, 0.0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_occupancy_and_cost_to_go(variant: dict) -> None:
    """One somewhere at each step, on available actions; its expectation of the cost is the cost-to-go of the start."""
    spec, p = random_case(7, (5, 3, 6), **variant)
    policy = random_policy(spec, 7)
    visits = occupancy(p, spec.next_states, policy, spec.initial_distribution)
    ahead = costs_to_go(p, spec.next_states, spec.signals[1], policy)
    assert visits.sum(axis=(1, 2)) == pytest.approx(np.ones(6), abs=1e-12)
    assert visits.min() >= 0
    assert not visits[:, ~spec.available_actions].any()
    assert (visits * spec.signals[1]).sum() == pytest.approx(spec.initial_distribution @ ahead[0], rel=1e-12)
    assert ahead[6].tolist() == [0.0] * 5
