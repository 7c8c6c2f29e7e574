"""Backward induction, evaluation and occupancy (paper, section 3.2) against enumeration on tiny problems."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.safe_psrl.cases import deterministic_policies, forward_totals, planned, random_case, spec_of

from safe_psrl import CmdpSpec, Constraint
from safe_psrl.errors import PlanStoppedError
from safe_psrl.learner import SafePsrl
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import as_probabilities, dot, evaluate_policy, evaluate_randomised, occupancy
from safe_psrl.problem.presets import preset

SHAPES = [(1, 1, 3), (2, 1, 3), (2, 2, 3), (3, 2, 2), (2, 3, 2), (2, 4, 2), (2, 5, 2), (2, 6, 2), (1, 5, 4), (4, 4, 1)]
VARIANTS = [
    {},
    {"masked": True},
    {"step_signals": True},
    {"per_step": True},
    {"masked": True, "step_signals": True, "per_step": True, "num_constraints": 2},
]


def expectation_over_trajectories(spec: CmdpSpec, p: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """[1+M]: sum over every sequence of states and actions of its probability times what it yields."""
    total = np.zeros(1 + spec.num_constraints)
    pairs = list(itertools.product(range(spec.num_states), range(spec.num_actions)))
    for path in itertools.product(pairs, repeat=spec.horizon):
        chance = spec.initial_distribution[path[0][0]]
        yields = np.zeros(1 + spec.num_constraints)
        for h, (s, a) in enumerate(path):
            chance *= probabilities[h, s, a]
            if h + 1 < spec.horizon:
                chance *= p[h % len(p), s, a, path[h + 1][0]]
            yields += spec.signals[:, h % spec.signals.shape[1], s, a]
        total += chance * yields
    return total


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_no_deterministic_policy_beats_the_plan(sizes: tuple[int, int, int], variant: dict, seed: int) -> None:
    """Eq. (2): the plan's objective is the greatest over ALL deterministic policies, and its values are its own."""
    spec, p = random_case(seed, sizes, **variant)
    weights = np.random.default_rng(seed).normal(size=1 + spec.num_constraints)
    policy, values = planned(spec, p, weights)
    best = max(weights @ forward_totals(spec, p, other) for other in deterministic_policies(spec))
    assert weights @ forward_totals(spec, p, policy) == pytest.approx(best, abs=1e-12)
    assert values @ spec.initial_distribution == pytest.approx(forward_totals(spec, p, policy), abs=1e-11)
    assert spec.available_actions[np.arange(spec.num_states), policy].all()


@pytest.mark.parametrize("weights", [[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1e-3, 2.0], [1.0, -50.0]])
def test_values_do_not_depend_on_which_signal_has_weight(weights: list[float]) -> None:
    """Each signal's value is that of the policy, whether it follows from the objective or is evaluated."""
    spec, p = random_case(9, (4, 5, 6), step_signals=True)
    policy, values = planned(spec, p, np.array(weights))
    assert values @ spec.initial_distribution == pytest.approx(forward_totals(spec, p, policy), abs=1e-10)


@pytest.mark.parametrize("num_actions", range(1, 7))
def test_ties_go_to_the_lowest_available_action(num_actions: int) -> None:
    """All actions alike: the first is taken; where it is unavailable, the next."""
    table = np.full((2, num_actions), 0.5)
    available = np.ones((2, num_actions), bool)
    available[1, : num_actions - 1] = num_actions == 1
    spec = spec_of(3, table, Constraint("cost", table, 2.0, 1.0), available_actions=available)
    policy, _ = planned(spec, np.full((1, 2, num_actions, 2), 0.5), np.array([1.0, -0.25]))
    assert policy[:, 0].tolist() == [0, 0, 0]
    assert policy[:, 1].tolist() == [num_actions - 1] * 3


@pytest.mark.parametrize("num_actions", range(2, 10))
def test_like_actions_tie_whatever_their_values(num_actions: int) -> None:
    """Of two actions with the same rows and signals the later is never taken: their sums round alike."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        spec, p = random_case(seed, (int(rng.integers(1, 40)), num_actions, 4))
        first, later = sorted(rng.choice(num_actions, 2, replace=False))
        signals = spec.signals.copy()
        p[:, :, later], signals[..., later] = p[:, :, first], signals[..., first]
        assert not (planned(spec.with_signals(signals), p, [1.0, -0.3])[0] == later).any()


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_an_expectation_is_a_dot_product(seed: int, size: int) -> None:
    """The compiled sum is numpy's, to rounding."""
    rng = np.random.default_rng(seed)
    row, values = rng.random(size), rng.normal(size=size)
    assert dot(row, values) == pytest.approx(row @ values, abs=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 3), (3, 2, 2), (2, 5, 2)])
def test_evaluation_is_the_expectation_over_all_trajectories(sizes: tuple[int, int, int], variant: dict) -> None:
    """Section 3.2: V_1 is the expected sum of the signal, for deterministic and for randomised policies."""
    spec, p = random_case(4, sizes, **variant)
    rng = np.random.default_rng(1)
    shares = np.where(spec.available_actions, rng.random((spec.horizon, spec.num_states, spec.num_actions)), 0.0)
    shares /= shares.sum(axis=-1, keepdims=True)
    values = np.empty((1 + spec.num_constraints, spec.num_states))
    evaluate_randomised(p, spec.next_states, spec.signals, shares, values)
    assert values @ spec.initial_distribution == pytest.approx(expectation_over_trajectories(spec, p, shares), abs=1e-12)
    policy = shares.argmax(axis=-1).astype(np.int32)
    evaluate_policy(p, spec.next_states, spec.signals, policy, values)
    certain = np.eye(spec.num_actions)[policy]
    assert values @ spec.initial_distribution == pytest.approx(expectation_over_trajectories(spec, p, certain), abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@given(st.integers(0, 10**6), st.tuples(st.integers(2, 6), st.integers(1, 6), st.integers(2, 6)))
def test_occupancy_is_a_distribution_that_reproduces_the_values(variant: dict, seed: int, sizes: tuple[int, int, int]) -> None:
    """Each step's occupancy sums to 1, lies on the policy's actions, and weighs the signals to their values."""
    spec, p = random_case(seed, sizes, **variant)
    policy, _ = planned(spec, p, np.append(1.0, -np.ones(spec.num_constraints)))
    visits = occupancy(p, spec.next_states, as_probabilities(policy, spec.num_actions), spec.initial_distribution)
    assert visits.sum(axis=(1, 2)) == pytest.approx(np.ones(spec.horizon), abs=1e-12)
    assert visits[0].sum(axis=1) == pytest.approx(spec.initial_distribution, abs=0)
    assert (visits[np.eye(spec.num_actions)[policy] == 0] == 0).all()
    assert (visits * spec.signals).sum(axis=(1, 2, 3)) == pytest.approx(forward_totals(spec, p, policy), abs=1e-12)


def test_a_plan_that_is_stopped_ends_at_once() -> None:
    """Between two sweeps; the policy holds valid actions, and the learner refuses to use it."""
    spec = preset("streaming-buffer")
    learner, stop = SafePsrl(spec), np.ones(1, np.bool_)
    with pytest.raises(PlanStoppedError, match="episode 1 was not planned"):
        learner.plan(learner.initial_state(), stop)
    p = spec.dirichlet_prior / spec.dirichlet_prior.sum(axis=-1, keepdims=True)
    policy, values = np.full((10, 10), 9, np.int32), np.empty((2, 10))
    plan_policy(p, spec.next_states, spec.signals, np.array([1.0, 0.0]), spec.available_actions, policy, values, stop)
    assert (policy == 0).all()
    assert np.isfinite(values).all()
