"""What is exported of each agent and of each of its constraints: name, help text, value."""

from collections.abc import Callable
from typing import Final, NamedTuple

from safe_psrl_proto.v1 import admin_pb2


class AgentView(NamedTuple):
    """What the gauges of one agent are computed from."""

    status: admin_pb2.AgentStatus
    fallback_active: bool
    last_activity_seconds: float | None
    snapshot_lag: int | None  # unknown while the store does not respond
    snapshot_age_seconds: float | None


class AgentFamily(NamedTuple):
    """One series per agent; none while its value is None."""

    name: str
    text: str
    value: Callable[[AgentView], float | None]


class ConstraintFamily(NamedTuple):
    """One series per constraint of an agent; none while its value is None."""

    name: str
    text: str
    value: Callable[[admin_pb2.ConstraintStatus], float | None]


AGENT_FAMILIES: Final = (
    AgentFamily(
        "episode_index",
        "Episodes that the agent has started. Constant means that no client plays it.",
        lambda view: view.status.episode,
    ),
    AgentFamily(
        "completed_episodes",
        "Episodes reported to their end. Falling behind episode_index means that clients abandon episodes.",
        lambda view: view.status.completed_episodes,
    ),
    AgentFamily("observed_transitions", "Transitions that the agent has learned from.", lambda view: view.status.transitions),
    AgentFamily(
        "overridden_actions",
        "Steps whose executed action differs from the proposed one. Rising means that a client or a safety layer overrides the "
        "agent: the bound on violations holds for proposed actions only.",
        lambda view: view.status.overridden_actions,
    ),
    AgentFamily("episode_reward", "Reported reward of the last completed episode.", lambda view: view.status.last_reward),
    AgentFamily("cumulative_reward", "Sum of the rewards of completed episodes.", lambda view: view.status.cumulative_reward),
    AgentFamily(
        "predicted_reward",
        "Expected reward of the current plan under its sampled kernel. Far from episode_reward for long means that the "
        "posterior is still wide, or that the environment has changed.",
        lambda view: view.status.predicted_reward,
    ),
    AgentFamily(
        "posterior_visited_ratio",
        "Share of the available (state, action) pairs visited at least once.",
        lambda view: view.status.visited_ratio,
    ),
    AgentFamily(
        "plan_seconds",
        "Duration of the latest plan. It grows with states^2 * actions * (horizon + draws); see limits.planning_threads.",
        lambda view: view.status.plan_seconds,
    ),
    AgentFamily(
        "drift_statistic",
        "Sum of the drift statistics at the start of the latest episode; no series if drift is not watched for. At "
        "drift_alarm or above, drift is detected and the statistics begin anew.",
        lambda view: view.status.drift_statistic if view.status.HasField("drift_statistic") else None,
    ),
    AgentFamily(
        "drift_alarm",
        "The drift_statistic at which drift is detected: ten times drift.false_alarm_steps.",
        lambda view: view.status.drift_alarm if view.status.HasField("drift_statistic") else None,
    ),
    AgentFamily(
        "drift_detections",
        "Detections of drift. Rising means that the environment differs from what was learned: see the agent's history.",
        lambda view: view.status.drift_detections,
    ),
    AgentFamily(
        "definition_version",
        "1 at creation, one more with each update of the definition.",
        lambda view: view.status.definition_version,
    ),
    AgentFamily(
        "mode",
        "1 if the agent is live and acts, 0 if it is in shadow and only proposes.",
        lambda view: view.status.mode == "live",
    ),
    AgentFamily(
        "shadow_episodes",
        "Completed episodes that were started in shadow: another controller acted. No other sum includes them, except "
        "transitions.",
        lambda view: view.status.shadow_episodes,
    ),
    AgentFamily(
        "open_episodes",
        "Open episodes. Staying open means that a client has left: see last_transition_timestamp_seconds.",
        lambda view: len(view.status.open_episodes),
    ),
    AgentFamily(
        "paused",
        "1 while the agent is paused, by an operator or by drift.",
        lambda view: view.status.condition == admin_pb2.AGENT_CONDITION_PAUSED,
    ),
    AgentFamily(
        "paused_by_guard",
        "1 while the agent is paused because a limit of its guard was exceeded, or because drift was detected.",
        lambda view: view.status.paused_by_guard,
    ),
    AgentFamily(
        "fallback_active",
        "1 while the agent is paused and its fallback policy acts: nothing is optimised until it is resumed.",
        lambda view: view.fallback_active,
    ),
    AgentFamily(
        "last_transition_timestamp_seconds",
        "Unix time of the newest event in the agent's episodes; no series before the first. Long ago means that no client "
        "plays it.",
        lambda view: view.last_activity_seconds,
    ),
    AgentFamily(
        "snapshot_lag_events",
        "Events newer than the stored snapshot, which loading the agent must read. Far above snapshots.every_events means that "
        "snapshots fail: see the log.",
        lambda view: view.snapshot_lag,
    ),
    AgentFamily(
        "snapshot_age_seconds",
        "Seconds since the oldest event newer than the stored snapshot; 0 if there is none, no series before the first "
        "snapshot, or while an agent with such events is not in memory. Far above snapshots.every_seconds means that "
        "snapshots fail: see the log.",
        lambda view: view.snapshot_age_seconds,
    ),
    AgentFamily(
        "created_timestamp_seconds",
        "Unix time of the agent's creation or import.",
        lambda view: view.status.created_micros / 1e6,
    ),
)

CONSTRAINT_FAMILIES: Final = (
    ConstraintFamily("cost_budget", "Expected cost that an episode must not exceed (tau).", lambda c: c.cost_budget),
    ConstraintFamily("satisfiable_cost", "Cost that some policy is known to satisfy (c0).", lambda c: c.satisfiable_cost),
    ConstraintFamily("episode_cost", "Reported cost of the last completed episode.", lambda c: c.last_cost),
    ConstraintFamily(
        "episode_cost_mean",
        "Mean reported cost of all completed episodes. While the budget was never changed, above cost_budget means that the "
        "constraint is violated on average.",
        lambda c: c.mean_cost,
    ),
    ConstraintFamily(
        "episode_cost_recent",
        "Mean reported cost of the latest completed episodes, at most 100. Far above cost_budget while episode_cost_mean is "
        "below it means that the constraint has been violated lately.",
        lambda c: c.recent_cost,
    ),
    ConstraintFamily(
        "predicted_cost",
        "Expected cost of the current plan under its sampled kernel. Far from episode_cost_mean for long means that the "
        "environment differs from what was learned.",
        lambda c: c.predicted_cost,
    ),
    ConstraintFamily(
        "constraint_regret",
        "Sum over completed episodes of cost less budget. Above 0 and rising means that the constraint is violated: pause the "
        "agent.",
        lambda c: c.constraint_regret,
    ),
    ConstraintFamily(
        "cumulative_budget",
        "Sum over completed episodes of the budget that each was planned with; constraint_regret is the sum of costs minus it.",
        lambda c: c.cumulative_budget,
    ),
    ConstraintFamily(
        "constraint_regret_max", "The maximum of constraint_regret so far, at least 0.", lambda c: c.constraint_regret_max
    ),
    ConstraintFamily(
        "strong_violation",
        "Sum over completed episodes of cost less budget where it is above 0. Costs vary around their mean, so it grows even "
        "where the constraint holds: compare agents with it, and alert on constraint_regret.",
        lambda c: c.strong_violation,
    ),
    ConstraintFamily(
        "certified_cost",
        "Upper bound on the expected cost of the current plan of a certified agent; no series for other methods. Above "
        "cost_budget means that no policy is known to satisfy the budget.",
        lambda c: c.certified_cost if c.HasField("certified_cost") else None,
    ),
    ConstraintFamily(
        "constraint_violations",
        "Completed episodes whose reported cost exceeds the budget. Occasional ones are normal: costs vary around their mean.",
        lambda c: c.violations,
    ),
    ConstraintFamily(
        "dual_variable",
        "Dual variable (lambda) of the next episode. Rising without limit means that the budget cannot be satisfied.",
        lambda c: c.dual_variable,
    ),
    ConstraintFamily(
        "dual_variable_bound",
        "The theorem's bound on the expected dual variable; 0 before the first episode. A worst case.",
        lambda c: c.dual_variable_bound,
    ),
    ConstraintFamily(
        "constraint_regret_bound",
        "The theorem's bound on the expected constraint regret; 0 before the first episode. A worst case.",
        lambda c: c.constraint_regret_bound,
    ),
    ConstraintFamily(
        "pessimism",
        "What the current plan's budget is tightened by (epsilon). It falls with the number of episodes.",
        lambda c: c.pessimism,
    ),
    ConstraintFamily(
        "cost_price", "Reward that the current plan trades for a unit of cost (lambda / eta).", lambda c: c.cost_price
    ),
)
