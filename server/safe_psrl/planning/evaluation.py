"""Evaluation and occupancy of policies on a known kernel (paper, section 3).

Shapes: kernel `p` [1|H, S, A, W], `signals` [N, 1|H, S, A], deterministic `policy` [H, S], randomised policy
`probabilities` [H, S, A], `values` [N, S] at the first step. A leading axis of length 1 holds for every step.

`next_states` [0|1|H, S, A, W] are of which state the entries of `p` are (`problem.support`). Without rows they are of all
states in order: then rows and values lie side by side in memory, which is what makes plans as fast as BLAS.
"""

import numpy as np

from safe_psrl.arrays import Floats, NextStates, Policy
from safe_psrl.compiled import compiled, compiled_sum, inlined
from safe_psrl.giving_way import done_since

PRODUCTS_AT_A_STRETCH = 250_000  # about 60 us, where rows and values lie side by side
SCATTERED = 4  # times as long takes a product of a listed next state


@compiled_sum
def dot(row: Floats, values: Floats) -> float:
    """The expectation of `values` under the distribution `row`."""
    total = 0.0
    for t in range(row.size):
        total += row[t] * values[t]
    return total


# The sums over a row take places in tables, not rows: numba counts references for rows handed to functions, and on small
# problems that costs more than the sums.


@compiled_sum
def dot_row(p: Floats, step: int, s: int, a: int, values: Floats, n: int) -> float:
    """p(.|s,a) V: the expectation of `values[n]`."""
    total = 0.0
    for t in range(p.shape[3]):
        total += p[step, s, a, t] * values[n, t]
    return total


@inlined
def look_ahead(p: Floats, next_states: NextStates, h: int, s: int, a: int, values: Floats, n: int) -> float:
    """The expectation of `values[n]` over where (s, a) leads at step `h`."""
    step = h if p.shape[0] > 1 else 0
    if next_states.shape[0] == 0:
        return dot_row(p, step, s, a, values, n)
    step_states, total = h if next_states.shape[0] > 1 else 0, 0.0
    for j in range(p.shape[3]):
        total += p[step, s, a, j] * values[n, next_states[step_states, s, a, j]]
    return total


@inlined
def spread(p: Floats, next_states: NextStates, h: int, s: int, a: int, mass: float, reached: Floats) -> None:
    """Add to `reached` [S] where (s, a) leads at step `h`, `mass` in all."""
    step = h if p.shape[0] > 1 else 0
    if next_states.shape[0] == 0:
        for t in range(p.shape[3]):
            reached[t] += mass * p[step, s, a, t]
        return
    step_states = h if next_states.shape[0] > 1 else 0
    for j in range(p.shape[3]):
        reached[next_states[step_states, s, a, j]] += mass * p[step, s, a, j]


@compiled
def evaluate_policy(p: Floats, next_states: NextStates, signals: Floats, policy: Policy, values: Floats) -> None:
    """Write V_1^pi of each signal for a deterministic policy."""
    horizon, num_states = policy.shape
    num_signals = values.shape[0]
    values_next = np.zeros((num_signals, num_states))
    done = 0
    for h in range(horizon - 1, -1, -1):
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            a = policy[h, s]
            for n in range(num_signals):
                values[n, s] = signals[n, step_signals, s, a] + look_ahead(p, next_states, h, s, a, values_next, n)
        values_next[:] = values
        done = done_since(done + SCATTERED * num_states * num_signals * p.shape[3], PRODUCTS_AT_A_STRETCH)


@compiled
def evaluate_randomised(p: Floats, next_states: NextStates, signals: Floats, probabilities: Floats, values: Floats) -> None:
    """Write V_1^pi of each signal for a randomised policy."""
    horizon, num_states, num_actions = probabilities.shape
    num_signals = values.shape[0]
    values_next = np.zeros((num_signals, num_states))
    for h in range(horizon - 1, -1, -1):
        step_signals = h if signals.shape[1] > 1 else 0
        for s in range(num_states):
            values[:, s] = 0.0
            for a in range(num_actions):
                share = probabilities[h, s, a]
                if share > 0.0:
                    for n in range(num_signals):
                        ahead = look_ahead(p, next_states, h, s, a, values_next, n)
                        values[n, s] += share * (signals[n, step_signals, s, a] + ahead)
        values_next[:] = values


@compiled
def occupancy(p: Floats, next_states: NextStates, policy: Policy, initial: Floats, num_actions: int) -> Floats:
    """[H, S, A]: the probability of being in s and playing a at each step, under a deterministic policy."""
    horizon, num_states = policy.shape
    visits = np.zeros((horizon, num_states, num_actions))
    reached = initial.copy()
    for h in range(horizon):
        reached_next = np.zeros(num_states)
        for s in range(num_states):
            if reached[s] > 0.0:
                a = policy[h, s]
                visits[h, s, a] = reached[s]
                spread(p, next_states, h, s, a, reached[s], reached_next)
        reached = reached_next
    return visits
