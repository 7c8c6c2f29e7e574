"""How uncertain the posterior is about the cost of a policy: the standard deviation of V_1^pi(c, p), by the delta method.

Rows are independent Dirichlet with means m and total weights w. A change of the row (s,a) moves the value by
G(s,a,.) = sum_h occ_h(s,a) Vc_{h+1}(.) times the change, and the row's covariance is that of m over w + 1. Hence

    sigma^2 = sum_{s,a} Var_{s' ~ m(.|s,a)}[G(s,a,s')] / (w(s,a) + 1)

with the occupancy and the cost-to-go of the policy under m: one pass forward, one backward.

After a few observations a row has a small variance only because its rare next states were not seen yet. So m includes some
more observations, spread evenly over the support (as Agresti and Coull do for a proportion); w does not.
"""

import math

import numpy as np

from safe_psrl.arrays import Counts, Floats, NextStates
from safe_psrl.compiled import compiled, compiled_sum
from safe_psrl.planning.evaluation import look_ahead, occupancy

LARGEST_VARIANCE = 0.25  # of a signal in [0, 1]


@compiled
def smoothed_mean(prior: Floats, counts: Counts, smoothing: float) -> tuple[Floats, Floats]:
    """The mean rows [L, S, A, W], each with `smoothing` more observations, and their weights without [L, S, A]."""
    steps, num_states, num_actions, width = prior.shape
    mean, weight = np.zeros(prior.shape), np.zeros(prior.shape[:3])
    for h in range(steps):
        for s in range(num_states):
            for a in range(num_actions):
                support, total = 0, 0.0
                for t in range(width):
                    support += prior[h, s, a, t] > 0.0
                    total += prior[h, s, a, t] + counts[h, s, a, t]
                weight[h, s, a] = total
                for t in range(width):
                    if prior[h, s, a, t] > 0.0:
                        known = prior[h, s, a, t] + counts[h, s, a, t]
                        mean[h, s, a, t] = (known + smoothing / support) / (total + smoothing)
    return mean, weight


@compiled
def cost_deviation(
    mean: Floats,
    next_states: NextStates,
    weight: Floats,
    cost: Floats,
    probabilities: Floats,
    initial: Floats,
    cost_visits: Counts,
) -> float:
    """sigma of the policy's expected cost; `cost` is [1|H, S, A].

    `cost_visits` [1|H, S, A] counts the observations behind a learned cost; it has no rows if the cost is known.
    """
    visits = occupancy(mean, next_states, probabilities, initial)
    ahead = costs_to_go(mean, next_states, cost, probabilities)
    return math.sqrt(kernel_variance(mean, next_states, weight, visits, ahead) + learned_cost_variance(visits, cost_visits))


@compiled_sum
def costs_to_go(mean: Floats, next_states: NextStates, cost: Floats, probabilities: Floats) -> Floats:
    """[H+1, S]: the policy's expected cost from each step on."""
    horizon, num_states, num_actions = probabilities.shape
    ahead = np.zeros((horizon + 1, num_states))
    for h in range(horizon - 1, -1, -1):
        step_cost = h if cost.shape[0] > 1 else 0
        for s in range(num_states):
            for a in range(num_actions):
                if probabilities[h, s, a] > 0.0:
                    onward = look_ahead(mean, next_states, h, s, a, ahead, h + 1)
                    ahead[h, s] += probabilities[h, s, a] * (cost[step_cost, s, a] + onward)
    return ahead


@compiled
def kernel_variance(mean: Floats, next_states: NextStates, weight: Floats, visits: Floats, ahead: Floats) -> float:
    """The part of sigma^2 that comes from not knowing the kernel; the formula above."""
    steps, num_states, num_actions, width = mean.shape
    horizon, variance = visits.shape[0], 0.0
    gain = np.empty(width)
    for step in range(steps):
        for s in range(num_states):
            for a in range(num_actions):
                gain[:] = 0.0
                for h in range(step, horizon if steps == 1 else step + 1):
                    step_states = h if next_states.shape[0] > 1 else 0
                    for j in range(width):
                        t = j if next_states.shape[0] == 0 else next_states[step_states, s, a, j]
                        gain[j] += visits[h, s, a] * ahead[h + 1, t]
                first, second = 0.0, 0.0
                for j in range(width):
                    first += mean[step, s, a, j] * gain[j]
                for j in range(width):
                    second += mean[step, s, a, j] * (gain[j] - first) ** 2
                variance += second / (weight[step, s, a] + 1.0)
    return variance


@compiled
def learned_cost_variance(visits: Floats, cost_visits: Counts) -> float:
    """The part that comes from a learned cost: the variance of each mean, at most 1/4 over its observations + 1."""
    steps, num_states, num_actions = cost_visits.shape
    horizon, variance = visits.shape[0], 0.0
    for step in range(steps):
        for s in range(num_states):
            for a in range(num_actions):
                reached = 0.0
                for h in range(step, horizon if steps == 1 else step + 1):
                    reached += visits[h, s, a]
                variance += reached * reached * LARGEST_VARIANCE / (cost_visits[step, s, a] + 1.0)
    return variance
