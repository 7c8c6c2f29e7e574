"""Random problems: reproducible, with budgets that can be kept and that matter."""

import numpy as np
import pytest

from safe_psrl import SpecError, exact_optimum
from safe_psrl_testbed import random_cmdp

SIZES = [(1, 2, 3), (4, 2, 5), (6, 3, 6), (12, 4, 8)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(5))
def test_the_satisfiable_cost_and_hence_the_budget_can_be_kept(size: tuple[int, int, int], seed: int) -> None:
    spec, p = random_cmdp(*size, seed=seed)
    assert (spec.num_states, spec.num_actions, spec.horizon) == size
    assert exact_optimum(spec, p, spec.satisfiable_costs).costs[0] <= spec.satisfiable_costs[0] + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_the_budget_binds(seed: int) -> None:
    """Whoever may spend more gains by it."""
    spec, p = random_cmdp(6, 3, 6, seed=seed)
    kept, free = exact_optimum(spec, p), exact_optimum(spec, p, [6.0])
    assert free.reward > kept.reward + 1e-6
    assert kept.costs[0] == pytest.approx(spec.cost_budgets[0], abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_so_it_does_in_a_continuing_task(seed: int) -> None:
    spec, p = random_cmdp(6, 3, "continuing", seed=seed)
    assert spec.is_continuing
    kept = exact_optimum(spec, p)
    assert exact_optimum(spec, p, [1.0]).reward > kept.reward + 1e-6
    assert kept.costs[0] == pytest.approx(spec.cost_budgets[0], abs=1e-9)
    assert exact_optimum(spec, p, spec.satisfiable_costs).costs[0] <= spec.satisfiable_costs[0] + 1e-9


@pytest.mark.parametrize("num_constraints", [2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_several_constraints_can_be_kept_together_and_one_of_them_binds(num_constraints: int, seed: int) -> None:
    spec, p = random_cmdp(5, 3, 5, seed=seed, num_constraints=num_constraints)
    assert spec.constraint_names == tuple(f"cost-{i + 1}" for i in range(num_constraints))
    frugal = exact_optimum(spec, p, spec.satisfiable_costs)
    assert (frugal.costs <= spec.satisfiable_costs + 1e-7).all()
    kept, free = exact_optimum(spec, p), exact_optimum(spec, p, np.full(num_constraints, 5.0))
    assert free.reward > kept.reward + 1e-6


def test_the_same_seed_gives_the_same_problem_and_another_another() -> None:
    (spec, p), (again, p_again), (_, other) = (random_cmdp(5, 3, 4, seed=seed) for seed in (9, 9, 10))
    np.testing.assert_array_equal(p, p_again)
    np.testing.assert_array_equal(spec.signals, again.signals)
    np.testing.assert_array_equal(spec.cost_budgets, again.cost_budgets)
    assert not np.array_equal(p, other)


@pytest.mark.parametrize(
    ("size", "value"),
    [("num_states", 0), ("num_actions", 0), ("horizon", 0), ("num_constraints", 0), ("seed", -1), ("num_states", 1_000_000)],
)
def test_impossible_sizes_are_refused_before_anything_is_allocated(size: str, value: int) -> None:
    with pytest.raises(SpecError, match=f"^{size.removeprefix('num_')} = "):
        random_cmdp(**{"num_states": 3, "num_actions": 2, "horizon": 4, size: value})
