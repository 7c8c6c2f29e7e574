"""Average-reward plans: agreement with linear programs, states that cannot be left, and large problems."""

import numpy as np
import pytest
from tests.safe_psrl.cases import Case, Floats, listed_case
from tests.safe_psrl.continuing_cases import STOP, continuing_case, trap

from safe_psrl import InfeasibleError, exact_optimum
from safe_psrl.planning.average_cost import RESTART, bias_of, evaluate_average, occupancy_of
from safe_psrl.planning.average_linear_program import optimal_average_occupancy
from safe_psrl.planning.average_optimum import EXACT_RESTART, solve_average_cmdp
from safe_psrl.planning.average_sweeps import sweep_bias, sweep_occupancy
from safe_psrl.problem.presets import preset
from safe_psrl_testbed.kernels import KERNELS


def solved(case: Case, restart: float) -> tuple[bool, float, float]:
    """Whether the budget can be kept, and reward and cost of the plan."""
    spec, policy = case.spec, np.empty(case.spec.available_actions.shape)
    known = (case.p, spec.next_states, spec.signals.copy())
    start = spec.initial_distribution.copy()
    budget = float(spec.cost_budgets[0])
    feasible, _ = solve_average_cmdp(*known, spec.available_actions.copy(), start, restart, budget, policy, STOP)
    gains = np.empty(2)
    evaluate_average(*known, policy, start, restart, np.zeros(spec.num_states), gains, STOP)
    return feasible, *gains.tolist()


def judged(case: Case, restart: float) -> float | None:
    """The optimum by HiGHS; None if there is none."""
    spec = case.spec
    known = (spec.available_actions, spec.next_states, case.p, spec.signals, spec.initial_distribution, restart)
    try:
        occupancy = optimal_average_occupancy(*known, spec.cost_budgets)
    except InfeasibleError:
        return None
    return float((occupancy * spec.signals[0, 0]).sum())


def agree(seeds: range, *, masked: bool) -> list[bool]:
    """Compare both; return which problems are feasible. Kernels on a full support need no restarts in the linear program."""
    found = []
    for seed in seeds:
        case = continuing_case(seed, masked=masked, share=0.3)
        case = listed_case(case) if masked and seed % 2 else case
        feasible, reward, cost = solved(case, RESTART if masked else EXACT_RESTART)
        best = judged(case, RESTART if masked else 0.0)
        assert feasible == (best is not None), seed
        if best is not None:
            assert reward == pytest.approx(best, abs=1e-8), seed
            assert cost <= case.spec.cost_budgets[0] + 1e-8, seed
        found.append(feasible)
    return found


@pytest.mark.parametrize("masked", [False, True])
def test_plans_agree_with_linear_programs(masked: bool) -> None:
    """To 1e-8 of reward, on full supports and on masks that leave classes which cannot be left; infeasible ones included."""
    found = agree(range(40), masked=masked)
    assert 5 < sum(found) < 38


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_many_plans_agree_with_linear_programs(masked: bool) -> None:
    """The same on 500 problems."""
    found = agree(range(1000, 1250), masked=masked)
    assert 30 < sum(found) < 245


def test_the_optimum_with_several_constraints_keeps_all() -> None:
    """`exact_optimum` takes the linear program; a budget more cannot raise the reward."""
    case = continuing_case(3, num_constraints=2, share=0.55)
    found = exact_optimum(case.spec, case.p)
    assert (found.costs <= case.spec.cost_budgets + 1e-8).all()
    assert found.policy.shape == (1, case.spec.num_states, case.spec.num_actions)
    wider = exact_optimum(case.spec, case.p, [1.0, 1.0])
    assert found.reward <= wider.reward + 1e-9


def test_the_optimum_of_the_buffer() -> None:
    """Half of the time fast keeps the buffer from running dry for 7/12 of the time (independent calculation by HiGHS)."""
    found = exact_optimum(preset("continuing-buffer"), KERNELS["continuing-buffer"]())
    assert found.reward == pytest.approx(7 / 12, abs=1e-8)
    assert found.costs[0] == pytest.approx(0.5, abs=1e-8)
    with pytest.raises(InfeasibleError):
        exact_optimum(preset("continuing-buffer"), KERNELS["continuing-buffer"](), -0.1)


def test_states_that_cannot_be_left() -> None:
    """Only what is reached from the start counts: a class out of reach is neither earned nor paid for."""
    assert exact_optimum(*trap(1)).reward == pytest.approx(0.5, abs=1e-6)
    with pytest.raises(InfeasibleError, match="least achievable cost is 1"):
        exact_optimum(*trap(0))
    between = exact_optimum(*trap(2))
    assert between.reward == pytest.approx(0.25 * 1 + 0.75 * 0.5, abs=1e-6)
    assert between.policy[0, 2] == pytest.approx([0.25, 0.75], abs=1e-6)


def test_sweeps_give_what_the_equations_give() -> None:
    """Beyond `DENSE_STATES` nothing of the size of states squared is kept: on one problem, both ways agree."""
    case = continuing_case(11)
    spec, size = case.spec, case.spec.num_states
    policy = spec.available_actions / spec.available_actions.sum(axis=1, keepdims=True)
    known = (case.p, spec.next_states)
    start, cost = spec.initial_distribution.copy(), spec.signals[1, 0].copy()
    exact, swept, reached, swept_reached = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    gain = bias_of(*known, cost, policy, start, RESTART, exact, STOP)
    occupancy_of(*known, policy, start, RESTART, reached, STOP)
    rewards: Floats = (policy * cost).sum(axis=1)
    swept_gain = sweep_bias(*known, rewards, policy, start, RESTART, swept, STOP)
    sweep_occupancy(*known, policy, start, RESTART, swept_reached, STOP)
    assert swept_gain == pytest.approx(gain, abs=1e-9)
    assert swept == pytest.approx(exact, abs=1e-8)
    assert swept_reached == pytest.approx(reached, abs=1e-9)
    assert gain == pytest.approx(float((reached * rewards).sum()), abs=1e-12)
