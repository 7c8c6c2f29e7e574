"""Snapshots: they shorten streams, so that an agent is loaded from a snapshot and the few events after it."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from safe_psrl_server.agents.planner import Threads
from safe_psrl_server.agents.registry import Registry, for_each
from safe_psrl_server.agents.residency import Agent
from safe_psrl_server.agents.runtime import Runtime
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.config import SnapshotPolicy
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.store import DamagedStreamError, EventStore, StoreFailedError, StoreUnavailableError

SNAPSHOTS_AT_ONCE: Final = 8
STEPS_PER_EVENT: Final = 4  # of a trajectory, that are read in the time of an event
log = structlog.get_logger()


class Compactor:
    """Takes snapshots of agents with many events, with old events, and of all agents at shutdown."""

    def __init__(
        self,
        store: EventStore,
        registry: Registry,
        runtime: Runtime,
        policy: SnapshotPolicy,
        meter: Meter,
        now_micros: Callable[[], int],
        threads: Threads,
    ) -> None:
        self._store = store
        self._registry = registry
        self._runtime = runtime
        self._policy = policy
        self._meter = meter
        self._now_micros = now_micros
        self._threads = threads
        self._running = dict[str, asyncio.Task[None]]()  # by agent

    def consider(self, agent: Agent) -> None:
        """Take a snapshot of `agent`, which has changed, if loading it without would take long."""
        record = agent.record
        if record is None or agent.name in self._running:
            return
        to_read = max(record.version - agent.snapshot_version, agent.unsaved_steps // STEPS_PER_EVENT)
        if to_read >= self._policy.every_events:
            self._running[agent.name] = asyncio.create_task(self.save(agent))

    async def run(self) -> None:
        """Take snapshots of agents with old events at intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._policy.check_seconds)
            await self.save_old()

    async def save_old(self) -> None:
        """Take snapshots of agents whose oldest event outside a snapshot is old, or in the future: clocks are set back."""
        limit = self._policy.every_seconds * 1e6
        for agent in self._registry.loaded():
            since = agent.unsaved_since_micros
            if since is not None and not 0 <= self._now_micros() - since < limit and self._is_ours(agent):
                await self.save(agent)

    async def close(self) -> None:
        """Finish, and take a snapshot of every agent that changed."""
        await asyncio.gather(*self._running.values())
        ours = {agent.name: agent for agent in self._registry.loaded() if self._is_ours(agent)}
        await for_each(ours, lambda name: self.save(ours[name]), SNAPSHOTS_AT_ONCE)

    async def save(self, agent: Agent) -> None:
        """Store a snapshot, if the agent has changed since the last one."""
        try:
            async with self._runtime.exclusive(agent.name):
                await self._save(agent)
        except DamagedStreamError as error:
            log.critical("snapshot failed", agent=agent.name, error=str(error))
        except StoreUnavailableError as error:
            log.warning("snapshot postponed", agent=agent.name, error=str(error))
        except StoreFailedError:
            pass  # the next commit fails, too, and stops the server
        finally:
            self._running.pop(agent.name, None)

    async def _save(self, agent: Agent) -> None:
        record = agent.record
        if self._registry.members.find(agent.name) is not agent:  # it has left memory, or was deleted
            return
        if record is None or record.version <= agent.snapshot_version:
            return
        version = record.version
        data = await self._threads.run(lambda: snapshot_of(record).SerializeToString())
        if record.version != version:  # updated from another replica meanwhile: the next check takes it
            return
        await self._store.save_snapshot(agent.name, version, data)
        agent.saved(version)
        self._meter.snapshot_stored(len(data))

    def _is_ours(self, agent: Agent) -> bool:
        """Whether this replica takes the agent's next snapshot: the one that changed it does, or the only one."""
        return agent.changed_here or not self._store.is_shared
