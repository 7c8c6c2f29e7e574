"""Certified plans of continuing tasks with several constraints: linear programs on the sample, at budgets less margins.

The optimum of the sample at the budgets is a randomised stationary policy. Where its bound for a constraint exceeds the budget,
the budget of the next program is lower by the excess, until every bound is kept. Where that fails, the policy that exceeds the
budgets least on the sample is played, without a certificate unless its bounds keep them. Rows are not doubted (`uncertainty`).
"""

import numpy as np

from safe_psrl.arrays import Floats
from safe_psrl.errors import InfeasibleError
from safe_psrl.methods.certified import CONFIDENCE, NONE
from safe_psrl.methods.certified_epoch import finish_epoch_draft
from safe_psrl.methods.episode import Problem
from safe_psrl.methods.epoch import EpochDraft, one_state
from safe_psrl.planning.average_cost import RESTART
from safe_psrl.planning.average_linear_program import optimal_average_occupancy, safest_average_occupancy
from safe_psrl.planning.optimum import policy_from_occupancy
from safe_psrl.posterior.average_uncertainty import average_bound
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.posterior.uncertainty import Belief, Observed, belief_of, upper_signals

MAX_PROGRAMS = 25
TOLERANCE = 1e-9


def begin_epoch_with_several(
    problem: Problem, observed: Observed, seed: int, k: int, start: int, draft: EpochDraft
) -> tuple[int, bool]:
    """`certified_epoch.begin_certified_epoch` for several constraints."""
    draw_kernel(stream_of(seed, k, POSTERIOR), problem.prior, observed.counts, draft.p)
    belief = belief_of(problem.prior, problem.next_states, observed.counts)
    initial = one_state(len(problem.available), start)
    belief.doubt.fill(0.0)
    _search(problem, upper_signals(observed, problem.z), belief, initial, draft)
    if not draft.stop[0]:
        finish_epoch_draft(problem, observed.signals, belief, initial, k, draft)
    return 1, True


def _search(problem: Problem, signals: Floats, belief: Belief, initial: Floats, draft: EpochDraft) -> None:
    known = (problem.available, problem.next_states, draft.p, signals, initial, RESTART)
    budgets = problem.tau.copy()
    draft.basis[0] = CONFIDENCE
    for _ in range(MAX_PROGRAMS):
        try:
            occupancy = optimal_average_occupancy(*known, budgets)
        except InfeasibleError:
            break
        excess = _write(problem, signals, belief, initial, occupancy, draft) - problem.tau
        if draft.stop[0] or (excess <= TOLERANCE).all():
            return
        budgets -= np.maximum(excess, 0.0) + TOLERANCE
    bounds = _write(problem, signals, belief, initial, safest_average_occupancy(*known, problem.tau), draft)
    if (bounds > problem.tau + TOLERANCE).any():
        draft.basis[0] = NONE


def _write(problem: Problem, signals: Floats, belief: Belief, initial: Floats, occupancy: Floats, draft: EpochDraft) -> Floats:
    """Write the policy that has `occupancy` [S, A], and its bounds, which are returned."""
    policy = occupancy[None].copy()
    policy_from_occupancy(policy, problem.available)
    draft.probabilities[:] = policy[0]
    for i in range(problem.tau.size):
        cost = np.ascontiguousarray(signals[1 + i, 0])
        draft.certificate[i] = average_bound(belief, belief.doubt, cost, draft.probabilities, initial, problem.z, draft.stop)
    return draft.certificate
