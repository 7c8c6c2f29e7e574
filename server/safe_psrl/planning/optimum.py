"""The exact optimum of a known constrained MDP (paper, eq. (3)).

With one constraint it is a mixture of two deterministic policies, found by a search on the multiplier that takes about ten
plans; with several, a linear program (`linear_program`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from safe_psrl.arrays import Floats, Mask, NextStates, Policy
from safe_psrl.compiled import compiled
from safe_psrl.errors import InfeasibleError
from safe_psrl.planning.average_cost import evaluate_average
from safe_psrl.planning.average_optimum import EXACT_RESTART, solve_average_cmdp
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import as_probabilities, copy_table, dot, evaluate_randomised, occupancy
from safe_psrl.problem.checks import checked_table, refuse_where
from safe_psrl.problem.spec import CmdpSpec

FEASIBILITY_TOLERANCE = 1e-9
ROUNDING = 1e-12  # two policies of the same cost may differ by this: at a budget of that very cost, both keep it
MAX_SEARCH_STEPS = 200
PRICE_STEP = 1e-5  # by which a budget is raised to find its price


@dataclass(frozen=True, eq=False, slots=True)
class Optimum:
    """The best reward within the budgets, its costs, and a policy that has them."""

    reward: float
    costs: Floats  # [M]
    policy: Floats  # [H, S, A], probabilities; [1, S, A] of a continuing task, whose reward and costs are averages per step


def exact_optimum(spec: CmdpSpec, transitions: ArrayLike, cost_budgets: ArrayLike | None = None) -> Optimum:
    """The optimum on the kernel `transitions`, [S, A, W] or [H, S, A, W], at the specification's budgets or others.

    Raises `InfeasibleError` if no policy keeps them.
    """
    p = checked_kernel(spec, transitions)
    budgets = spec.cost_budgets if cost_budgets is None else checked_budgets(spec, cost_budgets)
    if spec.is_continuing:
        return _average_optimum(spec, p, budgets)
    if spec.num_constraints == 1:
        policy = np.empty((spec.horizon, spec.num_states, spec.num_actions))
        known = (p, spec.next_states, spec.signals, spec.available_actions, spec.initial_distribution)
        feasible, least_cost = solve_cmdp(*known, float(budgets[0]), policy, np.zeros(1, np.bool_))
        if not feasible:
            raise InfeasibleError(budgets, np.array([least_cost]), least_cost - float(budgets[0]))
    else:
        from safe_psrl.planning.linear_program import optimal_occupancy  # noqa: PLC0415  # scipy's optimisers load slowly

        policy = optimal_occupancy(spec, p, budgets)
        policy_from_occupancy(policy, spec.available_actions)
    values = np.empty((1 + spec.num_constraints, spec.num_states))
    evaluate_randomised(p, spec.next_states, spec.signals, policy, values)
    totals = values @ spec.initial_distribution
    return Optimum(reward=float(totals[0]), costs=totals[1:], policy=policy)


def cost_prices(spec: CmdpSpec, transitions: ArrayLike) -> Floats:
    """[M]: the reward that the optimum gains per unit by which each budget alone is raised; 0 where a budget does not bind.

    The optimum is concave in the budgets, so a policy that exceeds one budget by x gains at most its price times x.
    """
    best = exact_optimum(spec, transitions).reward
    raised = spec.cost_budgets + PRICE_STEP * np.eye(spec.num_constraints)
    gains = [exact_optimum(spec, transitions, budgets).reward - best for budgets in raised]
    return np.maximum(0.0, gains) / PRICE_STEP


def _average_optimum(spec: CmdpSpec, p: Floats, budgets: Floats) -> Optimum:
    """The same for averages per step. Tables are copied: to the compiler, what is read-only has another type."""
    policy, stop = np.empty((spec.num_states, spec.num_actions)), np.zeros(1, np.bool_)
    known, initial = (p, spec.next_states, spec.signals.copy()), spec.initial_distribution.copy()
    if spec.num_constraints == 1:
        available = spec.available_actions.copy()
        feasible, least_cost = solve_average_cmdp(*known, available, initial, EXACT_RESTART, float(budgets[0]), policy, stop)
        if not feasible:
            raise InfeasibleError(budgets, np.array([least_cost]), least_cost - float(budgets[0]))
    else:
        from safe_psrl.planning.average_linear_program import optimal_average_occupancy  # noqa: PLC0415  # as above

        places = (spec.available_actions, spec.next_states)
        visits = optimal_average_occupancy(*places, p, spec.signals, initial, EXACT_RESTART, budgets)[None]
        policy_from_occupancy(visits, spec.available_actions)
        policy = visits[0]
    gains, reached = np.empty(1 + spec.num_constraints), np.zeros(spec.num_states)
    evaluate_average(*known, policy, initial, EXACT_RESTART, reached, gains, stop)
    return Optimum(reward=float(gains[0]), costs=gains[1:], policy=policy[None])


def checked_kernel(spec: CmdpSpec, transitions: ArrayLike) -> Floats:
    """`transitions` as [1|H, S, A, W], the rows of available actions being distributions on the support.

    W is S; or, where the specification lists next states, as many as it lists, each probability at its next state's place.
    """
    pair = spec.dirichlet_prior.shape[1:]
    width = "W" if spec.lists_next_states else "S"
    shapes = {f"[S, A, {width}]": pair, f"[1, S, A, {width}]": (1, *pair)}
    if not spec.is_continuing:
        shapes[f"[H, S, A, {width}]"] = (spec.horizon, *pair)
    table = checked_table("transitions", transitions, shapes)
    counted = spec.available_actions[..., None]
    refuse_where("transitions", table, (table < 0) & counted, "must not be negative")
    outside = (table > 0) & counted & ~(spec.support if table.ndim == 4 or not spec.stationary else spec.support[0])
    refuse_where("transitions", np.broadcast_to(table, outside.shape), outside, "must be 0 outside the support")
    totals = table.sum(axis=-1)
    wrong = (abs(totals - 1) > FEASIBILITY_TOLERANCE) & spec.available_actions
    refuse_where("sum of transitions", totals, wrong, "must be 1")
    return np.array(table.reshape(-1, *pair), order="C")


def checked_budgets(spec: CmdpSpec, budgets: ArrayLike) -> Floats:
    """[M]; with one constraint, a number is accepted too."""
    number: dict[str, tuple[int, ...]] = {"a number": ()} if spec.num_constraints == 1 else {}
    return checked_table("cost_budgets", budgets, {"[num_constraints]": (spec.num_constraints,), **number}).reshape(-1)


@compiled
def solve_cmdp(
    p: Floats,
    next_states: NextStates,
    signals: Floats,
    available: Mask,
    initial: Floats,
    budget: float,
    probabilities: Floats,
    stop: Mask,
) -> tuple[bool, float]:
    """Write the optimal policy [H, S, A] for signal 0 with signal 1 within `budget`; of least cost if there is none.

    Returns whether the budget can be kept, and the cost of the cheaper of the two policies mixed.
    """
    horizon, num_states, _ = probabilities.shape
    costly, cheap = np.empty((horizon, num_states), np.int32), np.empty((horizon, num_states), np.int32)
    share, cheap_cost = search_multiplier(p, next_states, signals, available, initial, budget, costly, cheap, stop)
    probabilities[:] = 0.0
    add_occupancy(p, next_states, cheap, initial, 1.0 - max(0.0, share), probabilities)
    if share > 0.0:
        add_occupancy(p, next_states, costly, initial, share, probabilities)
    policy_from_occupancy(probabilities, available)
    return share >= 0.0, cheap_cost


@compiled
def add_occupancy(p: Floats, next_states: NextStates, policy: Policy, initial: Floats, share: float, visits: Floats) -> None:
    """Add `share` of the occupancy [H, S, A] of a deterministic policy."""
    whole = occupancy(p, next_states, as_probabilities(policy, visits.shape[2]), initial)
    for h in range(visits.shape[0]):
        for s in range(visits.shape[1]):
            for a in range(visits.shape[2]):
                visits[h, s, a] += share * whole[h, s, a]


@compiled
def policy_from_occupancy(visits: Floats, available: Mask) -> None:
    """Turn an occupancy [H, S, A] into the policy that has it; where it never comes, even over the available actions."""
    for h in range(visits.shape[0]):
        for s in range(visits.shape[1]):
            reached, options = 0.0, 0
            for a in range(visits.shape[2]):
                reached += visits[h, s, a]
                options += available[s, a]
            for a in range(visits.shape[2]):
                visits[h, s, a] = visits[h, s, a] / reached if reached > 0.0 else available[s, a] / options


@compiled
def search_multiplier(
    p: Floats,
    next_states: NextStates,
    signals: Floats,
    available: Mask,
    initial: Floats,
    budget: float,
    costly: Policy,
    cheap: Policy,
    stop: Mask,
) -> tuple[float, float]:
    """Write two policies whose mixture is optimal for signal 0 with signal 1 within `budget`.

    Returns the weight of `costly`, or -1 if even the least cost is above the budget, and the cost of `cheap`.
    The two policies are vertices of the upper hull of (cost, reward); each step finds the vertex that is furthest above
    the line through them, until there is none.
    """
    policy = np.empty_like(costly)
    values = np.empty((signals.shape[0], available.shape[0]))
    weights = np.zeros(signals.shape[0])
    weights[0] = 1.0
    plan_policy(p, next_states, signals, weights, available, costly, values, stop)
    costly_reward, costly_cost = dot(initial, values[0]), dot(initial, values[1])
    if costly_cost <= budget + ROUNDING:
        copy_table(costly, cheap)
        return 1.0, costly_cost
    weights[0], weights[1] = 0.0, -1.0
    plan_policy(p, next_states, signals, weights, available, cheap, values, stop)
    cheap_reward, cheap_cost = dot(initial, values[0]), dot(initial, values[1])
    if cheap_cost > budget + FEASIBILITY_TOLERANCE:
        return -1.0, cheap_cost
    weights[0] = 1.0
    for _ in range(MAX_SEARCH_STEPS):
        if costly_cost - cheap_cost <= 0.0:
            break
        multiplier = max(0.0, (costly_reward - cheap_reward) / (costly_cost - cheap_cost))
        weights[1] = -multiplier
        plan_policy(p, next_states, signals, weights, available, policy, values, stop)
        reward, cost = dot(initial, values[0]), dot(initial, values[1])
        line = cheap_reward - multiplier * cheap_cost
        if reward - multiplier * cost <= line + 1e-13 * (1.0 + abs(line)):
            break
        if cost > budget + ROUNDING:
            copy_table(policy, costly)
            costly_reward, costly_cost = reward, cost
        else:
            copy_table(policy, cheap)
            cheap_reward, cheap_cost = reward, cost
    if costly_cost <= cheap_cost:
        return 0.0, cheap_cost
    return min(1.0, max(0.0, (budget - cheap_cost) / (costly_cost - cheap_cost))), cheap_cost
