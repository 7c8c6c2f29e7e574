"""What the next plan of an agent would be, and what policies achieve under the posterior."""

import numpy as np

from safe_psrl.arrays import Policy
from safe_psrl.comparison import PolicyValues, average_reward_doubt, average_values, episode_values, reward_doubt
from safe_psrl.continuing import EpochPlan
from safe_psrl.explanation import mixture_of
from safe_psrl.learner import AgentState, Plan
from safe_psrl_proto.v1 import admin_pb2, model_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.episode_events import CERTIFICATES


def preview_of(definition: Definition, state: AgentState, start: int) -> admin_pb2.PlanPreview:
    """The plan for the next episode, or for the next epoch from the state `start`, under the mean of the posterior."""
    learner, plan = definition.learner, next_plan(definition, state, start)
    if isinstance(plan, EpochPlan):
        reward, *costs = average_values(learner, state, plan.probabilities, start).means.tolist()
    else:
        reward, *costs = learner.expected_values(state, plan).tolist()
    certified = [] if plan.certified_costs is None else plan.certified_costs.tolist()
    certificate = CERTIFICATES.get(plan.certificate, model_pb2.CERTIFICATE_UNSPECIFIED)
    return admin_pb2.PlanPreview(reward=reward, costs=costs, certified_costs=certified, certificate=certificate)


def next_plan(definition: Definition, state: AgentState, start: int) -> Plan | EpochPlan:
    """Of what is learned and settled. The step of an epoch is left out: its plan does not depend on it."""
    task = definition.continuing
    return definition.learner.plan(state) if task is None else task.plan(state, 0, start)


def plan_values(definition: Definition, state: AgentState, plan: Plan | EpochPlan, start: int) -> PolicyValues:
    """Of an episode; in a continuing task averages per step from the state `start`."""
    if isinstance(plan, EpochPlan):
        return average_values(definition.learner, state, plan.probabilities, start)
    return episode_values(definition.learner, state, *mixture_of(plan))


def plan_doubt(definition: Definition, state: AgentState, plan: Plan | EpochPlan, start: int) -> float:
    """By how much the reward of `plan_values` may be too high for what was hardly seen yet."""
    if isinstance(plan, EpochPlan):
        return average_reward_doubt(definition.learner, state, plan.probabilities, start)
    return reward_doubt(definition.learner, state, *mixture_of(plan))


def policy_values(definition: Definition, state: AgentState, policy: Policy, start: int) -> PolicyValues:
    """The same of actions [H, S], or [1, S] in a continuing task."""
    spec = definition.spec
    if spec.is_continuing:
        return average_values(definition.learner, state, np.eye(spec.num_actions)[policy[0]], start)
    return episode_values(definition.learner, state, policy[None], np.ones(1))
