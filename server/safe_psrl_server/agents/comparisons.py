"""What an agent's next plan, or any policy, achieves under its posterior, and whether a shadow agent may become live.

An update's preview uses the values. `CompareAgent`, and the check of an update that promotes, use both.

The record is copied first, which is fast. The plan and its values are computed from the copy.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from safe_psrl.arrays import Policy
from safe_psrl.comparison import PolicyValues, average_reward_doubt, average_values, episode_values, reward_doubt
from safe_psrl.continuing import EpochPlan
from safe_psrl.explanation import mixture_of
from safe_psrl.learner import AgentState, Plan
from safe_psrl_proto.v1 import admin_pb2, model_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.definition_checks import LIVE, checked_policy
from safe_psrl_server.agents.episode_events import CERTIFICATES
from safe_psrl_server.agents.epochs import next_start
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.totals import Mean
from safe_psrl_server.errors import FailedPreconditionError

FEWEST_EPISODES: Final = 20  # for a verdict
FEWEST_STEPS: Final = 1_000  # for a verdict on a continuing task, whose first epochs have one step each
ROUNDING: Final = 1e-9
PROMOTE: Final = admin_pb2.PROMOTION_VERDICT_PROMOTE


class Trial(NamedTuple):
    """What an agent has learned, and what the controller in charge has achieved beside it."""

    definition: Definition
    learned: AgentState
    episodes: int  # completed in shadow
    steps: int  # in a continuing task: the steps of the epochs completed in shadow
    incumbent: list[Mean]  # reward, then costs; empty if fewer than two episodes are completed
    start: int  # the state in which the next epoch starts


def trial_of(record: AgentRecord) -> Trial:
    shadow = record.totals.shadow
    means = shadow.means if shadow.completed_episodes > 1 else []
    return Trial(
        record.definition, record.copied_state(), shadow.completed_episodes, int(shadow.weight), means, next_start(record)
    )


def compare(trial: Trial, policy: model_pb2.Policy | None = None) -> admin_pb2.CompareAgentResponse:
    """Takes a few times as long as a plan. Raises `InvalidArgumentError` for a policy that does not fit the problem."""
    definition, learned, episodes, steps, incumbent, start = trial
    spec = definition.spec
    given = None if policy is None else checked_policy("policy", policy, spec)
    plan = next_plan(definition, learned, start)
    values = plan_values(definition, learned, plan, start)
    response = admin_pb2.CompareAgentResponse(
        mode=definition.message.mode or LIVE,
        shadow_episodes=episodes,
        constraint_names=spec.constraint_names,
        cost_budgets=definition.cost_budgets,
        plan=_estimate(_pairs(values)),
        deviations=definition.learner.problem.z,
    )
    if spec.is_continuing:
        response.shadow_steps = steps
    if plan.certified_costs is not None:
        response.certified_costs.extend(plan.certified_costs.tolist())
        response.certificate = CERTIFICATES[plan.certificate]
    if incumbent:
        response.incumbent.CopyFrom(_estimate(incumbent))
        response.gain.mean = float(values.means[0]) - incumbent[0].mean
        doubt = plan_doubt(definition, learned, plan, start) / response.deviations
        response.gain.error = math.hypot(float(values.sigmas[0]), incumbent[0].error) + doubt
    if given is not None:
        response.policy.CopyFrom(_estimate(_pairs(policy_values(definition, learned, given, start))))
    response.verdict, response.verdict_text = _verdict(response)
    return response


def check_promotion(trial: Trial) -> None:
    """Raise `FailedPreconditionError` if the agent must not become live without force. Takes as long as `compare`."""
    found = compare(trial)
    if found.verdict != PROMOTE:
        raise FailedPreconditionError(f"{found.verdict_text}; force makes the agent live all the same", "NOT_PROMOTABLE")


def _verdict(found: admin_pb2.CompareAgentResponse) -> "tuple[admin_pb2.PromotionVerdict.ValueType, str]":
    continuing = found.HasField("shadow_steps")
    needed = [(found.shadow_episodes, FEWEST_EPISODES, "epochs" if continuing else "episodes")]
    needed += [(found.shadow_steps, FEWEST_STEPS, "steps")] * continuing
    for number, fewest, units in needed:
        if number < fewest:
            text = f"not to be promoted: {number} of {fewest} shadow {units} are completed"
            return admin_pb2.PROMOTION_VERDICT_TOO_FEW_EPISODES, text
    gain = f"its gain of {found.gain.mean:.4g} ± {found.gain.error:.2g}"
    if found.certificate == model_pb2.CERTIFICATE_UNSPECIFIED:
        reason = "its method has no certificates"
    elif found.certificate == model_pb2.CERTIFICATE_NONE or any(
        certified > budget + ROUNDING for certified, budget in zip(found.certified_costs, found.cost_budgets, strict=True)
    ):
        reason = "no policy is known to keep the budgets"
    elif found.gain.mean <= found.deviations * found.gain.error:
        text = f"not to be promoted: {gain} is not above zero by {found.deviations:.3g} deviations"
        return admin_pb2.PROMOTION_VERDICT_NO_GAIN, text
    else:
        text = f"may be promoted: its plan is certified, and {gain} is above zero by {found.deviations:.3g} deviations"
        return PROMOTE, text
    return admin_pb2.PROMOTION_VERDICT_NO_CERTIFICATE, f"not to be promoted: {reason}"


def _pairs(values: PolicyValues) -> list[Mean]:
    return [Mean(mean, sigma) for mean, sigma in zip(values.means.tolist(), values.sigmas.tolist(), strict=True)]


def _estimate(values: Iterable[Mean]) -> admin_pb2.EpisodeEstimate:
    reward, *costs = [admin_pb2.Estimate(mean=one.mean, error=one.error) for one in values]
    return admin_pb2.EpisodeEstimate(reward=reward, costs=costs)


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
    """The plan for the learned `state`. An epoch's step number is given as 0: the plan does not depend on it."""
    task = definition.continuing
    return definition.learner.plan(state) if task is None else task.plan(state, 0, start)


def plan_values(definition: Definition, state: AgentState, plan: Plan | EpochPlan, start: int) -> PolicyValues:
    """Expected sums of an episode; in a continuing task averages per step from the state `start`."""
    if isinstance(plan, EpochPlan):
        return average_values(definition.learner, state, plan.probabilities, start)
    return episode_values(definition.learner, state, *mixture_of(plan))


def plan_doubt(definition: Definition, state: AgentState, plan: Plan | EpochPlan, start: int) -> float:
    """By how much the reward of `plan_values` may be too high because of rarely visited rows."""
    if isinstance(plan, EpochPlan):
        return average_reward_doubt(definition.learner, state, plan.probabilities, start)
    return reward_doubt(definition.learner, state, *mixture_of(plan))


def policy_values(definition: Definition, state: AgentState, policy: Policy, start: int) -> PolicyValues:
    """Like `plan_values`, for a table of actions [H, S], or [1, S] in a continuing task."""
    spec = definition.spec
    if spec.is_continuing:
        return average_values(definition.learner, state, np.eye(spec.num_actions)[policy[0]], start)
    return episode_values(definition.learner, state, policy[None], np.ones(1))
