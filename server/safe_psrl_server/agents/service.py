"""All agents of one process: reading them, changing them, keeping their streams short. Independent of gRPC."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import NamedTuple, TypeVar

import structlog

from safe_psrl_server.agents.compaction import Compactor
from safe_psrl_server.agents.planner import Planner, Threads
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.registry import Registry, unavailable
from safe_psrl_server.agents.residency import Agent
from safe_psrl_server.agents.runtime import Runtime
from safe_psrl_server.agents.snapshot import folded, snapshot_of
from safe_psrl_server.agents.stored_transitions import StoredTransitions, stored_transitions
from safe_psrl_server.agents.summaries import Summaries
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.errors import DataLossError, UnavailableError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.store import (
    DamagedStreamError,
    EventStore,
    FleetTotals,
    Order,
    StoreError,
    StoreUnavailableError,
    Summary,
    SummaryQuery,
    Unsaved,
)

OVERLAP_MICROS = 30_000_000  # for clocks of replicas that differ, and summaries that are written late
MOST_CHANGES = 10_000  # of other replicas, noted at once
REFRESH_PAUSE = 9  # times the duration of a refresh: it may take a tenth of the time
Result = TypeVar("Result")
log = structlog.get_logger()


class Verification(NamedTuple):
    """The result of folding an agent's stored events and comparing them with the record in memory."""

    equal: bool
    served_version: int
    stored_version: int
    events_read: int
    digest: str  # of the stored state


class AgentService:
    """Starts nothing by itself: `open` reads the heads of the store and starts the write loop."""

    def __init__(
        self,
        store: EventStore,
        limits: Limits,
        snapshots: SnapshotPolicy,
        now_micros: Callable[[], int] | None = None,
        meter: Meter | None = None,
        refresh_seconds: float = 5.0,
    ) -> None:
        self.meter = meter or Meter()
        self.now_micros = now_micros or steady_clock()
        self.limits = limits
        self.draining = asyncio.Event()  # ends streams that have no end of their own
        self.recovery_seconds = 0.0
        self._store = store
        self._refresh_seconds = refresh_seconds
        self.threads = Threads()
        self._planner = Planner(limits.planning_threads, self.threads)
        self.summaries = Summaries(store)
        self.registry = Registry(store, limits, self.threads, self.summaries, self.meter)
        self.runtime = Runtime(store, self.registry, self._planner, self.meter, limits.call_seconds, self._changed)
        self.compactor = Compactor(store, self.registry, self.runtime, snapshots, self.meter, self.now_micros, self.threads)
        self._tasks = list[asyncio.Task[None]]()
        self.reserving = asyncio.Lock()  # room for an agent that is being created
        self._settling = asyncio.Lock()
        self._settled = False
        self._outdated: dict[str, int] = {}  # versions of outdated summaries, at the last look
        self._seen: dict[str, int] = {}  # versions of the latest summaries of other replicas

    async def open(self) -> None:
        """Read the number of agents and start the write loop. Agents are loaded when they are first used."""
        began = time.monotonic()
        await self.registry.count()
        self.recovery_seconds = time.monotonic() - began
        self._tasks.append(asyncio.create_task(self.runtime.run()))
        self.runtime.ready = True

    def start_upkeep(self) -> None:
        """Start the background tasks: snapshots by age, summaries, and reading the changes of other replicas."""
        work = (self.compactor.run(), self.summaries.run(), self._keep_fresh())
        self._tasks += [asyncio.create_task(each) for each in work]

    async def close(self) -> None:
        """Finish the calls under way and take snapshots."""
        if self.runtime.failure is None:
            self.runtime.ready = False
        await self.runtime.finish()
        await self.compactor.close()
        with suppress(StoreError):  # the next start writes what is missing
            await self.summaries.flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._planner.close()
        self.threads.close()

    # --- reading

    def agents(self) -> list[Agent]:
        """The agents in memory that exist, by name. Their records hold durable facts and must not be changed."""
        return self.registry.agents()

    def resident_record(self, name: str) -> AgentRecord | None:
        """The record of an agent in memory, if it is known to be up to date."""
        self.runtime.check_ready()
        agent = None if self._store.is_shared else self.registry.resident(name)
        self.runtime.hits += agent is not None
        return agent.intact if agent is not None and agent.exists else None

    async def record(self, name: str) -> AgentRecord:
        """The record of an agent, with everything that was acknowledged before this call, by any replica."""
        self.runtime.check_ready()
        try:
            return (await self.registry.get(name)).intact
        except StoreUnavailableError as error:
            raise unavailable(error) from error

    async def find(self, query: SummaryQuery) -> list[Summary]:
        """Summaries of agents, in memory or not, up to everything acknowledged here. For other replicas see `publish`."""
        return await self._summarised(lambda unsaved: self._store.find_summaries(query, unsaved))

    async def summaries_of(self, names: Collection[str]) -> list[Summary]:
        return await self._summarised(lambda unsaved: self._store.summaries_of(names, unsaved))

    async def names(self) -> set[str]:
        """The names of all agents that exist or are being created. Raises `StoreUnavailableError`."""
        reserved = self.registry.reserved  # first: an agent that is created meanwhile is in one of both
        return {*await self._store.summarised_agents(await self.summaries.unsaved()), *reserved}

    async def totals(self) -> FleetTotals:
        return await self._summarised(self._store.totals)

    async def publish(self) -> None:
        """Write changed summaries now, so that other replicas list the change at once and not a second later."""
        if self._store.is_shared:
            with suppress(StoreUnavailableError):
                await self.summaries.flush()

    async def settle(self) -> None:
        """Once after a start: summarise the agents whose summaries are outdated, so that listings, metrics and quotas are
        complete."""
        async with self._settling:
            if self._settled:
                return
            outdated = await self._store.outdated_summaries()
            if self._store.is_shared:  # agents that others play now are outdated for a second
                outdated = {name: version for name, version in outdated.items() if not version}

            async def load(name: str) -> Agent:
                agent = await self._loaded(name)
                if not outdated[name]:
                    self.registry.count_stored(agent)
                return agent

            await self.summaries.repair(outdated, load)
            self.registry.all_counted()
            self._settled = True

    async def refresh(self) -> None:
        """Read other replicas' changes of the agents in memory, and the names of other agents that they changed."""
        try:
            await self.settle()
            if self._store.is_shared:
                await self.registry.refresh()
                await self._note_changes()
                await self._repair_abandoned()
        except StoreUnavailableError as error:
            raise unavailable(error) from error

    async def _note_changes(self) -> None:
        """Note the changes of agents that are not in memory, for watches."""
        since = self.now_micros() - OVERLAP_MICROS - int(2e6 * self._refresh_seconds)
        latest = await self._store.find_summaries(SummaryQuery(MOST_CHANGES, order=Order.CHANGED, after=(since, "")))
        for summary in latest:
            if self._seen.get(summary.agent) != summary.version and self.registry.members.find(summary.agent) is None:
                self.summaries.changes.changed(summary.agent)
        self._seen = {summary.agent: summary.version for summary in latest}

    async def _repair_abandoned(self) -> None:
        """Repair summaries that were outdated at the previous check as well: the replica that should write them is gone."""
        outdated = await self._store.outdated_summaries()
        abandoned = [name for name, version in outdated.items() if self._outdated.get(name) == version]
        self._outdated = outdated
        await self.summaries.repair(abandoned, self._loaded)

    async def _loaded(self, name: str) -> Agent:
        """The agent to summarise; without events if nothing is stored under its name."""
        agent = self.registry.members.find(name) or await self.registry.load(name, may_create=True)
        self.registry.drop_blank(name)
        return agent

    async def _summarised(self, read: Callable[[Unsaved], Awaitable[Result]]) -> Result:
        """The result of `read`, given the unwritten summaries. Waits for writes only if a kill left many summaries outdated."""
        self.runtime.check_ready()
        try:
            await self.settle()
            return await read(await self.summaries.unsaved())
        except StoreUnavailableError as error:
            raise unavailable(error) from error

    async def read(self, name: str, work: Callable[[AgentRecord], Result]) -> Result:
        """Run `work` on the record in a thread. If the record changes meanwhile, it runs again, with the agent held."""
        record = await self.record(name)
        version = record.version
        with suppress(RuntimeError):  # a dictionary that changed size
            result = await self.threads.run(work, record)
            if record.version == version:
                return result
        async with self.runtime.exclusive(name):
            return await self.threads.run(work, await self.record(name))

    async def stored_transitions(self, name: str) -> StoredTransitions:
        """What is still stored step by step."""
        await self.record(name)
        try:
            return await self.threads.run(stored_transitions, await self._store.load(name))
        except DamagedStreamError as error:
            raise DataLossError(f"the stored data of agent {name!r} is damaged: {error}", agent=name) from error
        except StoreUnavailableError as error:
            raise unavailable(error) from error

    async def verify(self, name: str) -> Verification:
        """Fold the stored events of an agent and compare the result with the record in memory. Damage quarantines it."""
        await self.record(name)
        async with self.runtime.exclusive(name):
            agent = await self.registry.get(name)
            try:
                stream = await self._store.load(name)
                stored = await self.threads.run(folded, name, stream)
            except DamagedStreamError as error:
                self.registry.quarantine(agent, str(error))
                raise DataLossError(f"the stored data of agent {name!r} is damaged: {error}", agent=name) from error
            except StoreUnavailableError as error:
                raise unavailable(error) from error
            served = agent.intact
            equal = await self.threads.run(lambda: snapshot_of(served) == snapshot_of(stored))
            digest = await self.threads.run(stored.digest)
            return Verification(equal, served.version, stored.version, len(stream.events), digest)

    def _changed(self, agent: Agent) -> None:
        self.compactor.consider(agent)

    async def _keep_fresh(self) -> None:
        """Complete the summaries; with other replicas, keep reading their writes."""
        pause = 0.0
        while self._store.is_shared or not self._settled:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                await self.refresh()
            except UnavailableError as error:
                log.warning("agents were not refreshed", error=str(error))
            pause = max(self._refresh_seconds, REFRESH_PAUSE * (time.monotonic() - began))


def steady_clock() -> Callable[[], int]:
    """Microseconds since 1970 by the clock at this moment, and from then on by one that is never set back."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: (time.monotonic_ns() + offset) // 1000
