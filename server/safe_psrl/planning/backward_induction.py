"""Backward induction on a known kernel (paper, section 3); shapes as in `evaluation`."""

import numpy as np

from safe_psrl.arrays import Floats, Mask, NextStates, Policy
from safe_psrl.compiled import compiled, compiled_sum
from safe_psrl.planning.evaluation import copy_table, dot, look_ahead


@compiled_sum
def plan_policy(
    p: Floats,
    next_states: NextStates,
    signals: Floats,
    weights: Floats,
    available: Mask,
    policy: Policy,
    values: Floats,
    stop: Mask,
) -> None:
    """Write the best deterministic policy for the weighted sum of the signals, and its value for each signal (eq. (2)).

    With weights (1, -lambda_k/eta_k) this is the paper's policy update; ties go to the lowest action. The chosen action is
    evaluated at once, while its row is still in the cache. Once another thread sets `stop` [1], the remaining steps get
    action 0, and the result must not be used.
    """
    horizon, num_states = policy.shape
    num_signals, num_actions = weights.size, available.shape[1]
    now, ahead = np.zeros((num_signals + 1, num_states)), np.zeros((num_signals + 1, num_states))  # the objective comes last
    for h in range(horizon - 1, -1, -1):
        if stop[0]:
            policy[: h + 1] = 0
            break
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            best, best_action = -np.inf, 0
            for a in range(num_actions):
                if available[s, a]:
                    q = look_ahead(p, next_states, h, s, a, ahead, num_signals)
                    for n in range(num_signals):
                        q += weights[n] * signals[n, step_signals, s, a]
                    if q > best:
                        best, best_action = q, a
            policy[h, s], now[num_signals, s] = best_action, best
            for n in range(num_signals):
                onward = look_ahead(p, next_states, h, s, best_action, ahead, n)
                now[n, s] = signals[n, step_signals, s, best_action] + onward
        now, ahead = ahead, now
    copy_table(ahead, values)


@compiled
def least_certain_cost(
    prior: Floats, next_states: NextStates, cost: Floats, available: Mask, horizon: int, initial: Floats
) -> float:
    """The least cost that some policy keeps whatever possible next states come; `cost` is [1|H, S, A]."""
    num_states, num_actions, width = prior.shape[1:]
    now, ahead = np.zeros(num_states), np.zeros(num_states)
    for h in range(horizon - 1, -1, -1):
        step, step_cost = h if prior.shape[0] > 1 else 0, h if cost.shape[0] > 1 else 0
        step_states = h if next_states.shape[0] > 1 else 0
        for s in range(num_states):
            now[s] = np.inf
            for a in range(num_actions):
                if available[s, a]:
                    worst = 0.0
                    for j in range(width):
                        if prior[step, s, a, j] > 0.0:
                            worst = max(worst, ahead[j if next_states.shape[0] == 0 else next_states[step_states, s, a, j]])
                    now[s] = min(now[s], cost[step_cost, s, a] + worst)
        now, ahead = ahead, now
    return dot(initial, ahead)
