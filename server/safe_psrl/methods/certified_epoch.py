"""Certified plans of continuing tasks: the average cost within its budget, at a stated confidence.

The search is that of `certified`: along the policies that are optimal on the sample for reward less a price of cost, it finds
two neighbours whose bounds lie on either side of the budget, and mixes them. The mixture is a randomised stationary policy; the
share of the costly one is the greatest found for which the mixture's own bound (`average_uncertainty`) is within the budget.
The bound is that of the long run from the current state.

The sample may promise what no mixture within the budget earns: a state that is hardly ever reached may seem to give reward
without cost. Such a plan explores at the price of most of the reward, at a million steps still in one epoch of a hundred. So it
is compared with the plan for the posterior's mean, and must earn nearly as much on the sample.

A row that is in doubt may lead to its worst next state and never back, which no budget for an average allows. So policies on
the curve play actions with little doubt, or else those of the policy of least cost in the worst case; the rest is explored in a
share of all steps, with which the worst case is within the budget. A plan for doubtful rows is short: an epoch ends at the
first visit of a new pair.
"""

from typing import NamedTuple

import numpy as np

from safe_psrl.arrays import Floats, Mask
from safe_psrl.compiled import compiled
from safe_psrl.methods.certified import (
    CAUTIOUS,
    CERTAIN,
    CHEAPEST,
    CONFIDENCE,
    MAX_CANDIDATES,
    NONE,
    REWARD,
    ROUNDING,
    TIE_REWARD,
    WORST_CASE,
    Point,
)
from safe_psrl.methods.episode import Problem
from safe_psrl.methods.epoch import EpochDraft, one_state
from safe_psrl.methods.schedule import dual_scale_at
from safe_psrl.planning.average_cost import RESTART, evaluate_average, mix_policies, occupancy_of, plan_average
from safe_psrl.planning.evaluation import copy_table
from safe_psrl.posterior.average_uncertainty import average_bound, least_worst_average
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.posterior.uncertainty import Belief, Observed, belief_of, upper_signals

WORTHWHILE = 0.9  # share of a reward on the sample that a plan must have; with 0.7 to 0.9, plans lose about the same
KNOWN_DOUBT = 0.25  # of a row with `TRUSTED_VISITS`
SHARE_STEPS = 16  # at most, of the search for a share; four to six are usual
LINE_TOLERANCE = 1e-5  # of reward per step
BOUND_TOLERANCE = 1e-4  # of the budget, by which a mixture's bound may stay below it


@compiled
def begin_certified_epoch(
    problem: Problem, observed: Observed, seed: int, k: int, start: int, draft: EpochDraft
) -> tuple[int, bool]:
    """Write the plan of epoch `k` from the state `start` for one constraint, as `begin_certified_episode` for an episode.

    Where the plan earns less on the sample than the search promised, the mean's plan is played if the sample prefers that.
    """
    draw_kernel(stream_of(seed, k, POSTERIOR), problem.prior, observed.counts, draft.p)
    belief = belief_of(problem.prior, problem.next_states, observed.counts)
    initial, signals, sample = one_state(problem.available.shape[0], start), upper_signals(observed, problem.z), draft.p.copy()
    first, earned, certificate, basis = draft.probabilities.copy(), 0.0, 0.0, NONE
    for attempt in range(2):  # on the sample, then on the mean; one loop, as the compiler inlines the search where it is called
        promised = search_epoch_mixture(problem, signals, belief, initial, draft)
        draft.p[:] = sample
        known = (draft.p, problem.next_states, signals, draft.probabilities, initial, RESTART)
        evaluate_average(*known, draft.reached, draft.gains, draft.stop)
        if attempt == 0:
            if draft.gains[0] >= WORTHWHILE * promised:
                break
            copy_table(draft.probabilities, first)
            earned, certificate, basis = draft.gains[0], draft.certificate[0], draft.basis[0]
            draft.p[:] = belief.mean
        elif earned >= WORTHWHILE * draft.gains[0]:
            copy_table(first, draft.probabilities)
            draft.certificate[0], draft.basis[0] = certificate, basis
    if not draft.stop[0]:
        finish_epoch_draft(problem, observed.signals, belief, initial, k, draft)
    return 1, True


class Parts(NamedTuple):
    """The policies [S, A] of a search."""

    costly: Floats
    cheap: Floats
    best: Floats  # of the greatest reward on the sample
    known: Mask  # the actions of the curve
    certain: Mask  # [1], whether some policy is within the budget in the worst case


@compiled
def search_epoch_mixture(problem: Problem, signals: Floats, belief: Belief, initial: Floats, draft: EpochDraft) -> float:
    """Write the policy, the certificate and its basis; `signals` have upper costs. The loop is that of `search_mixture`.

    Returns the reward that the sample promises within the budget.
    """
    tau, shape, policy = problem.tau[0], problem.available.shape, np.zeros(problem.available.shape)
    parts = Parts(np.zeros(shape), np.zeros(shape), np.zeros(shape), problem.available.copy(), np.ones(1, np.bool_))
    costly = cheap = Point(0.0, 0.0, np.inf, NONE)
    for attempt in range(MAX_CANDIDATES):
        price = 0.0
        if draft.stop[0]:
            return 0.0
        if attempt > CAUTIOUS:
            if cheap.bound > tau or costly.cost - cheap.cost <= ROUNDING or costly.reward <= cheap.reward:
                break
            price = (costly.reward - cheap.reward) / (costly.cost - cheap.cost)
        elif attempt == CAUTIOUS and cheap.bound <= tau:
            continue
        point = epoch_candidate(problem, signals, belief, initial, draft, attempt, price, parts, policy)
        line = cheap.reward - price * cheap.cost
        if attempt > CAUTIOUS and point.reward - price * point.cost <= line + LINE_TOLERANCE:
            break  # no policy lies above the line through the two, or none that is worth a plan
        within = point.bound <= tau + ROUNDING
        if attempt == REWARD or (attempt > CAUTIOUS and not within):
            copy_table(policy, parts.costly)
            costly = point
        elif attempt == WORST_CASE or within or (attempt == CHEAPEST and cheap.bound > tau):
            copy_table(policy, parts.cheap)
            cheap = point
        if costly.bound <= tau + ROUNDING:
            break
    share_epoch(problem, signals, belief, initial, draft, parts, costly, cheap)
    return reward_within(costly, cheap, tau)


@compiled
def reward_within(costly: Point, cheap: Point, tau: float) -> float:
    """The reward on the sample of the two policies' mixture whose cost there is the budget; 0 if neither keeps the budget."""
    if costly.cost <= tau or costly.bound <= tau + ROUNDING:
        return costly.reward
    if cheap.bound > tau or cheap.cost >= tau:
        return 0.0
    return cheap.reward + (tau - cheap.cost) / (costly.cost - cheap.cost) * (costly.reward - cheap.reward)


@compiled
def epoch_candidate(
    problem: Problem,
    signals: Floats,
    belief: Belief,
    initial: Floats,
    draft: EpochDraft,
    attempt: int,
    price: float,
    parts: Parts,
    policy: Floats,
) -> Point:
    """Write the policy of an attempt, as `certified.candidate` does; plans begin with the cheap policy."""
    bound, basis = np.inf, CERTAIN
    if attempt in {WORST_CASE, CAUTIOUS}:
        doubt = np.ones_like(belief.doubt) if attempt == WORST_CASE else belief.doubt
        least = least_worst_average(belief, doubt, signals[1, 0], problem.available, initial, policy, draft.stop)
        if attempt == WORST_CASE:
            bound = least
            if least >= problem.tau[0]:
                belief.doubt.fill(0.0)
                parts.certain[0] = False
        known = (draft.p, problem.next_states, signals, policy, initial, RESTART)
        evaluate_average(*known, draft.reached, draft.gains, draft.stop)
    else:
        weights = np.array([TIE_REWARD, -1.0]) if attempt == CHEAPEST else np.array([1.0, -price])
        copy_table(parts.cheap, policy)
        curve = (draft.p, problem.next_states, signals, weights, parts.known, initial, RESTART)
        plan_average(*curve, policy, draft.reached, draft.gains, draft.stop)
        if attempt == REWARD:
            copy_table(policy, parts.best)
            write_known(belief, parts)
    if attempt != WORST_CASE and not draft.stop[0]:
        bound, basis = epoch_bound(belief, parts.certain, signals[1, 0], policy, initial, problem.tau[0], problem.z, draft.stop)
    return Point(draft.gains[0], draft.gains[1], bound, basis)


@compiled
def write_known(belief: Belief, parts: Parts) -> None:
    """Leave the cheap policy's actions and those with little doubt; until now all that are available."""
    for s in range(parts.known.shape[0]):
        for a in range(parts.known.shape[1]):
            little = belief.doubt[0, s, a] <= KNOWN_DOUBT
            parts.known[s, a] = parts.known[s, a] and (parts.cheap[s, a] > 0.0 or little)


@compiled
def epoch_bound(
    belief: Belief, certain: Mask, cost: Floats, policy: Floats, initial: Floats, tau: float, z: float, stop: Mask
) -> tuple[float, int]:
    """The lower of the two upper bounds, and which it is. The second is computed where the first is above the budget, and some
    policy is `certain` [1] to be within it."""
    lower, lower_basis, doubt = np.inf, CONFIDENCE, belief.doubt
    for basis in (CONFIDENCE, CERTAIN):
        bound = average_bound(belief, doubt, cost, policy, initial, z if basis == CONFIDENCE else 0.0, stop)
        if bound <= lower:
            lower, lower_basis = bound, basis
        if lower <= tau or not certain[0]:
            break
        doubt = np.ones_like(belief.doubt)
    return lower, lower_basis


@compiled
def share_epoch(
    problem: Problem,
    signals: Floats,
    belief: Belief,
    initial: Floats,
    draft: EpochDraft,
    parts: Parts,
    costly: Point,
    cheap: Point,
) -> None:
    """Write the costly policy if its bound is within the budget; the cheap one if no bound is; else a mixture.

    Of two mixtures, it is the one with the greater reward on the sample: the neighbours by their occupancies under the mean; or
    the cheap policy and the one of greatest reward in the same share in every state, which explores.
    """
    tau = problem.tau[0]
    if costly.bound <= tau + ROUNDING:
        copy_table(parts.costly, draft.probabilities)
        draft.certificate[0], draft.basis[0] = costly.bound, costly.basis
    elif cheap.bound > tau:
        copy_table(parts.cheap, draft.probabilities)
        draft.certificate[0], draft.basis[0] = cheap.bound, NONE
    else:
        costly_reached, cheap_reached = np.zeros(initial.size), np.zeros(initial.size)
        for policy, reached in ((parts.costly, costly_reached), (parts.cheap, cheap_reached)):
            occupancy_of(belief.mean, belief.next_states, policy, initial, RESTART, reached, draft.stop)
        alike, greatest = np.ones(initial.size), -np.inf
        for way in range(2):
            first, first_reached = (parts.costly, costly_reached) if way == 0 else (parts.best, alike)
            second_reached = cheap_reached if way == 0 else alike
            mixed = (first, first_reached, parts.cheap, second_reached)
            greatest = mix_within(problem, signals, belief, initial, draft, parts.certain, mixed, cheap, greatest)


@compiled
def mix_within(
    problem: Problem,
    signals: Floats,
    belief: Belief,
    initial: Floats,
    draft: EpochDraft,
    certain: Mask,
    mixed: tuple[Floats, Floats, Floats, Floats],
    cheap: Point,
    greatest: float,
) -> float:
    """Find the greatest share of the costly policy for which the mixture's bound is within the budget, by false position.

    Writes the mixture if its reward on the sample is above `greatest`; returns the greater of the two. `mixed` are the first
    arguments of `mix_policies`.
    """
    tau, policy, kept, found = problem.tau[0], np.zeros(problem.available.shape), mixed[2].copy(), cheap
    low, high, below, above, share, side = 0.0, 1.0, tau - cheap.bound, 0.0, 1.0, 0
    for _ in range(SHARE_STEPS):
        if draft.stop[0]:
            break
        mix_policies(*mixed, share, policy)
        bound, basis = epoch_bound(belief, certain, signals[1, 0], policy, initial, tau, problem.z, draft.stop)
        if bound <= tau:
            low, below = share, tau - bound
            above *= 0.5 if side == 1 else 1.0  # the Illinois rule: so that the other end moves, too
            side, found = 1, Point(0.0, 0.0, bound, basis)
            copy_table(policy, kept)
        else:
            high, above = share, bound - tau
            below *= 0.5 if side == -1 else 1.0
            side = -1
        if low == 1.0 or (side == 1 and below <= BOUND_TOLERANCE * tau):
            break
        share = low + (high - low) * min(0.95, max(0.05, below / (below + above)))
    known = (draft.p, problem.next_states, signals, kept, initial, RESTART)
    evaluate_average(*known, draft.reached, draft.gains, draft.stop)
    if draft.gains[0] <= greatest:
        return greatest
    copy_table(kept, draft.probabilities)
    draft.certificate[0], draft.basis[0] = found.bound, found.basis
    return float(draft.gains[0])


@compiled
def finish_epoch_draft(problem: Problem, signals: Floats, belief: Belief, initial: Floats, k: int, draft: EpochDraft) -> None:
    """Write the policy's averages under the sample; the pessimism is the distance of the certificate from the mean's."""
    known = (problem.next_states, signals, draft.probabilities, initial, RESTART, draft.reached, draft.gains, draft.stop)
    for i in range(draft.dual_next.size):
        draft.dual_next[i] = 0.0
        draft.dual_scale[i] = dual_scale_at(k, 1, problem.tau[i], problem.c0[i])
    for kernel in (belief.mean, draft.p):
        for i in range(draft.dual_next.size):
            draft.pessimism[i] = draft.gains[1 + i]  # of the mean, when the sample's turn comes
        evaluate_average(kernel, *known)
    for i in range(draft.dual_next.size):
        draft.pessimism[i] = draft.certificate[i] - draft.pessimism[i]
