"""The numbers of the proof (paper, section 6), recomputed here from the text."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.safe_psrl.cases import TWO_CONSTRAINTS, spec_of

from safe_psrl import (
    CmdpSpec,
    Constraint,
    SafePsrlOptions,
    constraint_regret_bound,
    dual_variable_bound,
    feasibility_episode,
    preset,
    psrl_term,
)
from safe_psrl.methods.bounds import EXACT_TERMS, episodes_above_budget, pessimism_sum
from safe_psrl.methods.schedule import pessimism_at

SIZES = st.tuples(st.integers(1, 30), st.integers(1, 8), st.integers(1, 20))


def problem(sizes: tuple[int, int, int], budget_share: float, satisfiable_share: float) -> CmdpSpec:
    """Sizes S, A, H; tau and c0 as shares of H and of tau."""
    num_states, num_actions, horizon = sizes
    table, tau = [[0.5] * num_actions] * num_states, budget_share * horizon
    return spec_of(horizon, table, Constraint("cost", table, tau, satisfiable_share * tau))


def epsilon(k: float, spec: CmdpSpec, k_epsilon: float) -> float:
    """Line 1 of algorithm 1."""
    log = math.log(max(2.0, k * spec.num_states * spec.num_actions * spec.horizon))
    size = math.sqrt(spec.horizon**3 * spec.num_states**2 * spec.num_actions)
    return k_epsilon * size * (log + 1) / math.sqrt(k * log)


@given(SIZES, st.floats(0.1, 1), st.sampled_from(["theorem", "published"]), st.booleans())
def test_episodes_in_which_the_pessimism_exceeds_the_budget(
    sizes: tuple[int, int, int], budget: float, method: str, capped: bool
) -> None:
    """The last episode at which epsilon_k is not below tau; none if it is capped, or certified."""
    spec = problem(sizes, budget, 0.1)
    options = SafePsrlOptions(method, cap_pessimism=capped)
    last = episodes_above_budget(spec, options)
    assert episodes_above_budget(spec, SafePsrlOptions("certified")) == 0
    if capped:
        assert last == 0
        return
    assert last == 0 or epsilon(last, spec, options.pessimism_coefficient) >= spec.cost_budgets[0] * (1 - 1e-9)
    assert epsilon(last + 1, spec, options.pessimism_coefficient) < spec.cost_budgets[0] * (1 + 1e-9)


@given(SIZES, st.floats(0.1, 1), st.floats(0, 0.9))
def test_feasibility_episode(sizes: tuple[int, int, int], budget: float, satisfiable: float) -> None:
    """Section 6.1: C'' = 80 H^3 S^2 A / (tau - c0)^2."""
    num_states, num_actions, horizon = sizes
    slack = budget * horizon * (1 - satisfiable)
    expected = 80 * horizon**3 * num_states**2 * num_actions / slack**2
    assert feasibility_episode(problem(sizes, budget, satisfiable)) == pytest.approx(expected, rel=1e-9)


def test_feasibility_episode_of_the_streaming_buffer_and_of_each_constraint() -> None:
    """80 * 10^3 * 10^2 * 2 / 4^2 = 10^6 episodes; a second constraint has its own."""
    assert feasibility_episode(preset("streaming-buffer")) == 1_000_000
    assert feasibility_episode(TWO_CONSTRAINTS, 1) == pytest.approx(16_000_000 / 49)


@given(SIZES, st.floats(0.1, 1), st.floats(0, 0.9))
def test_half_the_slack_is_reached_at_c_double_prime_up_to_logarithms(
    sizes: tuple[int, int, int], budget: float, satisfiable: float
) -> None:
    """Section 6.1 says epsilon_k <= (tau - c0)/2 for k >= C''. At the theorem's coefficient that ignores logarithms.

    What is true: there epsilon = K_eps / sqrt(80) (L + 1) / sqrt(L) (tau - c0) with L = log(C'' SAH). As (L + 1) / sqrt(L)
    is 2 at least, K_eps = 5 gives more than tau - c0 itself, and half of it only once k >= 5/4 C'' (log kSAH + 1)^2 / log kSAH.
    With the published and the literal coefficient the sentence holds as it stands, at C'' and at every later episode.
    """
    spec = problem(sizes, budget, satisfiable)
    slack, first = float(spec.cost_budgets[0] - spec.satisfiable_costs[0]), math.ceil(feasibility_episode(spec))
    assert pessimism_at(first, *sizes, 5.0) > slack
    for coefficient in (0.05, 0.25):
        for episode in (first, 2 * first, 1000 * first):
            assert pessimism_at(episode, *sizes, coefficient) <= slack / 2
    k = float(first)
    for _ in range(100):
        log = math.log(k * math.prod(sizes))
        k = 1.25 * feasibility_episode(spec) * (log + 1) ** 2 / log
    assert pessimism_at(math.ceil(k * 1.001), *sizes, 5.0) <= slack / 2 < pessimism_at(math.floor(k * 0.999), *sizes, 5.0)


@given(SIZES, st.integers(1, 10**9))
def test_psrl_term(sizes: tuple[int, int, int], episodes: int) -> None:
    """Lemma 2: H^1.5 sqrt(30 S^2 A K log(SAKH)) + 2H."""
    num_states, num_actions, horizon = sizes
    log = math.log(num_states * num_actions * episodes * horizon)
    expected = horizon**1.5 * math.sqrt(30 * num_states**2 * num_actions * episodes * log) + 2 * horizon
    assert psrl_term(problem(sizes, 0.5, 0.5), episodes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("episodes", [1, 1000, 400_000])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 2), (3, 2, 6)])
def test_dual_variable_bound(sizes: tuple[int, int, int], episodes: int) -> None:
    """Lemma 4, eq. (12), term by term, rho being (tau - c0)/4: a drift of -rho needs rho > 0 (lemma 3)."""
    spec = problem(sizes, 0.9, 0.1)
    horizon, tau = spec.horizon, float(spec.cost_budgets[0])
    slack = tau - float(spec.satisfiable_costs[0])
    first = 80 * horizon**3 * spec.num_states**2 * spec.num_actions / slack**2
    rho = slack / 4
    zeta = rho / (horizon**2 + horizon * rho / 3)
    last = episodes + 1
    phi = 4 * (horizon**2 + epsilon(last, spec, 5) ** 2 + slack * horizon * math.sqrt(last) * horizon) / slack
    early = sum(epsilon(k, spec, 5) for k in range(1, math.floor(first) + 1))
    expected = math.log(11 * horizon**2 / (3 * rho**2)) / zeta + horizon + early + first * (horizon - tau) + phi
    bound = dual_variable_bound(spec, episodes)
    assert expected <= bound * (1 + 1e-12)
    loosest = epsilon(min(math.floor(first), EXACT_TERMS), spec, 5)
    assert bound <= expected + loosest, "at most one term more: C'' need not be whole, and long sums are integrals"


@given(SIZES, st.floats(1, 1e6))
def test_integral_of_the_pessimism(sizes: tuple[int, int, int], k: float) -> None:
    """Eq. (13) rests on this: 10 H^1.5 sqrt(S^2 A) sqrt(u log(SAHu)) is an antiderivative of epsilon_u."""
    spec = problem(sizes, 0.5, 0.5)
    sah = math.prod(sizes)
    scale = 10 * spec.horizon**1.5 * spec.num_states * math.sqrt(spec.num_actions)
    k = max(k, 3 / sah)

    def antiderivative(u: float) -> float:
        return scale * math.sqrt(u * math.log(sah * u))

    if sah * k * 0.999 > 2:
        slope = (antiderivative(k * 1.0005) - antiderivative(k * 0.9995)) / (0.001 * k)
        assert slope == pytest.approx(epsilon(k, spec, 5), rel=1e-4)


@pytest.mark.parametrize("name", ["streaming-buffer", "inventory", "factored-toy"])
def test_long_sums_are_bounded_from_above_and_tightly(name: str) -> None:
    """Eq. (13): past the exact terms the integral bounds the sum, as epsilon_u falls; by less than its first term."""
    spec = preset(name)
    last = 3 * EXACT_TERMS
    exact = math.fsum(epsilon(k, spec, 5) for k in range(1, last + 1))
    assert pessimism_sum(spec, EXACT_TERMS) == pytest.approx(
        math.fsum(epsilon(k, spec, 5) for k in range(1, EXACT_TERMS + 1)), rel=1e-12
    )
    assert exact <= pessimism_sum(spec, last) <= exact + epsilon(EXACT_TERMS, spec, 5)


@pytest.mark.parametrize("episodes", [1, 999, 1000, 1001, 5000])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 6)])
def test_constraint_regret_bound(sizes: tuple[int, int, int], episodes: int) -> None:
    """Section 6.1: sampling + E[lambda_{K+1}] - the pessimism of all episodes, which is never overstated."""
    spec = problem(sizes, 0.9, 0.1)
    spent = math.fsum(epsilon(k, spec, 5) for k in range(1, episodes + 1))
    exact = psrl_term(spec, episodes) + dual_variable_bound(spec, episodes) - spent
    assert exact * (1 - 1e-12) <= constraint_regret_bound(spec, episodes) <= exact + epsilon(1000, spec, 5)


def test_constraint_regret_bound_stops_growing() -> None:
    """Theorem 1: O(1). Pessimism outweighs sampling and the dual variable in the long run."""
    spec = preset("streaming-buffer")
    first, later, last = (constraint_regret_bound(spec, episodes) for episodes in (10**3, 10**9, 10**12))
    assert first > later > last


@pytest.mark.parametrize("bound", [dual_variable_bound, psrl_term])
def test_bounds_grow_with_the_number_of_episodes(bound: Callable[..., float]) -> None:
    """Theorem 1: both parts are of the order of sqrt(K): a hundredfold K multiplies their growth by about ten."""
    spec = preset("streaming-buffer")
    small, middle, large = (bound(spec, episodes) for episodes in (10**8, 10**10, 10**12))
    assert 9 < (large - middle) / (middle - small) < 14
