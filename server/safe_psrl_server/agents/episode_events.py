"""Makes the events of an episode (start, steps, end), of detected drift and of an exceeded guard."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from safe_psrl.continuing import EpochPlan
from safe_psrl.learner import Plan
from safe_psrl.transition import Transition
from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.episode import COMPLETED, Episode
from safe_psrl_server.agents.events import Observation, write_steps
from safe_psrl_server.agents.messages import write_policy
from safe_psrl_server.agents.record import AgentRecord

CERTIFICATES: Final = {
    "confidence": model_pb2.CERTIFICATE_CONFIDENCE,
    "certain": model_pb2.CERTIFICATE_CERTAIN,
    "none": model_pb2.CERTIFICATE_NONE,
}


class TimedPlan(NamedTuple):
    """A plan and the seconds it took."""

    plan: Plan | EpochPlan
    seconds: float


def starting(
    record: AgentRecord, planned: TimedPlan, request: control_pb2.StartEpisodeRequest, planned_by: str, now_micros: int
) -> events_pb2.Event:
    """The event that starts the planned episode."""
    plan, event = planned.plan, events_pb2.Event(time_micros=now_micros)
    started = event.episode_started
    started.incarnation = record.created_micros
    started.episode = plan.epoch if isinstance(plan, EpochPlan) else plan.episode
    started.request_id = request.request_id
    started.pessimism.extend(plan.pessimism.tolist())
    started.dual_scale.extend(plan.dual_scale.tolist())
    started.dual_variables.extend(plan.dual_variables.tolist())
    shadow = started.shadow = record.definition.is_shadow  # the dual variables are for costs of the agent's own actions
    started.next_dual_variables.extend((plan.dual_variables if shadow else plan.next_dual_variables).tolist())
    started.predicted_reward = plan.predicted_reward
    started.predicted_costs.extend(plan.predicted_costs.tolist())
    started.kernel_draws, started.kernel_satisfiable = plan.kernel_draws, plan.kernel_satisfiable
    started.planned_by, started.plan_seconds = planned_by, planned.seconds
    started.cost_budgets.extend(record.definition.cost_budgets)
    if plan.drift is not None:
        started.drift_statistic = plan.drift.statistic
    if plan.certified_costs is not None:
        started.certified_costs.extend(plan.certified_costs.tolist())
        started.certificate = CERTIFICATES[plan.certificate]
    write_policy(plan, started.policy)
    if request.HasField("state"):
        started.state = request.state
    return event


def detecting(record: AgentRecord, plan: Plan | EpochPlan, now_micros: int) -> list[events_pb2.Event]:
    """The event that reports drift, if drift was detected while the episode was planned."""
    if plan.drift is None or not plan.drift.detected:
        return []
    rows = [events_pb2.RowStatistic(**row._asdict()) for row in plan.drift.rows]
    on_detect, guard = record.definition.learner.drift.on_detect, record.definition.message.guard
    paused = on_detect == "pause" or guard.on_drift
    detected = events_pb2.DriftDetected(statistic=plan.drift.statistic, rows=rows, on_detect=on_detect, paused=paused)
    return [events_pb2.Event(time_micros=now_micros, drift_detected=detected)]


def ending(
    episode: Episode, end: "events_pb2.EpisodeEnd.ValueType", now_micros: int, steps: Sequence[Transition] = ()
) -> events_pb2.Event:
    """The event that ends `episode` after `steps` more steps."""
    event, sums = events_pb2.Event(time_micros=now_micros), episode.sums(more=steps)
    ended = event.episode_ended
    ended.episode, ended.end, ended.steps = episode.number, end, episode.next_step + len(steps)
    ended.reward = sums.reward
    ended.costs.extend(sums.costs)
    return event


def observing(
    record: AgentRecord, episode: Episode, steps: Sequence[Transition], done: bool, now_micros: int
) -> list[events_pb2.Event]:
    """The events of new `steps` of `episode`. If they end it (`done`), the guard may pause the agent."""
    event = events_pb2.Event(time_micros=now_micros)
    write_steps(event.transitions_observed, Observation(episode.number, steps, episode.overridden(steps)))
    if not done:
        return [event]
    ended = ending(episode, COMPLETED, now_micros, steps)
    return [event, ended, *guarding(record, episode, ended.episode_ended.costs, ended.episode_ended.steps, now_micros)]


def guarding(
    record: AgentRecord,
    episode: Episode,
    costs: Sequence[float],
    steps: int,
    now_micros: int,
    replaced: Sequence[float] | None = None,
) -> list[events_pb2.Event]:
    """The event that pauses the agent if its guard's limits are exceeded once `episode` has cost `costs` in `steps`.

    `replaced` are the previous costs of the episode, if this is a correction.
    """
    guard, totals, spec = record.definition.message.guard, record.totals, record.definition.spec
    if record.paused or episode.is_shadow:
        return []
    limits = episode.cost_limits_after(steps)
    counted = limits if replaced is None else replaced  # an episode at its budget adds nothing
    for i, (cost, budget) in enumerate(zip(costs, limits, strict=True)):
        for field, before, now in (
            ("max_constraint_regret", totals.guarded_regret[i], cost - counted[i]),
            ("max_strong_violation", totals.guarded_violation[i], max(0.0, cost - budget) - max(0.0, counted[i] - budget)),
        ):
            if guard.HasField(field) and before + now > getattr(guard, field):  # type: ignore[arg-type]  # its optional fields
                what = f"{field.removeprefix('max_').replace('_', ' ')} of {spec.constraint_names[i]}"
                reason = f"guard: the {what} is {before + now:.6g}, above {getattr(guard, field):g}"
                paused = events_pb2.AgentPaused(reason=reason, guard=True)
                return [events_pb2.Event(time_micros=now_micros, agent_paused=paused)]
    return []
