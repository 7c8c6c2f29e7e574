"""An agent's status, for operators."""

from typing import Final

from safe_psrl.methods.bounds import constraint_regret_bound, dual_variable_bound, episodes_above_budget
from safe_psrl_proto.v1 import admin_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.definition import Definition
from safe_psrl_server.agents.definition_checks import LIVE
from safe_psrl_server.agents.history import Recent
from safe_psrl_server.agents.planner import is_short
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.residency import Agent

MANY_EPISODES: Final = 1_000
FEWEST_EPISODES: Final = 20  # for a verdict
SMALLEST_BUDGET: Final = 1e-9  # no smaller one is accepted


def status_of(agent: Agent) -> admin_pb2.AgentStatus:
    """The status of any agent, quarantined ones included."""
    if agent.record is None:
        return admin_pb2.AgentStatus(
            agent=agent.name, condition=admin_pb2.AGENT_CONDITION_QUARANTINED, condition_reason=agent.damage
        )
    return record_status(agent.record)


def status_with_digest(record: AgentRecord) -> admin_pb2.AgentStatus:
    """Takes time that grows with the tables."""
    status = record_status(record)
    status.state_digest = record.digest()
    return status


def record_status(record: AgentRecord) -> admin_pb2.AgentStatus:
    totals, latest = record.totals, record.latest_episode
    status = admin_pb2.AgentStatus(
        agent=record.name,
        condition=admin_pb2.AGENT_CONDITION_PAUSED if record.paused else admin_pb2.AGENT_CONDITION_ACTIVE,
        condition_reason=record.pause_reason,
        version=record.version,
        episode=record.episode,
        open_episodes=[episode.number for episode in record.open_episodes],
        completed_episodes=totals.completed_episodes,
        transitions=totals.transitions,
        overridden_actions=totals.overridden_actions,
        cumulative_reward=totals.reward,
        last_reward=totals.last_reward,
        predicted_reward=latest.started.predicted_reward if latest else 0.0,
        visited_ratio=record.visited_ratio,
        constraints=[constraint_status(record, i) for i in range(record.definition.spec.num_constraints)],
        plan_seconds=latest.started.plan_seconds if latest else 0.0,
        created_micros=record.created_micros,
        certificate=latest.started.certificate if latest else model_pb2.CERTIFICATE_UNSPECIFIED,
        method=record.definition.learner.options.method,
        recent_episodes=len(record.recent.episodes),
        recent_reward=record.recent.reward,
        definition_version=record.definition_version,
        drift_detections=totals.drift_detections,
        drift_micros=last_detection_micros(record),
        has_fallback=record.definition.fallback is not None,
        paused_by_guard=record.paused_by_guard,
        active_micros=record.active_micros,
        changed_micros=record.changed_micros,
        mode=record.definition.message.mode or LIVE,
        shadow_episodes=totals.shadow.completed_episodes,
        epoch_steps=totals.epoch_steps,
        continuing=record.definition.spec.is_continuing,
    )
    if status.recent_episodes:
        status.cost_ratio = max((cost_ratio(one) for one in status.constraints), default=0.0)
    drift = record.definition.learner.drift
    if drift.detect:
        status.drift_statistic = latest.started.drift_statistic if latest else 0.0
        status.drift_alarm, status.on_detect = drift.alarm, drift.on_detect
    return status


def cost_ratio(constraint: admin_pb2.ConstraintStatus) -> float:
    """The mean cost of the latest episodes as a share of their budget."""
    return constraint.recent_cost / max(constraint.recent_budget, SMALLEST_BUDGET)


def last_detection_micros(record: AgentRecord) -> int:
    detections = [entry.time_micros for entry in record.log if entry.kind == events_pb2.LOG_KIND_DRIFT_DETECTED]
    return detections[-1] if detections else 0


def verdict_of(recent: Recent, episodes: int) -> "admin_pb2.BudgetVerdict.ValueType":
    """Whether the latest episodes keep a budget."""
    if episodes < FEWEST_EPISODES:
        return admin_pb2.BUDGET_VERDICT_UNSPECIFIED
    excess = recent.cost - recent.budget
    if excess <= 0:
        return admin_pb2.BUDGET_VERDICT_WITHIN
    return admin_pb2.BUDGET_VERDICT_NEAR if excess < 2 * recent.excess_error else admin_pb2.BUDGET_VERDICT_ABOVE


def definition_warnings(definition: Definition) -> list[str]:
    """What the user of a new definition should know. Takes as long as a plan, which is made if it is short."""
    learner = definition.learner
    spec, found = learner.spec, list[str]()
    if spec.is_continuing:
        return found
    for i, name in enumerate(spec.constraint_names):
        episodes = episodes_above_budget(spec, learner.options, i)
        if episodes > MANY_EPISODES:
            found.append(
                f"{name}: the pessimism of the method {learner.options.method} exceeds the budget for {episodes:,} episodes, "
                "in which the agent plays for the least cost: use the method certified, cap_pessimism=true or a shorter horizon"
            )
    if learner.options.is_certified and is_short(learner) and learner.plan(definition.initial_state()).certificate == "none":
        found.append("no policy is known to keep the budgets yet: policies of low cost are played until one is")
    return found


def constraint_status(record: AgentRecord, i: int) -> admin_pb2.ConstraintStatus:
    spec, totals, latest = record.definition.spec, record.totals, record.latest_episode
    status = admin_pb2.ConstraintStatus(
        name=spec.constraint_names[i],
        cost_budget=spec.cost_budgets[i],
        satisfiable_cost=spec.satisfiable_costs[i],
        dual_variable=record.dual_variables[i],
        last_cost=totals.last_costs[i],
        constraint_regret=totals.constraint_regret[i],
        constraint_regret_max=totals.constraint_regret_max[i],
        violations=totals.violations[i],
        strong_violation=totals.strong_violation[i],
        cumulative_budget=totals.costs[i] - totals.constraint_regret[i],
    )
    if totals.completed_episodes:
        status.mean_cost = totals.costs[i] / (totals.epoch_steps or totals.completed_episodes)
    recent = record.recent.of(i)
    status.recent_cost, status.recent_budget = recent.cost, recent.budget
    status.verdict = verdict_of(recent, len(record.recent.episodes))
    if record.episode and not spec.is_continuing:
        status.dual_variable_bound = dual_variable_bound(spec, record.episode, i)
        status.constraint_regret_bound = constraint_regret_bound(spec, record.episode, i)
    if latest is not None:
        started = latest.started
        status.pessimism = started.pessimism[i]
        status.dual_scale = started.dual_scale[i]
        status.cost_price = started.dual_variables[i] / started.dual_scale[i]
        status.predicted_cost = started.predicted_costs[i]
        if started.certified_costs:
            status.certified_cost = started.certified_costs[i]
    return status
