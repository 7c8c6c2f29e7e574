"""Backward induction on a known kernel (paper, section 3); shapes as in `evaluation`."""

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, NextStates, Policy
from safe_psrl.compiled import compiled, compiled_sum
from safe_psrl.giving_way import done_since
from safe_psrl.planning.evaluation import PRODUCTS_AT_A_STRETCH, SCATTERED, dot_row, evaluate_policy


@compiled_sum
def dot_four(p: Floats, step: int, s: int, a: int, values: Floats) -> tuple[float, float, float, float]:
    """The expectations of `values[0]` for four actions from `a` on, in one pass over the values: as fast as BLAS where rows
    come from beyond the cache."""
    total_0, total_1, total_2, total_3 = 0.0, 0.0, 0.0, 0.0
    for t in range(p.shape[3]):
        total_0 += p[step, s, a, t] * values[0, t]
        total_1 += p[step, s, a + 1, t] * values[0, t]
        total_2 += p[step, s, a + 2, t] * values[0, t]
        total_3 += p[step, s, a + 3, t] * values[0, t]
    return total_0, total_1, total_2, total_3


@compiled_sum
def dot_four_and_one(
    p: Floats, step: int, s: int, values: Floats, after: int, chosen: int, others: Floats, n: int
) -> tuple[float, float, float, float, float]:
    """`dot_four` of the first actions, and that of `others[n]` for `chosen` at step `after` on the way: cheap where it is one
    of the four rows."""
    total_0, total_1, total_2, total_3, total = 0.0, 0.0, 0.0, 0.0, 0.0
    for t in range(p.shape[3]):
        total_0 += p[step, s, 0, t] * values[0, t]
        total_1 += p[step, s, 1, t] * values[0, t]
        total_2 += p[step, s, 2, t] * values[0, t]
        total_3 += p[step, s, 3, t] * values[0, t]
        total += p[after, s, chosen, t] * others[n, t]
    return total_0, total_1, total_2, total_3, total


@compiled
def plan_policy(
    p: Floats,
    next_states: NextStates,
    signals: Floats,
    weights: Floats,
    available: NDArray[np.bool_],
    policy: Policy,
    values: Floats,
) -> None:
    """Write the best deterministic policy for the weighted sum of the signals, and its value for each signal (eq. (2)).

    With weights (1, -lambda_k/eta_k) this is the paper's policy update; ties go to the lowest action. One weight at least
    must not be 0, and there are two signals at least.
    """
    if next_states.shape[0] == 0:
        plan_over_all(p, signals, weights, available, policy, values)
    else:
        plan_over_listed(p, next_states, signals, weights, available, policy)
        evaluate_policy(p, next_states, signals, policy, values)


@compiled
def plan_over_listed(
    p: Floats, next_states: NextStates, signals: Floats, weights: Floats, available: NDArray[np.bool_], policy: Policy
) -> None:
    """The policy alone, where next states are listed."""
    horizon, num_states = policy.shape
    num_actions, width = p.shape[2:]
    objective, objective_next = np.zeros(num_states), np.zeros(num_states)
    done = 0
    for h in range(horizon - 1, -1, -1):
        p_h = p[h if p.shape[0] > 1 else 0]
        states = next_states[h if next_states.shape[0] > 1 else 0]
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            best, best_action = -np.inf, 0
            for a in range(num_actions):
                if available[s, a]:
                    q = 0.0
                    for j in range(width):
                        q += p_h[s, a, j] * objective_next[states[s, a, j]]
                    for n in range(weights.size):
                        q += weights[n] * signals[n, step_signals, s, a]
                    if q > best:
                        best, best_action = q, a
            objective[s] = best
            policy[h, s] = best_action
        objective, objective_next = objective_next, objective
        done = done_since(done + SCATTERED * num_states * num_actions * width, PRODUCTS_AT_A_STRETCH)


@compiled
def plan_over_all(  # noqa: C901, PLR0912  # one nest of loops
    p: Floats, signals: Floats, weights: Floats, available: NDArray[np.bool_], policy: Policy, values: Floats
) -> None:
    """The policy and its values, where every state has its place in a row.

    A step's policy is evaluated one sweep later, while the sweep of the
    step before it has the rows in the cache anyway (a kernel for each step gains nothing by that). The first signal with a
    weight needs no evaluation, for its value follows from the others' and the objective's.
    """
    horizon, num_states = policy.shape
    num_signals, num_actions = weights.size, available.shape[1]
    # One kernel for all actions, the last four overlapping those before: two would round differently, and like ones must tie.
    fours = num_actions if num_actions >= 4 else 0
    anchor = 0
    while weights[anchor] == 0.0:
        anchor += 1
    other = 1 if anchor == 0 else 0  # the first signal that does need one
    ahead = np.empty(num_actions)
    objective, objective_next = np.zeros((1, num_states)), np.zeros((1, num_states))
    values_next = np.zeros((num_signals, num_states))  # of the step after the one that is being evaluated
    policy[horizon - 1] = 0  # any row will do where nothing is evaluated yet
    done = 0
    for h in range(horizon - 1, -1, -1):
        after = min(h + 1, horizon - 1)
        step_p, after_p = (h, after) if p.shape[0] > 1 else (0, 0)
        step_signals, after_signals = (h, after) if signals.shape[1] > 1 else (0, 0)
        for s in range(num_states):
            chosen = policy[after, s]
            if fours > 0:
                ahead[0], ahead[1], ahead[2], ahead[3], values[other, s] = dot_four_and_one(
                    p, step_p, s, objective_next, after_p, chosen, values_next, other
                )
                values[other, s] += signals[other, after_signals, s, chosen]
            for start in range(4, fours, 4):
                a = min(start, num_actions - 4)
                ahead[a], ahead[a + 1], ahead[a + 2], ahead[a + 3] = dot_four(p, step_p, s, a, objective_next)
            for a in range(fours, num_actions):
                ahead[a] = dot_row(p, step_p, s, a, objective_next, 0)
            for n in range(num_signals):
                if n != anchor and (n != other or fours == 0):
                    values[n, s] = signals[n, after_signals, s, chosen] + dot_row(p, after_p, s, chosen, values_next, n)
            best, best_action = -np.inf, 0
            for a in range(num_actions):
                if available[s, a]:
                    q = ahead[a]
                    for n in range(num_signals):
                        q += weights[n] * signals[n, step_signals, s, a]
                    if q > best:
                        best, best_action = q, a
            objective[0, s] = best
            policy[h, s] = best_action
            done = done_since(done + num_actions * num_states, PRODUCTS_AT_A_STRETCH)
        objective, objective_next = objective_next, objective
        if h < horizon - 1:
            values_next[:] = values
    values[anchor] = objective_next[0]
    for n in range(num_signals):
        if n != anchor:
            for s in range(num_states):
                values[n, s] = signals[n, 0, s, policy[0, s]] + dot_row(p, 0, s, policy[0, s], values_next, n)
            values[anchor] -= weights[n] * values[n]
    values[anchor] /= weights[anchor]
