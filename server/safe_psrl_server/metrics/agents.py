"""The gauges of the agents and of the server, read from durable state at each scrape."""

import asyncio
import heapq
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.registry import Agent
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.status import record_status
from safe_psrl_server.errors import ServiceError
from safe_psrl_server.metrics.families import AGENT_FAMILIES, CONSTRAINT_FAMILIES, AgentView
from safe_psrl_server.metrics.meter import PREFIX
from safe_psrl_server.store import EventStore

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
