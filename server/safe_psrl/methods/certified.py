"""Certified: every episode keeps its budgets, at a stated confidence (not in the paper).

The sample decides what is worth trying, the posterior decides what is allowed. A policy has two upper bounds on its expected
cost: U(pi), which holds with the configured confidence (`uncertainty`), and its cost in the worst case, which is certain. The
lower one counts. At the start of an episode:

1. draw p_k; along the policies that are optimal on p_k for reward less a price of cost, find the two neighbours whose bounds
   lie on either side of the budget;
2. play the costly one with the greatest probability for which the bound of the mixture is within the budget, else the cheap
   one. The choice is drawn once, from (seed, episode), so that the expected cost is exactly the mixture's;
3. where no policy on that curve is within the budget, the policy of least cost in the worst case or of least cautious cost
   takes the place of the cheap one. If neither is within the budget, the policy of least cost on the sample is played, without
   a certificate: the policy of least bound would be played for ever, as whatever is played is known best.

A cost that is learned counts with the upper bound of its mean, which is 1 where it has never been observed: what is unknown is
explored within the budget. It needs no state but the counts.
"""

import math
from typing import Final, NamedTuple

import numpy as np

from safe_psrl.arrays import Floats, Policies, Policy
from safe_psrl.compiled import compiled
from safe_psrl.methods.episode import Draft, Problem
from safe_psrl.methods.schedule import dual_scale_at
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import copy_table, dot, evaluate_mixture, evaluate_policy
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import ACTIONS, POSTERIOR, stream_of, uniform
from safe_psrl.posterior.uncertainty import (
    Belief,
    Observed,
    belief_of,
    certain_bound,
    confident_bound,
    cost_covariance,
    course_of,
    least_cautious_cost,
    upper_signals,
)

CONFIDENCE, CERTAIN, NONE = 0, 1, 2  # what a certificate rests on
BASES: Final = ("confidence", "certain", "none")
WORST_CASE, REWARD, CHEAPEST, CAUTIOUS = 0, 1, 2, 3  # the first candidates, in this order; then prices between them
MAX_CANDIDATES = 100
HALVINGS = 50
TIE_REWARD = 1e-9  # weight of the reward among policies of equal cost; more than rounding, less than a cost that matters
ROUNDING = 1e-12


class Point(NamedTuple):
    """A policy's reward and cost on the sample, the lower of its two bounds, and which that is."""

    reward: float
    cost: float
    bound: float
    basis: int


@compiled
def begin_certified_episode(problem: Problem, observed: Observed, seed: int, k: int, draft: Draft) -> tuple[int, bool]:
    """Write the plan of episode `k` for one constraint; return the number of kernels drawn, always 1, and True."""
    draw_kernel(stream_of(seed, k, POSTERIOR), problem.prior, observed.counts, draft.p)
    belief = belief_of(problem.prior, problem.next_states, observed.counts)
    search_mixture(problem, upper_signals(observed, problem.z), belief, draft)
    if not draft.stop[0]:
        finish_draft(problem, observed.signals, belief, seed, k, draft)
    return 1, True


@compiled
def search_mixture(problem: Problem, signals: Floats, belief: Belief, draft: Draft) -> None:
    """Write the costly policy, the cheap one, their shares, the certificate and its basis; `signals` have upper costs.

    One loop that calls each kernel in one place: the compiler inlines a callee wherever it is called.
    """
    tau, policy = problem.tau[0], np.empty_like(draft.policy)
    costly = cheap = Point(0.0, 0.0, np.inf, NONE)
    for attempt in range(MAX_CANDIDATES):
        price = 0.0
        if draft.stop[0]:
            return
        if attempt > CAUTIOUS:
            if cheap.bound > tau or costly.cost - cheap.cost <= ROUNDING or costly.reward <= cheap.reward:
                break
            price = (costly.reward - cheap.reward) / (costly.cost - cheap.cost)
        elif attempt == CAUTIOUS and cheap.bound <= tau:
            continue
        point = candidate(problem, signals, belief, draft, attempt, price, policy)
        line = cheap.reward - price * cheap.cost
        if attempt > CAUTIOUS and point.reward - price * point.cost <= line + 1e-13 * (1.0 + abs(line)):
            break  # no policy lies above the line through the two
        within = point.bound <= tau + ROUNDING
        if attempt == REWARD or (attempt > CAUTIOUS and not within):
            copy_table(policy, draft.mixture[0])
            costly = point
        elif attempt == WORST_CASE or within or (attempt == CHEAPEST and cheap.bound > tau):
            copy_table(policy, draft.mixture[1])
            cheap = point
        if costly.bound <= tau + ROUNDING:
            break
    share_out(problem, signals, belief, draft, costly, cheap)


@compiled
def candidate(
    problem: Problem, signals: Floats, belief: Belief, draft: Draft, attempt: int, price: float, policy: Policy
) -> Point:
    """Write the policy of an attempt. Among policies of the least cost on the sample, reward decides.

    If even the least cost in the worst case is not within the budget, nothing can be done for certain, and doubt would only
    delay learning: it is set to 0.
    """
    tau, initial = problem.tau[0], problem.initial
    bound, basis = np.inf, CERTAIN
    if attempt in {WORST_CASE, CAUTIOUS}:
        doubt = np.ones_like(belief.doubt) if attempt == WORST_CASE else belief.doubt
        least = least_cautious_cost(belief, doubt, signals[1], problem.available, policy, initial, draft.stop)
        if attempt == WORST_CASE:
            bound = least
            if least >= tau:
                belief.doubt.fill(0.0)
        evaluate_policy(draft.p, problem.next_states, signals, policy, draft.values)
    else:
        weights = np.array([TIE_REWARD, -1.0]) if attempt == CHEAPEST else np.array([1.0, -price])
        plan_policy(draft.p, problem.next_states, signals, weights, problem.available, policy, draft.values, draft.stop)
    if attempt != WORST_CASE and not draft.stop[0]:
        bound, basis = bound_of(belief, signals[1], policy, initial, tau, problem.z)
    return Point(dot(initial, draft.values[0]), dot(initial, draft.values[1]), bound, basis)


@compiled
def share_out(problem: Problem, signals: Floats, belief: Belief, draft: Draft, costly: Point, cheap: Point) -> None:
    """Write the greatest share of the costly policy that keeps the mixture's bound within the budget."""
    tau = problem.tau[0]
    if costly.bound <= tau + ROUNDING:
        share, certificate, basis = 1.0, costly.bound, costly.basis
    elif cheap.bound > tau:
        share, certificate, basis = 0.0, cheap.bound, NONE
    else:
        share = (tau - cheap.bound) / (costly.bound - cheap.bound)  # U is convex: a mixture's is at most the mixture of bounds
        certificate, basis = tau, min(costly.basis, cheap.basis) if share > 0.0 else cheap.basis
        if cheap.basis == CONFIDENCE:
            confident = confident_share(belief, signals[1], draft.mixture, problem.initial, tau, problem.z)
            if confident > share:
                share, basis = confident, CONFIDENCE
    draft.shares[0], draft.shares[1] = share, 1.0 - share
    draft.certificate[0], draft.basis[0] = certificate, basis


@compiled
def bound_of(belief: Belief, cost: Floats, policy: Policy, initial: Floats, tau: float, z: float) -> tuple[float, int]:
    """The lower of the two upper bounds, and which it is. The second is computed where the first is above the budget."""
    confident = confident_bound(belief, course_of(belief, cost, policy, initial), initial, z)
    if confident <= tau:
        return confident, CONFIDENCE
    certain = certain_bound(belief, cost, policy, initial)
    return (certain, CERTAIN) if certain <= confident else (confident, CONFIDENCE)


@compiled
def confident_share(belief: Belief, cost: Floats, mixture: Policies, initial: Floats, tau: float, z: float) -> float:
    """The greatest share of the first policy for which U of the mixture is within `tau`; U is convex in it.

    The cost of a mixture is linear in the shares for every kernel, so its variance is a quadratic form of covariances.
    """
    courses = [course_of(belief, cost, mixture[part], initial) for part in range(2)]
    costs, covariance = np.zeros(2), np.zeros((2, 2))
    for i in range(2):
        costs[i] = dot(initial, courses[i].costs_to_go[0])
        for j in range(i, 2):
            covariance[i, j] = cost_covariance(belief, courses[i], courses[j], i == j)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        share = 0.5 * (low + high)
        rest = 1.0 - share
        mixed = share * share * covariance[0, 0] + 2.0 * share * rest * covariance[0, 1] + rest * rest * covariance[1, 1]
        if share * costs[0] + rest * costs[1] + z * math.sqrt(max(0.0, mixed)) <= tau:
            low = share
        else:
            high = share
    return low


@compiled
def finish_draft(problem: Problem, signals: Floats, belief: Belief, seed: int, k: int, draft: Draft) -> None:
    """Draw the policy that this episode plays, and write the mixture's values under the sample.

    The pessimism is the distance of the certificate from the expected cost under the posterior's mean.
    """
    draw, part = uniform(stream_of(seed, k, ACTIONS)), 0
    while part < draft.shares.size - 1 and draw >= draft.shares[part]:
        draw -= draft.shares[part]
        part += 1
    while draft.shares[part] <= 0.0:  # rounding left a remainder
        part -= 1
    copy_table(draft.mixture[part], draft.policy)
    for kernel in (belief.mean, draft.p):
        evaluate_mixture(kernel, problem.next_states, signals, draft.mixture, draft.shares, draft.values)
        for i in range(draft.dual_next.size):
            cost = dot(problem.initial, draft.values[1 + i])
            draft.pessimism[i] = draft.certificate[i] - draft.predicted_costs[i]  # of the mean, when the sample's turn comes
            draft.predicted_costs[i] = cost
    for i in range(draft.dual_next.size):
        draft.dual_next[i] = 0.0
        draft.dual_scale[i] = dual_scale_at(k, draft.policy.shape[0], problem.tau[i], problem.c0[i])
