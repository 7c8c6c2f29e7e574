"""The start of an epoch of a continuing task: what `episode` and `certified` do for an episode, for averages per step.

An epoch ends when some pair of state and action has been visited as often in it as in all before it, or after a number of
steps. Then a kernel is drawn and planned on from the current state. A plan is one stationary policy, randomised where it mixes
two: an action is drawn at each step, so that the average cost comes close to the policy's within an epoch, which one
draw for the whole epoch would not achieve.

The paper's schedule of pessimism and dual variables counts epochs in place of episodes, at horizon 1.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, Mask
from safe_psrl.compiled import compiled
from safe_psrl.methods.episode import COST_TOLERANCE, Problem
from safe_psrl.methods.schedule import dual_scale_at, dual_update, pessimism_at
from safe_psrl.planning.average_cost import RESTART, first_actions, plan_average
from safe_psrl.posterior.average_uncertainty import least_worst_average
from safe_psrl.posterior.draws import draw_kernel
from safe_psrl.posterior.streams import ACTIONS, POSTERIOR, stream_of, uniform
from safe_psrl.posterior.uncertainty import belief_of
from safe_psrl.problem.spec import CmdpSpec


class EpochDraft(NamedTuple):
    """Where the start of an epoch writes what it decides."""

    p: Floats  # [1, S, A, W], p_k
    probabilities: Floats  # [S, A], pi_k
    reached: Floats  # [S], its occupancy under p_k
    gains: Floats  # [1+M], its average reward and costs under p_k
    certificate: Floats  # [M], upper bounds on the average costs of a certified plan
    basis: NDArray[np.int8]  # [1], what they rest on (`certified`)
    pessimism: Floats  # [M], epsilon_k
    dual_scale: Floats  # [M], eta_k
    dual_next: Floats  # [M], lambda_{k+1}
    stop: Mask  # [1], set by another thread: the plan ends early, and must not be used


def empty_epoch_draft(spec: CmdpSpec, stop: Mask | None = None) -> EpochDraft:
    certificate, pessimism, scale, dual = (np.zeros(spec.num_constraints) for _ in range(4))
    return EpochDraft(
        p=np.empty(spec.dirichlet_prior.shape),
        probabilities=np.zeros((spec.num_states, spec.num_actions)),
        reached=np.zeros(spec.num_states),
        gains=np.zeros(1 + spec.num_constraints),
        certificate=certificate,
        basis=np.zeros(1, np.int8),
        pessimism=pessimism,
        dual_scale=scale,
        dual_next=dual,
        stop=np.zeros(1, np.bool_) if stop is None else stop,
    )


def average_assumption_is_certain(spec: CmdpSpec) -> bool:
    """`assumption_is_certain` for averages per step, from any state of the task."""
    if spec.learned_signals[1:].any():
        return True
    belief = belief_of(spec.dirichlet_prior, spec.next_states, np.zeros(spec.dirichlet_prior.shape))
    policy, everywhere = np.zeros((spec.num_states, spec.num_actions)), np.full(spec.num_states, 1.0 / spec.num_states)
    doubt, stop = np.ones_like(belief.doubt), np.zeros(1, np.bool_)
    return all(
        least_worst_average(belief, doubt, cost[0].copy(), spec.available_actions, everywhere, policy, stop) <= c0
        for cost, c0 in zip(spec.signals[1:], spec.satisfiable_costs, strict=True)
    )


@compiled
def begin_epoch(
    problem: Problem, signals: Floats, seed: int, k: int, start: int, counts: Floats, dual: Floats, draft: EpochDraft
) -> tuple[int, bool]:
    """Write the paper's plan of epoch `k` from the state `start`, as `episode.begin_episode` does for an episode."""
    num_states, num_actions = problem.available.shape
    initial, weights, signals = one_state(num_states, start), np.ones(signals.shape[0]), signals.copy()
    epsilon_k = pessimism_at(k, num_states, num_actions, 1, problem.k_epsilon)
    for i in range(dual.size):
        tau, c0 = problem.tau[i], problem.c0[i]
        draft.pessimism[i] = min(epsilon_k, (tau - c0) / 2.0) if problem.cap_pessimism else epsilon_k
        draft.dual_scale[i] = dual_scale_at(k, 1, tau, c0)
        weights[1 + i] = -dual[i] / draft.dual_scale[i]
    stream, draws, satisfied = stream_of(seed, k, POSTERIOR), 0, False
    while not satisfied and draws < problem.max_draws and not draft.stop[0]:
        draw_kernel(stream, problem.prior, counts, draft.p)
        draws += 1
        satisfied = problem.max_draws == 1 or reaches_satisfiable_averages(problem, signals, initial, draft)
    plan_epoch(problem, signals, weights, initial, draft)
    for i in range(dual.size):
        draft.dual_next[i] = dual_update(dual[i], draft.gains[1 + i], draft.pessimism[i], problem.tau[i])
    return draws, satisfied


@compiled
def plan_epoch(problem: Problem, signals: Floats, weights: Floats, initial: Floats, draft: EpochDraft) -> None:
    """Write the best policy on the sample for the weighted sum of the signals."""
    first_actions(problem.available, draft.probabilities)
    known = (draft.p, problem.next_states, signals, weights, problem.available.copy(), initial, RESTART)
    plan_average(*known, draft.probabilities, draft.reached, draft.gains, draft.stop)


@compiled
def reaches_satisfiable_averages(problem: Problem, signals: Floats, initial: Floats, draft: EpochDraft) -> bool:
    """Assumption 1 on the drawn kernel: for each constraint, some policy costs c0 or less on average."""
    for i in range(problem.c0.size):
        weights = np.zeros(signals.shape[0])
        weights[1 + i] = -1.0
        plan_epoch(problem, signals, weights, initial, draft)
        if draft.gains[1 + i] > problem.c0[i] + COST_TOLERANCE:
            return False
    return True


@compiled
def one_state(num_states: int, start: int) -> Floats:
    """[S]: the distribution of a known state."""
    initial = np.zeros(num_states)
    initial[start] = 1.0
    return initial


@compiled
def draw_action(probabilities: Floats, seed: int, step: int, state: int) -> int:
    """The action of a randomised policy [S, A] in `state` at `step` of the task: the same numbers give the same action."""
    return pick_action(probabilities[state], uniform(stream_of(seed, step, ACTIONS)))


@compiled
def action_draws(seed: int, first: int, draws: Floats) -> None:
    """Write the numbers [N] by which `draw_action` chooses at the steps from `first` on."""
    for i in range(draws.size):
        draws[i] = uniform(stream_of(seed, first + i, ACTIONS))


@compiled
def pick_action(row: Floats, share: float) -> int:
    """The action that `share` in [0, 1) falls on, in a row [A] of probabilities; never one of probability 0."""
    action = -1
    for a in range(row.size):
        if row[a] > 0.0:
            action = a
            share -= row[a]
            if share < 0.0:
                break
    return action
