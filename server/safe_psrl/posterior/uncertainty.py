"""How much a policy may cost, for all that was observed: an upper bound on V_1^pi(c, p) from the Dirichlet posterior.

    U(pi) = V_1^pi(c, m) + z sigma(pi)

V is the expected cost under the posterior's mean m. sigma is its standard deviation, by the delta method: rows are independent,
with total weights w; a change of the row (s,a) changes the cost by G(s,a,.) = sum_h occ_h(s,a) Vc_{h+1}(.) times the change;
and the row's covariance is that of m over w + 1. Hence, with the occupancy and the cost-to-go of the policy,

    sigma^2 = sum_{s,a} Var_{s' ~ m(.|s,a)}[G(s,a,s')] / (w(s,a) + 1)

After few visits a row's variance leaves out what has not been seen yet. So a row with n visits counts as m with the share
1 - d(n) only, and as its worst possible next state with the share d(n) = (1 + n/8)^-2, its doubt: without visits U is not below
the cost in the worst case. Doubt falls faster than sigma, and is not used where nothing safe could be played in the meantime.
"""

import math
from typing import NamedTuple

import numpy as np

from safe_psrl.arrays import Floats, Mask, NextStates, Policies, Policy
from safe_psrl.compiled import compiled, compiled_sum, inlined
from safe_psrl.planning.evaluation import dot, look_ahead, state_occupancy

TRUSTED_VISITS = 8.0  # a row with that many has a quarter of its doubt left; measured: docs/methods.md


class Observed(NamedTuple):
    """What certified plans are made from."""

    counts: Floats  # [L, S, A, W]
    signals: Floats  # [1+M, 1|H, S, A], with the estimates of the learned ones
    learned: Mask  # [1+M, 1|H, S, A]
    sums: Floats  # [1+M, 1|H, S, A], no rows unless some signal is learned
    visits: Floats  # [1|H, S, A], the same


class Belief(NamedTuple):
    """The posterior as the bound sees it."""

    mean: Floats  # [L, S, A, W]
    weight: Floats  # [L, S, A], total of the Dirichlet parameters
    doubt: Floats  # [L, S, A], d(n)
    next_states: NextStates  # [0|1|H, S, A, W]


class Course(NamedTuple):
    """A policy under a belief: where it goes, and what it costs from there on."""

    policy: Policy  # [H, S]
    reached: Floats  # [H, S]
    costs_to_go: Floats  # [H+1, S]


@compiled
def belief_of(prior: Floats, next_states: NextStates, counts: Floats) -> Belief:
    """The posterior after `counts`, with doubt."""
    mean, weight, doubt = np.zeros(prior.shape), np.zeros(prior.shape[:3]), np.zeros(prior.shape[:3])
    steps, num_states, num_actions, width = prior.shape
    for h in range(steps):
        for s in range(num_states):
            for a in range(num_actions):
                total, visits = 0.0, 0.0
                for t in range(width):
                    total += prior[h, s, a, t] + counts[h, s, a, t]
                    visits += counts[h, s, a, t]
                weight[h, s, a] = total
                doubt[h, s, a] = (1.0 + visits / TRUSTED_VISITS) ** -2
                for t in range(width):
                    if prior[h, s, a, t] > 0.0:
                        mean[h, s, a, t] = (prior[h, s, a, t] + counts[h, s, a, t]) / total
    return Belief(mean, weight, doubt, next_states)


@compiled
def course_of(belief: Belief, cost: Floats, policy: Policy, initial: Floats) -> Course:
    reached = state_occupancy(belief.mean, belief.next_states, policy, initial)
    return Course(policy, reached, cautious_costs(belief, belief.doubt, cost, policy))


@compiled_sum
def cautious_costs(belief: Belief, doubt: Floats, cost: Floats, policy: Policy) -> Floats:
    """[H+1, S]: the expected cost from each step on; `doubt` is the share of the worst next state, `cost` [1|H, S, A]."""
    horizon, num_states = policy.shape
    mean, next_states = belief.mean, belief.next_states
    ahead = np.zeros((horizon + 1, num_states))
    for h in range(horizon - 1, -1, -1):
        step, step_cost = h if mean.shape[0] > 1 else 0, h if cost.shape[0] > 1 else 0
        for s in range(num_states):
            a = policy[h, s]
            share = doubt[step, s, a]
            onward = look_ahead(mean, next_states, h, s, a, ahead, h + 1)
            worst = worst_ahead(mean, next_states, h, s, a, ahead, h + 1)
            ahead[h, s] = cost[step_cost, s, a] + (1.0 - share) * onward + share * worst
    return ahead


@inlined
def worst_ahead(mean: Floats, next_states: NextStates, h: int, s: int, a: int, values: Floats, n: int) -> float:
    """The greatest of `values[n]` over the possible next states of (s, a) at step `h`."""
    row, row_states = h if mean.shape[0] > 1 else 0, h if next_states.shape[0] > 1 else 0
    worst = 0.0
    for i in range(mean.shape[3]):
        if mean[row, s, a, i] > 0.0:
            worst = max(worst, values[n, i if next_states.shape[0] == 0 else next_states[row_states, s, a, i]])
    return worst


@compiled_sum
def least_cautious_cost(
    belief: Belief, doubt: Floats, cost: Floats, available: Mask, policy: Policy, initial: Floats, stop: Mask
) -> float:
    """Write the policy of least cautious cost, and return it; with a doubt of 1 everywhere, the least in the worst case.

    Once another thread sets `stop` [1], the remaining steps get action 0, and the result must not be used.
    """
    horizon, num_states = policy.shape
    mean, next_states = belief.mean, belief.next_states
    now, ahead = np.zeros(num_states), np.zeros((1, num_states))
    for h in range(horizon - 1, -1, -1):
        if stop[0]:
            for s in range(num_states):
                policy[h, s] = 0
            continue
        step, step_cost = h if doubt.shape[0] > 1 else 0, h if cost.shape[0] > 1 else 0
        for s in range(num_states):
            now[s] = np.inf
            for a in range(available.shape[1]):
                if available[s, a]:
                    share = doubt[step, s, a]
                    onward = look_ahead(mean, next_states, h, s, a, ahead, 0)
                    worst = worst_ahead(mean, next_states, h, s, a, ahead, 0)
                    total = cost[step_cost, s, a] + (1.0 - share) * onward + share * worst
                    if total < now[s]:
                        now[s], policy[h, s] = total, a
        for s in range(num_states):
            ahead[0, s] = now[s]
    return dot(initial, now)


@compiled
def confident_bound(belief: Belief, course: Course, initial: Floats, z: float) -> float:
    """U of a policy."""
    return dot(initial, course.costs_to_go[0]) + z * math.sqrt(max(0.0, cost_covariance(belief, course, course, True)))


@compiled
def certain_bound(belief: Belief, cost: Floats, policy: Policy, initial: Floats) -> float:
    """The cost of a policy in the worst case: whichever possible next states come."""
    return dot(initial, cautious_costs(belief, np.ones_like(belief.doubt), cost, policy)[0])


@compiled
def cost_covariance(belief: Belief, first: Course, second: Course, same: bool) -> float:
    """Of the expected costs of two policies; sigma^2 if they are the `same`."""
    steps, num_states, num_actions, width = belief.mean.shape
    horizon, total = first.policy.shape[0], 0.0
    gain = np.zeros(width)
    other = gain if same else np.zeros(width)
    for step in range(steps):
        end = horizon if steps == 1 else step + 1
        for s in range(num_states):
            for a in range(num_actions):
                if not write_gains(belief, first, step, end, s, a, gain):
                    continue
                if not same and not write_gains(belief, second, step, end, s, a, other):
                    continue
                row = belief.mean[step, s, a]
                centre, shared = dot(row, gain), 0.0
                for j in range(width):
                    shared += row[j] * (gain[j] - centre) * other[j]
                total += shared / (belief.weight[step, s, a] + 1.0)
    return total


@compiled
def write_gains(belief: Belief, course: Course, begin: int, end: int, s: int, a: int, gain: Floats) -> bool:
    """Write G(s,a,.) of the steps from `begin` to `end`; return whether the policy plays the pair at all."""
    played = False
    for h in range(begin, end):
        if course.policy[h, s] == a and course.reached[h, s] > 0.0:
            if not played:
                gain[:] = 0.0
                played = True
            step_states = h if belief.next_states.shape[0] > 1 else 0
            for j in range(gain.size):
                t = j if belief.next_states.shape[0] == 0 else belief.next_states[step_states, s, a, j]
                gain[j] += course.reached[h, s] * course.costs_to_go[h + 1, t]
    return played


@compiled
def value_and_variance(
    belief: Belief, signal: Floats, mixture: Policies, shares: Floats, initial: Floats
) -> tuple[float, float]:
    """The expected sum of `signal` [1|H, S, A] for a mixture [N, H, S] with `shares` [N], and its sigma^2.

    One policy is drawn for all steps, so that the gains G of the parts add up by their shares.
    """
    gains, value = np.zeros(belief.mean.shape), 0.0
    steps, num_states, num_actions, width = belief.mean.shape
    for part in range(shares.size):
        course = course_of(belief, signal, mixture[part], initial)
        value += shares[part] * dot(initial, course.costs_to_go[0])
        for h in range(course.policy.shape[0]):
            step, step_states = h if steps > 1 else 0, h if belief.next_states.shape[0] > 1 else 0
            for s in range(num_states):
                a, weight = course.policy[h, s], shares[part] * course.reached[h, s]
                for j in range(width):
                    t = j if belief.next_states.shape[0] == 0 else belief.next_states[step_states, s, a, j]
                    gains[step, s, a, j] += weight * course.costs_to_go[h + 1, t]
    variance = 0.0
    for step in range(steps):
        for s in range(num_states):
            for a in range(num_actions):
                row, gain = belief.mean[step, s, a], gains[step, s, a]
                centre, spread = dot(row, gain), 0.0
                for j in range(width):
                    spread += row[j] * (gain[j] - centre) ** 2
                variance += spread / (belief.weight[step, s, a] + 1.0)
    return value, variance


@compiled
def upper_signals(observed: Observed, z: float) -> Floats:
    """The signals with Wilson's upper bound in place of each learned cost, which is 1 where nothing was observed.

    It holds for any observations in [0, 1]: none varies more than those that are 0 or 1 with the same mean.
    """
    upper, square = observed.signals.copy(), z * z
    for i in range(1, upper.shape[0]):
        for h in range(upper.shape[1]):
            for s in range(upper.shape[2]):
                for a in range(upper.shape[3]):
                    if observed.learned[i, h, s, a]:
                        n, total = observed.visits[h, s, a], observed.sums[i, h, s, a]
                        variance = total * (n - total) / n if n > 0.0 else 0.0
                        spread = math.sqrt(max(0.0, variance) + square / 4.0)
                        upper[i, h, s, a] = min(1.0, (total + square / 2.0 + z * spread) / (n + square))
    return upper
