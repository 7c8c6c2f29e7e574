"""All agents of one process: reading them, changing them, keeping their streams short. Free of gRPC."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import structlog

from safe_psrl_server.agents.compaction import Compactor
from safe_psrl_server.agents.planner import Planner
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.registry import Agent, Registry, unavailable
from safe_psrl_server.agents.runtime import Runtime
from safe_psrl_server.agents.snapshot import folded, snapshot_of
from safe_psrl_server.agents.threads import Threads
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.errors import DataLossError, UnavailableError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.store import DamagedStreamError, EventStore, StoreUnavailableError

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
        self.registry = Registry(store, limits, self.threads)
        self.runtime = Runtime(store, self.registry, self._planner, self.meter, limits.call_seconds, self._changed)
        self.compactor = Compactor(store, self.registry, self.runtime, snapshots, self.meter, self.now_micros, self.threads)
        self._tasks = list[asyncio.Task[None]]()

    async def open(self) -> None:
        """Read the heads of the store and start the write loop. Agents are loaded when they are first used."""
        began = time.monotonic()
        await self.registry.open()
        self.recovery_seconds = time.monotonic() - began
        self._tasks.append(asyncio.create_task(self.runtime.run()))
        self.runtime.ready = True

    def start_upkeep(self) -> None:
        """Snapshots by age, and loading the agents that no call has used, for listings and metrics."""
        self._tasks += [asyncio.create_task(self.compactor.run()), asyncio.create_task(self._keep_fresh())]

    async def close(self) -> None:
        """Finish the calls under way and take snapshots."""
        if self.runtime.failure is None:
            self.runtime.ready = False
        await self.runtime.finish()
        await self.compactor.close()
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
        """The record of an agent that is in memory, if it is certain to be up to date."""
        self.runtime.check_ready()
        agent = None if self._store.is_shared else self.registry.resident(name)
        return agent.intact if agent is not None and agent.exists else None

    async def record(self, name: str) -> AgentRecord:
        """The record of an agent, with everything that was acknowledged before this call, by any replica."""
        self.runtime.check_ready()
        try:
            return (await self.registry.get(name)).intact
        except StoreUnavailableError as error:
            raise unavailable(error) from error

    async def refresh(
        self, after: str = "", enough: int | None = None, wanted: Callable[[str], bool] = lambda _name: True
    ) -> None:
        """See `Registry.refresh`."""
        try:
            await self.registry.refresh(after, enough, wanted)
        except StoreUnavailableError as error:
            raise unavailable(error) from error

    async def read(self, name: str, work: Callable[[AgentRecord], Result]) -> Result:
        """What `work` makes of the record, in a thread. If the record changes meanwhile, again while the agent's calls wait."""
        record = await self.record(name)
        version = record.version
        with suppress(RuntimeError):  # a dictionary that changed size
            result = await self.threads.run(work, record)
            if record.version == version:
                return result
        async with self.runtime.exclusive(name):
            return await self.threads.run(work, await self.record(name))

    async def verify(self, name: str) -> Verification:
        """Fold the stored events of an agent and compare the result with the record in memory. Damage quarantines it."""
        await self.record(name)
        async with self.runtime.exclusive(name):
            agent = await self.registry.get(name)
            try:
                stream = await self._store.load(name)
                stored = await self.threads.run(folded, name, stream)
            except DamagedStreamError as error:
                agent.quarantine(str(error))
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
        """Load every agent once; with other replicas, keep reading their writes."""
        pause = 0.0
        while self._store.is_shared or not self.registry.complete.is_set():
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
