"""Average reward and cost per step of stationary policies, and the best of them, by policy iteration.

A policy is a table `probabilities` [S, A]. Its average is taken from a distribution `initial` [S] over a task that restarts
there after each step with the small probability `restart`, which makes every chain have one recurrent class:

    gain + bias(s) = signal(s) + (1 - restart) sum_t P(s, t) bias(t),    sum_s initial(s) bias(s) = 0

Where every state can be left, the restarts change averages by the order of `restart`. Where some cannot, averages are those of
the classes that are reached from `initial`, with the probabilities of reaching them: what is out of reach does not count.

With y = bias + gain / (1 + restart), all this is one linear system, (I - (1 - restart) P + 1 initial') y = signal, which stays
well conditioned however small `restart` is if the chain has one class. Its transpose gives the occupancy. Problems with more
than `DENSE_STATES` states are solved by sweeps (`average_sweeps`).
Shapes are those of `evaluation`; kernels and signals are the same at every step.
"""

import numpy as np

from safe_psrl.arrays import Floats, Mask, NextStates
from safe_psrl.compiled import compiled, compiled_sum
from safe_psrl.planning.average_sweeps import sweep_bias, sweep_occupancy, sweep_visits
from safe_psrl.planning.evaluation import dot, look_ahead

RESTART = 1e-6  # plans look about a million steps ahead
DENSE_STATES = 1_000  # up to which equations are solved directly
MAX_IMPROVEMENTS = 100  # of a policy; a handful is usual
EXACT_GAIN, SWEPT_GAIN = 1e-12, 1e-9  # by which an action must be better, relative to its value


@compiled
def bias_of(
    p: Floats,
    next_states: NextStates,
    signal: Floats,
    probabilities: Floats,
    initial: Floats,
    restart: float,
    bias: Floats,
    stop: Mask,
) -> float:
    """Write the bias [S] of `signal` [S, A]; return its gain. In sweeps, `bias` is also the first guess."""
    num_states, num_actions = probabilities.shape
    reward = np.zeros(num_states)
    for s in range(num_states):
        for a in range(num_actions):
            reward[s] += probabilities[s, a] * signal[s, a]
    if num_states > DENSE_STATES:
        return sweep_bias(p, next_states, reward, probabilities, initial, restart, bias, stop)
    solution = np.linalg.solve(chain_matrix(p, next_states, probabilities, initial, restart), reward)
    for s in range(num_states):
        bias[s] = solution[s]
    centre = dot(initial, bias)
    for s in range(num_states):
        bias[s] -= centre
    return (1.0 + restart) * centre


@compiled
def occupancy_of(
    p: Floats, next_states: NextStates, probabilities: Floats, initial: Floats, restart: float, reached: Floats, stop: Mask
) -> None:
    """Write the share of time `reached` [S] that is spent in each state. In sweeps, it is also the first guess."""
    num_states = probabilities.shape[0]
    if num_states > DENSE_STATES:
        sweep_occupancy(p, next_states, probabilities, initial, restart, reached, stop)
        return
    matrix = chain_matrix(p, next_states, probabilities, initial, restart)
    solution = np.linalg.solve(matrix.T, initial.copy())
    total = 0.0
    for s in range(num_states):
        reached[s] = max(0.0, solution[s])  # rounding
        total += reached[s]
    for s in range(num_states):
        reached[s] /= total


@compiled
def chain_matrix(p: Floats, next_states: NextStates, probabilities: Floats, initial: Floats, restart: float) -> Floats:
    """[S, S]: I - (1 - restart) P + 1 initial'."""
    num_states, num_actions = probabilities.shape
    matrix = np.zeros((num_states, num_states))
    for s in range(num_states):
        for a in range(num_actions):
            weight = (1.0 - restart) * probabilities[s, a]
            if weight > 0.0:
                for j in range(p.shape[3]):
                    matrix[s, j if next_states.shape[0] == 0 else next_states[0, s, a, j]] -= weight * p[0, s, a, j]
        matrix[s, s] += 1.0
        for t in range(num_states):
            matrix[s, t] += initial[t]
    return matrix


@compiled
def added_visits(
    p: Floats,
    next_states: NextStates,
    probabilities: Floats,
    place: int,
    action: int,
    restart: float,
    visits: Floats,
    stop: Mask,
) -> None:
    """Write how often each pair [S, A] is played more, in all, by `action` in the state `place` and the policy afterwards, than
    by the policy alone from there. Some visits are below 0; together they are 0."""
    num_states, num_actions = probabilities.shape
    difference, excess, reached = np.zeros(num_states), np.zeros(num_states), np.zeros(num_states)
    difference[place] = 1.0
    occupancy_of(p, next_states, probabilities, difference.copy(), restart, reached, stop)
    difference[place] = restart - 1.0
    for j in range(p.shape[3]):
        after = j if next_states.shape[0] == 0 else next_states[0, place, action, j]
        difference[after] += (1.0 - restart) * p[0, place, action, j]
    if num_states > DENSE_STATES:
        sweep_visits(p, next_states, probabilities, difference, restart, excess, stop)
    else:
        matrix = chain_matrix(p, next_states, probabilities, reached, restart)
        solution = np.linalg.solve(matrix.T, difference)
        for s in range(num_states):
            excess[s] = solution[s]
    for s in range(num_states):
        for a in range(num_actions):
            visits[s, a] = (excess[s] - reached[s]) * probabilities[s, a]
    visits[place, action] += 1.0


@compiled
def average_of(reached: Floats, probabilities: Floats, signal: Floats) -> float:
    """The average per step of `signal` [S, A]."""
    total = 0.0
    for s in range(probabilities.shape[0]):
        for a in range(probabilities.shape[1]):
            total += reached[s] * probabilities[s, a] * signal[s, a]
    return total


@compiled
def evaluate_average(
    p: Floats,
    next_states: NextStates,
    signals: Floats,
    probabilities: Floats,
    initial: Floats,
    restart: float,
    reached: Floats,
    gains: Floats,
    stop: Mask,
) -> None:
    """Write the occupancy `reached` [S] and the average `gains` [N] of each signal."""
    occupancy_of(p, next_states, probabilities, initial, restart, reached, stop)
    for n in range(gains.size):
        gains[n] = average_of(reached, probabilities, signals[n, 0])


@compiled
def first_actions(available: Mask, probabilities: Floats) -> None:
    """Write the policy that plays the first available action everywhere."""
    for s in range(available.shape[0]):
        found = False
        for a in range(available.shape[1]):
            probabilities[s, a] = 1.0 if available[s, a] and not found else 0.0
            found = found or available[s, a]


@compiled
def plan_average(
    p: Floats,
    next_states: NextStates,
    signals: Floats,
    weights: Floats,
    available: Mask,
    initial: Floats,
    restart: float,
    probabilities: Floats,
    reached: Floats,
    gains: Floats,
    stop: Mask,
) -> None:
    """Write the best deterministic policy for the weighted sum of the signals, its occupancy and its average of each signal.

    `probabilities` is also the deterministic policy to begin with. Once another thread sets `stop` [1], the result must not
    be used.
    """
    num_states, num_actions = available.shape
    objective, bias = np.zeros((num_states, num_actions)), np.zeros(num_states)
    for s in range(num_states):
        for a in range(num_actions):
            for n in range(weights.size):
                objective[s, a] += weights[n] * signals[n, 0, s, a]
    for _ in range(MAX_IMPROVEMENTS):
        bias_of(p, next_states, objective, probabilities, initial, restart, bias, stop)
        if stop[0] or not improve(p, next_states, objective, available, restart, bias, probabilities):
            break
    evaluate_average(p, next_states, signals, probabilities, initial, restart, reached, gains, stop)


@compiled_sum
def improve(
    p: Floats,
    next_states: NextStates,
    objective: Floats,
    available: Mask,
    restart: float,
    bias: Floats,
    probabilities: Floats,
) -> bool:
    """Let each state play its best action for `bias`; return whether any action changed. Ties keep what is played."""
    num_states, num_actions = available.shape
    needed = SWEPT_GAIN if num_states > DENSE_STATES else EXACT_GAIN
    values, onward, changed = np.zeros(num_actions), bias.copy().reshape((1, num_states)), False
    for s in range(num_states):
        played, best = 0, -1
        for a in range(num_actions):
            if available[s, a]:
                values[a] = objective[s, a] + (1.0 - restart) * look_ahead(p, next_states, 0, s, a, onward, 0)
                if probabilities[s, a] > 0.0:
                    played = a
                if best < 0 or values[a] > values[best]:
                    best = a
        if values[best] > values[played] + needed * (1.0 + abs(values[played])):
            probabilities[s, played], probabilities[s, best] = 0.0, 1.0
            changed = True
    return changed


@compiled
def mix_policies(
    costly: Floats, costly_reached: Floats, cheap: Floats, cheap_reached: Floats, share: float, probabilities: Floats
) -> None:
    """Write the policy whose occupancy is the mixture of two, with `share` of the first; where neither comes, the second."""
    num_states, num_actions = probabilities.shape
    for s in range(num_states):
        first, second = share * costly_reached[s], (1.0 - share) * cheap_reached[s]
        total = first + second
        for a in range(num_actions):
            mixed = first * costly[s, a] + second * cheap[s, a]
            probabilities[s, a] = mixed / total if total > 0.0 else cheap[s, a]
