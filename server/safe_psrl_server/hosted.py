"""The agents that a process has in memory: read from the store, found there, and brought up to date.

A store that is shared has other writers. There a record is a cache that may be behind.
"""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.census import Census
from safe_psrl_server.errors import DataLossError, NotFoundError, UnavailableError
from safe_psrl_server.folding import apply_all, attach, folded, parsed
from safe_psrl_server.store import DamagedStreamError, EventStore, StoreUnavailableError, StreamHead
from safe_psrl_server.turns import Turns

READS_AT_ONCE = 4  # so that the store reads while agents are made of what it read

log = structlog.get_logger()


@dataclass(eq=False)
class Hosted:
    """An agent in memory. `record` is None while its stream is damaged."""

    name: str
    record: AgentRecord | None
    damage: str = ""
    snapshot_version: int = 0
    unsaved_steps: int = 0  # that were reported here and are in no snapshot
    unsaved_since_micros: int | None = None  # time of the oldest event that no snapshot holds
    turns: Turns = field(default_factory=Turns)
    was_changed_here: bool = False  # since its last snapshot: then taking the next one is up to us

    @property
    def exists(self) -> bool:
        return self.record is None or self.record.exists

    @property
    def whole(self) -> AgentRecord:
        """The record. Raises if what is stored is damaged."""
        if self.record is None:
            raise DataLossError(
                f"what is stored of agent {self.name!r} is damaged: {self.damage}. Restore it from a backup", agent=self.name
            )
        return self.record


class HostedAgents:
    """All of them by name. Damaged ones are there, too, without a record. Deleted ones are, and do not exist."""

    def __init__(self, store: EventStore, check_room: Callable[[], None]) -> None:
        self.census = Census()
        self._store = store
        self._check_room = check_room  # raises if there is none for another agent
        self._agents: dict[str, Hosted] = {}
        self._sought: dict[str, Turns] = {}  # those that calls wait for to be found in a shared store

    def get(self, name: str) -> Hosted | None:
        return self._agents.get(name)

    def __getitem__(self, name: str) -> Hosted:
        return self._agents[name]

    def all(self) -> list[Hosted]:
        return list(self._agents.values())  # at one stroke: scrapes come from another thread

    def add(self, name: str) -> Hosted:
        """A place for an agent that is about to be created, if there is room."""
        self._check_room()
        return self._agents.setdefault(name, Hosted(name, AgentRecord(name)))

    async def read_all(self) -> None:
        """Damaged ones are quarantined."""

        async def read(name: str) -> None:
            self._keep(await self._load(name))

        with without_collection():
            await for_each(await self._store.agents(), read, READS_AT_ONCE)

    async def find(self, name: str, *, may_create: bool = False) -> Hosted:
        """An agent of a shared store, read if it is not known here. Raises if there is none, unless it may be created.

        Calls that come while it is looked for get it in their order: whoever takes the agent's turn at once has it then.
        """
        if name in self._agents and name not in self._sought:
            return self._agents[name]
        line = self._sought.setdefault(name, Turns())
        try:
            async with line:
                if name in self._agents:
                    return self._agents[name]
                if await self._store.version(name):
                    return self._keep(await self._load(name))
                if not may_create:
                    raise no_agent(name)
                return self.add(name)
        finally:
            if line.is_free and self._sought.get(name) is line:
                del self._sought[name]

    async def refresh(
        self, after: str = "", enough: int | None = None, wanted: Callable[[str], bool] = lambda _name: True
    ) -> None:
        """Look for what others did to the `wanted` agents whose names come after `after`: to `enough` of them, or to all."""
        heads = await self._store.heads()
        names, found = sorted(name for name in heads if name > after and wanted(name)), 0
        size = enough or len(names) or 1
        for start in range(0, len(names), size):
            part = names[start : start + size]
            await self._refresh_all({name: heads[name] for name in part})
            found += sum(self._agents[name].exists for name in part)
            if found >= size:
                return

    async def catch_up(self, agent: Hosted) -> bool:
        """Whether there was anything to read. The caller has the agent's turn."""
        if not await self.is_behind(agent):
            return False
        await self.read_on(agent)
        return True

    async def is_behind(self, agent: Hosted) -> bool:
        if not self._store.is_shared or agent.record is None:
            return False
        version = await self._store.version(agent.name)
        return agent.record is not None and version != agent.record.version

    async def read_on(self, agent: Hosted) -> None:
        """Fold what was appended after the record's version; if that is not kept any more, begin at the latest snapshot."""
        record = agent.record
        try:
            tail = await self._store.load_tail(agent.name, record.version) if record is not None else None
            if record is not None and tail is not None:
                events = parsed(tail.events)
                apply_all(record, events)
                attach(record, tail.policies)
                self.census.note(agent.name, record)
                if events and agent.unsaved_since_micros is None:
                    agent.unsaved_since_micros = events[0].time_micros
                return
        except DamagedStreamError as error:
            log.critical("agent quarantined", agent=agent.name, damage=str(error))
            agent.record, agent.damage = None, str(error)
            self.census.note(agent.name, None)
            return
        reread = await self._load(agent.name)
        agent.record, agent.damage = reread.record, reread.damage
        self.census.note(agent.name, agent.record)
        agent.snapshot_version, agent.unsaved_since_micros = reread.snapshot_version, reread.unsaved_since_micros

    async def _refresh_all(self, heads: Mapping[str, StreamHead]) -> None:
        await for_each(heads, lambda name: self._refresh(name, heads[name]), READS_AT_ONCE)

    async def _refresh(self, name: str, head: StreamHead) -> None:
        if name not in self._agents:
            self._keep(await self._load(name))
            return
        agent = self._agents[name]
        if agent.record is None or (agent.record.version >= head.version and agent.snapshot_version >= head.snapshot_version):
            return
        async with agent.turns:
            await self.catch_up(agent)
            if agent.record is not None and agent.snapshot_version < head.snapshot_version:  # another replica's
                agent.snapshot_version = head.snapshot_version
                if head.snapshot_version >= agent.record.version:
                    agent.unsaved_since_micros, agent.unsaved_steps, agent.was_changed_here = None, 0, False

    def _keep(self, loaded: Hosted) -> Hosted:
        """`loaded`, unless the agent was read by another call meanwhile."""
        agent = self._agents.setdefault(loaded.name, loaded)
        self.census.note(agent.name, agent.record)
        return agent

    async def _load(self, name: str) -> Hosted:
        try:
            stream = await self._store.load(name)
            record = folded(name, stream)
        except DamagedStreamError as error:
            log.critical("agent quarantined", agent=name, damage=str(error))
            return Hosted(name, None, str(error))
        unsaved = events_pb2.Event.FromString(stream.events[0]).time_micros if stream.events else None
        return Hosted(name, record, snapshot_version=stream.version - len(stream.events), unsaved_since_micros=unsaved)


async def for_each(names: Iterable[str], work: Callable[[str], Awaitable[object]], at_once: int) -> None:
    rest = iter(names)

    async def some() -> None:
        for name in rest:
            await work(name)

    await asyncio.gather(*(some() for _ in range(at_once)))


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """What is read stays, and has no cycles: looking for garbage again and again takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def reached() -> Iterator[None]:
    """A shared store that does not answer is no fault of the call, which can be repeated."""
    try:
        yield
    except StoreUnavailableError as error:
        raise unreachable(error) from error


def unreachable(error: StoreUnavailableError) -> UnavailableError:
    return UnavailableError(f"{error}; try again", "STORE_UNAVAILABLE")


def no_agent(name: str) -> NotFoundError:
    return NotFoundError(f"there is no agent {name!r}", "AGENT_NOT_FOUND", agent=name)
