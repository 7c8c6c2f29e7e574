"""Problems of one state, one action or one step, and all of these at once, are learned like any other."""

import math

import numpy as np
import pytest

from safe_psrl import SafePsrl, SafePsrlOptions, SimulatedRun, dual_variable_bound, exact_optimum, psrl_term
from safe_psrl.methods.schedule import pessimism_at
from tests.safe_psrl.cases import first_plan, random_case

SIZES = [(1, 1, 1), (1, 3, 4), (4, 1, 3), (4, 3, 1), (1, 1, 5), (1, 4, 1), (3, 1, 1)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("variant", [{}, {"per_step": True, "step_signals": True}, {"learned": True}])
def test_edge_sizes_run(sizes: tuple[int, int, int], variant: dict) -> None:
    """Every number stays finite, H transitions an episode are counted, and actions stay within their range."""
    spec, p = random_case(1, sizes, **variant)
    learner = SafePsrl(spec, SafePsrlOptions("theorem"))
    run = SimulatedRun(learner, p * 1.0)
    run.advance(50)
    _, plan = learner.start_episode(run.state)
    assert run.state.transition_counts.sum() == 50 * spec.horizon
    assert np.isfinite([*run.ledger.objective_regret, *run.ledger.constraint_regret, *plan.next_dual_variables]).all()
    assert np.isfinite([plan.predicted_reward, *plan.predicted_costs, *plan.pessimism]).all()
    assert plan.policy.min() >= 0
    assert plan.policy.max() < spec.num_actions


def test_smallest_problem_has_finite_pessimism() -> None:
    """At k = S = A = H = 1 the formula divides by log 1 = 0; that logarithm is taken as log 2, and later ones as they are."""
    spec = random_case(1, (1, 1, 1)).spec
    plan = first_plan(spec, SafePsrlOptions("theorem"))
    assert plan.pessimism[0] == pytest.approx(5 * (math.log(2) + 1) / math.sqrt(math.log(2)), rel=1e-14)
    assert pessimism_at(2, 1, 1, 1, 5.0) == pytest.approx(5 * (math.log(2) + 1) / math.sqrt(2 * math.log(2)), rel=1e-14)
    assert psrl_term(spec, 1) == 2.0
    assert math.isfinite(dual_variable_bound(spec, 1))


def test_one_of_each_is_solved_by_its_only_policy() -> None:
    """S = A = H = 1: the optimum is the one reward there is."""
    spec, p = random_case(2, (1, 1, 1))
    found = exact_optimum(spec, p, [1.0])
    assert found.reward == spec.signals[0, 0, 0, 0]
    assert found.costs.tolist() == [spec.signals[1, 0, 0, 0]]
    assert found.policy.tolist() == [[[1.0]]]


def test_one_state_never_leaves_it() -> None:
    """A row over one next state is 1, whatever was drawn, so predictions are exact from the first episode on."""
    spec, p = random_case(3, (1, 4, 3))
    plan = first_plan(spec)
    best = spec.signals[0, 0, 0].max()
    assert plan.predicted_reward == pytest.approx(3 * best, abs=1e-12)
    assert exact_optimum(spec, p, [3.0]).reward == pytest.approx(3 * best, abs=1e-12)
