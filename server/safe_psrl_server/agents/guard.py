"""Pausing an agent whose guard's limits are exceeded."""

from collections.abc import Sequence

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.episode import Episode
from safe_psrl_server.agents.record import AgentRecord


def guarding(
    record: AgentRecord,
    episode: Episode,
    costs: Sequence[float],
    steps: int,
    now_micros: int,
    replaced: Sequence[float] | None = None,
) -> list[events_pb2.Event]:
    """The event that pauses the agent if its guard's limits are exceeded once `episode` has cost `costs` in `steps`.

    `replaced` are the costs that it was counted with before, if they are corrected.
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
