"""Explanations of continuing tasks against long finite horizons, and against kernels drawn from the posterior."""

from typing import Any

import numpy as np
import pytest

from safe_psrl import ContinuingPsrl, SafePsrlOptions, SpecError
from safe_psrl.average_explanation import action_advantages, epoch_plan_with_budgets
from safe_psrl.comparison import average_values
from safe_psrl.learner import AgentState
from safe_psrl.planning import average_cost
from safe_psrl.planning.average_cost import RESTART, added_visits
from safe_psrl.planning.average_sweeps import sweep_visits
from tests.safe_psrl.cases import Case, Floats, listed_case
from tests.safe_psrl.continuing_cases import STOP, continuing_case, trap
from tests.safe_psrl.test_explanation import learned_state, posterior_mean

VARIANTS: list[dict[str, Any]] = [{}, {"masked": True}, {"num_constraints": 2}]
LONG = 4_000  # steps; the chains mix in less than a hundred


def random_policy(case: Case, seed: int) -> Floats:
    weights = np.random.default_rng(seed).random((case.spec.num_states, case.spec.num_actions)) * case.spec.available_actions
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def known(case: Case, visits: int, seed: int, *, listed: bool = False) -> tuple[ContinuingPsrl, AgentState]:
    learner = ContinuingPsrl((listed_case(case) if listed else case).spec, SafePsrlOptions("certified"), 3)
    return learner, learned_state(case, learner.base, visits, seed)


def sums_to_go(signals: Floats, p: Floats, policy: Floats, steps: int) -> tuple[Floats, Floats]:
    """[1+M, S, A] and [1+M, S]: the sums of `steps`, with each first action, and with the policy's."""
    values = np.zeros((len(signals), len(p)))
    for _ in range(steps):
        first = signals + np.einsum("sat,nt->nsa", p, values)
        values = (first * policy).sum(axis=-1)
    return first, values


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_advantages_are_those_of_a_long_horizon(variant: dict[str, Any], listed: bool) -> None:
    """Of every available action in every state; restarts change them by the order of 1e-6."""
    case = continuing_case(5, **variant)
    learner, state = known(case, 20, seed=3, listed=listed)
    policy, p = random_policy(case, 4), posterior_mean(learner.spec, state)[0]
    first, values = sums_to_go(learner.spec.signals[:, 0], p, policy, LONG)
    for s in range(case.spec.num_states):
        found = action_advantages(learner, state, policy, s)
        assert found.actions == tuple(np.flatnonzero(case.spec.available_actions[s]).tolist())
        assert found.values == pytest.approx((first[:, s, found.actions] - values[:, s, None]).T, abs=1e-3)
        assert found.probabilities @ found.values == pytest.approx(0.0, abs=1e-9)
        assert found.visits == pytest.approx(state.transition_counts[0, s, found.actions].sum(axis=-1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_sigma_is_the_spread_over_the_posterior(variant: dict[str, Any]) -> None:
    """Of advantages and averages, at large counts, to 10 %."""
    case = continuing_case(7, **variant)
    learner, state = known(case, 400, seed=5)
    policy, spec, rng = random_policy(case, 6), case.spec, np.random.default_rng(0)
    advantages, averages = [], []
    for _ in range(2_000):
        gammas = rng.standard_gamma(spec.dirichlet_prior[0] + state.transition_counts[0])
        p = gammas / np.maximum(gammas.sum(axis=-1, keepdims=True), 1e-300)
        gains, biases = solved(spec.signals[:, 0], p, policy)
        first = spec.signals[:, 0] + np.einsum("sat,nt->nsa", p, biases) - gains[:, None, None]
        advantages.append(first - biases[:, :, None])
        averages.append(gains)
    found = average_values(learner.base, state, policy, 0)
    assert found.means == pytest.approx(np.mean(averages, axis=0), abs=5e-3)
    assert found.sigmas == pytest.approx(np.std(averages, axis=0), rel=0.1)
    for s in range(spec.num_states):
        one = action_advantages(learner, state, policy, s)
        spread = np.std(np.array(advantages)[:, :, s, list(one.actions)], axis=0).T
        assert one.sigmas == pytest.approx(spread, rel=0.1, abs=1e-6)


def solved(signals: Floats, p: Floats, policy: Floats) -> tuple[Floats, Floats]:
    """Gains [N] and biases [N, S], with bias 0 in state 0."""
    size = len(p)
    chain = np.einsum("sat,sa->st", p, policy)
    system = np.eye(size) - chain
    system[:, 0] = 1.0  # the gain takes the place of the bias of state 0
    found = np.linalg.solve(system, (signals * policy).sum(axis=-1).T)
    biases = found.T.copy()
    biases[:, 0] = 0.0
    return found[0], biases


def test_added_visits_by_sweeps_are_those_of_the_equations() -> None:
    case = continuing_case(9)
    spec, policy = case.spec, random_policy(case, 1)
    p, size = np.array(case.p), case.spec.num_states
    visits = np.zeros(policy.shape)
    added_visits(p, spec.next_states, policy, 1, 0, RESTART, visits, STOP)
    assert visits.sum() == pytest.approx(0.0, abs=1e-9)
    difference, swept = p[0, 1, 0].copy(), np.zeros(size)
    difference[1] -= 1.0
    sweep_visits(p, spec.next_states, policy, (1 - RESTART) * difference, RESTART, swept, STOP)
    reached = np.zeros(size)
    average_cost.occupancy_of(p, spec.next_states, policy, np.eye(size)[1], RESTART, reached, STOP)
    expected = (swept - reached)[:, None] * policy
    expected[1, 0] += 1.0
    assert visits == pytest.approx(expected, abs=1e-8)


def test_an_action_that_is_never_undone_counts_for_all_steps_to_come() -> None:
    """From state 2 of the trap: half of the reward is lost, or won, about a million times."""
    case = trap(2)
    learner = ContinuingPsrl(case.spec, SafePsrlOptions("certified"))
    policy = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    found = action_advantages(learner, learner.initial_state().learned, policy, 2)
    assert found.values[:, 0] * RESTART == pytest.approx([0.25, -0.25], rel=1e-3)
    assert found.values[:, 1] * RESTART == pytest.approx([0.5, -0.5], rel=1e-3)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_other_budgets_give_other_choices(factor: float) -> None:
    """All is known: plans cost what the budget allows."""
    learner = ContinuingPsrl(trap(2).spec, SafePsrlOptions("certified"))
    state = learner.initial_state().learned
    plan = epoch_plan_with_budgets(learner, state, 0, 2, factor)
    assert plan is not None
    assert plan.predicted_costs == pytest.approx([0.25 * factor], rel=1e-3)
    assert learner.base.problem.tau.tolist() == [0.25]


def test_a_plan_with_the_same_budgets_is_the_plan() -> None:
    for method in ("published", "certified"):
        case = continuing_case(2)
        learner = ContinuingPsrl(case.spec, SafePsrlOptions(method), 3)
        state = learned_state(case, learner.base, 4, seed=1)
        same = epoch_plan_with_budgets(learner, state, 0, 1, 1.0)
        assert same is not None
        assert np.array_equal(same.probabilities, learner.plan(state, 0, 1).probabilities)


def test_a_budget_is_at_most_1_and_above_the_satisfiable_cost() -> None:
    learner = ContinuingPsrl(trap(2).spec, SafePsrlOptions("certified"))
    state = learner.initial_state().learned
    assert epoch_plan_with_budgets(learner, state, 0, 2, 0.0) is None
    most = epoch_plan_with_budgets(learner, state, 0, 2, 100.0)
    assert most is not None
    assert most.predicted_costs == pytest.approx([1.0], rel=1e-3)


def test_a_place_outside_the_problem_is_refused() -> None:
    learner = ContinuingPsrl(trap(2).spec)
    with pytest.raises(SpecError, match="state"):
        action_advantages(learner, learner.initial_state().learned, np.full((3, 2), 0.5), 3)
