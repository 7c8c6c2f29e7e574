"""Why an action is played: what each available action leads to, and what other budgets would change.

An action's values are the reward and the costs from a step on, if the action is played there and the policy afterwards, under
the mean of the posterior. Their standard deviations are those of the kernel, by the delta method (`posterior.uncertainty`);
the uncertainty of learned rewards and costs is not part of them.
"""

from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np

from safe_psrl.arrays import Floats, Mask, Policies
from safe_psrl.learner import AgentState, Plan, SafePsrl, estimated_signals
from safe_psrl.posterior.uncertainty import Belief, belief_of, value_and_variance
from safe_psrl.problem.checks import checked_integer, sealed
from safe_psrl.problem.constraint import MIN_SLACK

BUDGET_FACTORS: Final = (0.9, 1.0, 1.1)


@dataclass(frozen=True, eq=False, slots=True)
class ActionValues:
    """Of the N actions that are available in a state, at a step."""

    actions: tuple[int, ...]  # [N]
    values: Floats  # [N, 1+M], expected reward and costs from this step on
    sigmas: Floats  # [N, 1+M], their standard deviations
    visits: Floats  # [N], observed transitions of the pair of state and action; weights, if something was forgotten
    probabilities: Floats  # [N], with which the policy plays the action


def mixture_of(plan: Plan) -> tuple[Policies, Floats]:
    """The policies [N, H, S] that `plan` draws from, and their shares [N]; a single policy has the share 1."""
    return (plan.mixture, plan.shares) if len(plan.shares) else (plan.policy[None], np.ones(1))


def action_values(
    learner: SafePsrl, state: AgentState, mixture: Policies, shares: Floats, step: int, place: int
) -> ActionValues:
    """What each action that is available in state `place` at `step` (from 0) leads to; `state` is settled.

    The policy is one of `mixture` [N, H, S], drawn with its share before the episode. Takes a few times as long as a plan.
    """
    spec = learner.spec
    checked_integer("step", step, 0, spec.horizon - 1)
    checked_integer("state", place, 0, spec.num_states - 1)
    belief = _belief_from(learner, state, step)
    signals = np.array(estimated_signals(spec, state.signal_sums, state.visits))
    signals = signals[:, step:].copy() if signals.shape[1] > 1 else signals
    start = sealed((np.arange(spec.num_states) == place).astype(np.float64))
    rest, weights = mixture[:, step:].copy(), np.array(shares)
    actions = np.flatnonzero(spec.available_actions[place])
    found = np.empty((2, len(actions), len(signals)))
    for i, action in enumerate(actions):
        rest[:, 0, place] = action
        for n, signal in enumerate(signals):
            found[:, i, n] = value_and_variance(belief, signal, rest, weights, start)
    counts = state.transition_counts
    return ActionValues(
        actions=tuple(actions.tolist()),
        values=sealed(found[0]),
        sigmas=sealed(np.sqrt(found[1])),
        visits=sealed(counts[step % len(counts), place, actions].sum(axis=-1)),
        probabilities=sealed(action_probabilities(mixture, shares, step, place, spec.num_actions)[actions]),
    )


def action_probabilities(mixture: Policies, shares: Floats, step: int, place: int, num_actions: int) -> Floats:
    """[A]: the shares of the policies that play each action in state `place` at `step`."""
    return np.asarray(np.bincount(mixture[:, step, place], shares, num_actions), np.float64)


def exchange_rate(learner: SafePsrl, state: AgentState, mixture: Policies, shares: Floats) -> float | None:
    """The reward for one unit of cost between the two policies of a mixture, under the mean of the posterior.

    It is the price of cost of a certified plan with one constraint. None if there are not two policies, or if the one with the
    greater cost does not have the greater reward.
    """
    if len(shares) != 2 or learner.spec.num_constraints != 1:
        return None
    belief, initial = _belief_from(learner, state, 0), learner.spec.initial_distribution
    signals = np.array(estimated_signals(learner.spec, state.signal_sums, state.visits))
    first, second = (
        [value_and_variance(belief, signal, np.array(mixture[part : part + 1]), np.ones(1), initial)[0] for signal in signals]
        for part in range(2)
    )
    reward, cost = first[0] - second[0], first[1] - second[1]
    return float(reward / cost) if cost * reward > 0.0 else None


def plan_with_budgets(learner: SafePsrl, state: AgentState, factor: float, stop: Mask | None = None) -> Plan | None:
    """The plan for the next episode on the same sample if every budget were `factor` times as large, as `with_budgets`."""
    changed = with_budgets(learner, factor)
    return None if changed is None else changed.plan(state, stop)


def with_budgets(learner: SafePsrl, factor: float) -> SafePsrl | None:
    """The learner with every budget `factor` times as large, but at most the horizon, or 1 as an average per step.

    None if a budget would not exceed its satisfiable cost: then there is no plan.
    """
    spec = learner.spec
    budgets = np.minimum(factor * spec.cost_budgets, spec.horizon or 1)
    if (budgets - spec.satisfiable_costs < MIN_SLACK).any():
        return None
    changed = copy(learner)
    changed.problem = learner.problem._replace(tau=sealed(budgets))
    return changed


def _belief_from(learner: SafePsrl, state: AgentState, step: int) -> Belief:
    """The posterior for the steps from `step` on, without doubt."""
    spec = learner.spec
    belief = belief_of(spec.dirichlet_prior, spec.next_states, state.transition_counts)
    belief.doubt.fill(0.0)
    kernel = slice(step if len(belief.mean) > 1 else 0, None)
    places = slice(step if len(belief.next_states) > 1 else 0, None)
    return Belief(belief.mean[kernel], belief.weight[kernel], belief.doubt[kernel], belief.next_states[places])
