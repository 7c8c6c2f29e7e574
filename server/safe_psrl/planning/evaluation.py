"""Evaluation and occupancy of policies on a known kernel (paper, section 3).

Shapes: kernel `p` [1|H, S, A, W], `signals` [N, 1|H, S, A], deterministic `policy` [H, S], randomised policy
`probabilities` [H, S, A], `values` [N, S] at the first step. A leading axis of length 1 holds for every step.

`next_states` [0|1|H, S, A, W] holds the state of each entry of `p` (`problem.support`); without rows, entry t is of state t.
"""

import numpy as np

from safe_psrl.arrays import Floats, NextStates, Policies, Policy
from safe_psrl.compiled import compiled, compiled_sum, inlined


@compiled_sum
def dot(row: Floats, values: Floats) -> float:
    """The expectation of `values` under the distribution `row`."""
    total = 0.0
    for t in range(row.size):
        total += row[t] * values[t]
    return total


@compiled
def copy_table(source: Floats | Policy, target: Floats | Policy) -> None:
    """Write the first rows of `source` [N, S] into all of `target`."""
    for n in range(target.shape[0]):
        for s in range(target.shape[1]):
            target[n, s] = source[n, s]


@inlined
def look_ahead(p: Floats, next_states: NextStates, h: int, s: int, a: int, values: Floats, n: int) -> float:
    """The expectation of `values[n]` over the next state of (s, a) at step `h`.

    Callers are compiled by `compiled_sum`: then the compiler hoists the condition and vectorises the sum.
    """
    step, step_states = h if p.shape[0] > 1 else 0, h if next_states.shape[0] > 1 else 0
    total = 0.0
    for j in range(p.shape[3]):
        total += p[step, s, a, j] * values[n, j if next_states.shape[0] == 0 else next_states[step_states, s, a, j]]
    return total


@compiled_sum
def evaluate_policy(p: Floats, next_states: NextStates, signals: Floats, policy: Policy, values: Floats) -> None:
    """Write V_1^pi of each signal for a deterministic policy."""
    horizon, num_states = policy.shape
    now, ahead = np.zeros(values.shape), np.zeros(values.shape)
    for h in range(horizon - 1, -1, -1):
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            a = policy[h, s]
            for n in range(values.shape[0]):
                now[n, s] = signals[n, step_signals, s, a] + look_ahead(p, next_states, h, s, a, ahead, n)
        now, ahead = ahead, now
    copy_table(ahead, values)


@compiled_sum
def evaluate_randomised(p: Floats, next_states: NextStates, signals: Floats, probabilities: Floats, values: Floats) -> None:
    """Write V_1^pi of each signal for a randomised policy."""
    horizon, num_states, num_actions = probabilities.shape
    now, ahead = np.zeros(values.shape), np.zeros(values.shape)
    for h in range(horizon - 1, -1, -1):
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            for n in range(values.shape[0]):
                now[n, s] = 0.0
            for a in range(num_actions):
                if probabilities[h, s, a] > 0.0:
                    for n in range(values.shape[0]):
                        onward = look_ahead(p, next_states, h, s, a, ahead, n)
                        now[n, s] += probabilities[h, s, a] * (signals[n, step_signals, s, a] + onward)
        now, ahead = ahead, now
    copy_table(ahead, values)


@compiled
def evaluate_mixture(
    p: Floats, next_states: NextStates, signals: Floats, mixture: Policies, shares: Floats, values: Floats
) -> None:
    """Write V_1 of each signal for deterministic policies [N, H, S] of which one is drawn with its share [N]."""
    part_values = np.empty(values.shape)
    for n in range(values.shape[0]):
        for s in range(values.shape[1]):
            values[n, s] = 0.0
    for part in range(shares.size):
        if shares[part] > 0.0:
            evaluate_policy(p, next_states, signals, mixture[part], part_values)
            for n in range(values.shape[0]):
                for s in range(values.shape[1]):
                    values[n, s] += shares[part] * part_values[n, s]


@compiled
def occupancy(p: Floats, next_states: NextStates, probabilities: Floats, initial: Floats) -> Floats:
    """[H, S, A]: the probability of being in s and playing a at each step, under a randomised policy."""
    horizon, num_states, num_actions = probabilities.shape
    visits, reached = np.zeros(probabilities.shape), initial.copy()
    for h in range(horizon):
        step, step_states = h if p.shape[0] > 1 else 0, h if next_states.shape[0] > 1 else 0
        reached_next = np.zeros(num_states)
        for s in range(num_states):
            for a in range(num_actions):
                visit = reached[s] * probabilities[h, s, a]
                visits[h, s, a] = visit
                if visit > 0.0:
                    for j in range(p.shape[3]):
                        t = j if next_states.shape[0] == 0 else next_states[step_states, s, a, j]
                        reached_next[t] += visit * p[step, s, a, j]
        reached = reached_next
    return visits


@compiled
def state_occupancy(p: Floats, next_states: NextStates, policy: Policy, initial: Floats) -> Floats:
    """[H, S]: the probability of being in s at each step, under a deterministic policy."""
    horizon, num_states = policy.shape
    reached = np.zeros((horizon, num_states))
    for s in range(num_states):
        reached[0, s] = initial[s]
    for h in range(horizon - 1):
        step, step_states = h if p.shape[0] > 1 else 0, h if next_states.shape[0] > 1 else 0
        for s in range(num_states):
            if reached[h, s] > 0.0:
                a = policy[h, s]
                for j in range(p.shape[3]):
                    t = j if next_states.shape[0] == 0 else next_states[step_states, s, a, j]
                    reached[h + 1, t] += reached[h, s] * p[step, s, a, j]
    return reached


@compiled
def as_probabilities(policy: Policy, num_actions: int) -> Floats:
    """[H, S, A]: a deterministic policy as a randomised one."""
    horizon, num_states = policy.shape
    probabilities = np.zeros((horizon, num_states, num_actions))
    for h in range(horizon):
        for s in range(num_states):
            probabilities[h, s, policy[h, s]] = 1.0
    return probabilities
