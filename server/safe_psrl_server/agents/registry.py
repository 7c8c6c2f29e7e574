"""The agents that a process has in memory: loaded from the store when they are first used, and kept up to date.

A shared store has other writers; there a record may be outdated, and is compared with the store before it is used.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import apply_all, attach, folded, parsed
from safe_psrl_server.agents.threads import Threads
from safe_psrl_server.config import Limits
from safe_psrl_server.errors import DataLossError, LimitExceededError, NotFoundError, UnavailableError
from safe_psrl_server.store import Append, DamagedStreamError, EventStore, StoreUnavailableError, StreamHead

LOADS_AT_ONCE: Final = 4
log = structlog.get_logger()


@dataclass(eq=False)
class Agent:
    """An agent in memory. `record` is None while its stored data is damaged: the agent is quarantined."""

    name: str
    record: AgentRecord | None
    damage: str = ""
    snapshot_version: int = 0
    unsaved_steps: int = 0  # reported here since the last snapshot
    unsaved_since_micros: int | None = None  # time of the oldest event that no snapshot includes
    changed_here: bool = False  # since the last snapshot: this process takes the next one

    @property
    def exists(self) -> bool:
        return self.record is None or self.record.exists

    @property
    def intact(self) -> AgentRecord:
        """The record. Raises `DataLossError` if the agent is quarantined."""
        if self.record is None:
            raise DataLossError(
                f"the stored data of agent {self.name!r} is damaged: {self.damage}. Restore it from a backup", agent=self.name
            )
        return self.record

    def changed(self, time_micros: int, steps: int) -> None:
        """Events were applied that no snapshot includes."""
        self.changed_here = True
        self.unsaved_steps += steps
        if self.unsaved_since_micros is None:
            self.unsaved_since_micros = time_micros

    def quarantine(self, damage: str) -> None:
        """Serve nothing from it any more."""
        log.critical("agent quarantined", agent=self.name, damage=damage)
        self.record, self.damage = None, damage

    def saved(self, version: int) -> None:
        """A snapshot at `version` is stored."""
        self.snapshot_version = version
        if self.record is not None and version >= self.record.version:
            self.unsaved_since_micros, self.unsaved_steps, self.changed_here = None, 0, False


class Size(NamedTuple):
    """What the stored agents amount to."""

    agents: int
    table_entries: int


class Registry:
    """Agents by name. Quarantined ones have no record; deleted ones do not exist."""

    def __init__(self, store: EventStore, limits: Limits, threads: Threads) -> None:
        self._store = store
        self._threads = threads
        self._limits = limits
        self._agents: dict[str, Agent] = {}
        self._stored: set[str] = set()  # names with a stream that are not loaded
        self._entries: dict[str, int] = {}  # table entries of each loaded agent that exists
        self._table_entries = 0  # their sum
        self._loading: dict[str, asyncio.Task[Agent]] = {}
        self._reserved: dict[str, int] = {}  # table entries of agents that are being created
        self.complete = asyncio.Event()  # every stored agent was loaded once

    async def open(self) -> None:
        """Read the heads, not the agents."""
        self._stored = set(await self._store.heads())

    @property
    def size(self) -> Size:
        return Size(len(self._entries) + len(self._stored), self._table_entries)  # what is not loaded is taken to exist

    def agents(self) -> list[Agent]:
        """All agents in memory that exist, by name. Callable from any thread."""
        return sorted((agent for agent in list(self._agents.values()) if agent.exists), key=lambda agent: agent.name)

    def loaded(self) -> list[Agent]:
        """All agents in memory, deleted ones too."""
        return list(self._agents.values())

    def resident(self, name: str) -> Agent | None:
        return self._agents.get(name)

    async def get(self, name: str) -> Agent:
        """An agent that exists, with everything acknowledged before this call, by any replica. Raises `NotFoundError`."""
        agent = self._agents.get(name) or await self.load(name)
        if self._store.is_shared and agent.record is not None and not await self._is_current(agent.record):
            await self.catch_up(agent)
        if not agent.exists:
            raise no_agent(name)
        return agent

    async def _is_current(self, record: AgentRecord) -> bool:
        """Whether the stream ends where the record does. The name may be that of another agent by now, at the same version."""
        return not await self._store.commit([Append(record.name, record.version, ())])

    async def load(self, name: str, *, may_create: bool = False) -> Agent:
        """Read an agent from the store; concurrent calls share one read. Raises `NotFoundError` unless it may be created."""
        task = self._loading.get(name)
        if task is None:
            task = self._loading[name] = asyncio.create_task(self._load(name))
            task.add_done_callback(lambda _: self._loading.pop(name, None))
        agent = await asyncio.shield(task)
        if agent.record is not None and agent.record.version == 0 and not may_create:
            self.drop_blank(name)
            raise no_agent(name)
        return agent

    def evict(self, name: str) -> None:
        """Drop an agent from memory; its next use loads it again."""
        if self._agents.pop(name, None) is not None:
            self._forget_size(name)
            self._stored.add(name)

    def drop_blank(self, name: str) -> None:
        """Drop an agent that was about to be created and was not."""
        agent = self._agents.get(name)
        if agent is not None and agent.record is not None and agent.record.version == 0:
            del self._agents[name]

    def note(self, agent: Agent) -> None:
        """Keep names and sizes up to date after an agent was loaded, created or deleted."""
        self._stored.discard(agent.name)
        self._forget_size(agent.name)
        if not agent.exists:
            if agent.record is not None and agent.record.version:
                self._agents.pop(agent.name, None)
        else:
            self._entries[agent.name] = agent.record.definition.table_entries if agent.record is not None else 0
            self._table_entries += self._entries[agent.name]

    def _forget_size(self, name: str) -> None:
        self._table_entries -= self._entries.pop(name, 0)

    @contextmanager
    def reserve(self, name: str, entries: int) -> Iterator[None]:
        """Room for an agent with a table of `entries`, unless it exists. Raises `LimitExceededError` if there is none."""
        if name in self or name in self._reserved:
            yield
            return
        agents, used = self.size.agents + len(self._reserved), self._table_entries + sum(self._reserved.values())
        if agents >= self._limits.max_agents:
            raise LimitExceededError(f"the server has {agents} agents, the most it allows", "TOO_MANY_AGENTS")
        if used + entries > self._limits.max_total_table_entries:
            most = self._limits.max_total_table_entries
            raise LimitExceededError(f"the agents' tables have {used} entries, and may have {most}", "MEMORY_QUOTA")
        self._reserved[name] = entries
        try:
            yield
        finally:
            del self._reserved[name]

    def names(self) -> set[str]:
        """Of all agents that exist or are being created."""
        return self._stored | self._entries.keys() | self._reserved.keys()

    def __contains__(self, name: str) -> bool:
        """Whether the agent exists, as far as is known here."""
        agent = self._agents.get(name)
        return name in self._stored if agent is None else agent.exists

    async def refresh(
        self, after: str = "", enough: int | None = None, wanted: Callable[[str], bool] = lambda _name: True
    ) -> None:
        """Load or update the `wanted` agents whose names come after `after`: until `enough` of them exist, or all."""
        if self._store.is_shared:
            heads = await self._store.heads()
            self._stored = heads.keys() - self._agents.keys()
            for deleted in [agent for name, agent in self._agents.items() if name not in heads and agent.exists]:
                await self.catch_up(deleted)
        else:
            heads = dict.fromkeys([*self._agents, *self._stored], StreamHead(0, 0))
        names, found = sorted(name for name in heads if name > after and wanted(name)), 0
        size = enough or len(names) or 1
        for start in range(0, len(names), size):
            part = names[start : start + size]
            await for_each(part, lambda name: self._refresh(name, heads[name]), LOADS_AT_ONCE)
            found += sum(agent.exists for name in part if (agent := self._agents.get(name)) is not None)
            if found >= size:
                break
        if not self._stored:
            self.complete.set()

    async def catch_up(self, agent: Agent) -> None:
        """Apply what other replicas appended; begin at the latest snapshot if these events are no longer kept."""
        record = agent.record
        if record is None:
            return
        version = record.version
        try:
            tail = await self._store.load_tail(agent.name, version)
            if tail is not None:
                if agent.record is not record or record.version != version:  # updated meanwhile
                    return
                events = parsed(tail.events)
                apply_all(record, events)
                attach(record, tail.policies)
                if events and agent.unsaved_since_micros is None:
                    agent.unsaved_since_micros = events[0].time_micros
                self.note(agent)
                return
            stored = await self._read(agent.name)
        except DamagedStreamError as error:
            agent.quarantine(str(error))
        else:
            if agent.record is record and record.version == version:
                if stored.record is not None and not stored.record.exists:  # deleted by another replica
                    record.exists = False
                    self.note(agent)
                    return
                agent.record, agent.damage, agent.snapshot_version = stored.record, stored.damage, stored.snapshot_version
                agent.unsaved_since_micros = stored.unsaved_since_micros
        self.note(agent)

    async def _refresh(self, name: str, head: StreamHead) -> None:
        agent = self._agents.get(name)
        if agent is None:
            agent = await self.load(name, may_create=True)
        if agent.record is not None and self._store.is_shared and agent.record.version != head.version:
            await self.catch_up(agent)
        if agent.record is not None and agent.snapshot_version < head.snapshot_version:  # taken by another replica
            agent.saved(head.snapshot_version)

    async def _load(self, name: str) -> Agent:
        agent = self._agents.get(name)
        if agent is not None:
            return agent
        if not self._store.is_shared and name not in self._stored and name not in self._entries:
            agent = Agent(name, AgentRecord(name))  # the heads are complete: there is nothing to read
        else:
            agent = await self._read(name)
        agent = self._agents.setdefault(name, agent)
        self.note(agent)
        return agent

    async def _read(self, name: str) -> Agent:
        try:
            stream = await self._store.load(name)
            if stream.version == 0 and (self._store.is_shared or name not in self._stored):
                return Agent(name, AgentRecord(name))
            record = await self._threads.run(folded, name, stream)
        except DamagedStreamError as error:
            log.critical("agent quarantined", agent=name, damage=str(error))
            return Agent(name, None, str(error))
        unsaved = events_pb2.Event.FromString(stream.events[0]).time_micros if stream.events else None
        return Agent(name, record, snapshot_version=stream.version - len(stream.events), unsaved_since_micros=unsaved)


async def for_each(names: Iterable[str], work: Callable[[str], Awaitable[object]], at_once: int) -> None:
    rest = iter(names)

    async def some() -> None:
        for name in rest:
            await work(name)

    await asyncio.gather(*(some() for _ in range(at_once)))


def unavailable(error: StoreUnavailableError) -> UnavailableError:
    return UnavailableError(f"{error}; try again", "STORE_UNAVAILABLE")


def no_agent(name: str) -> NotFoundError:
    return NotFoundError(f"there is no agent {name!r}", "AGENT_NOT_FOUND", agent=name)
