"""The exact optimum (paper, eq. (3)) against a linear program that is written here from scratch."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog
from tests.safe_psrl.cases import random_case, spec_of

from safe_psrl import CmdpSpec, Constraint, InfeasibleError, SpecError, exact_optimum, preset
from safe_psrl.planning.optimum import cost_prices
from safe_psrl_testbed.kernels import KERNELS

TOLERANCE = 1e-9
VARIANTS = [
    {},
    {"masked": True},
    {"step_signals": True, "binary_costs": True},
    {"per_step": True, "masked": True},
    {"binary_costs": True},
]


def program(spec: CmdpSpec, p: np.ndarray) -> dict:
    """Flow equations over d[h, s, a], dense; unavailable actions are fixed at 0."""
    shape = (spec.horizon, spec.num_states, spec.num_actions)
    equations = np.zeros((*shape[:2], *shape))
    for h, s in np.ndindex(shape[:2]):
        equations[h, s, h, s, :] = 1
        if h > 0:
            equations[h, s, h - 1] -= p[(h - 1) % len(p), :, :, s]
    right = np.zeros(shape[:2])
    right[0] = spec.initial_distribution
    tops = np.broadcast_to(np.where(spec.available_actions, 1.0, 0.0), shape).ravel()
    return {
        "A_eq": equations.reshape(right.size, -1),
        "b_eq": right.ravel(),
        "bounds": [(0, top) for top in tops],
        "method": "highs",
        "options": {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    }


def flat_signals(spec: CmdpSpec) -> np.ndarray:
    shape = (spec.horizon, spec.num_states, spec.num_actions)
    return np.array([np.broadcast_to(table, shape).ravel() for table in spec.signals])


def judge(spec: CmdpSpec, p: np.ndarray, budgets: np.ndarray) -> tuple[float | None, np.ndarray, float]:
    """The best reward (None if infeasible), each constraint's least cost, and the least common excess."""
    lp, signals = program(spec, p), flat_signals(spec)
    best = linprog(-signals[0], A_ub=signals[1:], b_ub=budgets, **lp)
    least = np.array([linprog(cost, **lp).fun for cost in signals[1:]])
    lp["A_eq"] = np.column_stack([lp["A_eq"], np.zeros(len(lp["b_eq"]))])
    lp["bounds"] = [*lp["bounds"], (None, None)]
    widened = np.column_stack([signals[1:], -np.ones(len(budgets))])
    excess = linprog(np.append(np.zeros(signals.shape[1]), 1.0), A_ub=widened, b_ub=budgets, **lp)
    return (-best.fun if best.status == 0 else None), least, excess.fun


def check(spec: CmdpSpec, p: np.ndarray, budgets: np.ndarray) -> bool:
    """Compare library and judge; say whether the budgets could be kept."""
    best, least, excess = judge(spec, p, budgets)
    if best is None:
        with pytest.raises(InfeasibleError) as caught:
            exact_optimum(spec, p, budgets)
        assert caught.value.least_costs == pytest.approx(least, abs=TOLERANCE)
        assert caught.value.least_excess == pytest.approx(excess, abs=TOLERANCE)
        assert caught.value.budgets.tolist() == budgets.tolist()
        return False
    found = exact_optimum(spec, p, budgets)
    assert found.reward == pytest.approx(best, abs=TOLERANCE)
    assert (found.costs <= budgets + TOLERANCE).all()
    assert [found.reward, *found.costs] == pytest.approx(randomised_totals(spec, p, found.policy), abs=TOLERANCE)
    assert (found.policy[:, ~spec.available_actions] == 0).all()
    assert found.policy.sum(axis=-1) == pytest.approx(1.0, abs=1e-12)
    return True


def randomised_totals(spec: CmdpSpec, p: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """[1+M]: by pushing the distribution of the state forward under a randomised policy."""
    reached, totals = spec.initial_distribution, 0
    for h, shares in enumerate(probabilities):
        visits = reached[:, None] * shares
        totals = totals + (spec.signals[:, h % spec.signals.shape[1]] * visits).sum(axis=(1, 2))
        reached = np.einsum("sa,sat->t", visits, p[h % len(p)])
    return totals


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block", range(4))
def test_multiplier_search_agrees_with_the_linear_program(variant: dict, block: int) -> None:
    """Four hundred random problems in all with one constraint, at budgets from below the least cost to the horizon."""
    feasible = []
    for seed in range(20 * block, 20 * block + 20):
        rng = np.random.default_rng(seed)
        sizes = tuple(int(n) for n in rng.integers([1, 1, 1], [6, 6, 6]))
        spec, p = random_case(seed, sizes, **variant)
        feasible.append(check(spec, p, np.array([rng.choice([0.1, 0.3, 0.45, 0.6]) * sizes[2]])))
    assert True in feasible
    assert False in feasible


@pytest.mark.parametrize("num_constraints", [2, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_several_constraints_agree_with_the_linear_program(num_constraints: int, variant: dict) -> None:
    """Two and three budgets at once, met or not."""
    feasible = []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        sizes = tuple(int(n) for n in rng.integers([2, 2, 2], [5, 5, 5]))
        spec, p = random_case(seed, sizes, num_constraints=num_constraints, **variant)
        budgets = rng.uniform(0.2, 0.75, num_constraints) * sizes[2]
        feasible.append(check(spec, p, budgets))
    assert True in feasible
    assert False in feasible


@pytest.mark.parametrize("num_constraints", [1, 2])
def test_prices_are_the_marginals_of_the_linear_program(num_constraints: int) -> None:
    """At budgets that are no vertex of the optimum's hull, HiGHS finds the same multipliers."""
    prices = []
    for seed in range(12):
        spec, p = random_case(seed, (4, 3, 4), num_constraints=num_constraints)
        signals = flat_signals(spec)
        result = linprog(-signals[0], A_ub=signals[1:], b_ub=spec.cost_budgets, **program(spec, p))
        if result.status == 0:
            found = cost_prices(spec, p)
            assert found == pytest.approx(-result.ineqlin.marginals, abs=1e-4), seed
            prices += found.tolist()
    assert max(prices) > 0.1


@pytest.mark.parametrize("variant", VARIANTS)
def test_budget_equal_to_the_least_cost(variant: dict) -> None:
    """At the edge of feasibility the best of the cheapest policies is found, also where many cost the same."""
    for seed in range(40):
        spec, p = random_case(seed, (3, 4, 4), **variant)
        with pytest.raises(InfeasibleError) as caught:
            exact_optimum(spec, p, [-1.0])
        least = caught.value.least_costs
        best, _, _ = judge(spec, p, least + 1e-12)
        assert exact_optimum(spec, p, least).reward == pytest.approx(best, abs=1e-7), seed


def test_equally_cheap_policies_at_a_budget_of_their_cost() -> None:
    """Two policies of the least cost may differ by a rounding error in it; the better one keeps the budget all the same."""
    spec, p = random_case(86, (6, 4, 3), binary_costs=True)
    with pytest.raises(InfeasibleError) as caught:
        exact_optimum(spec, p, [-1.0])
    least = caught.value.least_costs
    found = exact_optimum(spec, p, least)
    assert found.reward == pytest.approx(judge(spec, p, least + 1e-12)[0], abs=1e-7)
    assert found.costs == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize("num_constraints", [1, 2])
def test_budget_of_the_horizon_leaves_the_problem_unconstrained(num_constraints: int) -> None:
    """Costs are at most 1 a step, so tau = H binds nothing: the optimum is that of no constraint at all."""
    spec, p = random_case(3, (4, 3, 5), num_constraints=num_constraints)
    found = exact_optimum(spec, p, np.full(num_constraints, 5.0))
    free = -linprog(-flat_signals(spec)[0], **program(spec, p)).fun
    assert found.reward == pytest.approx(free, abs=TOLERANCE)


def test_jointly_infeasible_budgets_report_the_common_excess() -> None:
    """Each budget can be kept alone, not both: cost 1 a step goes to one or the other, so 4 steps cannot keep 1.5 + 1.5."""
    constraints = Constraint("a", [[1.0, 0.0]], 1.5, 0.0), Constraint("b", [[0.0, 1.0]], 1.5, 0.0)
    spec = spec_of(4, [[0.5, 0.5]], *constraints)
    with pytest.raises(InfeasibleError, match=r"together they are exceeded by 0\.5") as caught:
        exact_optimum(spec, np.ones((1, 2, 1)))
    assert caught.value.least_costs == pytest.approx([0.0, 0.0], abs=TOLERANCE)
    assert caught.value.least_excess == pytest.approx(0.5, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "budget", "reward"),
    [
        *(("streaming-buffer", *row) for row in ((5.0, 3.253296), (1.0, 1.016511), (0.0, 0.238099), (10.0, 4.606862))),
        *(("inventory", *row) for row in ((3.5, 6.665322), (0.7, 1.555711))),
    ],
)
def test_values_of_presets(name: str, budget: float, reward: float) -> None:
    """Section 7: the optimum, the safe policy at c0, always slow, and unconstrained; the shop's optimum and safe policy."""
    found = exact_optimum(preset(name), KERNELS[name](), budget)
    assert found.reward == pytest.approx(reward, abs=5e-7)
    assert found.costs[0] <= budget + TOLERANCE
    assert found.costs[0] >= budget - TOLERANCE or budget == 10.0, "every other budget is spent"


def test_always_slow_in_whole_numbers() -> None:
    """The streaming buffer's cheapest policy once more, by fractions: no rounding, no array, no kernel of ours."""
    empty = [Fraction(0)] * 10
    moves = [(1, Fraction(2, 100)), (0, Fraction(26, 100)), (-1, Fraction(72, 100))]  # arrival 0.1, departure 0.8
    for _ in range(10):
        empty = [int(s == 0) + sum(share * empty[min(max(s + move, 0), 9)] for move, share in moves) for s in range(10)]
    found = exact_optimum(preset("streaming-buffer"), KERNELS["streaming-buffer"](), 0.0)
    assert 10 - found.reward == pytest.approx(float(empty[0]), abs=1e-12)


@pytest.mark.parametrize("budgets", ["x", [1.0, 2.0], np.nan, [np.inf], [[1.0], [1.0, 2.0]], None])
def test_budgets_that_are_not_one_number_a_constraint(budgets: object) -> None:
    """Other budgets than the specification's are checked like its own; None takes its own."""
    spec, p = preset("streaming-buffer"), KERNELS["streaming-buffer"]()
    if budgets is None:
        assert exact_optimum(spec, p).reward == exact_optimum(spec, p, [5.0]).reward
        return
    with pytest.raises(SpecError, match="cost_budgets"):
        exact_optimum(spec, p, budgets)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((0, 0, 0, np.nan), r"transitions\[0\]\[0\]\[0\] = nan: must be finite"),
        ((3, 1, 2, -0.5), r"transitions\[3\]\[1\]\[2\] = -0.5: must not be negative"),
        ((9, 1, 9, 0.5), r"sum of transitions\[9\]\[1\] = 1.22: must be 1"),
    ],
)
def test_kernels_that_are_no_kernels(change: tuple[int, int, int, float], message: str) -> None:
    """A kernel's rows are distributions; the message names the place."""
    p = KERNELS["streaming-buffer"]()
    p[change[:3]] = change[3]
    with pytest.raises(SpecError, match=message):
        exact_optimum(preset("streaming-buffer"), p)


def test_kernel_outside_the_support() -> None:
    """Probability where the specification says that none can be is refused."""
    limit = Constraint("cost", [[0.0], [0.0]], 1.0, 0.0)
    spec = spec_of(2, [[0.0], [1.0]], limit, support=[[[True, False]], [[True, True]]])
    with pytest.raises(SpecError, match=r"transitions\[0\]\[0\]\[0\]\[1\] = 0.5: must be 0 outside the support"):
        exact_optimum(spec, np.full((1, 2, 1, 2), 0.5))
