"""Certified: every episode keeps its budgets, at a stated confidence (not in the paper).

The sample decides what is worth trying, the posterior decides what is allowed. A policy has two upper bounds on its expected
cost: U(pi), which holds with the confidence asked for (`uncertainty`), and its cost in the worst case, which is certain. The
lower one counts. At the start of an episode:

1. draw p_k; along the policies that are optimal on p_k for reward less a price of cost, find the two neighbours whose bounds
   lie on either side of the budget;
2. play the costly one with the greatest probability for which the bound of the mixture is within the budget, else the cheap
   one. The choice is drawn once, from (seed, episode), so that the expected cost is exactly the mixture's;
3. where no policy on that curve is within the budget, the policy of least cautious cost or of least cost in the worst case
   takes the place of the cheap one; if neither is within the budget, the policy of least bound is played: no certificate.

A cost that is learned counts with the upper bound of its mean, which is 1 where it has never been observed: what is unknown is
explored within the budget. It needs no state but the counts.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from safe_psrl.arrays import Counts, Floats, Mask, Policy
from safe_psrl.compiled import compiled
from safe_psrl.methods.episode import Draft, Problem
from safe_psrl.methods.schedule import dual_scale_at
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import dot, evaluate_policy
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import ACTIONS, POSTERIOR, stream_of, uniform
from safe_psrl.posterior.uncertainty import (
    Belief,
    belief_of,
    certain_bound,
    confident_bound,
    cost_covariance,
    course_of,
    least_cautious_cost,
    upper_signal,
)

CONFIDENCE, CERTAIN, NONE = 0, 1, 2  # what a certificate rests on
BASES: Final = ("confidence", "certain", "none")
MAX_SEARCH_STEPS = 100
HALVINGS = 50
ROUNDING = 1e-12


@compiled
def begin_certified_episode(
    problem: Problem,
    signals: Floats,
    learned: Mask,
    sums: Floats,
    visits: Counts,
    seed: int,
    k: int,
    counts: Counts,
    draft: Draft,
) -> tuple[int, bool]:
    """Write the plan of episode `k` for one constraint; return the number of kernels drawn, always 1, and True.

    `signals` are the estimates; `learned`, `sums` and `visits` tell what the learned ones rest on.
    """
    draw_kernel(stream_of(seed, k, POSTERIOR), problem.prior, counts, draft.p)
    belief = belief_of(problem.prior, problem.next_states, counts)
    bounded = signals.copy()
    bounded[1] = upper_signal(signals[1], learned[1], sums[1], visits, problem.z)
    search_mixture(problem, bounded, belief, draft)
    finish_draft(problem, signals, belief, seed, k, draft)
    return 1, True


class Point(NamedTuple):
    """A policy's reward and cost on the sample, the lower of its two bounds, and which that is."""

    reward: float
    cost: float
    bound: float
    basis: int


@compiled
def search_mixture(problem: Problem, signals: Floats, belief: Belief, draft: Draft) -> None:
    """Write the costly policy, the cheap one, their shares, the certificate and its basis; `signals` have upper costs."""
    policies, tau = draft.mixture, problem.tau[0]
    cheap = cheapest(problem, signals, belief, draft, policies[1])
    costly = planned(problem, signals, belief, draft, np.array([1.0, 0.0]), policies[0])
    if costly.bound <= tau + ROUNDING:
        draft.shares[0], draft.shares[1] = 1.0, 0.0
        draft.certificate[0], draft.basis[0] = costly.bound, costly.basis
        return
    draft.shares[0], draft.shares[1] = 0.0, 1.0
    draft.certificate[0], draft.basis[0] = cheap.bound, NONE
    if cheap.bound > tau:
        return
    costly, cheap = neighbours(problem, signals, belief, draft, costly, cheap)
    share = min(1.0, (tau - cheap.bound) / (costly.bound - cheap.bound))  # U is convex: the mixture's is at most the bounds'
    draft.certificate[0], draft.basis[0] = tau, min(costly.basis, cheap.basis) if share > 0.0 else cheap.basis
    if cheap.basis == CONFIDENCE:
        confident = confident_share(belief, signals[1], policies[0], policies[1], problem.initial, tau, problem.z)
        if confident > share:
            share = confident
            draft.basis[0] = CONFIDENCE
    draft.shares[0], draft.shares[1] = share, 1.0 - share


@compiled
def cheapest(problem: Problem, signals: Floats, belief: Belief, draft: Draft, policy: Policy) -> Point:
    """Write a policy whose bound is within the budget, if one is found; of those tried, the one of least bound.

    Tried are the policies of least cost in the worst case, on the sample, and with doubt. Where the first is not within the
    budget, nothing can be done for certain, and doubt would only delay learning: it is set to 0.
    """
    tau, cost = problem.tau[0], signals[1]
    least = least_cautious_cost(belief, np.ones_like(belief.doubt), cost, problem.available, policy, problem.initial)
    if least >= tau:
        belief.doubt[:] = 0.0
    other = np.empty_like(policy)
    found = planned(problem, signals, belief, draft, np.array([0.0, -1.0]), other)
    if found.bound > tau:
        certain = evaluated(problem, signals, belief, draft, policy)
        least_cautious_cost(belief, belief.doubt, cost, problem.available, other, problem.initial)
        cautious = evaluated(problem, signals, belief, draft, other)
        if certain.bound <= cautious.bound:
            return certain
        found = cautious
    policy[:] = other
    return found


@compiled
def neighbours(
    problem: Problem, signals: Floats, belief: Belief, draft: Draft, costly: Point, cheap: Point
) -> tuple[Point, Point]:
    """Move the two policies of the mixture towards each other, along the policies that are optimal on the sample."""
    policy = np.empty_like(draft.policy)
    for _ in range(MAX_SEARCH_STEPS):
        if costly.cost - cheap.cost <= ROUNDING or costly.reward <= cheap.reward or draft.stop[0]:
            break
        price = (costly.reward - cheap.reward) / (costly.cost - cheap.cost)
        point = planned(problem, signals, belief, draft, np.array([1.0, -price]), policy)
        line = cheap.reward - price * cheap.cost
        if point.reward - price * point.cost <= line + 1e-13 * (1.0 + abs(line)):
            break  # no policy lies above the line through the two
        if point.bound > problem.tau[0] + ROUNDING:
            draft.mixture[0], costly = policy, point
        else:
            draft.mixture[1], cheap = policy, point
    return costly, cheap


@compiled
def planned(problem: Problem, signals: Floats, belief: Belief, draft: Draft, weights: Floats, policy: Policy) -> Point:
    """Write the policy that is optimal on the sample for the weighted sum of reward and cost."""
    plan_policy(draft.p, problem.next_states, signals, weights, problem.available, policy, draft.values, draft.stop)
    bound, basis = bound_of(belief, signals[1], policy, problem.initial, problem.tau[0], problem.z)
    return Point(dot(problem.initial, draft.values[0]), dot(problem.initial, draft.values[1]), bound, basis)


@compiled
def evaluated(problem: Problem, signals: Floats, belief: Belief, draft: Draft, policy: Policy) -> Point:
    evaluate_policy(draft.p, problem.next_states, signals, policy, draft.values)
    bound, basis = bound_of(belief, signals[1], policy, problem.initial, problem.tau[0], problem.z)
    return Point(dot(problem.initial, draft.values[0]), dot(problem.initial, draft.values[1]), bound, basis)


@compiled
def bound_of(belief: Belief, cost: Floats, policy: Policy, initial: Floats, tau: float, z: float) -> tuple[float, int]:
    """The lower of the two upper bounds, and which it is. The second is computed where the first is above the budget."""
    confident = confident_bound(belief, course_of(belief, cost, policy, initial), initial, z)
    if confident <= tau:
        return confident, CONFIDENCE
    certain = certain_bound(belief, cost, policy, initial)
    return (certain, CERTAIN) if certain <= confident else (confident, CONFIDENCE)


@compiled
def confident_share(
    belief: Belief, cost: Floats, costly: Policy, cheap: Policy, initial: Floats, tau: float, z: float
) -> float:
    """The greatest share of `costly` for which U of the mixture is within `tau`; U is convex in it.

    The cost of a mixture is linear in the shares for every kernel, so its variance is a quadratic form of covariances.
    """
    first, second = course_of(belief, cost, costly, initial), course_of(belief, cost, cheap, initial)
    first_cost, second_cost = dot(initial, first.costs_to_go[0]), dot(initial, second.costs_to_go[0])
    variance, other = cost_covariance(belief, first, first), cost_covariance(belief, second, second)
    covariance = cost_covariance(belief, first, second)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        share = 0.5 * (low + high)
        rest = 1.0 - share
        sigma = math.sqrt(max(0.0, share * share * variance + 2.0 * share * rest * covariance + rest * rest * other))
        if share * first_cost + rest * second_cost + z * sigma <= tau:
            low = share
        else:
            high = share
    return low


@compiled
def finish_draft(problem: Problem, signals: Floats, belief: Belief, seed: int, k: int, draft: Draft) -> None:
    """Draw the policy that this episode plays, and write the mixture's values under the sample.

    The pessimism is the distance of the certificate from the expected cost under the posterior's mean.
    """
    num_parts, num_constraints = draft.shares.size, draft.dual_next.size
    values, expected = np.zeros(draft.values.shape), np.zeros(num_constraints)
    draw, chosen = uniform(stream_of(seed, k, ACTIONS)), False
    for part in range(num_parts):
        if draft.shares[part] > 0.0:
            if not chosen:
                draft.policy[:] = draft.mixture[part]
            draw -= draft.shares[part]
            chosen = draw < 0.0
            evaluate_policy(belief.mean, problem.next_states, signals, draft.mixture[part], draft.values)
            for i in range(num_constraints):
                expected[i] += draft.shares[part] * dot(problem.initial, draft.values[1 + i])
            evaluate_policy(draft.p, problem.next_states, signals, draft.mixture[part], draft.values)
            values += draft.shares[part] * draft.values
    draft.values[:] = values
    for i in range(num_constraints):
        draft.predicted_costs[i] = dot(problem.initial, values[1 + i])
        draft.pessimism[i] = draft.certificate[i] - expected[i]
        draft.dual_next[i] = 0.0
        draft.dual_scale[i] = dual_scale_at(k, draft.policy.shape[0], problem.tau[i], problem.c0[i])
