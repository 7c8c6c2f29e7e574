"""The extended linear program of DOPE and OptCMDP, without a linear program.

Its variables are the policy and, for each pair, a kernel row within a box `low <= p <= high`. For a fixed multiplier both are
chosen by backward induction: the best row gives its free mass to the next states of highest value first. The multiplier is
then searched as for a known kernel (`safe_psrl.planning.optimum`); the optimum is a mixture of two such plans, by occupancy.
"""

import numpy as np

from safe_psrl.arrays import Floats, Mask, Policy
from safe_psrl.compiled import compiled
from safe_psrl.planning.evaluation import dot
from safe_psrl.planning.optimum import policy_from_occupancy

TOLERANCE = 1e-9
MAX_SEARCH_STEPS = 200


@compiled
def plan_in_box(
    low: Floats,
    high: Floats,
    reward: Floats,
    cost: Floats,
    reward_weight: float,
    multiplier: float,
    available: Mask,
    policy: Policy,
    chosen: Floats,
    values: Floats,
) -> None:
    """Write the best policy [H, S] for reward_weight * reward - multiplier * cost, its rows `chosen` [H, S, S], and its values.

    `reward` and `cost` are [S, A] and may exceed 1; `values` [2, S] are those of reward and cost under the chosen rows.
    """
    horizon, num_states = policy.shape
    objective, ahead, row = np.zeros(num_states), np.zeros(num_states), np.empty(num_states)
    values_next = np.zeros((2, num_states))
    for h in range(horizon - 1, -1, -1):
        order = np.argsort(-ahead, kind="mergesort")
        for s in range(num_states):
            objective[s] = -np.inf
            for a in range(available.shape[1]):
                if available[s, a]:
                    q, rest = reward_weight * reward[s, a] - multiplier * cost[s, a], 1.0
                    for t in range(num_states):
                        rest -= low[s, a, t]
                    for t in order:
                        more = min(rest, high[s, a, t] - low[s, a, t])
                        row[t] = low[s, a, t] + more
                        q += row[t] * ahead[t]
                        rest -= more
                    if q > objective[s]:
                        objective[s], policy[h, s] = q, a
                        chosen[h, s] = row
            values[0, s] = reward[s, policy[h, s]] + dot(chosen[h, s], values_next[0])
            values[1, s] = cost[s, policy[h, s]] + dot(chosen[h, s], values_next[1])
        ahead[:] = objective
        values_next[:] = values


@compiled
def add_occupancy(policy: Policy, chosen: Floats, initial: Floats, share: float, visits: Floats) -> None:
    """Add `share` of the occupancy [H, S, A] of `policy` moving by the rows `chosen`."""
    horizon, num_states = policy.shape
    reached = initial.copy()
    for h in range(horizon):
        reached_next = np.zeros(num_states)
        for s in range(num_states):
            if reached[s] > 0.0:
                visits[h, s, policy[h, s]] += share * reached[s]
                reached_next += reached[s] * chosen[h, s]
        reached = reached_next


@compiled
def solve_in_box(
    low: Floats,
    high: Floats,
    reward: Floats,
    cost: Floats,
    available: Mask,
    initial: Floats,
    budget: float,
    probabilities: Floats,
) -> tuple[bool, float, float]:
    """Write the optimal policy [H, S, A] of the extended program; even where its occupancy is 0.

    Returns whether it is feasible, its optimistic reward, and its cost (if infeasible, the least cost).
    """
    horizon, num_states = probabilities.shape[:2]
    shape = (horizon, num_states)
    costly, cheap, trial = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    rows = (horizon, num_states, num_states)
    costly_rows, cheap_rows, trial_rows = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    values = np.empty((2, num_states))
    plan_in_box(low, high, reward, cost, 1.0, 0.0, available, costly, costly_rows, values)
    costly_reward, costly_cost = dot(initial, values[0]), dot(initial, values[1])
    share = 1.0
    cheap_reward, cheap_cost = costly_reward, costly_cost
    if costly_cost > budget:
        plan_in_box(low, high, reward, cost, 0.0, 1.0, available, cheap, cheap_rows, values)
        cheap_reward, cheap_cost = dot(initial, values[0]), dot(initial, values[1])
        if cheap_cost > budget + TOLERANCE:
            return False, cheap_reward, cheap_cost
        for _ in range(MAX_SEARCH_STEPS):
            if costly_cost <= cheap_cost:
                break
            multiplier = max(0.0, (costly_reward - cheap_reward) / (costly_cost - cheap_cost))
            plan_in_box(low, high, reward, cost, 1.0, multiplier, available, trial, trial_rows, values)
            trial_reward, trial_cost = dot(initial, values[0]), dot(initial, values[1])
            line = cheap_reward - multiplier * cheap_cost
            if trial_reward - multiplier * trial_cost <= line + 1e-12 * (1.0 + abs(line)):
                break
            if trial_cost > budget:
                costly, trial = trial, costly
                costly_rows, trial_rows = trial_rows, costly_rows
                costly_reward, costly_cost = trial_reward, trial_cost
            else:
                cheap, trial = trial, cheap
                cheap_rows, trial_rows = trial_rows, cheap_rows
                cheap_reward, cheap_cost = trial_reward, trial_cost
        share = 0.0 if costly_cost <= cheap_cost else (budget - cheap_cost) / (costly_cost - cheap_cost)
        share = min(1.0, max(0.0, share))
    probabilities[:] = 0.0
    add_occupancy(costly, costly_rows, initial, share, probabilities)
    if share < 1.0:
        add_occupancy(cheap, cheap_rows, initial, 1.0 - share, probabilities)
    policy_from_occupancy(probabilities, available)
    return True, share * costly_reward + (1 - share) * cheap_reward, share * costly_cost + (1 - share) * cheap_cost
