"""The uncertainty of average costs: against Monte Carlo, and against the worst case by enumeration."""

import itertools

import numpy as np
import pytest
from tests.safe_psrl.continuing_cases import STOP, continuing_case, trap

from safe_psrl.planning.average_cost import RESTART, evaluate_average
from safe_psrl.planning.average_sweeps import sweep_worst
from safe_psrl.posterior.average_uncertainty import average_and_variance, average_bound, least_worst_average, worst_average
from safe_psrl.posterior.uncertainty import Belief, belief_of

Z = 2.0


def random_belief(seed: int, visits: float) -> tuple[Belief, np.ndarray, np.ndarray, np.ndarray]:
    """A posterior after about `visits` of each pair, a randomised policy, a cost and a start."""
    spec, p = continuing_case(seed)
    rng = np.random.default_rng(seed)
    counts = rng.poisson(visits * p).astype(np.float64)
    belief = belief_of(spec.dirichlet_prior, spec.next_states, counts)
    policy = rng.dirichlet(np.ones(spec.num_actions), spec.num_states)
    return belief, policy, spec.signals[1, 0].copy(), spec.initial_distribution.copy()


@pytest.mark.parametrize("seed", range(4))
def test_the_deviation_agrees_with_monte_carlo(seed: int) -> None:
    """Kernels drawn from the posterior have averages of this spread, within 5 %."""
    belief, policy, cost, start = random_belief(seed, visits=300.0)
    nothing = np.zeros_like(belief.doubt)
    value, variance = average_and_variance(belief, nothing, cost, policy, start, STOP)
    rng = np.random.default_rng(100 + seed)
    weights = belief.mean * belief.weight[..., None]
    gains, found, reached = np.empty(1), [], np.zeros(len(policy))
    for _ in range(4_000):
        drawn = rng.gamma(weights)
        drawn /= drawn.sum(axis=-1, keepdims=True)
        evaluate_average(drawn, belief.next_states, cost[None, None], policy, start, RESTART, reached, gains, STOP)
        found.append(gains[0])
    assert np.sqrt(variance) == pytest.approx(np.std(found), rel=0.05)
    assert value == pytest.approx(np.mean(found), abs=5e-3)


def test_full_doubt_is_the_worst_case() -> None:
    """With a doubt of 1 the bound is the greatest average over all deterministic kernels; and the least of these is found."""
    spec, _ = next(
        case for case in map(continuing_case, range(100)) if case.spec.num_states == 3 and case.spec.num_actions == 2
    )
    belief = belief_of(spec.dirichlet_prior, spec.next_states, np.zeros(spec.dirichlet_prior.shape))
    doubt, cost, start = np.ones_like(belief.doubt), spec.signals[1, 0].copy(), spec.initial_distribution.copy()
    kernels = [np.eye(3)[list(places)].reshape(1, 3, 2, 3) for places in itertools.product(range(3), repeat=6)]
    gains, reached, worst = np.empty(1), np.zeros(3), []
    for actions in itertools.product(range(2), repeat=3):
        policy = np.eye(2)[list(actions)]
        averages = []
        for kernel in kernels:
            evaluate_average(kernel, belief.next_states, cost[None, None], policy, start, RESTART, reached, gains, STOP)
            averages.append(gains[0])
        worst.append(max(averages))
        assert average_bound(belief, doubt, cost, policy, start, 0.0, STOP) == pytest.approx(worst[-1], abs=1e-9)
    assert least_worst_average(belief, doubt, cost, spec.available_actions, start, policy, STOP) == pytest.approx(min(worst))


def test_bounds_fall_with_visits() -> None:
    """Doubt and deviation shrink: the bound comes down to the average."""
    distances = []
    for visits in (0.0, 10.0, 100.0, 10_000.0):
        belief, policy, cost, start = random_belief(5, visits)
        value, _ = average_and_variance(belief, np.zeros_like(belief.doubt), cost, policy, start, STOP)
        distances.append(average_bound(belief, belief.doubt, cost, policy, start, Z, STOP) - value)
    assert distances == sorted(distances, reverse=True)
    assert 0.0 < distances[-1] < 0.02


@pytest.mark.parametrize("full", [False, True])
def test_sweeps_find_the_worst_case_of_the_equations(full: bool) -> None:
    """Of a policy, and the least of all policies: on small problems, both ways agree."""
    belief, policy, cost, start = random_belief(6, visits=4.0)
    doubt = np.ones_like(belief.doubt) if full else belief.doubt
    size, available = len(policy), np.ones(policy.shape, np.bool_)
    kernel, bias, swept = np.zeros(belief.mean.shape), np.zeros(size), np.zeros(size)
    exact = worst_average(belief, doubt, cost, policy, start, kernel, bias, STOP)
    known = (belief.mean, belief.next_states, doubt, cost, available, start, RESTART)
    assert sweep_worst(*known, False, policy, swept, STOP) == pytest.approx(exact, abs=1e-6)
    least, found = np.zeros(policy.shape), np.zeros(policy.shape)
    exact = least_worst_average(belief, doubt, cost, available, start, least, STOP)
    assert sweep_worst(*known, True, found, swept, STOP) == pytest.approx(exact, abs=1e-6)
    assert worst_average(belief, doubt, cost, found, start, kernel, bias, STOP) == pytest.approx(exact, abs=1e-6)


def test_bounds_of_kernels_that_do_not_mix_are_never_too_low() -> None:
    """Two classes that cannot be left cost 0 and 1: sweeps see that both exist, and not which one counts."""
    spec, p = trap(2)
    belief = belief_of(spec.dirichlet_prior, spec.next_states, 1e6 * p)
    policy, cost, start = np.eye(2)[[0, 0, 1]], spec.signals[1, 0].copy(), np.eye(3)[2].copy()
    known = (belief.mean, belief.next_states, 0.0 * belief.doubt, cost, policy > 0, start, RESTART, False)
    assert sweep_worst(*known, policy, np.zeros(3), STOP) >= 0.99
