"""The gauges of the agents and of the server, read from durable state at each scrape."""

import asyncio
import heapq
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.registry import Agent
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.status import record_status
from safe_psrl_server.errors import ServiceError
from safe_psrl_server.metrics.meter import PREFIX
from safe_psrl_server.store import EventStore


class AgentView(NamedTuple):
    """What the gauges of one agent are computed from."""

    status: admin_pb2.AgentStatus
    fallback_active: bool
    last_activity_seconds: float | None
    snapshot_lag: int
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
        "open_episodes",
        "Open episodes. Staying open means that a client has left: see last_transition_timestamp_seconds.",
        lambda view: len(view.status.open_episodes),
    ),
    AgentFamily(
        "paused",
        "1 while the agent is paused by an operator.",
        lambda view: view.status.condition == admin_pb2.AGENT_CONDITION_PAUSED,
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
        "Events newer than the stored snapshot, which a start must read. Far above snapshots.every_events means that snapshots "
        "fail: see the log.",
        lambda view: view.snapshot_lag,
    ),
    AgentFamily(
        "snapshot_age_seconds",
        "Seconds since the oldest event newer than the stored snapshot; 0 if there is none, no series before the first "
        "snapshot. Far above snapshots.every_seconds means that snapshots fail: see the log.",
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
        "Mean reported cost of all completed episodes. Above cost_budget means that the constraint is violated on average.",
        lambda c: c.mean_cost,
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
        "Completed episodes whose reported cost exceeds the budget. Single ones are expected: costs vary around their mean.",
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


SCRAPE_SECONDS: Final = 30.0
AGENTS_AT_ONCE: Final = 16  # read without yielding to the event loop's other tasks: less than a millisecond


class Fleet(NamedTuple):
    """One consistent reading of each agent."""

    agents: int
    quarantined: int
    without_series: int
    views: Sequence[AgentView]


class AgentCollector(Collector):
    """Reads agents on the event loop, where records do not change meanwhile, and formats in the scrape's thread.

    At most `limits.max_agents_in_metrics` agents have series: those created first, so that a new agent replaces no other.
    """

    def __init__(self, agents: AgentService, store: EventStore, loop: asyncio.AbstractEventLoop) -> None:
        self._agents = agents
        self._store = store
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Raises TimeoutError if the loop does not respond, CancelledError if it has ended."""
        if self._loop.is_closed():
            raise CancelledError
        fleet = asyncio.run_coroutine_threadsafe(self.read(), self._loop).result(SCRAPE_SECONDS)
        yield from self._server_gauges(fleet)
        for family in AGENT_FAMILIES:
            gauge = GaugeMetricFamily(f"{PREFIX}_{family.name}", family.text, labels=["agent"])
            for view in fleet.views:
                value = family.value(view)
                if value is not None:
                    gauge.add_metric([view.status.agent], value)
            yield gauge
        for constraint_family in CONSTRAINT_FAMILIES:
            name, text, constraint_value = constraint_family
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["agent", "constraint"])
            for view in fleet.views:
                for constraint in view.status.constraints:
                    value = constraint_value(constraint)
                    if value is not None:
                        gauge.add_metric([view.status.agent, constraint.name], value)
            yield gauge

    async def read(self) -> Fleet:
        if not self._agents.registry.complete.is_set():  # after a start: no series may be missing
            with suppress(ServiceError):  # the store does not respond: show the agents in memory
                await self._agents.refresh()
        agents = self._agents.agents()
        intact = [(agent, agent.record) for agent in agents if agent.record is not None]
        shown, views = self._first_created(intact), list[AgentView]()
        for index, (agent, record) in enumerate(shown):
            if index % AGENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if record.exists:  # it may have been deleted meanwhile
                views.append(self._view(agent, record))
        return Fleet(len(agents), len(agents) - len(intact), len(intact) - len(shown), views)

    def _first_created(self, agents: list[tuple[Agent, AgentRecord]]) -> list[tuple[Agent, AgentRecord]]:
        most = self._agents.limits.max_agents_in_metrics
        if len(agents) <= most:
            return agents
        return heapq.nsmallest(most, agents, key=lambda entry: (entry[1].created_micros, entry[1].name))

    def _view(self, agent: Agent, record: AgentRecord) -> AgentView:
        newest = max((episode.active_micros for episode in record.episodes.values()), default=None)
        age = None
        if agent.snapshot_version:
            since = agent.unsaved_since_micros
            age = 0.0 if since is None else max(0, self._agents.now_micros() - since) / 1e6
        return AgentView(
            status=record_status(record),
            fallback_active=record.paused and record.definition.fallback is not None,
            last_activity_seconds=None if newest is None else newest / 1e6,
            snapshot_lag=record.version - agent.snapshot_version,
            snapshot_age_seconds=age,
        )

    def _server_gauges(self, fleet: Fleet) -> Iterator[Metric]:
        yield _gauge("agents", "Agents that exist, including quarantined ones. The limit is limits.max_agents.", fleet.agents)
        yield _gauge(
            "quarantined_agents",
            "Agents whose stored events are damaged. Above 0: restore them from a backup; the log has the details.",
            fleet.quarantined,
        )
        yield _gauge(
            "agents_without_series",
            "Agents without series here. Above 0: raise limits.max_agents_in_metrics, or delete agents.",
            fleet.without_series,
        )
        yield _gauge(
            "recovery_seconds",
            "Duration of the last recovery at start-up. Rising means more agents, or snapshots that fail.",
            self._agents.recovery_seconds,
        )
        usage = self._store.usage()
        if usage is not None:
            yield _gauge("store_bytes", "Size of the database's files.", usage.used_bytes)
            yield _gauge(
                "store_free_bytes",
                "Free space on the data directory's file system. The server stops if a commit fails: free some before it is 0.",
                usage.free_bytes,
            )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
