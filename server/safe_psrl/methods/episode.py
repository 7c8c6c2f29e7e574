"""The start of an episode as one compiled step: pessimism, dual scale, sample, plan, dual update (paper, algorithm 1).

It depends on past observations only, so the learner and simulated runs share it and agree to the bit.
"""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, Mask, NextStates, Policies, Policy
from safe_psrl.compiled import compiled
from safe_psrl.methods.schedule import dual_scale_at, dual_update, pessimism_at
from safe_psrl.planning.backward_induction import least_certain_cost, plan_policy
from safe_psrl.planning.evaluation import dot
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.problem.options import DriftOptions, SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec

COST_TOLERANCE = 1e-9  # by which a computed cost may exceed its limit and still count as reaching it


class Problem(NamedTuple):
    """What compiled code needs of a specification and its options."""

    initial: Floats  # [S]
    tau: Floats  # [M]
    c0: Floats  # [M]
    available: Mask  # [S, A]
    prior: Floats  # [L, S, A, W]
    next_states: NextStates  # [0|1|H, S, A, W]
    k_epsilon: float
    cap_pessimism: bool
    z: float  # the quantile of the normal distribution at the confidence
    max_draws: int
    keep: float  # of a row's counts at a visit
    keep_recent: float  # of its short memory
    alarm: float  # the sum of drift statistics at which drift is detected
    forgets: bool  # when it is


class Draft(NamedTuple):
    """Where `begin_episode` writes what it decides."""

    p: Floats  # [L, S, A, W], p_k
    policy: Policy  # [H, S], pi_k; of a mixture, the part that this episode plays
    mixture: Policies  # [N, H, S], the policies that a certified plan draws from; else no rows
    shares: Floats  # [N], their probabilities
    values: Floats  # [1+M, S], of pi_k, or of the mixture, under p_k
    predicted_costs: Floats  # [M], the same
    certificate: Floats  # [M], upper bounds on the expected costs of a certified plan
    basis: NDArray[np.int8]  # [1], what they rest on (`certified`)
    pessimism: Floats  # [M], epsilon_k
    dual_scale: Floats  # [M], eta_k
    dual_next: Floats  # [M], lambda_{k+1}
    stop: Mask  # [1], set by another thread: draws and sweeps end early, and the plan must not be used


def problem_of(
    spec: CmdpSpec, options: SafePsrlOptions, always_satisfiable: bool | None = None, drift: DriftOptions | None = None
) -> Problem:
    drift = drift or DriftOptions()
    if always_satisfiable is None:
        always_satisfiable = assumption_is_certain(spec)
    return Problem(
        initial=spec.initial_distribution,
        tau=spec.cost_budgets,
        c0=spec.satisfiable_costs,
        available=spec.available_actions,
        prior=spec.dirichlet_prior,
        next_states=spec.next_states,
        k_epsilon=options.pessimism_coefficient,
        cap_pessimism=options.cap_pessimism,
        z=NormalDist().inv_cdf(options.confidence),
        max_draws=1 if always_satisfiable else options.max_kernel_draws,
        keep=drift.keep,
        keep_recent=drift.keep_recent,
        alarm=drift.alarm,
        forgets=drift.on_detect == "forget",
    )


def assumption_is_certain(spec: CmdpSpec) -> bool:
    """Whether every kernel on the support has a policy of cost c0 or less, so that no draw need be checked.

    Learned costs cannot be checked: every draw is accepted.
    """
    if spec.learned_signals[1:].any():
        return True
    known = (spec.available_actions, spec.horizon, spec.initial_distribution)
    return all(
        least_certain_cost(spec.dirichlet_prior, spec.next_states, cost, *known) <= c0
        for cost, c0 in zip(spec.signals[1:], spec.satisfiable_costs, strict=True)
    )


def empty_draft(spec: CmdpSpec, *, certified: bool, stop: Mask | None = None) -> Draft:
    """A certified plan mixes at most one policy more than there are constraints."""
    shape, parts = (spec.horizon, spec.num_states), 1 + spec.num_constraints if certified else 0
    costs, certificate, pessimism, scale, dual = (np.zeros(spec.num_constraints) for _ in range(5))
    return Draft(
        p=np.empty(spec.dirichlet_prior.shape),
        policy=np.empty(shape, np.int32),
        mixture=np.empty((parts, *shape), np.int32),
        shares=np.zeros(parts),
        values=np.empty((1 + spec.num_constraints, spec.num_states)),
        predicted_costs=costs,
        certificate=certificate,
        basis=np.zeros(1, np.int8),
        pessimism=pessimism,
        dual_scale=scale,
        dual_next=dual,
        stop=np.zeros(1, np.bool_) if stop is None else stop,
    )


@compiled
def begin_episode(
    problem: Problem, signals: Floats, seed: int, k: int, counts: Floats, dual: Floats, draft: Draft
) -> tuple[int, bool]:
    """Write the plan of episode `k` into `draft`; return the number of kernels drawn, and whether the last satisfies c0."""
    horizon, num_states = draft.policy.shape
    weights = np.ones(signals.shape[0])
    epsilon_k = pessimism_at(k, num_states, problem.available.shape[1], horizon, problem.k_epsilon)
    for i in range(dual.size):
        tau, c0 = problem.tau[i], problem.c0[i]
        draft.pessimism[i] = min(epsilon_k, (tau - c0) / 2.0) if problem.cap_pessimism else epsilon_k
        draft.dual_scale[i] = dual_scale_at(k, horizon, tau, c0)
        weights[1 + i] = -dual[i] / draft.dual_scale[i]
    draws, satisfied = draw_satisfiable_kernel(problem, signals, seed, k, counts, draft)
    plan_policy(draft.p, problem.next_states, signals, weights, problem.available, draft.policy, draft.values, draft.stop)
    for i in range(dual.size):
        draft.predicted_costs[i] = dot(problem.initial, draft.values[1 + i])
        draft.dual_next[i] = dual_update(dual[i], draft.predicted_costs[i], draft.pessimism[i], problem.tau[i])
    return draws, satisfied


@compiled
def draw_satisfiable_kernel(
    problem: Problem, signals: Floats, seed: int, k: int, counts: Floats, draft: Draft
) -> tuple[int, bool]:
    """Write p_k; return the number of kernels drawn, and whether the last satisfies c0."""
    stream, draws, satisfied = stream_of(seed, k, POSTERIOR), 0, False
    while not satisfied and draws < problem.max_draws and not draft.stop[0]:
        draw_kernel(stream, problem.prior, counts, draft.p)
        draws += 1
        satisfied = problem.max_draws == 1 or reaches_satisfiable_costs(problem, signals, draft)
    return draws, satisfied


@compiled
def reaches_satisfiable_costs(problem: Problem, signals: Floats, draft: Draft) -> bool:
    """Assumption 1 on the drawn kernel: for each constraint, some policy costs c0 or less. Overwrites policy and values."""
    for i in range(problem.c0.size):
        weights = np.zeros(signals.shape[0])
        weights[1 + i] = -1.0
        plan_policy(draft.p, problem.next_states, signals, weights, problem.available, draft.policy, draft.values, draft.stop)
        if dot(problem.initial, draft.values[1 + i]) > problem.c0[i] + COST_TOLERANCE:
            return False
    return True
