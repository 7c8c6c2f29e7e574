"""Pausing an agent whose guard's limits are exceeded."""

from collections.abc import Sequence

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.episode import Episode
from safe_psrl_server.agents.record import AgentRecord


def guarding(record: AgentRecord, episode: Episode, costs: Sequence[float], now_micros: int) -> list[events_pb2.Event]:
    """The event that pauses the agent if its guard's limits are exceeded once `episode` has cost `costs`; else none."""
    guard, totals, spec = record.definition.message.guard, record.totals, record.definition.spec
    if record.paused:
        return []
    for i, (cost, budget) in enumerate(zip(costs, episode.cost_budgets, strict=True)):
        for field, before, now in (
            ("max_constraint_regret", totals.guarded_regret[i], cost - budget),
            ("max_strong_violation", totals.guarded_violation[i], max(0.0, cost - budget)),
        ):
            if guard.HasField(field) and before + now > getattr(guard, field):  # type: ignore[arg-type]  # its optional fields
                what = f"{field.removeprefix('max_').replace('_', ' ')} of {spec.constraint_names[i]}"
                reason = f"guard: the {what} is {before + now:.6g}, above {getattr(guard, field):g}"
                paused = events_pb2.AgentPaused(reason=reason, guard=True)
                return [events_pb2.Event(time_micros=now_micros, agent_paused=paused)]
    return []
