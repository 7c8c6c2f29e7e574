"""Constants, widths and updates of the compared systems, computed once more in plain numpy from their papers' formulas."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.safe_psrl.cases import spec_of

from safe_psrl import CmdpSpec, Constraint, InfeasibleError, SpecError, exact_optimum
from safe_psrl.planning.optimum import solve_cmdp
from safe_psrl_experiments.algorithms import ALGORITHMS, Run
from safe_psrl_experiments.baselines.box_search import solve_in_box
from safe_psrl_experiments.baselines.optimistic import DopeRun, OptCmdpRun, OptimisticRun
from safe_psrl_experiments.baselines.optpess import OptPessLpRun, OptPessPrimalDualRun
from safe_psrl_experiments.baselines.posterior_sampling import CmdpPsrlRun, PsrlRun
from safe_psrl_experiments.plain import PlainRun, Stream, policy_value, sampled_kernel
from safe_psrl_testbed import Scenario, scenario_named

DELTA = 0.01
PRESETS = ["streaming-buffer", "inventory", "factored-toy"]
EPISODES = 1_000  # to come, as the systems that ask for it are told


def randomised_value(p: np.ndarray, signal: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """[S]: `p` [L, S, A, S], `signal` [R, S, A], `policy` [H, S, A]."""
    value = np.zeros(p.shape[1])
    for h in reversed(range(len(policy))):
        value = (policy[h] * (signal[h % len(signal)] + p[h % len(p)] @ value)).sum(axis=-1)
    return value


def true_totals(scenario: Scenario, policy: np.ndarray) -> np.ndarray:
    """Expected reward and cost of a randomised policy in the true world."""
    p, start = scenario.transitions_for(1), scenario.spec.initial_distribution
    return np.array([start @ randomised_value(p, signal, policy) for signal in scenario.spec.signals])


def played_totals(run: Run, best_reward: float, tau: float) -> np.ndarray:
    """Expected reward and cost of the policy that the run plays next."""
    before = np.array([run.ledger.objective_regret[0], run.ledger.constraint_regret[0]])
    run.advance(1)
    after = np.array([run.ledger.objective_regret[0], run.ledger.constraint_regret[0]])
    return np.array([best_reward, tau]) + (after - before) * [-1, 1]


def oracle(scenario: Scenario) -> np.ndarray:
    """pi_b: the optimum of the true problem at budget c0."""
    return exact_optimum(scenario.spec, scenario.transitions_for(1), scenario.spec.satisfiable_costs).policy


def bernstein_box(scenario: Scenario, counts: np.ndarray, reward_bonus: float, cost_bonus: float) -> dict[str, np.ndarray]:
    """Low and high [S, A, S] and bent signals [S, A] from counts [S, A, S]."""
    spec, support = scenario.spec, scenario.transitions_for(1)[0] > 0
    log_term = math.log(6 * spec.num_states**2 * spec.horizon * EPISODES / DELTA)
    n = counts.sum(axis=-1, keepdims=True)
    seen = np.maximum(n, 1)
    mean = np.where(n > 0, counts / seen, 1 / spec.num_states)
    width = 2 * np.sqrt(log_term * mean * (1 - mean) / seen) + 14 * log_term / (3 * seen)
    beta = np.where(n > 0, np.minimum(1, width), 1.0)
    b = beta.sum(axis=-1)
    reward, cost = spec.signals[:, 0]
    return {
        "low": np.where(support, np.maximum(0, mean - beta), 0.0),
        "high": np.where(support, np.minimum(1, mean + beta), 0.0),
        "reward": reward + reward_bonus * b,
        "cost": cost + cost_bonus * b,
    }


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("kind", [DopeRun, OptCmdpRun])
def test_boxes_and_bonuses(name: str, kind: Callable[..., OptimisticRun]) -> None:
    """L, beta, the box on the support, b over all states; DOPE adds H^2/(tau - c0) b to the reward and H b to the cost."""
    scenario = scenario_named(name)
    spec = scenario.spec
    slack = spec.cost_budgets[0] - spec.satisfiable_costs[0]
    bonuses = (spec.horizon**2 / slack, spec.horizon) if kind is DopeRun else (0.0, 0.0)
    run = kind(spec, scenario.transitions_for(1), 1, EPISODES)
    for _ in range(4):
        expected = bernstein_box(scenario, run.counts.transitions[0], *bonuses)
        for field, table in expected.items():
            assert getattr(run.box, field) == pytest.approx(table, rel=1e-12, abs=1e-12), field
        run.advance(60)
    assert run.counts.transitions.sum() == 240 * spec.horizon


def test_dope_begins_with_the_safe_policy() -> None:
    """Episodes 0..K0, K0 = S^2 A H^3/(tau - c0)^2 = 675 on the toy; from then on its program, or pi_b where infeasible."""
    scenario = scenario_named("factored-toy")
    spec, p, safe = scenario.spec, scenario.transitions_for(1), oracle(scenario)
    best, tau = exact_optimum(spec, p).reward, float(spec.cost_budgets[0])
    slack = tau - spec.satisfiable_costs[0]
    assert spec.num_states**2 * spec.num_actions * spec.horizon**3 / slack**2 == pytest.approx(675)
    run = DopeRun(spec, p, 1, EPISODES)
    run.advance(676)
    slow, fast = true_totals(scenario, safe), np.array([best, tau])
    assert run.ledger.objective_regret[0] == pytest.approx(676 * (fast - slow)[0], rel=1e-9)
    assert run.ledger.constraint_regret[0] == pytest.approx(676 * (slow - fast)[1], rel=1e-9)


def next_optimistic_policy(run: OptimisticRun, scenario: Scenario, bonuses: tuple[float, float]) -> tuple[bool, np.ndarray]:
    """Whether the program has a solution, and it, from the counts alone."""
    spec = scenario.spec
    box = bernstein_box(scenario, run.counts.transitions[0], *bonuses)
    policy = np.zeros((spec.horizon, spec.num_states, spec.num_actions))
    rest = (spec.available_actions, spec.initial_distribution, float(spec.cost_budgets[0]))
    return solve_in_box(*box.values(), *rest, policy)[0], policy


def test_dope_plans_where_it_can_and_is_safe_elsewhere() -> None:
    """Early, its pessimistic cost leaves no policy: pi_b. With counts of millions, the program's."""
    scenario = scenario_named("factored-toy")
    spec, p = scenario.spec, scenario.transitions_for(1)
    slack = float(spec.cost_budgets[0] - spec.satisfiable_costs[0])
    best, tau, found = exact_optimum(spec, p).reward, float(spec.cost_budgets[0]), set()
    for experience in (0, 1_000, 10**8):
        run = DopeRun(spec, p, 1, EPISODES)
        run.counts.transitions[:] = np.rint(experience * p)
        run.counts.visits[:] = run.counts.transitions.sum(axis=-1)
        run.counts.mean[:] = np.where(experience > 0, p, 1 / spec.num_states)
        run.box.low[:], run.box.high[:], run.box.reward[:], run.box.cost[:] = bernstein_box(
            scenario, run.counts.transitions[0], spec.horizon**2 / slack, spec.horizon
        ).values()
        run.episode = 676
        feasible, policy = next_optimistic_policy(run, scenario, (spec.horizon**2 / slack, spec.horizon))
        expected = true_totals(scenario, policy if feasible else oracle(scenario))
        assert played_totals(run, best, tau) == pytest.approx(expected, abs=1e-9)
        found.add(feasible)
    assert found == {True, False}


def test_optcmdp_plans_from_the_first_episode() -> None:
    """No safe policy, no bonus: the optimum of the box, from its counts alone."""
    scenario = scenario_named("streaming-buffer")
    best = exact_optimum(scenario.spec, scenario.transitions_for(1)).reward
    run = OptCmdpRun(scenario.spec, scenario.transitions_for(1), 1, EPISODES)
    for _ in range(20):
        feasible, policy = next_optimistic_policy(run, scenario, (0.0, 0.0))
        assert feasible
        assert played_totals(run, best, 5.0) == pytest.approx(true_totals(scenario, policy), abs=1e-9)
        run.advance(20)


@pytest.mark.parametrize("name", ["factored-toy", "streaming-buffer"])
def test_optpess_lp_leaves_the_safe_policy_when_it_looks_safe(name: str) -> None:
    """Z, beta, alpha_r: pi_b while V^{pi_b}(c + (1 + HS) beta, phat) >= (tau + c0)/2; then the optimum of the bent problem."""
    scenario = scenario_named(name)
    spec, p, safe = scenario.spec, scenario.transitions_for(1), oracle(scenario)
    tau, c0, best = float(spec.cost_budgets[0]), float(spec.satisfiable_costs[0]), exact_optimum(spec, p).reward
    size = 1 + spec.num_states * spec.horizon
    z = math.log(16 * spec.num_states**2 * spec.num_actions * spec.horizon * EPISODES / DELTA)
    left = set()
    for experience in (0, 10**3, 10**5, 10**6, 10**7, 10**9):
        run = OptPessLpRun(spec, p, 1, EPISODES)
        run.tables["visits"][:] = experience
        run.tables["mean"][:] = p if experience else 1 / spec.num_states
        beta = math.sqrt(z / max(experience, 1))
        alpha_r = size + 4 * spec.horizon * size / (tau - c0)
        bent = np.ascontiguousarray(np.tile(spec.signals, (1, spec.horizon, 1, 1)))
        bent[0] += alpha_r * beta
        bent[1] += size * beta
        looks = spec.initial_distribution @ randomised_value(run.tables["mean"], bent[1], safe)
        policy = safe.copy()
        if looks < (tau + c0) / 2:
            known = (run.tables["mean"], spec.next_states, bent, spec.available_actions, spec.initial_distribution)
            solve_cmdp(*known, tau, policy, np.zeros(1, np.bool_))
        assert played_totals(run, best, tau) == pytest.approx(true_totals(scenario, policy), abs=1e-9), experience
        left.add(looks < (tau + c0) / 2)
    assert left == {True, False}


def drawn(probabilities: np.ndarray, uniform: float) -> int:
    return int(np.searchsorted(np.cumsum(probabilities), uniform, side="right"))


@pytest.mark.parametrize("coefficient", [0.1, 0.0003])
@pytest.mark.parametrize("name", PRESETS)
def test_optpess_primaldual_is_its_plain_twin(name: str, coefficient: float) -> None:
    """50 episodes of epsilon_k, eta_k, optimistic signals, untruncated induction and dual updates, side by side."""
    scenario = scenario_named(name)
    spec, p, start = scenario.spec, scenario.transitions_for(1), scenario.spec.initial_distribution
    size, horizon = (spec.num_states, spec.num_actions), spec.horizon
    tau, c0, best = float(spec.cost_budgets[0]), float(spec.satisfiable_costs[0]), exact_optimum(spec, p).reward
    run = OptPessPrimalDualRun(spec, p, 3, EPISODES, coefficient)
    delta = DELTA / (16 * size[0] ** 2 * size[1] * horizon)
    counts, dual, regret = np.zeros((horizon, *size, size[0])), 0.0, np.zeros(2)
    for k in range(1, 51):
        log = math.log(k / delta)
        epsilon = coefficient * horizon**2 * math.sqrt(size[0] ** 3 * size[1]) * (1 + log) / math.sqrt(k * log)
        n = counts.sum(axis=-1)
        bonus = (1 + horizon * size[0]) * np.sqrt(math.log(EPISODES / delta) / np.maximum(n, 1))
        mean = np.where(n[..., None] > 0, counts / np.maximum(n, 1)[..., None], 1 / size[0])
        reward, cost = spec.signals[0] + bonus, spec.signals[1] - bonus
        price = dual / ((tau - c0) * horizon * math.sqrt(k))
        value, policy = np.zeros(size[0]), np.empty((horizon, size[0]), np.int64)
        for h in reversed(range(horizon)):
            q = np.where(spec.available_actions, (mean[h] * value).sum(axis=-1) + reward[h] - price * cost[h], -np.inf)
            policy[h], value = q.argmax(axis=-1), q.max(axis=-1)
        dual = max(0.0, dual + max(0.0, start @ policy_value(mean, cost, policy)) + epsilon - tau)
        totals = np.array([start @ policy_value(p, signal, policy) for signal in spec.signals])
        regret += [best - totals[0], totals[1] - tau]
        generator = Stream(3, k, 1)
        state = drawn(start, generator.uniform())
        for h in range(horizon):
            after = drawn(p[h % len(p), state, policy[h, state]], generator.uniform())
            counts[h, state, policy[h, state], after] += 1
            state = after
        run.advance(1)
        assert run.tables["transitions"].tolist() == counts.tolist(), k
        assert run.pessimism[0] == pytest.approx(epsilon, rel=1e-12)
        assert run.dual_variables[0] == pytest.approx(dual, abs=1e-9)
        assert [run.ledger.objective_regret[0], run.ledger.constraint_regret[0]] == pytest.approx(regret, abs=1e-9)


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "random:seed=2"])
def test_psrl_is_safe_psrl_with_a_dual_variable_of_0(name: str) -> None:
    """The plain twin of Safe PSRL, its dual variable put back to 0 after each of 50 episodes."""
    scenario = scenario_named(name)
    run = PsrlRun(scenario.spec, scenario.transitions_for(1), 3)
    plain = PlainRun(scenario.spec, scenario.transitions_for(1), run.world.best_reward, seed=3, environment_seed=3)
    for _ in range(50):
        run.advance(1)
        plain.dual[:] = 0.0
        plain.advance(1)
        assert run.tables["counts"].tolist() == plain.counts.tolist()
        assert run.ledger.objective_regret[0] == pytest.approx(plain.objective_regret, abs=1e-9)
        assert run.ledger.constraint_regret == pytest.approx(plain.constraint_regret, abs=1e-9)
    assert run.dual_variables.tolist() == [0.0]


def tight() -> tuple[CmdpSpec, np.ndarray]:
    """A budget just above the least cost, which many samples cannot keep."""
    scenario = scenario_named("random:states=4,actions=2,horizon=4,seed=3")
    spec, p = scenario.spec, scenario.transitions_for(1)
    with pytest.raises(InfeasibleError) as caught:
        exact_optimum(spec, p, [0.0])
    least = float(caught.value.least_costs[0])
    reward, cost = spec.signals[:, 0]
    return spec_of(4, reward, Constraint("cost", cost, 1.02 * least, 1.01 * least)), p


def test_cmdp_psrl_is_its_plain_twin() -> None:
    """Dirichlet(1), the exact optimum of each sample, without the constraint where the sample cannot keep it."""
    spec, p = tight()
    run = CmdpPsrlRun(spec, p, 5)
    best, start, horizon = exact_optimum(spec, p).reward, spec.initial_distribution, spec.horizon
    counts, regret, dropped = np.zeros((1, 4, 2, 4)), np.zeros(2), 0
    for k in range(1, 61):
        sample = sampled_kernel(Stream(5, k, 0), 1.0 + counts)
        try:
            policy = exact_optimum(spec, sample).policy
        except InfeasibleError:
            policy = exact_optimum(spec, sample, [float(horizon)]).policy
            dropped += 1
        totals = np.array([start @ randomised_value(p, signal, policy) for signal in spec.signals])
        regret += [best - totals[0], totals[1] - spec.cost_budgets[0]]
        generator = Stream(5, k, 1)
        state = drawn(start, generator.uniform())
        for h in range(horizon):
            action = drawn(policy[h, state], generator.uniform())
            after = drawn(p[0, state, action], generator.uniform())
            counts[0, state, action, after] += 1
            state = after
        run.advance(1)
        assert run.tables["transitions"].tolist() == counts.tolist(), k
        assert [run.ledger.objective_regret[0], run.ledger.constraint_regret[0]] == pytest.approx(regret, abs=1e-9)
    assert 0 < dropped < 60


def test_the_safe_baseline_is_the_optimum_at_the_satisfiable_cost() -> None:
    """Streaming buffer: objective cost 8.983489 against 6.746704, and 4 of its 5 left, in every episode."""
    scenario = scenario_named("streaming-buffer")
    run = ALGORITHMS["safe-baseline"].start(scenario.spec, scenario.transitions_for(1), {}, 1, 10)
    run.advance(10)
    assert run.ledger.objective_regret[0] == pytest.approx(10 * (8.983489 - 6.746704), abs=2e-5)
    assert run.ledger.constraint_regret[0] == pytest.approx(-40.0, abs=1e-9)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in {"safe-psrl", "certified", "psconrl"}])
def test_problems_that_they_are_not_defined_for_are_refused(name: str) -> None:
    """Several constraints: one line that names the algorithm."""
    scenario = scenario_named("random:constraints=2")
    with pytest.raises(SpecError, match=f"algorithm = '{name}': is defined for one constraint"):
        ALGORITHMS[name].start(scenario.spec, scenario.transitions_for(1), {}, 1, 10)


@pytest.mark.parametrize("name", ["dope", "optcmdp"])
def test_stationary_algorithms_refuse_signals_by_the_step(name: str) -> None:
    spec = spec_of(2, [[[1.0, 0.0]], [[0.5, 0.0]]], Constraint("cost", [[1.0, 0.0]], 1.0, 0.5))
    with pytest.raises(SpecError, match="for all steps only"):
        ALGORITHMS[name].start(spec, np.ones((1, 1, 2, 1)), {}, 1, 10)


@pytest.mark.parametrize("value", [-0.1, math.inf, "much"])
def test_primaldual_refuses_coefficients_that_are_none(value: object) -> None:
    scenario = scenario_named("factored-toy")
    with pytest.raises(SpecError, match="pessimism_coefficient = "):
        OptPessPrimalDualRun(scenario.spec, scenario.transitions_for(1), 1, 10, value)
