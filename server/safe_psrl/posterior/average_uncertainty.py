"""How much a stationary policy may cost per step, for all that was observed: `uncertainty` for continuing tasks.

    U(pi) = average cost of pi under the posterior's mean m + z sigma(pi)

A change of the row (s,a) of the kernel changes the average cost by mu(s,a) h_c times the change, mu being the share of time in
which pi plays the pair and h_c the bias of the cost. With independent rows of total weights w, by the delta method,

    sigma^2 = sum_{s,a} mu(s,a)^2 Var_{s' ~ m(.|s,a)}[h_c(s')] / (w(s,a) + 1)

Doubt has its meaning of `uncertainty`: a row counts as its worst possible next state, the one of the greatest bias, with the
share d(n), which also goes into mu and h_c. With a doubt of 1 everywhere, the average cost is that in the worst case, which is
certain. The worst next states are found by policy iteration, as the least cost against them is.
"""

import math

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, Mask
from safe_psrl.compiled import compiled, compiled_sum
from safe_psrl.planning.average_cost import (
    DENSE_STATES,
    EXACT_GAIN,
    MAX_IMPROVEMENTS,
    RESTART,
    bias_of,
    first_actions,
    occupancy_of,
)
from safe_psrl.planning.average_sweeps import cautious_ahead, sweep_worst
from safe_psrl.posterior.uncertainty import Belief

Places = NDArray[np.int64]  # [S, A], of the worst next state in each row


@compiled
def average_bound(
    belief: Belief, doubt: Floats, cost: Floats, probabilities: Floats, initial: Floats, z: float, stop: Mask
) -> float:
    """U of a policy [S, A] for `cost` [S, A], with the given `doubt` [1, S, A]."""
    value, variance = average_and_variance(belief, doubt, cost, probabilities, initial, stop)
    return value + z * math.sqrt(variance)


@compiled
def average_and_variance(
    belief: Belief, doubt: Floats, signal: Floats, probabilities: Floats, initial: Floats, stop: Mask
) -> tuple[float, float]:
    """The average per step of `signal` [S, A], and its sigma^2."""
    num_states, num_actions = probabilities.shape
    kernel, bias, reached = np.empty(belief.mean.shape), np.zeros(num_states), np.zeros(num_states)
    value = worst_average(belief, doubt, signal, probabilities, initial, kernel, bias, stop)
    occupancy_of(kernel, belief.next_states, probabilities, initial, RESTART, reached, stop)
    variance = 0.0
    for s in range(num_states):
        for a in range(num_actions):
            visits = (1.0 - RESTART) * reached[s] * probabilities[s, a]
            if visits > 0.0:
                variance += visits * visits * row_variance(belief, s, a, bias) / (belief.weight[0, s, a] + 1.0)
    return value, variance


@compiled
def row_variance(belief: Belief, s: int, a: int, values: Floats) -> float:
    """The variance of `values` [S] over the next state of (s, a) under the mean."""
    row, square, centre = belief.mean[0, s, a], 0.0, 0.0
    for j in range(row.size):
        centre += row[j] * values[j if belief.next_states.shape[0] == 0 else belief.next_states[0, s, a, j]]
    for j in range(row.size):
        distance = values[j if belief.next_states.shape[0] == 0 else belief.next_states[0, s, a, j]] - centre
        square += row[j] * distance * distance
    return square


@compiled
def worst_average(
    belief: Belief,
    doubt: Floats,
    cost: Floats,
    probabilities: Floats,
    initial: Floats,
    kernel: Floats,
    bias: Floats,
    stop: Mask,
) -> float:
    """Write the kernel [1, S, A, W] of the worst next states and the bias [S] under it; return the average cost.

    It is infinite if the worst next states were not found; of large problems, an upper bound. Only rows that the policy plays
    are written.
    """
    num_states, num_actions = probabilities.shape
    if num_states > DENSE_STATES:
        known = (belief.mean, belief.next_states, doubt, cost, probabilities > 0.0, initial, RESTART, False)
        gain = sweep_worst(*known, probabilities, bias, stop)
        move_to_worst(belief, doubt, probabilities, bias, np.full((num_states, num_actions), -1), kernel)
        return gain
    places, undoubted = np.full((num_states, num_actions), -1), True
    for _ in range(MAX_IMPROVEMENTS):  # first without doubt; each kernel is called in one place, as in `certified`
        gain = bias_of(
            belief.mean if undoubted else kernel, belief.next_states, cost, probabilities, initial, RESTART, bias, stop
        )
        undoubted = False
        if not move_to_worst(belief, doubt, probabilities, bias, places, kernel) or stop[0]:
            return gain
    return np.inf


@compiled
def move_to_worst(belief: Belief, doubt: Floats, probabilities: Floats, bias: Floats, places: Places, kernel: Floats) -> bool:
    """Write the worst next states for `bias` and the rows of the kernel, both of the pairs that are played; return whether any
    place of a row with doubt changed."""
    states, actions = np.nonzero(probabilities)
    changed = False
    for i in range(states.size):
        s, a = states[i], actions[i]
        share, place = doubt[0, s, a], places[s, a]
        greatest = -np.inf
        if place >= 0:
            now = bias[place if belief.next_states.shape[0] == 0 else belief.next_states[0, s, a, place]]
            greatest = now + EXACT_GAIN * (1.0 + abs(now))
        moved = place < 0
        for j in range(kernel.shape[3]):
            if belief.mean[0, s, a, j] > 0.0:
                value = bias[j if belief.next_states.shape[0] == 0 else belief.next_states[0, s, a, j]]
                if value > greatest:
                    greatest, place, moved = value, j, True
        if not moved:
            continue
        changed = changed or share > 0.0
        places[s, a] = place
        for j in range(kernel.shape[3]):
            kernel[0, s, a, j] = (1.0 - share) * belief.mean[0, s, a, j]
        kernel[0, s, a, place] += share
    return changed


@compiled_sum
def least_worst_average(
    belief: Belief, doubt: Floats, cost: Floats, available: Mask, initial: Floats, probabilities: Floats, stop: Mask
) -> float:
    """Write the policy [S, A] of the least average cost against the worst next states, and return that cost.

    Of large problems it may not be the least, and the cost is an upper bound.
    """
    num_states = available.shape[0]
    kernel, bias, gain = np.empty(belief.mean.shape), np.zeros(num_states), 0.0
    first_actions(available, probabilities)
    if num_states > DENSE_STATES:
        known = (belief.mean, belief.next_states, doubt, cost, available, initial, RESTART, True)
        return sweep_worst(*known, probabilities, bias, stop)
    for _ in range(MAX_IMPROVEMENTS):
        gain = worst_average(belief, doubt, cost, probabilities, initial, kernel, bias, stop)
        if not lower_worst(belief, doubt, cost, available, bias, probabilities) or stop[0]:
            break
    return gain


@compiled_sum
def lower_worst(belief: Belief, doubt: Floats, cost: Floats, available: Mask, bias: Floats, probabilities: Floats) -> bool:
    """Let each state play the action of the least cost against the worst next states; return whether any action changed."""
    num_states, num_actions = available.shape
    onward, values, changed = np.zeros((1, num_states)), np.zeros(num_actions), False
    for s in range(num_states):
        onward[0, s] = bias[s]
    for s in range(num_states):
        played, best = 0, -1
        for a in range(num_actions):
            if available[s, a]:
                ahead = cautious_ahead(belief.mean, belief.next_states, doubt[0, s, a], s, a, onward)
                values[a] = cost[s, a] + (1.0 - RESTART) * ahead
                if probabilities[s, a] > 0.0:
                    played = a
                if best < 0 or values[a] < values[best]:
                    best = a
        if values[best] < values[played] - EXACT_GAIN * (1.0 + abs(values[played])):
            probabilities[s, played], probabilities[s, best] = 0.0, 1.0
            changed = True
    return changed
