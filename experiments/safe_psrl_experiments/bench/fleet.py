"""`bench fleet`: a service with far more agents stored than fit into its memory.

The store is filled through its own commits with the events of one prepared agent under many names.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from safe_psrl_experiments.bench import load
from safe_psrl_experiments.bench.grow import Service
from safe_psrl_experiments.bench.history import history
from safe_psrl_experiments.bench.measure import (
    Bar,
    Report,
    Result,
    fetch,
    judged,
    judged_times,
    process_kilobytes,
    processor_seconds,
    silent,
)
from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.residency import Agent
from safe_psrl_server.agents.summaries import status_in, summary_of
from safe_psrl_server.store import Append, EventStore, Summary, open_store

GROUP: Final = 200  # agents that are stored in one commit
READS: Final = 1_500  # agents that are read, each for the first time
STARTS: Final = 500  # other agents that start an episode
TURNS: Final = 3  # starts
PAGES: Final = 5  # of each kind
PAGE_SIZE: Final = 1_000
CONSOLE_LIST: Final = 2_001  # agents that the console lists for its fleet page
MOST_MEGABYTES: Final = 400.0
MOST_MILLISECONDS: Final = 10.0  # of the first call to an agent
MOST_PAGE_MILLISECONDS: Final = 1_000.0
BAR: Final[Bar] = ("<=", 1)
ORDERS: Final = {
    admin_pb2.AGENT_ORDER_UNSPECIFIED: "by name",
    admin_pb2.AGENT_ORDER_CONDITION: "by condition",
    admin_pb2.AGENT_ORDER_COST_RATIO: "by cost ratio",
    admin_pb2.AGENT_ORDER_CHANGED: "by time of change",
    admin_pb2.AGENT_ORDER_CREATED: "by time of creation",
}


class LargeFleet(NamedTuple):
    """How many agents are stored, how many of them fit into memory, and how long the history of each is."""

    agents: int = 200_000
    resident: int = 1_000
    transitions: int = 40

    @property
    def settings(self) -> str:
        """The configuration of the service."""
        return f"[limits]\nmax_agents = {self.agents}\nmax_resident_agents = {self.resident}\n"

    def name(self, number: int) -> str:
        return f"agent-{number:07}"


def bench_large_fleet(service: Service, empty: Service, store: str, fleet: LargeFleet, report: Report = silent) -> list[Result]:
    """Of a service with these settings on the store at this address, which is empty or has agents of an earlier run; and of
    one without agents, to compare its start with."""
    events, most_seconds = asyncio.run(fill(store, fleet, report))
    starts, work, empty_work = list[float](), list[float](), list[float]()
    for number in range(TURNS):
        report("starting a service", number, TURNS)
        empty.start()
        empty_work.append(processor_seconds(empty.pid))
        empty.stop()
        service.stop()
        starts.append(service.start())
        work.append(processor_seconds(service.pid))
    began = process_kilobytes("VmRSS", service.pid) / 1e3
    times = asyncio.run(_measure(service.target, fleet, report))
    report("scraping")
    scraping = processor_seconds(service.pid)
    times["/metrics"] = [_timed(lambda: fetch(service.metrics_url)) for _ in range(PAGES)]
    scraping = (processor_seconds(service.pid) - scraping) / PAGES * 1e3
    ended = process_kilobytes("VmRSS", service.pid) / 1e3
    service.stop()
    most = f"{MOST_MEGABYTES:g} MB"
    return [
        judged_times(f"start, {fleet.agents:,} agents, {events:,} events", starts, [most_seconds], "bar", "s", BAR),
        judged_times("processor time of the start", work, empty_work, "no agents", "s"),
        judged("resident memory after the start", began, MOST_MEGABYTES, most, "MB", BAR),
        judged(f"the same after calls to {READS + STARTS:,} agents", ended, MOST_MEGABYTES, most, "MB", BAR),
        *(_against(name, each) for name, each in times.items()),
        judged("processor time of /metrics", scraping, MOST_PAGE_MILLISECONDS, "1 s", "ms"),
    ]


def _against(name: str, times: list[float]) -> Result:
    most = MOST_MILLISECONDS if "of an agent" in name else MOST_PAGE_MILLISECONDS
    return judged_times(name, times, [most], "bar", "ms", BAR)


# --- filling


class _Prepared(NamedTuple):
    """One agent, to be stored under many names."""

    payloads: Sequence[bytes]
    summary: Summary

    def summary_of(self, name: str) -> Summary:
        status = status_in(self.summary)
        status.agent = name
        return self.summary._replace(agent=name, payload=status.SerializeToString())


def prepared(transitions: int) -> _Prepared:
    record, payloads = AgentRecord("prepared"), list[bytes]()
    for event in history(transitions):
        payloads.append(event.SerializeToString())
        record.apply(event)
    return _Prepared(payloads, summary_of(Agent(record.name, record)))


async def fill(address: str, fleet: LargeFleet, report: Report = silent) -> tuple[int, float]:
    """Store the agents that are missing. Returns the number of events, and the seconds that a start may take."""
    store = open_store(address)
    await store.open()
    try:
        each = prepared(fleet.transitions)
        stored = (await store.totals()).agents
        for first in range(stored, fleet.agents, GROUP):
            report("storing agents", first, fleet.agents)
            await _store(store, each, [fleet.name(number) for number in range(first, min(first + GROUP, fleet.agents))])
    finally:
        await store.close()
    return fleet.agents * len(each.payloads), 5.0 if store.is_shared else 3.0


async def _store(store: EventStore, each: _Prepared, names: Sequence[str]) -> None:
    await store.commit([Append(name, 0, each.payloads) for name in names])
    await store.save_summaries([each.summary_of(name) for name in names])
    for name in names:
        store.forget(name)


# --- measuring


async def _measure(target: str, fleet: LargeFleet, report: Report) -> dict[str, list[float]]:
    """Milliseconds of calls, by what they are."""
    chosen = random.Random(1).sample(range(fleet.agents), min(READS + STARTS, fleet.agents))
    names = [fleet.name(number) for number in chosen]
    async with load.connected(target) as channel:
        service = load.Target(channel)

        async def read(name: str) -> None:
            await service.admin.GetAgent(admin_pb2.GetAgentRequest(agent=name), timeout=load.DEADLINE)

        report("calls to agents that are not in memory")
        times = {"first GetAgent of an agent": [await _timed_call(read, name) for name in names[STARTS:]]}
        latest = names[-fleet.resident // 2 :]
        times["second GetAgent of an agent"] = [await _timed_call(read, name) for name in latest]
        times["first StartEpisode of an agent"] = [await _timed_call(service.start, name) for name in names[:STARTS]]
        report("listing")
        for order, name in ORDERS.items():
            times[f"ListAgents of {PAGE_SIZE:,}, {name}"] = [await _timed_call(_list, service, order) for _ in range(PAGES)]
        worst = service, admin_pb2.AGENT_ORDER_COST_RATIO, CONSOLE_LIST
        times["fleet page of the console"] = [await _timed_call(_list, *worst) for _ in range(PAGES)]
    return times


async def _list(service: load.Target, order: "admin_pb2.AgentOrder.ValueType", agents: int = PAGE_SIZE) -> None:
    """As many pages as it takes to list so many agents, those with the greatest values first."""
    request = admin_pb2.ListAgentsRequest(page_size=PAGE_SIZE, order_by=order, descending=True)
    while agents > 0:
        page = await service.admin.ListAgents(request, timeout=load.DEADLINE)
        agents, request.page_token = agents - len(page.agents), page.next_page_token
        if not request.page_token:
            break


async def _timed_call(call: Callable[..., Awaitable[object]], *arguments: object) -> float:
    began = time.perf_counter()
    await call(*arguments)
    return (time.perf_counter() - began) * 1e3


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3
