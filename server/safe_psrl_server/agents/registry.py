"""The agents of a process: loaded from the store when they are used, kept up to date, and dropped when others need the room.

A shared store has other writers; there a record may be outdated, and is compared with the store before it is used.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import structlog

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agents.planner import Threads
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.residency import Agent, ResidentSet
from safe_psrl_server.agents.snapshot import apply_all, attach, folded, parsed
from safe_psrl_server.config import Limits
from safe_psrl_server.errors import LimitExceededError, NotFoundError, UnavailableError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.store import Append, DamagedStreamError, EventStore, StoreUnavailableError, StreamHead

UPDATES_AT_ONCE: Final = 4
log = structlog.get_logger()


class Size(NamedTuple):
    """The number of stored agents, and the size of their tables."""

    agents: int
    table_entries: int


class Observer(Protocol):
    """Receives what happens to agents: `summaries.Summaries`."""

    def note(self, agent: Agent) -> None:
        """The agent was changed or created, or found damaged."""
        ...

    def forget(self, name: str) -> None:
        """The agent was deleted."""
        ...

    def leave(self, agent: Agent) -> None:
        """The agent leaves memory."""
        ...


class Registry:
    """Agents by name. Quarantined ones have no record; deleted ones do not exist."""

    def __init__(self, store: EventStore, limits: Limits, threads: Threads, observer: Observer, meter: Meter) -> None:
        self.members = ResidentSet(limits, self._leave)
        self._store = store
        self._threads = threads
        self._limits = limits
        self._observer = observer
        self._meter = meter
        self._size = Size(0, 0)
        self._counted: set[str] | None = set()  # created here, until every stored agent is counted
        self._uncounted = set[str]()  # created, but never loaded: their sizes are not known yet
        self._loading: dict[str, asyncio.Task[Agent]] = {}
        self._reserved: dict[str, int] = {}  # table entries of agents that are being created

    async def count(self) -> None:
        """Read how many agents are stored."""
        totals = await self._store.totals()
        self._size = Size(totals.agents, totals.table_entries)

    @property
    def size(self) -> Size:
        return self._size

    def agents(self) -> list[Agent]:
        """All agents in memory that exist, by name. Callable from any thread."""
        return sorted((agent for agent in self.members if agent.exists), key=lambda agent: agent.name)

    def loaded(self) -> list[Agent]:
        """All agents in memory, deleted ones too."""
        return list(self.members)

    def resident(self, name: str) -> Agent | None:
        """An agent in memory, or None. This counts as a use, so the agent stays in memory longer."""
        return self.members.use(name)

    async def get(self, name: str) -> Agent:
        """An agent that exists, with everything acknowledged before this call, by any replica. Raises `NotFoundError`."""
        agent = self.resident(name) or await self.load(name)
        if self._store.is_shared and agent.record is not None and not await self._is_current(agent.record):
            await self.catch_up(agent)
        if not agent.exists:
            raise no_agent(name)
        return agent

    async def _is_current(self, record: AgentRecord) -> bool:
        """Whether the stream ends where the record does. The name may belong to a new agent by now, at the same version."""
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
        self.members.remove(name)

    def drop_blank(self, name: str) -> None:
        """Drop an agent that was about to be created and was not."""
        agent = self.members.find(name)
        if agent is not None and agent.record is not None and agent.record.version == 0:
            self.evict(name)

    def changed(self, agent: Agent) -> None:
        """Events were applied to an agent that exists."""
        self._observer.note(agent)

    def created(self, agent: Agent) -> None:
        """An agent in memory was created."""
        self._count(agent)
        self.members.weigh(agent)
        self._observer.note(agent)
        self.members.trim(agent.name)

    def created_unread(self, name: str) -> None:
        """An agent was created in the store but not loaded into memory."""
        self.evict(name)
        self._uncounted.add(name)

    def deleted(self, agent: Agent) -> None:
        """An agent in memory was deleted."""
        assert agent.record is not None  # noqa: S101  # a quarantined one cannot be
        self._size = Size(self._size.agents - 1, self._size.table_entries - agent.record.definition.table_entries)
        self._drop(agent)

    def quarantine(self, agent: Agent, damage: str) -> None:
        """Stop serving a damaged agent."""
        agent.quarantine(damage)
        self._observer.note(agent)

    def count_stored(self, agent: Agent) -> None:
        """An agent that `count` did not see, because it has no summary yet."""
        if self._counted is not None and agent.exists and agent.name not in self._counted:
            self._count(agent)

    def all_counted(self) -> None:
        self._counted = None

    def _count(self, agent: Agent) -> None:
        if self._counted is not None:
            self._counted.add(agent.name)
        entries = agent.record.definition.table_entries if agent.record is not None else 0
        self._size = Size(self._size.agents + 1, self._size.table_entries + entries)

    def _drop(self, agent: Agent) -> None:
        if self.members.find(agent.name) is agent:
            self.evict(agent.name)
        self._observer.forget(agent.name)

    def _leave(self, agent: Agent) -> None:
        self._observer.leave(agent)
        self._store.forget(agent.name)

    @contextmanager
    def reserve(self, name: str, entries: int) -> Iterator[None]:
        """Reserve room for a new agent with a table of `entries`. Raises `LimitExceededError` if there is none."""
        if name in self._reserved:
            yield
            return
        agents, used = self._size.agents + len(self._reserved), self._size.table_entries + sum(self._reserved.values())
        if agents >= self._limits.max_agents:
            raise LimitExceededError(f"the server has {agents} agents, its limit (limits.max_agents)", "TOO_MANY_AGENTS")
        if used + entries > self._limits.max_total_table_entries:
            most = self._limits.max_total_table_entries
            would = f"the tables of all agents would have {used + entries} entries"
            raise LimitExceededError(f"{would}, above limits.max_total_table_entries ({most})", "MEMORY_QUOTA")
        self._reserved[name] = entries
        try:
            yield
        finally:
            del self._reserved[name]

    @property
    def reserved(self) -> list[str]:
        """Names of the agents that are being created."""
        return list(self._reserved)

    async def exists(self, name: str) -> bool:
        agent = self.members.find(name)
        return agent.exists if agent is not None else name in await self._store.heads([name])

    async def refresh(self) -> None:
        """Bring the agents in memory, and the number of agents, up to date with other replicas."""
        heads = await self._store.heads([agent.name for agent in self.members])
        outdated = {agent.name: agent for agent in self.members if self._is_behind(agent, heads.get(agent.name))}
        await for_each(outdated, lambda name: self.catch_up(outdated[name]), UPDATES_AT_ONCE)
        for agent in self.members:
            head = heads.get(agent.name)
            if head is not None and agent.record is not None and agent.snapshot_version < head.snapshot_version:
                agent.saved(head.snapshot_version)  # taken by another replica
        await self.count()

    def _is_behind(self, agent: Agent, head: StreamHead | None) -> bool:
        if agent.record is None or not agent.record.version:
            return False
        return agent.exists if head is None else agent.record.version != head.version

    async def catch_up(self, agent: Agent) -> None:
        """Apply what other replicas appended; begin at the latest snapshot if these events are no longer kept."""
        record = agent.record
        if record is None:
            return
        version = record.version
        try:
            await self._catch_up(agent, record)
        except DamagedStreamError as error:
            agent.quarantine(str(error))
        if agent.exists and (agent.record is None or agent.record.version != version):
            self._observer.note(agent)
        elif not agent.exists and version:
            self._drop(agent)

    async def _catch_up(self, agent: Agent, record: AgentRecord) -> None:
        version = record.version
        tail = await self._store.load_tail(agent.name, version)
        stored = None if tail is not None else await self._read(agent.name)
        if agent.record is not record or record.version != version:  # updated meanwhile
            return
        if tail is not None:
            events = parsed(tail.events)
            apply_all(record, events)
            attach(record, tail.policies)
            if events and agent.unsaved_since_micros is None:
                agent.unsaved_since_micros = events[0].time_micros
        elif stored is not None and stored.exists:
            agent.record, agent.damage = stored.record, stored.damage
            agent.snapshot_version, agent.unsaved_since_micros = stored.snapshot_version, stored.unsaved_since_micros
        else:
            record.exists = False  # deleted by another replica

    async def _load(self, name: str) -> Agent:
        agent = self.members.find(name)
        if agent is not None:
            return agent
        began = time.perf_counter()
        agent = self.members.add(await self._read(name))
        if agent.record is None or agent.record.version:
            self._meter.agent_loaded(time.perf_counter() - began)
        if agent.record is None:
            self._observer.note(agent)
        elif name in self._uncounted and agent.exists:
            self._uncounted.discard(name)
            self._count(agent)
            self._observer.note(agent)
        return agent

    async def _read(self, name: str) -> Agent:
        try:
            stream = await self._store.load(name)
            if stream.version == 0:
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
