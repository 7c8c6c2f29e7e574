"""The equations of `average_cost` for large problems, by sweeps: relative value iteration of a chain that rests in every other
step. Such a chain has no period, and the same averages and biases in proportion.
"""

import numpy as np

from safe_psrl.arrays import Floats, Mask, NextStates
from safe_psrl.compiled import compiled, compiled_sum, inlined
from safe_psrl.planning.evaluation import dot, look_ahead

MAX_SWEEPS = 2_000  # chains that mix take about a hundred
MAX_WORST_SWEEPS = 400  # kernels of worst next states often do not mix at all; a wide bound is found soon
SWEEP_TOLERANCE = 1e-11
NEGLIGIBLE = 1e-25  # shares of time below it are dropped: they would become denormal numbers, which are slow


@compiled_sum
def sweep_bias(
    p: Floats,
    next_states: NextStates,
    reward: Floats,
    probabilities: Floats,
    initial: Floats,
    restart: float,
    bias: Floats,
    stop: Mask,
) -> float:
    """`bias_of` by sweeps; `reward` is [S]. The gain is an upper bound (Odoni), exact once the sweeps have converged."""
    num_states, num_actions = probabilities.shape
    now, after, gain = np.zeros((1, num_states)), np.zeros(num_states), 0.0
    for s in range(num_states):
        now[0, s] = bias[s]
    for _ in range(MAX_SWEEPS):
        if stop[0]:
            break
        for s in range(num_states):
            onward = 0.0
            for a in range(num_actions):
                if probabilities[s, a] > 0.0:
                    onward += probabilities[s, a] * look_ahead(p, next_states, 0, s, a, now, 0)
            after[s] = 0.5 * (now[0, s] + reward[s] + (1.0 - restart) * onward)
        half_gain = dot(initial, after)
        least, greatest = np.inf, -np.inf
        for s in range(num_states):
            change = after[s] - half_gain - now[0, s]
            least, greatest = min(least, change), max(greatest, change)
            now[0, s] = after[s] - half_gain
        gain = 2.0 * (half_gain + greatest)
        if greatest - least < SWEEP_TOLERANCE:
            break
    for s in range(num_states):
        bias[s] = now[0, s]
    return gain


@compiled_sum
def sweep_worst(
    mean: Floats,
    next_states: NextStates,
    doubt: Floats,
    cost: Floats,
    available: Mask,
    initial: Floats,
    restart: float,
    least: bool,
    probabilities: Floats,
    bias: Floats,
    stop: Mask,
) -> float:
    """An upper bound (Odoni) on the average cost of a policy, if rows are their worst next state with the share `doubt`
    [1, S, A]; exact once the sweeps have converged. Writes the bias [S], and the policy if that of the `least` cost is sought,
    of the actions that are `available`; else these are the actions that are played.
    """
    num_states = probabilities.shape[0]
    now, after, gain = np.zeros((1, num_states)), np.zeros(num_states), 0.0
    for _ in range(MAX_WORST_SWEEPS):
        for s in range(num_states):
            total = cautious_value(mean, next_states, doubt, cost, available, restart, least, probabilities, s, now)
            after[s] = 0.5 * (now[0, s] + total)
        half_gain = dot(initial, after)
        lowest, greatest = np.inf, -np.inf
        for s in range(num_states):
            change = after[s] - half_gain - now[0, s]
            lowest, greatest = min(lowest, change), max(greatest, change)
            now[0, s] = after[s] - half_gain
        gain = 2.0 * (half_gain + greatest)
        if greatest - lowest < SWEEP_TOLERANCE or stop[0]:
            break
    for s in range(num_states):
        bias[s] = now[0, s]
    return gain


@compiled_sum
def cautious_value(
    mean: Floats,
    next_states: NextStates,
    doubt: Floats,
    cost: Floats,
    available: Mask,
    restart: float,
    least: bool,
    probabilities: Floats,
    s: int,
    values: Floats,
) -> float:
    """The cost of the state and what follows, by the policy; or the `least`, whose action the policy then plays."""
    total, best = 0.0, -1
    for a in range(available.shape[1]):
        if available[s, a]:
            value = cost[s, a] + (1.0 - restart) * cautious_ahead(mean, next_states, doubt[0, s, a], s, a, values)
            if not least:
                total += probabilities[s, a] * value
            elif best < 0 or value < total:
                total, best = value, a
    for a in range(available.shape[1] if least else 0):
        probabilities[s, a] = 1.0 if a == best else 0.0
    return total


@inlined
def cautious_ahead(mean: Floats, next_states: NextStates, share: float, s: int, a: int, values: Floats) -> float:
    """`values` [1, S] of the next state of (s, a): the greatest possible one with the `share`, else their mean."""
    greatest, average = -np.inf, 0.0
    for j in range(mean.shape[3]):
        if mean[0, s, a, j] > 0.0:
            value = values[0, j if next_states.shape[0] == 0 else next_states[0, s, a, j]]
            greatest = max(greatest, value)
            average += mean[0, s, a, j] * value
    return (1.0 - share) * average + share * greatest


@compiled
def sweep_occupancy(
    p: Floats, next_states: NextStates, probabilities: Floats, initial: Floats, restart: float, reached: Floats, stop: Mask
) -> None:
    """`occupancy_of` by sweeps."""
    if reached.sum() <= 0.0:
        reached += initial
    after = np.zeros(reached.size)
    for _ in range(MAX_SWEEPS):
        if stop[0]:
            break
        write_flow(p, next_states, probabilities, initial, restart, reached, after)
        change = 0.0
        for s in range(reached.size):
            change += abs(after[s] - reached[s])
            share = 0.5 * (reached[s] + after[s])
            reached[s] = share if share > NEGLIGIBLE else 0.0
        if change < SWEEP_TOLERANCE:
            break


@compiled
def write_flow(
    p: Floats, next_states: NextStates, probabilities: Floats, initial: Floats, restart: float, reached: Floats, after: Floats
) -> None:
    """Write where the distribution `reached` [S] is after one more step."""
    num_states, num_actions = probabilities.shape
    for s in range(num_states):
        after[s] = restart * initial[s]
    for s in range(num_states):
        for a in range(num_actions):
            weight = (1.0 - restart) * reached[s] * probabilities[s, a]
            if weight != 0.0:
                for j in range(p.shape[3]):
                    after[j if next_states.shape[0] == 0 else next_states[0, s, a, j]] += weight * p[0, s, a, j]


@compiled
def sweep_visits(
    p: Floats, next_states: NextStates, probabilities: Floats, difference: Floats, restart: float, visits: Floats, stop: Mask
) -> None:
    """Write how often each state [S] is visited more in all, if a course begins with `difference` [S], which sums to 0."""
    now, after, nowhere = difference.copy(), np.zeros(visits.size), np.zeros(visits.size)
    for _ in range(MAX_SWEEPS):
        if stop[0]:
            break
        write_flow(p, next_states, probabilities, nowhere, restart, now, after)
        size = 0.0
        for s in range(visits.size):
            visits[s] += 0.5 * now[s]
            now[s] = 0.5 * (now[s] + after[s])
            size += abs(now[s])
        if size < SWEEP_TOLERANCE:
            break
