"""The paper's algorithm 1 (section 5), one test per line, in the order of the lines."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.safe_psrl.cases import TWO_CONSTRAINTS, deterministic_policies, forward_totals, random_case

from safe_psrl import PESSIMISM_PRESETS, SafePsrl, SafePsrlOptions, Transition, preset
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl_experiments.plain import backward_induction, policy_value

EPISODES = (1, 2, 17, 400_000)


def sampled(learner: SafePsrl, episode: int, counts: np.ndarray) -> np.ndarray:
    """p_k as a reader of the documentation would draw it."""
    p = np.empty(counts.shape)
    draw_kernel(stream_of(learner.seed, episode, POSTERIOR), learner.spec.dirichlet_prior, counts, p)
    return p


def test_initialization_sets_every_dual_variable_to_zero() -> None:
    """Line "Initialization": lambda_1 = 0, for each of several constraints."""
    for spec in (preset("streaming-buffer"), TWO_CONSTRAINTS):
        state = SafePsrl(spec).initial_state()
        assert state.episode == 0
        assert state.dual_variables.tolist() == [0.0] * spec.num_constraints
        assert not state.transition_counts.any()


@pytest.mark.parametrize("episode", EPISODES)
@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy"])
@pytest.mark.parametrize("coefficient", ["theorem", "published", "literal", 1.5, 0])
def test_pessimism_of_episode_k(name: str, coefficient: str | float, episode: int) -> None:
    """Line 1: epsilon_k = K_eps H^1.5 sqrt(S^2 A) (log kSAH + 1) / sqrt(k log kSAH), the theorem's K_eps being 5."""
    spec = preset(name)
    learner = SafePsrl(spec, SafePsrlOptions(pessimism_coefficient=coefficient))
    _, plan = learner.start_episode(replace(learner.initial_state(), episode=episode - 1))
    k_epsilon = {"theorem": 5, "published": 0.05, "literal": 0.25}.get(coefficient, coefficient)
    log = math.log(episode * spec.num_states * spec.num_actions * spec.horizon)
    numerator = k_epsilon * spec.horizon**1.5 * math.sqrt(spec.num_states**2 * spec.num_actions) * (log + 1)
    assert plan.episode == episode
    assert plan.pessimism == pytest.approx([numerator / math.sqrt(episode * log)], rel=1e-13)


def test_presets_of_the_coefficient() -> None:
    """Section 5 has 5; section 7 scales it by 0.05, which the figures read as 0.05 and the words as 0.25."""
    assert PESSIMISM_PRESETS == {"theorem": 5.0, "published": 0.05, "literal": 0.25}
    assert SafePsrlOptions() == SafePsrlOptions("published")


@pytest.mark.parametrize("episode", EPISODES)
def test_ceiling_on_pessimism(episode: int) -> None:
    """The option beyond the paper: epsilon_k is kept at (tau - c0) / 2, each constraint's own, and is free below it."""
    learner = SafePsrl(TWO_CONSTRAINTS, SafePsrlOptions("literal", cap_pessimism=True))
    free = SafePsrl(TWO_CONSTRAINTS, SafePsrlOptions("literal"))
    _, capped_plan = learner.start_episode(replace(learner.initial_state(), episode=episode - 1))
    _, free_plan = free.start_episode(replace(free.initial_state(), episode=episode - 1))
    assert capped_plan.pessimism == pytest.approx(np.minimum(free_plan.pessimism, [2.0, 3.5]), abs=0)
    assert (free_plan.pessimism > 3.5).all() == (episode < 400_000)


@pytest.mark.parametrize("episode", EPISODES)
def test_dual_scale_of_episode_k(episode: int) -> None:
    """Line 2: eta_k = (tau - c0) H sqrt(k), for each constraint with its own budget; the price of cost is lambda_k / eta_k."""
    learner = SafePsrl(TWO_CONSTRAINTS)
    state = replace(learner.initial_state(), episode=episode - 1, dual_variables=np.array([3.0, 5.0]))
    _, plan = learner.start_episode(state)
    assert plan.dual_scale == pytest.approx([4 * 10 * math.sqrt(episode), 7 * 10 * math.sqrt(episode)], rel=1e-14)
    assert plan.cost_prices == pytest.approx(np.array([3.0, 5.0]) / plan.dual_scale, rel=1e-14)


def test_one_sample_an_episode_from_the_posterior_of_its_first_time_step() -> None:
    """Lines 3 and 4: p_k is one kernel for every h, drawn from mu at t_k = (k-1)H + 1, hence with the data of k-1 episodes."""
    spec = preset("streaming-buffer")
    learner = SafePsrl(spec, seed=11)
    state, _ = learner.start_episode(learner.initial_state())
    for h in range(spec.horizon):
        state = learner.observe(state, Transition(h, h % 3, 0, (h + 1) % 3))
    assert learner.settle(state).transition_counts.sum() == spec.horizon  # t_2 - 1
    _, plan = learner.start_episode(state)
    p_2 = sampled(learner, 2, learner.settle(state).transition_counts)
    assert p_2.shape == (1, 10, 2, 10)
    objective = spec.signals[0] - plan.cost_prices[0] * spec.signals[1]
    policy = backward_induction(p_2, objective, spec.available_actions, spec.horizon)
    assert plan.policy.tolist() == policy.tolist()
    assert plan.predicted_costs == pytest.approx([policy_value(p_2, spec.signals[1], policy)[0]], abs=1e-12)
    assert plan.predicted_reward == pytest.approx(policy_value(p_2, spec.signals[0], policy)[0], abs=1e-12)


def test_sample_has_the_moments_of_the_dirichlet_posterior() -> None:
    """Line "Generate": over episodes, rows have mean alpha / w and variance m(1-m) / (w+1), alpha = prior + counts."""
    spec = preset("factored-toy")
    learner = SafePsrl(spec, seed=5)
    counts = np.arange(18).reshape(1, 3, 2, 3) % 5
    draws = np.array([sampled(learner, k, counts) for k in range(1, 8001)])
    alpha = 0.1 + counts
    weight = alpha.sum(axis=-1, keepdims=True)
    mean = alpha / weight
    variance = mean * (1 - mean) / (weight + 1)
    assert (abs(draws.mean(axis=0) - mean) < 4.5 * np.sqrt(variance / 8000)).all()
    assert draws.var(axis=0) == pytest.approx(variance, rel=0.15)
    between_rows = np.corrcoef(draws[:, 0, 0, 0, 1], draws[:, 0, 0, 1, 1])[0, 1]
    assert abs(between_rows) < 0.05, "rows are independent"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_constraints", [1, 2])
def test_policy_update_maximises_the_lagrangian(seed: int, num_constraints: int) -> None:
    """Policy update: no policy has a greater Lagrangian V(r, p_k) + sum (lambda_k / eta_k) (tau - epsilon_k - V(c, p_k))."""
    spec = random_case(seed, (2, 3, 2), num_constraints=num_constraints, masked=True).spec
    learner = SafePsrl(spec, SafePsrlOptions(max_kernel_draws=1), seed=seed)
    state = replace(learner.initial_state(), episode=2, dual_variables=np.array([1.5, 0.7])[:num_constraints])
    _, plan = learner.start_episode(state)
    p_3 = sampled(learner, 3, state.transition_counts)

    def lagrangian(policy: np.ndarray) -> float:
        reward, *costs = forward_totals(spec, p_3, policy)
        return reward + plan.cost_prices @ (spec.cost_budgets - plan.pessimism - np.array(costs))

    best = max(lagrangian(policy) for policy in deterministic_policies(spec))
    assert plan.cost_prices.min() > 0
    assert lagrangian(plan.policy) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("start", [0.0, 0.4, 300.0])
def test_dual_update(start: float) -> None:
    """Dual update: lambda_{k+1} = max(0, lambda_k + V(c, p_k) + epsilon_k - tau), each constraint for itself."""
    learner = SafePsrl(TWO_CONSTRAINTS, SafePsrlOptions(pessimism_coefficient=0.001))
    given = np.array([start, 2 * start])
    state, plan = learner.start_episode(replace(learner.initial_state(), dual_variables=given))
    moved = given + plan.predicted_costs + plan.pessimism - TWO_CONSTRAINTS.cost_budgets
    assert plan.dual_variables.tolist() == given.tolist()
    assert plan.next_dual_variables == pytest.approx(np.maximum(0, moved), abs=1e-12)
    assert state.dual_variables.tolist() == plan.next_dual_variables.tolist()
    assert start != 0.4 or moved.min() < 0 == plan.next_dual_variables.min(), "the case in which max(0, .) acts"


def test_playing_takes_h_steps_each_of_which_enters_the_posterior_once() -> None:
    """Inner loop and eq. (7): alpha of the observed (s, a, s') grows by exactly 1 and no other."""
    spec = preset("streaming-buffer")
    learner = SafePsrl(spec)
    state, plan = learner.start_episode(learner.initial_state())
    assert plan.policy.shape == (spec.horizon, spec.num_states)
    expected = np.zeros((1, 10, 2, 10), int)
    for h in range(spec.horizon):
        state = learner.observe(state, Transition(h, h % 4, int(plan.policy[h, h % 4]), (h + 1) % 4))
        expected[0, h % 4, plan.policy[h, h % 4], (h + 1) % 4] += 1
        assert learner.settle(state).transition_counts.tolist() == expected.tolist()
    assert expected.sum() == spec.horizon


def test_adding_one_is_bayes_rule() -> None:
    """Eq. (7): draws after observing s' are distributed as draws before it, weighted by their p(s'|s,a)."""
    learner = SafePsrl(preset("factored-toy"), seed=3)
    before = np.tile([[3, 1, 0]], (1, 3, 2, 1)).astype(np.int64)
    after = before + np.array([0, 1, 0])
    prior_draws = np.concatenate([sampled(learner, k, before).reshape(6, 3) for k in range(1, 4001)])
    posterior_draws = np.concatenate([sampled(learner, k, after).reshape(6, 3) for k in range(4001, 8001)])
    weighted = (prior_draws[:, 1:2] * prior_draws).sum(axis=0) / prior_draws[:, 1].sum()
    assert posterior_draws.mean(axis=0) == pytest.approx(weighted, abs=0.01)
    assert abs(prior_draws.mean(axis=0) - weighted).max() > 0.1, "the observation matters"
