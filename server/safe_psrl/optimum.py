"""The exact optimum of a known constrained MDP (paper, eq. (3)).

With one constraint it is a mixture of two deterministic policies, found by a search on the multiplier that takes about ten
plans; with several, a linear program (`linear_program`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.checks import checked_table, frozen, refuse_where
from safe_psrl.compiled import compiled
from safe_psrl.errors import InfeasibleError
from safe_psrl.planning import Floats, Policy, dot, evaluate_randomised, occupancy, plan_policy
from safe_psrl.spec import CmdpSpec

FEASIBILITY_TOLERANCE = 1e-9
ROUNDING = 1e-12  # two policies of the same cost may differ by this: at a budget of that very cost, both keep it
MAX_SEARCH_STEPS = 200


@dataclass(frozen=True, eq=False, slots=True)
class Optimum:
    """The best reward within the budgets, its costs, and a policy that has them."""

    reward: float
    costs: Floats  # [M]
    policy: Floats  # [H, S, A], probabilities


def exact_optimum(spec: CmdpSpec, transitions: ArrayLike, cost_budgets: ArrayLike | None = None) -> Optimum:
    """The optimum on the kernel `transitions`, [S, A, S] or [H, S, A, S], at the specification's budgets or others.

    Raises `InfeasibleError` if no policy keeps them.
    """
    p = checked_kernel(spec, transitions)
    budgets = spec.cost_budgets if cost_budgets is None else checked_budgets(spec, cost_budgets)
    if spec.num_constraints == 1:
        policy = _mixture(spec, p, float(budgets[0]))
    else:
        from safe_psrl.linear_program import optimal_occupancy  # noqa: PLC0415  # scipy's optimisers load slowly

        policy = policy_of(spec, optimal_occupancy(spec, p, budgets))
    values = np.empty((1 + spec.num_constraints, spec.num_states))
    evaluate_randomised(p, spec.signals, policy, values)
    totals = values @ spec.initial_distribution
    return Optimum(reward=float(totals[0]), costs=totals[1:], policy=policy)


def checked_kernel(spec: CmdpSpec, transitions: ArrayLike) -> Floats:
    """`transitions` as [1|H, S, A, S], the rows of available actions being distributions on the support."""
    pair = (spec.num_states, spec.num_actions, spec.num_states)
    shapes = {"[S, A, S]": pair, "[1, S, A, S]": (1, *pair), "[H, S, A, S]": (spec.horizon, *pair)}
    table = checked_table("transitions", transitions, shapes)
    counted = spec.available_actions[..., None]
    refuse_where("transitions", table, (table < 0) & counted, "must not be negative")
    outside = (table > 0) & counted & ~(spec.support if table.ndim == 4 or not spec.stationary else spec.support[0])
    refuse_where("transitions", np.broadcast_to(table, outside.shape), outside, "must be 0 outside the support")
    totals = table.sum(axis=-1)
    wrong = (abs(totals - 1) > FEASIBILITY_TOLERANCE) & spec.available_actions
    refuse_where("sum of transitions", totals, wrong, "must be 1")
    return frozen(table.reshape(-1, *pair), np.float64)


def checked_budgets(spec: CmdpSpec, budgets: ArrayLike) -> Floats:
    """[M]; a bare number will do for one constraint."""
    shapes: dict[str, tuple[int, ...]] = {"[num_constraints]": (spec.num_constraints,)}
    if spec.num_constraints == 1:
        shapes["a number"] = ()
    return checked_table("cost_budgets", budgets, shapes).reshape(-1)


def policy_of(spec: CmdpSpec, visits: Floats) -> Floats:
    """Probabilities [H, S, A] with the occupancy `visits`; where it never comes, even over the available actions."""
    reached = visits.sum(axis=-1, keepdims=True)
    even = spec.available_actions / spec.available_actions.sum(axis=-1, keepdims=True)
    return np.where(reached > 0, visits / np.where(reached > 0, reached, 1.0), even)


def _mixture(spec: CmdpSpec, p: Floats, budget: float) -> Floats:
    costly, cheap = (np.empty((spec.horizon, spec.num_states), np.int32) for _ in range(2))
    initial = spec.initial_distribution
    share, least_cost = search_multiplier(p, spec.signals, spec.available_actions, initial, budget, costly, cheap)
    if share < 0:
        raise InfeasibleError(np.array([budget]), np.array([least_cost]), least_cost - budget)
    visits = [occupancy(p, policy, initial, spec.num_actions) for policy in (costly, cheap)]
    return policy_of(spec, share * visits[0] + (1 - share) * visits[1])


@compiled
def search_multiplier(
    p: Floats,
    signals: Floats,
    available: NDArray[np.bool_],
    initial: Floats,
    budget: float,
    costly: Policy,
    cheap: Policy,
) -> tuple[float, float]:
    """Write two policies whose mixture is optimal for signal 0 with signal 1 within `budget`.

    Returns the weight of `costly`, or -1 if even the least cost is above the budget, and the cost of `cheap`.
    The two policies are vertices of the upper hull of (cost, reward); each step asks for the vertex that is furthest above
    the line through them, until there is none.
    """
    policy = np.empty_like(costly)
    values = np.empty((signals.shape[0], available.shape[0]))
    weights = np.zeros(signals.shape[0])
    weights[0] = 1.0
    plan_policy(p, signals, weights, available, costly, values)
    costly_reward, costly_cost = dot(initial, values[0]), dot(initial, values[1])
    if costly_cost <= budget + ROUNDING:
        cheap[:] = costly
        return 1.0, costly_cost
    weights[0], weights[1] = 0.0, -1.0
    plan_policy(p, signals, weights, available, cheap, values)
    cheap_reward, cheap_cost = dot(initial, values[0]), dot(initial, values[1])
    if cheap_cost > budget + FEASIBILITY_TOLERANCE:
        return -1.0, cheap_cost
    weights[0] = 1.0
    for _ in range(MAX_SEARCH_STEPS):
        if costly_cost - cheap_cost <= 0.0:
            break
        multiplier = max(0.0, (costly_reward - cheap_reward) / (costly_cost - cheap_cost))
        weights[1] = -multiplier
        plan_policy(p, signals, weights, available, policy, values)
        reward, cost = dot(initial, values[0]), dot(initial, values[1])
        line = cheap_reward - multiplier * cheap_cost
        if reward - multiplier * cost <= line + 1e-13 * (1.0 + abs(line)):
            break
        if cost > budget + ROUNDING:
            costly[:] = policy
            costly_reward, costly_cost = reward, cost
        else:
            cheap[:] = policy
            cheap_reward, cheap_cost = reward, cost
    if costly_cost <= cheap_cost:
        return 0.0, cheap_cost
    return min(1.0, max(0.0, (budget - cheap_cost) / (costly_cost - cheap_cost))), cheap_cost
