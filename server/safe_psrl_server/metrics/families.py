"""The gauges of an agent and of its constraints: name, what to make of it, and where its value comes from.

All values are durable facts, the same before and after a restart.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.hosted import Hosted


class Shown(NamedTuple):
    """What an agent's gauges are taken from."""

    agent: Hosted
    record: AgentRecord
    status: admin_pb2.AgentStatus


class AgentFamily(NamedTuple):
    """One series for an agent; none while its value is None."""

    name: str
    text: str
    value: Callable[[Shown], float | None]


class ConstraintFamily(NamedTuple):
    """One series for each constraint of an agent."""

    name: str
    text: str
    value: Callable[[admin_pb2.ConstraintStatus], float]


def last_activity_seconds(record: AgentRecord) -> float | None:
    """Unix time of the newest event in the agent's episodes."""
    newest = max((episode.active_micros for episode in record.episodes.values()), default=None)
    return None if newest is None else newest / 1e6


def fallback_acts(record: AgentRecord) -> bool:
    return record.paused and record.definition.fallback is not None


AGENT_FAMILIES: Final = (
    AgentFamily(
        "episode_index",
        "Episodes that the agent has started. Standing still means that nobody plays it.",
        lambda shown: shown.status.episode,
    ),
    AgentFamily(
        "completed_episodes",
        "Episodes that were reported to their end. Falling behind episode_index means that clients break episodes off.",
        lambda shown: shown.status.completed_episodes,
    ),
    AgentFamily("observed_transitions", "Transitions that the agent has learned from.", lambda shown: shown.status.transitions),
    AgentFamily(
        "overridden_actions",
        "Steps whose executed action was not the proposed one. Rising means that a client or a safety layer decides otherwise: "
        "the bound on violations is for the proposed ones.",
        lambda shown: shown.status.overridden_actions,
    ),
    AgentFamily("episode_reward", "Reported reward of the last completed episode.", lambda shown: shown.status.last_reward),
    AgentFamily("cumulative_reward", "Sum of the rewards of completed episodes.", lambda shown: shown.status.cumulative_reward),
    AgentFamily(
        "predicted_reward",
        "Expected reward of the current plan under its sampled kernel. Far from episode_reward for long means that little is "
        "known yet, or that the environment has changed.",
        lambda shown: shown.status.predicted_reward,
    ),
    AgentFamily(
        "posterior_visited_ratio",
        "Share of the available (state, action) pairs that were ever visited.",
        lambda shown: shown.status.visited_ratio,
    ),
    AgentFamily(
        "plan_seconds",
        "Time that the latest plan took. It grows with states^2 * actions * (horizon + draws); see limits.planning_threads.",
        lambda shown: shown.status.plan_seconds,
    ),
    AgentFamily(
        "open_episodes",
        "Episodes that are open. Standing open means that a client left: see last_transition_timestamp_seconds.",
        lambda shown: len(shown.status.open_episodes),
    ),
    AgentFamily("paused", "1 while an operator has paused the agent.", lambda shown: shown.record.paused),
    AgentFamily(
        "fallback_active",
        "1 while the agent is paused and its fallback policy acts: nothing is optimised until it is resumed.",
        lambda shown: fallback_acts(shown.record),
    ),
    AgentFamily(
        "last_transition_timestamp_seconds",
        "Unix time of the newest event in the agent's episodes; none before the first. Long ago means that nobody plays it.",
        lambda shown: last_activity_seconds(shown.record),
    ),
    AgentFamily(
        "snapshot_lag_events",
        "Events that no stored snapshot holds, which a start must read. Far above snapshots.every_events means that snapshots "
        "fail: see the log.",
        lambda shown: shown.record.version - shown.agent.snapshot_version,
    ),
    AgentFamily(
        "created_timestamp_seconds",
        "Unix time of the agent's creation or import.",
        lambda shown: shown.status.created_micros / 1e6,
    ),
)

CONSTRAINT_FAMILIES: Final = (
    ConstraintFamily("cost_budget", "Expected cost that an episode must not exceed (tau).", lambda c: c.cost_budget),
    ConstraintFamily("satisfiable_cost", "Cost that some policy is known to keep (c0).", lambda c: c.satisfiable_cost),
    ConstraintFamily("episode_cost", "Reported cost of the last completed episode.", lambda c: c.last_cost),
    ConstraintFamily(
        "episode_cost_mean",
        "Mean reported cost of all completed episodes. Above cost_budget means that the constraint is broken on the whole.",
        lambda c: c.mean_cost,
    ),
    ConstraintFamily(
        "predicted_cost",
        "Expected cost of the current plan under its sampled kernel. Far from episode_cost_mean for long means that the "
        "environment is not what was learned.",
        lambda c: c.predicted_cost,
    ),
    ConstraintFamily(
        "constraint_regret",
        "Sum over completed episodes of cost less budget. Above 0 and rising means that the constraint is being broken: pause "
        "the agent.",
        lambda c: c.constraint_regret,
    ),
    ConstraintFamily(
        "constraint_regret_max", "The greatest constraint_regret ever, not below 0.", lambda c: c.constraint_regret_max
    ),
    ConstraintFamily(
        "constraint_violations",
        "Completed episodes whose reported cost was above the budget. Single ones are expected: costs vary around their mean.",
        lambda c: c.violations,
    ),
    ConstraintFamily(
        "dual_variable",
        "Dual variable (lambda) of the next episode. Rising without end means that the budget cannot be kept.",
        lambda c: c.dual_variable,
    ),
    ConstraintFamily(
        "dual_variable_bound",
        "What the theorem bounds the expected dual variable by; 0 before the first episode. A worst case.",
        lambda c: c.dual_variable_bound,
    ),
    ConstraintFamily(
        "constraint_regret_bound",
        "What the theorem bounds the expected constraint regret by; 0 before the first episode. A worst case.",
        lambda c: c.constraint_regret_bound,
    ),
    ConstraintFamily(
        "pessimism",
        "What the budget of the current plan is tightened by (epsilon). It falls as episodes pass.",
        lambda c: c.pessimism,
    ),
    ConstraintFamily(
        "cost_price",
        "Reward that the current plan gives up for a unit of cost (lambda / eta).",
        lambda c: c.cost_price,
    ),
)
