"""Statuses as the service would send them."""

from safe_psrl_proto.v1 import admin_pb2

ACTIVE = admin_pb2.AGENT_CONDITION_ACTIVE
PAUSED = admin_pb2.AGENT_CONDITION_PAUSED
QUARANTINED = admin_pb2.AGENT_CONDITION_QUARANTINED


def status(
    agent: str, completed: int = 0, mean_cost: float = 0.0, *, budget: float = 5.0, condition: int = ACTIVE, reason: str = ""
) -> admin_pb2.AgentStatus:
    """Of an agent whose completed episodes cost `mean_cost` each and earned 1 each."""
    constraint = admin_pb2.ConstraintStatus(
        name="energy",
        cost_budget=budget,
        mean_cost=mean_cost,
        constraint_regret=completed * (mean_cost - budget),
        dual_variable=completed / 2,
    )
    return admin_pb2.AgentStatus(
        agent=agent,
        condition=condition,
        condition_reason=reason,
        episode=completed,
        completed_episodes=completed,
        cumulative_reward=completed,
        constraints=[constraint],
        version=completed,
        created_micros=1,
    )


def reply(*statuses: admin_pb2.AgentStatus, deleted: tuple[str, ...] = ()) -> admin_pb2.WatchAgentsResponse:
    return admin_pb2.WatchAgentsResponse(agents=statuses, deleted=deleted)
