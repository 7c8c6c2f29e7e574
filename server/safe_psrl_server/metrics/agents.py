"""The gauges of the agents and of the server, read from durable state at each scrape."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.summaries import status_in, summary_of
from safe_psrl_server.errors import ServiceError
from safe_psrl_server.metrics.families import AGENT_FAMILIES, CONSTRAINT_FAMILIES, AgentView
from safe_psrl_server.metrics.meter import PREFIX
from safe_psrl_server.security.identities import matches
from safe_psrl_server.store import (
    EventStore,
    FleetTotals,
    Order,
    StoreUnavailableError,
    StreamHead,
    Summary,
    SummaryQuery,
    key_of,
)
from safe_psrl_server.store.summaries import COST_RATIO_BUCKETS, QUARANTINED

SCRAPE_SECONDS: Final = 30.0
WORST: Final = 10  # agents with the greatest cost ratio, shown whatever the number of agents
AGENTS_AT_ONCE: Final = 16  # read without yielding to the event loop's other tasks: less than a millisecond


class Fleet(NamedTuple):
    """One reading of all agents."""

    totals: FleetTotals
    without_series: int
    views: Sequence[AgentView]
    worst: Sequence[Summary]  # those with the greatest cost ratio


class AgentCollector(Collector):
    """Reads summaries on the event loop and formats in the scrape's thread.

    At most `limits.max_agents_in_metrics` agents have series, and only those with the pattern: those with the greatest cost
    ratio, which alerts are about. Totals include all agents.
    """

    def __init__(self, agents: AgentService, store: EventStore, loop: asyncio.AbstractEventLoop, pattern: str = "*") -> None:
        self._agents = agents
        self._store = store
        self._loop = loop
        self._pattern = pattern

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
        try:
            totals = await self._agents.totals()
            shown = await self._shown()
            heads = await self._store.heads([summary.agent for summary in shown])
            worst = await self._agents.find(SummaryQuery(WORST, "", 0, 0.0, Order.COST_RATIO, descending=True))
        except (ServiceError, StoreUnavailableError):  # starting, stopping, or the store does not respond: what is in memory
            return self._resident()
        views = list[AgentView]()
        for number, summary in enumerate(shown, 1):
            views.append(self._view(status_in(summary), heads.get(summary.agent)))
            if number % AGENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        intact = totals.agents - totals.conditions.get(QUARANTINED, 0)
        return Fleet(totals, intact - len(shown), views, worst)

    async def _shown(self) -> list[Summary]:
        """The summaries of the agents with series."""
        most, found = self._agents.limits.max_agents_in_metrics, list[Summary]()
        query = SummaryQuery(max(most, 1), self._pattern.partition("*")[0], order=Order.COST_RATIO, descending=True)
        while len(found) < most:
            page = await self._agents.find(query)
            found += [one for one in page if one.condition != QUARANTINED and matches(self._pattern, one.agent)]
            if len(page) < query.limit:
                break
            query = query._replace(after=key_of(page[-1], query.order))
        return sorted(found[:most])

    def _resident(self) -> Fleet:
        agents = self._agents.agents()
        rows = [summary_of(agent) for agent in agents[: self._agents.limits.max_agents_in_metrics] if agent.record is not None]
        totals = FleetTotals(self._agents.registry.size.agents, conditions={QUARANTINED: sum(a.record is None for a in agents)})
        return Fleet(totals, max(0, totals.agents - len(rows)), [self._view(status_in(row), None) for row in rows], ())

    def _view(self, status: admin_pb2.AgentStatus, head: StreamHead | None) -> AgentView:
        lag, age = None if head is None else max(0, status.version - head.snapshot_version), None
        agent = self._agents.registry.members.find(status.agent)
        if agent is not None and agent.record is not None and agent.exists:
            lag = agent.record.version - agent.snapshot_version
            if agent.snapshot_version:
                since = agent.unsaved_since_micros
                age = 0.0 if since is None else max(0, self._agents.now_micros() - since) / 1e6
        elif head is not None and head.snapshot_version and not lag:
            age = 0.0
        return AgentView(
            status=status,
            fallback_active=status.condition == admin_pb2.AGENT_CONDITION_PAUSED and status.has_fallback,
            last_activity_seconds=status.active_micros / 1e6 if status.active_micros else None,
            snapshot_lag=lag,
            snapshot_age_seconds=age,
        )

    def _resident_metrics(self) -> Iterator[Metric]:
        members = self._agents.registry.members
        yield _gauge(
            "resident_agents",
            "Agents in memory. The limit is limits.max_resident_agents; the others are loaded when used.",
            len(members),
        )
        yield _gauge(
            "resident_bytes",
            "Memory of these agents, estimated from their tables. See limits.max_resident_bytes.",
            members.bytes,
        )
        yield CounterMetricFamily(f"{PREFIX}_agent_hits", "Calls that found their agent in memory.", self._agents.runtime.hits)
        yield CounterMetricFamily(
            f"{PREFIX}_agent_evictions",
            "Agents that left memory to make room. Near the rate of calls means that more agents are in use than fit: raise "
            "limits.max_resident_agents.",
            members.evictions,
        )

    def _fleet_metrics(self, fleet: Fleet) -> Iterator[Metric]:
        yield _gauge(
            "agents", "Agents that exist, including quarantined ones. The limit is limits.max_agents.", fleet.totals.agents
        )
        yield _gauge(
            "paused_agents",
            "Agents that are paused, by an operator or by their guard.",
            fleet.totals.conditions.get(admin_pb2.AGENT_CONDITION_PAUSED, 0),
        )
        counts, bounds = list(accumulate(fleet.totals.cost_ratios)), (*map(str, COST_RATIO_BUCKETS), "+Inf")
        yield HistogramMetricFamily(
            f"{PREFIX}_agents_cost_ratio",
            "Agents by the mean cost of their latest episodes, at most 100, as a share of the budget. Above 1: over budget.",
            buckets=list(zip(bounds, counts, strict=True)),
            sum_value=fleet.totals.cost_ratio_sum,
        )
        worst = GaugeMetricFamily(
            f"{PREFIX}_worst_cost_ratio",
            "The same share for the agents where it is greatest, whether or not they have other series.",
            labels=["agent"],
        )
        for summary in fleet.worst:
            worst.add_metric([summary.agent], summary.cost_ratio)
        yield worst

    def _server_gauges(self, fleet: Fleet) -> Iterator[Metric]:
        yield from self._fleet_metrics(fleet)
        yield from self._resident_metrics()
        yield _gauge(
            "quarantined_agents",
            "Agents whose stored events were found damaged. Above 0: restore them from a backup; the log has the details.",
            fleet.totals.conditions.get(QUARANTINED, 0),
        )
        yield _gauge(
            "agents_without_series",
            "Intact agents without series here: more than limits.max_agents_in_metrics, or not of the pattern metrics_agents.",
            fleet.without_series,
        )
        yield _gauge(
            "recovery_seconds",
            "Duration of the last recovery at start-up. Rising means more agents.",
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
