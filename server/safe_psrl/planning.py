"""Backward induction, evaluation and occupancy on a known kernel (paper, section 3).

Shapes: kernel `p` [1|H, S, A, S], `signals` [N, 1|H, S, A], deterministic `policy` [H, S], randomised policy
`probabilities` [H, S, A], `values` [N, S] at the first step. A leading axis of length 1 holds for every step.
"""

import numpy as np
from numpy.typing import NDArray

from safe_psrl.compiled import compiled, compiled_sum

Floats = NDArray[np.float64]
Policy = NDArray[np.int32]


@compiled_sum
def dot(row: Floats, values: Floats) -> float:
    """p(.|s,a) V: the expected value of the next state."""
    total = 0.0
    for t in range(row.size):
        total += row[t] * values[t]
    return total


@compiled
def plan_policy(
    p: Floats, signals: Floats, weights: Floats, available: NDArray[np.bool_], policy: Policy, values: Floats
) -> None:
    """Write the best deterministic policy for the weighted sum of the signals, and its value for each signal (eq. (2)).

    Ties go to the lowest action. With weights (1, -lambda_k/eta_k) this is the paper's policy update. Evaluating the policy
    on the way costs little: the chosen row is still in the cache.
    """
    horizon, num_states = policy.shape
    num_signals, num_actions = weights.size, available.shape[1]
    objective = np.zeros(num_states)
    objective_next = np.zeros(num_states)
    values_next = np.zeros((num_signals, num_states))
    for h in range(horizon - 1, -1, -1):
        step_p = h if p.shape[0] > 1 else 0
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            best = -np.inf
            best_action = 0
            for a in range(num_actions):
                if available[s, a]:
                    q = dot(p[step_p, s, a], objective_next)
                    for n in range(num_signals):
                        q += weights[n] * signals[n, step_signals, s, a]
                    if q > best:
                        best = q
                        best_action = a
            objective[s] = best
            policy[h, s] = best_action
            for n in range(num_signals):
                ahead = dot(p[step_p, s, best_action], values_next[n])
                values[n, s] = signals[n, step_signals, s, best_action] + ahead
        objective, objective_next = objective_next, objective
        values_next[:] = values


@compiled
def evaluate_policy(p: Floats, signals: Floats, policy: Policy, values: Floats) -> None:
    """Write V_1^pi of each signal for a deterministic policy."""
    horizon, num_states = policy.shape
    num_signals = values.shape[0]
    values_next = np.zeros((num_signals, num_states))
    for h in range(horizon - 1, -1, -1):
        step_p = h if p.shape[0] > 1 else 0
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            a = policy[h, s]
            for n in range(num_signals):
                values[n, s] = signals[n, step_signals, s, a] + dot(p[step_p, s, a], values_next[n])
        values_next[:] = values


@compiled
def evaluate_randomised(p: Floats, signals: Floats, probabilities: Floats, values: Floats) -> None:
    """Write V_1^pi of each signal for a randomised policy."""
    horizon, num_states, num_actions = probabilities.shape
    num_signals = values.shape[0]
    values_next = np.zeros((num_signals, num_states))
    for h in range(horizon - 1, -1, -1):
        step_p = h if p.shape[0] > 1 else 0
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            values[:, s] = 0.0
            for a in range(num_actions):
                share = probabilities[h, s, a]
                if share > 0.0:
                    for n in range(num_signals):
                        ahead = dot(p[step_p, s, a], values_next[n])
                        values[n, s] += share * (signals[n, step_signals, s, a] + ahead)
        values_next[:] = values


@compiled
def occupancy(p: Floats, policy: Policy, initial: Floats, num_actions: int) -> Floats:
    """[H, S, A]: the probability of being in s and playing a at each step, under a deterministic policy."""
    horizon, num_states = policy.shape
    visits = np.zeros((horizon, num_states, num_actions))
    reached = initial.copy()
    for h in range(horizon):
        step_p = h if p.shape[0] > 1 else 0
        reached_next = np.zeros(num_states)
        for s in range(num_states):
            if reached[s] > 0.0:
                a = policy[h, s]
                visits[h, s, a] = reached[s]
                reached_next += reached[s] * p[step_p, s, a]
        reached = reached_next
    return visits
