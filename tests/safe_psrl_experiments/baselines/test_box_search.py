"""The box search against the extended linear program, solved by HiGHS: once written out here, once in its sparse form."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.optimize import linprog

from safe_psrl import exact_optimum, preset
from safe_psrl_experiments.baselines.box_search import plan_in_box, solve_in_box
from safe_psrl_experiments.baselines.optimistic import DopeRun, OptCmdpRun, OptimisticRun
from safe_psrl_experiments.bench.extended_lp import solve_extended_lp
from safe_psrl_testbed import scenario_named
from safe_psrl_testbed.kernels import KERNELS

TOLERANCE = 1e-6
PUBLISHED_EPISODES = 400_000


class Case(NamedTuple):
    """A box of kernels [S, A, S], signals [S, A] that may exceed 1, and the rest of the problem."""

    low: np.ndarray
    high: np.ndarray
    reward: np.ndarray
    cost: np.ndarray
    available: np.ndarray
    initial: np.ndarray
    budget: float
    horizon: int

    def search(self) -> tuple[bool, float, float, np.ndarray]:
        policy = np.empty((self.horizon, *self.available.shape))
        return *solve_in_box(*self[:7], policy), policy


def random_case(seed: int) -> Case:
    """A few states and actions, masks on both, some pairs never visited, widths from none to all."""
    rng = np.random.default_rng(seed)
    num_states, num_actions, horizon = (int(rng.integers(low, high)) for low, high in ((2, 6), (1, 4), (1, 6)))
    available = rng.random((num_states, num_actions)) < 0.7
    available[np.arange(num_states), rng.integers(num_actions, size=num_states)] = True
    support = rng.random((num_states, num_actions, num_states)) < 0.6
    np.put_along_axis(support, rng.integers(num_states, size=(num_states, num_actions, 1)), values=True, axis=-1)
    mean = np.where(support, rng.gamma(0.5, size=support.shape) + 1e-9, 0.0)
    mean /= mean.sum(axis=-1, keepdims=True)
    width = rng.random(support.shape) * rng.choice([0.0, 0.1, 0.5, 1.0], size=(num_states, num_actions, 1))
    unvisited = rng.random((num_states, num_actions, 1)) < 0.2
    low = np.where(support & ~unvisited, np.maximum(0, mean - width), 0.0)
    high = np.where(support, np.where(unvisited, 1.0, np.minimum(1, mean + width)), 0.0)
    reward, cost = rng.random((2, num_states, num_actions)) * rng.choice([1.0, 30.0])
    budget = float(rng.random() * horizon * cost.max())
    return Case(low, high, reward, cost, available, rng.dirichlet(np.ones(num_states)), budget, horizon)


def program(case: Case) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Reward and cost of z[h, s, a, t], and its flow and box, row by row in dense tables."""
    shape = (case.horizon, *case.low.shape)
    flow, entering, box = [], [], []
    for h in range(case.horizon):
        for s in range(shape[1]):
            row = np.zeros(shape)
            row[h, s] = 1.0
            if h > 0:
                row[h - 1, :, :, s] -= 1.0
            flow.append(row.ravel())
            entering.append(case.initial[s] if h == 0 else 0.0)
        for s, a, t in np.ndindex(case.low.shape):
            above, below = np.zeros(shape), np.zeros(shape)
            above[h, s, a] = -case.high[s, a, t]
            above[h, s, a, t] += 1.0
            below[h, s, a] = case.low[s, a, t]
            below[h, s, a, t] -= 1.0
            box += [above.ravel(), below.ravel()]
    tops = np.broadcast_to(np.where(case.available[..., None], 1.0, 0.0), shape).ravel()
    reward, cost = (np.broadcast_to(table[..., None], shape).ravel() for table in (case.reward, case.cost))
    rest = {"A_eq": np.array(flow), "b_eq": np.array(entering), "bounds": [(0, top) for top in tops], "method": "highs"}
    return reward, cost, rest | {"A_ub": np.array(box), "b_ub": np.zeros(len(box))}


def judge(case: Case) -> tuple[float | None, float]:
    """The best reward within the budget (None if there is none), and the least cost."""
    reward, cost, rest = program(case)
    least = linprog(cost, **rest)
    within = rest | {"A_ub": np.vstack([rest["A_ub"], cost]), "b_ub": np.append(rest["b_ub"], case.budget)}
    best = linprog(-reward, **within)
    return (-best.fun if best.status == 0 else None), least.fun


def best_reward_of_policy(case: Case, policy: np.ndarray) -> float | None:
    """The same program with the policy held fixed: None if no kernel of the box lets it keep the budget."""
    reward, cost, rest = program(case)
    shape = (case.horizon, *case.low.shape)
    tied = []
    for h, s, a in np.ndindex(shape[:3]):
        row = np.zeros(shape)
        row[h, s] = -policy[h, s, a]
        row[h, s, a] += 1.0
        tied.append(row.ravel())
    rest |= {"A_eq": np.vstack([rest["A_eq"], *tied]), "b_eq": np.append(rest["b_eq"], np.zeros(len(tied)))}
    rest |= {"A_ub": np.vstack([rest["A_ub"], cost]), "b_ub": np.append(rest["b_ub"], case.budget + TOLERANCE)}
    found = linprog(-reward, **rest)
    return -found.fun if found.status == 0 else None


def case_of(run: OptimisticRun) -> Case:
    box, problem = run.box, run.problem
    signals = (box.low, box.high, box.reward, box.cost)
    return Case(*signals, problem.available, problem.initial, float(problem.tau[0]), run.world.horizon)


def test_random_boxes() -> None:
    """Masked, unvisited and certain rows: the search finds what the written-out program finds, or the least cost.

    Policies are distributions over available actions.
    """
    feasible = 0
    for seed in range(60):
        case = random_case(seed)
        best, least = judge(case)
        found, reward, cost, policy = case.search()
        assert found == (best is not None), seed
        if best is None:
            assert cost == pytest.approx(least, rel=TOLERANCE, abs=TOLERANCE), seed
        else:
            assert reward == pytest.approx(best, rel=TOLERANCE, abs=TOLERANCE), seed
            assert cost <= case.budget + TOLERANCE, seed
            assert policy.sum(axis=-1) == pytest.approx(1.0, abs=1e-12), seed
            assert policy.min() >= 0, seed
            assert not policy[:, ~case.available].any(), seed
            feasible += 1
    assert 10 < feasible < 55


def test_the_policy_earns_what_is_claimed() -> None:
    """Played as it is written, the policy keeps the budget on some kernels of the box, and has the optimum there."""
    for seed in range(25):
        case = random_case(seed)
        found, reward, _, policy = case.search()
        if found:
            assert best_reward_of_policy(case, policy) == pytest.approx(reward, rel=1e-5, abs=1e-5), seed


def test_states_beyond_reach_are_played_evenly() -> None:
    """From state 0 nothing leads to state 1; there, both actions are as likely."""
    low = high = np.tile(np.eye(2)[:, None], (1, 2, 1))
    reward, cost, available = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]]), np.ones((2, 2), np.bool_)
    _, reached, spent, policy = Case(low, high, reward, cost, available, np.array([1.0, 0.0]), 1.5, 3).search()
    assert (reached, spent) == pytest.approx((1.5, 1.5), abs=1e-9)
    assert policy[:, 1].tolist() == [[0.5, 0.5]] * 3


def test_the_sparse_program_is_the_written_out_one() -> None:
    """What benchmarks time, and the cases below are judged by."""
    for seed in range(30):
        case = random_case(seed)
        best, least = judge(case)
        found, reward, cost = solve_extended_lp(*case)
        assert found == (best is not None), seed
        assert (cost if best is None else reward) == pytest.approx(least if best is None else best, rel=1e-6, abs=1e-6), seed


@pytest.mark.parametrize(
    ("kind", "episodes", "feasible"),
    [
        (OptCmdpRun, [0, 1, 30, 400, 2_500], True),
        (DopeRun, [0, 2_000, 5_000], False),
        (DopeRun, [12_600, 13_500, 15_000], True),
    ],
)
def test_counts_of_real_runs(kind: type[OptimisticRun], episodes: list[int], feasible: bool) -> None:
    """On the streaming buffer, from the first episode to late ones. DOPE's bonuses leave no policy for a long time."""
    scenario = scenario_named("streaming-buffer")
    run = kind(scenario.spec, scenario.transitions_for(1), 1, PUBLISHED_EPISODES)
    for episode in episodes:
        run.advance(episode - run.episode)
        case = case_of(run)
        judged, best, spent = solve_extended_lp(*case)
        found, reward, cost, _ = case.search()
        assert found == judged == feasible, episode
        if feasible:
            assert reward == pytest.approx(best, rel=TOLERANCE), episode
            assert cost <= case.budget + TOLERANCE, episode
        if episode == 2_500:  # late, when optimism no longer gives everything away, both spend the whole budget
            assert (cost, spent) == pytest.approx((5.0, 5.0), abs=TOLERANCE)
        assert feasible or cost == pytest.approx(spent, rel=TOLERANCE), episode


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy"])
def test_a_box_without_width_is_the_ordinary_problem(name: str) -> None:
    """beta = 0: search and linear program give the exact optimum of the kernel."""
    spec, p = preset(name), KERNELS[name]()
    for share in (1.0, 0.7, 0.3):
        budget = share * float(spec.cost_budgets[0])
        case = Case(p, p, *spec.signals[:, 0].copy(), spec.available_actions, spec.initial_distribution, budget, spec.horizon)
        optimum = exact_optimum(spec, p, [budget])
        found, reward, cost, _ = case.search()
        assert found
        assert (reward, cost) == pytest.approx((optimum.reward, float(optimum.costs[0])), abs=1e-9)
        assert solve_extended_lp(*case)[:2] == (True, pytest.approx(optimum.reward, abs=1e-7))


def test_a_budget_below_the_least_cost_is_infeasible() -> None:
    """The least cost of the box is reported, whether little or much is missing; at that very cost there is a policy."""
    for seed in range(20):
        case = random_case(seed)
        least = judge(case)[1]
        for missing in (1e-3, 1.0, 100.0):
            found, _, cost, _ = case._replace(budget=least - missing).search()
            assert not found
            assert cost == pytest.approx(least, rel=TOLERANCE, abs=TOLERANCE)
        assert case._replace(budget=case._replace(budget=-1.0).search()[2]).search()[0]


@pytest.mark.parametrize("multiplier", [0.0, 0.4, 5.0])
def test_chosen_rows_lie_in_the_box(multiplier: float) -> None:
    """A plan's rows are distributions between low and high, none better for what comes next."""
    for seed in range(30):
        case = random_case(seed)
        num_states = case.initial.size
        policy, values = np.zeros((case.horizon, num_states), np.int32), np.empty((2, num_states))
        chosen = np.empty((case.horizon, num_states, num_states))
        plan_in_box(*case[:4], 1.0, multiplier, case.available, policy, chosen, values)
        ahead = np.zeros(num_states)
        for h in reversed(range(case.horizon)):
            objective = np.empty(num_states)
            for s, a in enumerate(policy[h]):
                assert case.available[s, a]
                assert chosen[h, s].sum() == pytest.approx(1.0, abs=1e-12)
                assert (chosen[h, s] >= case.low[s, a] - 1e-12).all()
                assert (chosen[h, s] <= case.high[s, a] + 1e-12).all()
                objective[s] = case.reward[s, a] - multiplier * case.cost[s, a] + chosen[h, s] @ ahead
                bounds = list(zip(case.low[s, a], case.high[s, a], strict=True))
                if seed < 3:
                    best = linprog(-ahead, A_eq=np.ones((1, num_states)), b_eq=[1.0], bounds=bounds, method="highs")
                    assert chosen[h, s] @ ahead == pytest.approx(-best.fun, abs=1e-7)
            ahead = objective
        assert values[0] - multiplier * values[1] == pytest.approx(ahead, rel=1e-9)
