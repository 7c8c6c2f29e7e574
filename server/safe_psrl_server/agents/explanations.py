"""Why an agent plays an action: `ExplainAction`.

The record is copied first, which is fast. Plans and values are computed from the copy; this takes as long as several plans.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from safe_psrl.arrays import Floats, Policies
from safe_psrl.average_explanation import action_advantages, epoch_plan_with_budgets
from safe_psrl.comparison import PolicyValues, average_values
from safe_psrl.continuing import ContinuingPsrl, EpochPlan
from safe_psrl.explanation import (
    BUDGET_FACTORS,
    ActionValues,
    action_probabilities,
    action_values,
    exchange_rate,
    mixture_of,
    plan_with_budgets,
)
from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.methods.epoch import draw_action
from safe_psrl_proto.v1 import admin_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.episode import Episode
from safe_psrl_server.agents.epochs import next_start
from safe_psrl_server.agents.messages import policy_from_message
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.validation import check_state, check_step


class Situation(NamedTuple):
    """A state and a step to explain, with what the agent learned; `latest` is the episode to explain, if there is one."""

    learner: SafePsrl
    learned: AgentState
    latest: events_pb2.EpisodeStarted | None
    place: int
    step: int


class Task(NamedTuple):
    """A continuing task that has been observed for `steps`; `latest` is the epoch to explain, if there is one."""

    learner: ContinuingPsrl
    learned: AgentState
    latest: Episode | None
    steps: int
    start: int  # of the next epoch


class Explained(NamedTuple):
    """An episode's policies, the action of the one it plays, and the prices of cost."""

    episode: int
    mixture: Policies
    shares: Floats
    action: int
    cost_prices: list[float]


def explanation_of(record: AgentRecord, place: int, step: int) -> Callable[[], admin_pb2.ExplainActionResponse]:
    """The explanation, from a copy of the record. Raises `InvalidArgumentError` for a state or a step outside the problem."""
    check_state(record.definition, "state", place)
    check_step(record, step)
    if record.definition.continuing is not None:
        return partial(explain_epoch, task_of(record, record.definition.continuing), place, step)
    return partial(explain, situation_of(record, place, step))


def task_of(record: AgentRecord, learner: ContinuingPsrl) -> Task:
    latest = record.latest_episode
    explained = latest if latest is not None and latest.definition is record.definition else None
    return Task(learner, record.copied_state(), explained, record.totals.transitions, next_start(record))


def situation_of(record: AgentRecord, place: int, step: int) -> Situation:
    latest = record.latest_episode
    started = latest.started if latest is not None and latest.definition is record.definition else None
    return Situation(record.definition.learner, record.copied_state(), started, place, step)


def explain(situation: Situation) -> admin_pb2.ExplainActionResponse:
    learner, learned, _, place, step = situation
    spec, explained = learner.spec, _explained(situation)
    found = action_values(learner, learned, explained.mixture, explained.shares, step, place)
    return admin_pb2.ExplainActionResponse(
        episode=explained.episode,
        begun=situation.latest is not None,
        state_name=spec.state_names[place] if spec.state_names else "",
        action=explained.action,
        actions=[_explanation(found, i, spec.action_names) for i in range(len(found.actions))],
        cost_prices=explained.cost_prices,
        budget_choices=_budget_choices(situation, found.actions),
        constraint_names=spec.constraint_names,
    )


def _explained(situation: Situation) -> Explained:
    learner, learned, latest, place, step = situation
    if latest is None:
        plan = learner.plan(learned)
        episode, policy, (mixture, shares) = plan.episode, plan.policy, mixture_of(plan)
        prices = plan.cost_prices.tolist()
    else:
        episode, policy = latest.episode, policy_from_message(latest.policy)
        mixture, shares = _stored_mixture(latest.policy)
        prices = [dual / scale for dual, scale in zip(latest.dual_variables, latest.dual_scale, strict=True)]
    if learner.options.is_certified:
        rate = exchange_rate(learner, learned, mixture, shares)
        prices = [] if rate is None else [rate]
    return Explained(episode, mixture, shares, int(policy[step, place]), prices)


def _stored_mixture(policy: model_pb2.Policy) -> tuple[Policies, Floats]:
    if not policy.mixture:
        return policy_from_message(policy)[None], np.ones(1)
    actions = np.array([part.actions for part in policy.mixture], np.int32)
    return actions.reshape(-1, policy.horizon, policy.num_states), np.array([part.share for part in policy.mixture])


def _explanation(found: ActionValues, i: int, names: tuple[str, ...]) -> admin_pb2.ActionExplanation:
    action, pairs = found.actions[i], zip(found.values[i], found.sigmas[i], strict=True)
    reward, *costs = [admin_pb2.ValueToGo(mean=mean, sigma=sigma) for mean, sigma in pairs]
    return admin_pb2.ActionExplanation(
        action=action,
        name=names[action] if names else "",
        reward=reward,
        costs=costs,
        visits=found.visits[i],
        probability=found.probabilities[i],
    )


def _budget_choices(situation: Situation, actions: tuple[int, ...]) -> list[admin_pb2.BudgetChoice]:
    learner, learned, _, place, step = situation
    choices = []
    for factor in BUDGET_FACTORS:
        plan = plan_with_budgets(learner, learned, factor)
        if plan is not None:
            probabilities = action_probabilities(*mixture_of(plan), step, place, learner.spec.num_actions)
            chosen = probabilities[list(actions)].tolist()
            choices.append(admin_pb2.BudgetChoice(budget_factor=factor, probabilities=chosen))
    return choices


def explain_epoch(task: Task, place: int, step: int) -> admin_pb2.ExplainActionResponse:
    learner, learned, latest, steps, start = task
    spec, base, first_step = learner.spec, learner.base, steps
    if latest is None:
        plan = learner.plan(learned, steps, start)
        epoch, policy = plan.epoch, plan.probabilities
        prices = plan.dual_variables / plan.dual_scale
    else:
        epoch, first_step = latest.number, latest.started.first_step
        policy = np.asarray(latest.policy, np.float64)  # an epoch's is one of probabilities
        prices = np.array(latest.started.dual_variables) / np.array(latest.started.dual_scale)
    found, plans = action_advantages(learner, learned, policy, place), _plans_with_budgets(task)
    return admin_pb2.ExplainActionResponse(
        episode=epoch,
        begun=latest is not None,
        state_name=spec.state_names[place] if spec.state_names else "",
        action=draw_action(policy, base.seed, first_step + step, place),
        actions=[_explanation(found, i, spec.action_names) for i in range(len(found.actions))],
        cost_prices=_prices_between(task, [*plans.values()]) if base.options.is_certified else prices.tolist(),
        budget_choices=[
            admin_pb2.BudgetChoice(budget_factor=factor, probabilities=plan.probabilities[place, list(found.actions)])
            for factor, plan in plans.items()
        ],
        constraint_names=spec.constraint_names,
        averages=_averages(average_values(base, learned, policy, place)),
    )


def _plans_with_budgets(task: Task) -> dict[float, EpochPlan]:
    """Plans for scaled budgets, by factor. Factors without a valid plan are left out."""
    learner, learned, _, steps, start = task
    plans = {factor: epoch_plan_with_budgets(learner, learned, steps, start, factor) for factor in BUDGET_FACTORS}
    return {factor: plan for factor, plan in plans.items() if plan is not None}


def _prices_between(task: Task, plans: list[EpochPlan]) -> list[float]:
    """The mean exchange rate of reward for cost between the first and the last plan; empty if there is none."""
    if len(plans) < 2 or task.learner.spec.num_constraints != 1:
        return []
    first, last = (
        average_values(task.learner.base, task.learned, one.probabilities, task.start).means for one in plans[:: len(plans) - 1]
    )
    reward, cost = last - first
    return [reward / cost] if reward > 0.0 and cost > 0.0 else []


def _averages(values: PolicyValues) -> admin_pb2.PolicyAverages:
    pairs = zip(values.means.tolist(), values.sigmas.tolist(), strict=True)
    reward, *costs = [admin_pb2.ValueToGo(mean=mean, sigma=sigma) for mean, sigma in pairs]
    return admin_pb2.PolicyAverages(reward=reward, costs=costs)
