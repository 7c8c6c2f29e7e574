"""The start of an episode as one compiled act: pessimism, dual scale, sample, plan, dual update (paper, algorithm 1).

It needs the counts and nothing of the data to come, so the learner and whole simulated runs share it, to the bit.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, NextStates, Policy
from safe_psrl.compiled import compiled
from safe_psrl.methods.schedule import dual_scale_at, dual_update, pessimism_at, pessimism_ceiling
from safe_psrl.planning.backward_induction import plan_policy
from safe_psrl.planning.evaluation import dot
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import POSTERIOR, stream_of
from safe_psrl.problem.options import SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec

COST_TOLERANCE = 1e-9  # by which a computed cost may exceed its limit and still count as reaching it


class Problem(NamedTuple):
    """What compiled code needs of a specification and its options."""

    initial: Floats  # [S]
    tau: Floats  # [M]
    c0: Floats  # [M]
    available: NDArray[np.bool_]  # [S, A]
    prior: Floats  # [L, S, A, W]
    next_states: NextStates  # [0|1|H, S, A, W]
    horizon: int
    k_epsilon: float
    cap_pessimism: bool
    confidence: float
    max_draws: int


class Draft(NamedTuple):
    """Where `begin_episode` writes what it decides."""

    p: Floats  # [L, S, A, W], p_k
    policy: Policy  # [H, S], pi_k; of a randomised plan, the actions that this episode will play
    probabilities: Floats  # [H, S, A] of a randomised plan; else no rows
    values: Floats  # [1+M, S], of pi_k under p_k
    numbers: Floats  # [4, M], the rows that follow
    predicted_costs: Floats  # [M], of pi_k under p_k
    pessimism: Floats  # [M], epsilon_k
    dual_scale: Floats  # [M], eta_k
    dual_next: Floats  # [M], lambda_{k+1}


# What a plan keeps of a draft: policy, probabilities, predicted reward, `numbers`, how many kernels were drawn, and whether the
# last satisfies c0. Each table that goes into compiled code or comes out of it takes time that small problems feel.
Decided = tuple[Policy, Floats, float, Floats, int, bool]


def problem_of(spec: CmdpSpec, options: SafePsrlOptions) -> Problem:
    return Problem(
        initial=spec.initial_distribution,
        tau=spec.cost_budgets,
        c0=spec.satisfiable_costs,
        available=spec.available_actions,
        prior=spec.dirichlet_prior,
        next_states=spec.next_states,
        horizon=spec.horizon,
        k_epsilon=options.pessimism_coefficient,
        cap_pessimism=options.cap_pessimism,
        confidence=options.confidence,
        max_draws=1 if assumption_is_certain(spec) else options.max_kernel_draws,
    )


def assumption_is_certain(spec: CmdpSpec) -> bool:
    """Whether every kernel on the support has a policy of cost c0 or less, so that no draw need be checked.

    Found by planning for the least cost against the worst next state. Learned costs cannot be checked: their draws are
    taken as they come.
    """
    if spec.learned_signals[1:].any():
        return True
    ahead = np.empty(spec.num_states)
    for cost, c0 in zip(spec.signals[1:], spec.satisfiable_costs, strict=True):
        plan_for_the_worst(spec.dirichlet_prior, spec.next_states, cost, spec.available_actions, spec.horizon, ahead)
        if spec.initial_distribution @ ahead > c0:
            return False
    return True


@compiled
def plan_for_the_worst(
    prior: Floats, next_states: NextStates, cost: Floats, available: NDArray[np.bool_], horizon: int, ahead: Floats
) -> None:
    """Write the least cost [S] that is sure to be kept, whichever possible next states come; `cost` is [1|H, S, A]."""
    num_states, num_actions, width = prior.shape[1:]
    ahead[:] = 0.0
    ahead_next = np.empty(num_states)
    for h in range(horizon - 1, -1, -1):
        step_prior, step_cost = h if prior.shape[0] > 1 else 0, h if cost.shape[0] > 1 else 0
        step_states = h if next_states.shape[0] > 1 else 0
        ahead_next[:] = ahead
        for s in range(num_states):
            least = np.inf
            for a in range(num_actions):
                worst = 0.0
                for j in range(width):
                    if available[s, a] and prior[step_prior, s, a, j] > 0.0:
                        t = j if next_states.shape[0] == 0 else next_states[step_states, s, a, j]
                        worst = max(worst, ahead_next[t])
                if available[s, a]:
                    least = min(least, cost[step_cost, s, a] + worst)
            ahead[s] = least


@compiled
def empty_draft(problem: Problem, p: Floats, randomised: bool) -> Draft:
    """A draft on `p`, which is handed in because it is large: numpy asks for large pages where compiled code does not."""
    horizon, (num_states, num_actions) = problem.horizon, problem.available.shape
    policy = np.empty((horizon, num_states), np.int32)
    probabilities = np.empty((horizon if randomised else 0, num_states, num_actions))
    values, numbers = np.empty((1 + problem.tau.size, num_states)), np.empty((4, problem.tau.size))
    return Draft(p, policy, probabilities, values, numbers, numbers[0], numbers[1], numbers[2], numbers[3])


@compiled
def decided(problem: Problem, draft: Draft, draws: int, satisfied: bool) -> Decided:
    """What a plan is made of."""
    reward = dot(problem.initial, draft.values[0])
    return draft.policy, draft.probabilities, reward, draft.numbers, draws, satisfied


@compiled
def decide_episode(
    problem: Problem, signals: Floats, seed: int, k: int, counts: NDArray[np.int64], dual: Floats, p: Floats
) -> Decided:
    """The plan of episode `k`, on a kernel that is written into `p`."""
    draft = empty_draft(problem, p, False)
    draws, satisfied = begin_episode(problem, signals, seed, k, counts, dual, draft)
    return decided(problem, draft, draws, satisfied)


@compiled
def begin_episode(
    problem: Problem,
    signals: Floats,
    seed: int,
    k: int,
    counts: NDArray[np.int64],
    dual: Floats,
    draft: Draft,
) -> tuple[int, bool]:
    """Write the plan of episode `k` into `draft`; return the number of kernels drawn, and whether the last satisfies c0."""
    horizon, num_states = draft.policy.shape
    weights = np.empty(signals.shape[0])
    weights[0] = 1.0
    epsilon_k = pessimism_at(k, num_states, problem.available.shape[1], horizon, problem.k_epsilon)
    for i in range(dual.size):
        tau, c0 = problem.tau[i], problem.c0[i]
        draft.pessimism[i] = min(epsilon_k, pessimism_ceiling(tau, c0)) if problem.cap_pessimism else epsilon_k
        draft.dual_scale[i] = dual_scale_at(k, horizon, tau, c0)
        weights[1 + i] = -dual[i] / draft.dual_scale[i]
    draws, satisfied = draw_satisfiable_kernel(problem, signals, seed, k, counts, draft)
    plan_policy(draft.p, problem.next_states, signals, weights, problem.available, draft.policy, draft.values)
    for i in range(dual.size):
        draft.predicted_costs[i] = dot(problem.initial, draft.values[1 + i])
        draft.dual_next[i] = dual_update(dual[i], draft.predicted_costs[i], draft.pessimism[i], problem.tau[i])
    return draws, satisfied


@compiled
def draw_satisfiable_kernel(
    problem: Problem,
    signals: Floats,
    seed: int,
    k: int,
    counts: NDArray[np.int64],
    draft: Draft,
) -> tuple[int, bool]:
    """Write p_k; return the number of kernels drawn, and whether the last satisfies c0."""
    stream, draws, satisfied = stream_of(seed, k, POSTERIOR), 0, False
    while not satisfied and draws < problem.max_draws:
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
        plan_policy(draft.p, problem.next_states, signals, weights, problem.available, draft.policy, draft.values)
        if dot(problem.initial, draft.values[1 + i]) > problem.c0[i] + COST_TOLERANCE:
            return False
    return True
