"""Explanations against brute force on tiny problems, and against kernels drawn from the posterior."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from safe_psrl import CmdpSpec, Constraint, SafePsrl, SafePsrlOptions, SpecError, Transition
from safe_psrl.explanation import action_probabilities, action_values, exchange_rate, mixture_of, plan_with_budgets
from safe_psrl.learner import AgentState
from safe_psrl.posterior.uncertainty import belief_of, cost_covariance, course_of, value_and_variance
from tests.safe_psrl.cases import Case, Floats, listed_case, over_all_states, random_case, spec_of

VARIANTS = [
    {},
    {"masked": True},
    {"step_signals": True},
    {"per_step": True, "step_signals": True},
    {"num_constraints": 2},
    {"learned": True},
]


def learned_state(case: Case, learner: SafePsrl, size: int, seed: int) -> AgentState:
    """About `size` visits of each row of the kernel."""
    spec, rng = case.spec, np.random.default_rng(seed)
    state = learner.initial_state()
    for h, s, a in itertools.product(*map(range, case.p.shape[:3])):
        for _ in range(int(rng.integers(size // 2, 2 * size)) if spec.available_actions[s, a] else 0):
            after = int(rng.choice(spec.num_states, p=case.p[h, s, a]))
            seen = Transition(h, s, a, after, float(rng.random()), tuple(rng.random(spec.num_constraints).tolist()))
            state = learner.observe(state, seen)
    return learner.settle(state)


def posterior_mean(spec: CmdpSpec, state: AgentState) -> Floats:
    """[L, S, A, S]."""
    weights = spec.dirichlet_prior + state.transition_counts
    if spec.lists_next_states:
        weights = over_all_states(spec, weights)
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def signals_of(spec: CmdpSpec, state: AgentState) -> Floats:
    if not spec.learns_signals:
        return spec.signals
    return np.where(state.visits > 0, state.signal_sums / np.maximum(state.visits, 1), spec.signals)


def enumerated(signals: Floats, p: Floats, policy: np.ndarray, step: int, s: int, action: int | None = None) -> Floats:
    """[1+M]: the expected sums from `step` on, by following every path; the first action may be another."""
    if step == len(policy):
        return np.zeros(len(signals))
    a = int(policy[step, s]) if action is None else action
    total = signals[:, step % signals.shape[1], s, a]
    for after, chance in enumerate(p[step % len(p), s, a]):
        if chance > 0:
            total = total + chance * enumerated(signals, p, policy, step + 1, after)
    return total


def random_mixture(spec: CmdpSpec, parts: int, seed: int) -> tuple[np.ndarray, Floats]:
    rng = np.random.default_rng(seed)
    keys = rng.random((parts, spec.horizon, spec.num_states, spec.num_actions))
    policies = np.where(spec.available_actions, keys, -1.0).argmax(axis=-1).astype(np.int32)
    return policies, rng.dirichlet(np.ones(parts))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("parts", [1, 3])
def test_values_are_those_of_following_every_path(variant: dict, parts: int, listed: bool) -> None:
    """For every state, step and available action."""
    case = random_case(3, (3, 3, 4), **variant)
    spec = (listed_case(case) if listed else case).spec
    learner = SafePsrl(spec)
    state = learned_state(case, learner, 5, seed=3)
    mixture, shares = random_mixture(spec, parts, seed=4)
    mean, signals = posterior_mean(spec, state), signals_of(spec, state)
    for step, s in itertools.product(range(spec.horizon), range(spec.num_states)):
        found = action_values(learner, state, mixture, shares, step, s)
        assert found.actions == tuple(np.flatnonzero(spec.available_actions[s]).tolist())
        for i, a in enumerate(found.actions):
            paths = [enumerated(signals, mean, policy, step, s, a) for policy in mixture]
            assert found.values[i] == pytest.approx(shares @ np.array(paths), rel=1e-9)
            assert found.visits[i] == state.transition_counts[step % len(mean), s, a].sum()
            chosen = sum(share for share, policy in zip(shares, mixture, strict=True) if policy[step, s] == a)
            assert found.probabilities[i] == pytest.approx(chosen)


def drawn_values(case: Case, state: AgentState, mixture: np.ndarray, shares: Floats, place: Sequence[int]) -> Floats:
    """[draws, 1+M]: on kernels drawn from the posterior."""
    rng, (step, s, a) = np.random.default_rng(0), place
    policies = mixture.copy()
    policies[:, step, s] = a
    values = []
    for _ in range(3_000):
        gammas = rng.standard_gamma(case.spec.dirichlet_prior + state.transition_counts)
        total = gammas.sum(axis=-1, keepdims=True)
        p = gammas / np.where(total > 0, total, 1.0)
        values.append(shares @ np.array([backward(case.spec, p, policy, step)[:, s] for policy in policies]))
    return np.array(values)


def backward(spec: CmdpSpec, p: Floats, policy: np.ndarray, step: int) -> Floats:
    """[1+M, S]: the values at `step`."""
    states, values = np.arange(spec.num_states), np.zeros((1 + spec.num_constraints, spec.num_states))
    for h in range(spec.horizon - 1, step - 1, -1):
        onward = values @ p[h % len(p), states, policy[h]].T
        values = spec.signals[:, h % spec.signals.shape[1], states, policy[h]] + onward
    return values


@pytest.mark.parametrize("variant", VARIANTS[:5])
@pytest.mark.parametrize("parts", [1, 2])
def test_sigma_is_the_spread_over_the_posterior(variant: dict, parts: int) -> None:
    """At large counts, to 10 %: the delta method is exact in that limit, and 3,000 draws know a deviation to 1.3 %."""
    case = random_case(5, (3, 2, 4), **variant)
    learner = SafePsrl(case.spec)
    state = learned_state(case, learner, 300, seed=5)
    mixture, shares = random_mixture(case.spec, parts, seed=6)
    for step, s in ((0, 0), (2, 1)):
        found = action_values(learner, state, mixture, shares, step, s)
        for i, a in enumerate(found.actions):
            drawn = drawn_values(case, state, mixture, shares, (step, s, a))
            assert found.sigmas[i] == pytest.approx(drawn.std(axis=0), rel=0.1, abs=1e-9)


def test_the_variance_of_a_mixture_is_that_of_covariances() -> None:
    """The quadratic form of `cost_covariance` in the shares."""
    spec, _ = random_case(7, (4, 3, 5))
    mixture, shares = random_mixture(spec, 3, seed=8)
    counts = np.random.default_rng(9).integers(0, 20, spec.dirichlet_prior.shape).astype(np.float64)
    belief = belief_of(spec.dirichlet_prior, spec.next_states, counts)
    courses = [course_of(belief, spec.signals[1], policy, spec.initial_distribution) for policy in mixture]
    covariance = [[cost_covariance(belief, one, other, one is other) for other in courses] for one in courses]
    _, variance = value_and_variance(belief, spec.signals[1], mixture, shares, spec.initial_distribution)
    assert variance == pytest.approx(shares @ np.array(covariance) @ shares, rel=1e-9)


def gamble(budget: float, satisfiable_cost: float = 0.0) -> SafePsrl:
    """One state, one step: action 0 is free, action 1 has reward 1 at the cost 1."""
    return SafePsrl(
        spec_of(1, [[0.0, 1.0]], Constraint("cost", [[0.0, 1.0]], budget, satisfiable_cost)), SafePsrlOptions("certified")
    )


@pytest.mark.parametrize(("factor", "share"), [(0.9, 0.45), (1.0, 0.5), (1.1, 0.55)])
def test_other_budgets_give_other_choices(factor: float, share: float) -> None:
    """All is known, so the mixture spends the budget exactly."""
    learner = gamble(0.5)
    plan = plan_with_budgets(learner, learner.initial_state(), factor)
    assert plan is not None
    assert action_probabilities(*mixture_of(plan), 0, 0, 2) == pytest.approx([1 - share, share])
    assert learner.problem.tau.tolist() == [0.5]


def test_a_budget_is_at_most_the_horizon() -> None:
    """The dual scale is (tau - c0) H sqrt(k), here tau."""
    spec = gamble(0.95).spec
    learner = SafePsrl(spec, SafePsrlOptions("published"))
    scales = [plan_with_budgets(learner, learner.initial_state(), factor) for factor in (0.9, 1.1)]
    assert [float(plan.dual_scale[0]) for plan in scales if plan] == pytest.approx([0.855, 1.0])


def test_there_is_no_plan_for_a_budget_below_the_satisfiable_cost() -> None:
    learner = gamble(0.5, 0.45)
    plans = [plan_with_budgets(learner, learner.initial_state(), factor) for factor in (0.9, 1.0, 1.1)]
    assert [plan is None for plan in plans] == [True, False, False]


def test_a_plan_with_the_same_budgets_is_the_plan() -> None:
    case = random_case(2, (4, 3, 5))
    for method in ("published", "certified"):
        learner = SafePsrl(case.spec, SafePsrlOptions(method), seed=3)
        state = learned_state(case, learner, 4, seed=1)
        same = plan_with_budgets(learner, state, 1.0)
        assert same is not None
        assert np.array_equal(same.policy, learner.plan(state).policy)


def test_the_exchange_rate_is_reward_per_cost_between_two_policies() -> None:
    learner = gamble(0.5)
    state = learner.initial_state()
    mixture, shares = mixture_of(learner.plan(state))
    assert exchange_rate(learner, state, mixture, shares) == pytest.approx(1.0)
    assert exchange_rate(learner, state, mixture[:1], np.ones(1)) is None
    assert exchange_rate(learner, state, np.array([mixture[0], mixture[0]]), shares) is None


@pytest.mark.parametrize(("step", "place", "field"), [(1, 0, "step"), (-1, 0, "step"), (0, 1, "state"), (0, -1, "state")])
def test_a_place_outside_the_problem_is_refused(step: int, place: int, field: str) -> None:
    learner = gamble(0.5)
    state = learner.initial_state()
    with pytest.raises(SpecError, match=field):
        action_values(learner, state, *mixture_of(learner.plan(state)), step, place)
