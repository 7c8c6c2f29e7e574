"""The exact optimum of a constrained MDP for the average per step.

With one constraint it is found by the search on the multiplier of `optimum`, over average-reward plans; with several, by the
linear program over occupancies, `optimal_average_occupancy`, which HiGHS solves. Both restart from `initial` as
`average_cost` does.
"""

import numpy as np

from safe_psrl.arrays import Floats, Mask, NextStates
from safe_psrl.compiled import compiled
from safe_psrl.planning.average_cost import first_actions, mix_policies, plan_average
from safe_psrl.planning.evaluation import copy_table

FEASIBILITY_TOLERANCE = 1e-9
ROUNDING = 1e-12
MAX_SEARCH_STEPS = 200
EXACT_RESTART = 1e-10  # of the optimum on a known kernel, where a sum over millions of steps is compared with it


@compiled
def solve_average_cmdp(
    p: Floats,
    next_states: NextStates,
    signals: Floats,
    available: Mask,
    initial: Floats,
    restart: float,
    budget: float,
    probabilities: Floats,
    stop: Mask,
) -> tuple[bool, float]:
    """Write the policy [S, A] of the greatest average of signal 0 with that of signal 1 within `budget`; else of least cost.

    Returns whether the budget can be kept, and the cost of the cheaper of the two policies mixed. The two are vertices of the
    upper hull of (cost, reward); each step finds the vertex that is furthest above the line through them.
    """
    shape, num_states = available.shape, available.shape[0]
    policy, costly, cheap = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    reached, costly_reached, cheap_reached = np.zeros(num_states), np.zeros(num_states), np.zeros(num_states)
    gains, weights = np.zeros(2), np.zeros(2)
    first_actions(available, policy)
    weights[0] = 1.0
    plan_average(p, next_states, signals[:2], weights, available, initial, restart, policy, reached, gains, stop)
    copy_policy(policy, reached, costly, costly_reached)
    costly_reward, costly_cost = gains[0], gains[1]
    if costly_cost <= budget + ROUNDING:
        copy_table(costly, probabilities)
        return True, costly_cost
    weights[0], weights[1] = 0.0, -1.0
    plan_average(p, next_states, signals[:2], weights, available, initial, restart, policy, reached, gains, stop)
    copy_policy(policy, reached, cheap, cheap_reached)
    cheap_reward, cheap_cost = gains[0], gains[1]
    if cheap_cost > budget + FEASIBILITY_TOLERANCE:
        copy_table(cheap, probabilities)
        return False, cheap_cost
    weights[0] = 1.0
    for _ in range(MAX_SEARCH_STEPS):
        if costly_cost - cheap_cost <= 0.0 or stop[0]:
            break
        multiplier = max(0.0, (costly_reward - cheap_reward) / (costly_cost - cheap_cost))
        weights[1] = -multiplier
        plan_average(p, next_states, signals[:2], weights, available, initial, restart, policy, reached, gains, stop)
        line = cheap_reward - multiplier * cheap_cost
        if gains[0] - multiplier * gains[1] <= line + 1e-13 * (1.0 + abs(line)):
            break
        if gains[1] > budget + ROUNDING:
            copy_policy(policy, reached, costly, costly_reached)
            costly_reward, costly_cost = gains[0], gains[1]
        else:
            copy_policy(policy, reached, cheap, cheap_reached)
            cheap_reward, cheap_cost = gains[0], gains[1]
    share = 0.0
    if costly_cost > cheap_cost:
        share = min(1.0, max(0.0, (budget - cheap_cost) / (costly_cost - cheap_cost)))
    mix_policies(costly, costly_reached, cheap, cheap_reached, share, probabilities)
    return True, cheap_cost


@compiled
def copy_policy(policy: Floats, reached: Floats, target: Floats, target_reached: Floats) -> None:
    copy_table(policy, target)
    for s in range(reached.size):
        target_reached[s] = reached[s]
