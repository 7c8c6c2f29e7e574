"""Hosting agents: one call at a time for each, persist, then acknowledge.

A call decides on the agent's record, appends what it decided, and only then changes the record: so a record, whenever it is
read, holds durable facts only. Agents do not wait for each other; a long plan is made in a thread.

A store that is shared has other writers. There a record is a cache that may be behind: nothing is answered from it before
the store was asked for the version, or has taken an append at it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
import structlog

from safe_psrl.learner import AgentState, Plan, SafePsrl
from safe_psrl.version import __version__
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.errors import (
    DataLossError,
    DeadlineError,
    LimitExceededError,
    NotFoundError,
    ServiceError,
    UnavailableError,
)
from safe_psrl_server.folding import apply_all, folded, parsed
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.snapshot import snapshot_of
from safe_psrl_server.store import (
    DamagedStreamError,
    EventStore,
    StoreFailedError,
    StoreUnavailableError,
    StreamHead,
    VersionConflictError,
)

PLANNED_BY = f"safe-psrl {__version__}, numpy {np.__version__}, numba {numba.__version__}"
INLINE_PLAN = 300_000  # products and draws of a plan that is made without a thread: about a millisecond
ADAPTIVE_PLANS = 25  # ordinary plans that an adaptive one takes
INLINE_PLAN_AT_WORST = 10 * INLINE_PLAN  # if every kernel that may be drawn must be
READS_AT_ONCE = 4  # of agents that are read from the store one after the other
REFRESH_PAUSE = 9  # times what a refresh took: it may have a tenth of the time
MOST_CONFLICTS = 100  # of one call

Reply = TypeVar("Reply")
Decision = tuple[Sequence[events_pb2.Event], Reply]
Decide = Callable[[AgentRecord], Decision[Reply] | Awaitable[Decision[Reply]]]
log = structlog.get_logger()


class Verification(NamedTuple):
    """What reading an agent again has shown."""

    same: bool
    served_version: int
    stored_version: int
    events_read: int
    digest: str  # of what is stored


@dataclass(eq=False)
class Hosted:
    """An agent in memory. `record` is None while its stream is damaged."""

    name: str
    record: AgentRecord | None
    damage: str = ""
    snapshot_version: int = 0
    unsaved_since_micros: int | None = None  # time of the oldest event that no snapshot holds
    snapshot_seconds: float = field(default_factory=time.monotonic)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    was_changed_here: bool = False  # since its last snapshot: then taking the next one is up to us

    @property
    def exists(self) -> bool:
        return self.record is None or self.record.exists


class AgentHost:
    """All agents of this process. Starts nothing by itself: `recover` reads the store, `run` looks after snapshots."""

    def __init__(
        self,
        store: EventStore,
        limits: Limits,
        snapshots: SnapshotPolicy,
        now_micros: Callable[[], int] = lambda: time.time_ns() // 1000,
        meter: Meter | None = None,
        refresh_seconds: float = 5.0,
    ) -> None:
        self.meter = meter or Meter()
        self.now_micros = now_micros
        self.limits = limits
        self.ready = False
        self.draining = asyncio.Event()  # streams that have no end of their own end when it is set
        self.recovery_seconds = 0.0
        self._store = store
        self._snapshots = snapshots
        self._refresh_seconds = refresh_seconds
        self._agents: dict[str, Hosted] = {}
        self._planners = ThreadPoolExecutor(limits.planning_threads, "planner")
        self._background: set[asyncio.Task[object]] = set()

    # --- life

    async def recover(self) -> None:
        """Read every agent from the store. Damaged ones are quarantined, the others served."""
        began = time.monotonic()
        names = iter(await self._store.agents())

        async def read() -> None:
            for name in names:
                self._agents[name] = await self._load(name)

        await asyncio.gather(*(read() for _ in range(READS_AT_ONCE if self._store.is_shared else 1)))
        self.recovery_seconds = time.monotonic() - began

    async def run(self) -> None:
        """Snapshots by time, and what other replicas did, until cancelled."""
        await asyncio.gather(self._keep_snapshots(), self._keep_fresh())

    async def _keep_snapshots(self) -> None:
        while True:
            await asyncio.sleep(self._snapshots.check_seconds)
            due = time.monotonic() - self._snapshots.every_seconds
            for agent in list(self._agents.values()):
                if agent.snapshot_seconds <= due and self._is_ours_to_save(agent):
                    await self.snapshot(agent.name)

    async def _keep_fresh(self) -> None:
        pause = self._refresh_seconds
        while self._store.is_shared:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                await self.refresh()
            except UnavailableError as error:
                log.warning("agents were not refreshed", error=str(error))
            pause = max(self._refresh_seconds, REFRESH_PAUSE * (time.monotonic() - began))

    async def close(self) -> None:
        """Finish what is under way, and take a snapshot of everything."""
        self.ready = False
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        with contextlib.suppress(StoreFailedError):  # whoever waits for the store's failure hears of it there
            for agent in list(self._agents.values()):
                if self._is_ours_to_save(agent):
                    await self.snapshot(agent.name)
        self._planners.shutdown()

    # --- reading

    def hosted(self) -> list[Hosted]:
        """Every agent that exists, by name. The records hold durable facts and must not be changed."""
        agents = list(self._agents.values())  # at one stroke: scrapes come from another thread
        return sorted((agent for agent in agents if agent.exists), key=lambda agent: agent.name)

    def record(self, name: str) -> AgentRecord:
        """The record of an agent that exists and is whole."""
        self.check_ready()
        agent = self._agents.get(name)
        if agent is None or not agent.exists:
            raise _no_agent(name)
        return self._whole(agent)

    async def fresh_record(self, name: str) -> AgentRecord:
        """The same, with everything in it that was acknowledged before this call, by whichever replica."""
        self.check_ready()
        if self._store.is_shared:
            with _reached():
                agent = await self._find(name)
                if await self._is_behind(agent):  # asked without the lock, which a long plan may hold
                    async with agent.lock:
                        await self._catch_up(agent)
        return self.record(name)

    async def refresh(
        self, after: str = "", enough: int | None = None, wanted: Callable[[str], bool] = lambda _name: True
    ) -> None:
        """Look for what others did to the `wanted` agents whose names come after `after`: to `enough` of them, or to all."""
        if not self._store.is_shared:
            return
        with _reached():
            heads = await self._store.heads()
            names, found = sorted(name for name in heads if name > after and wanted(name)), 0
            size = enough or len(names) or 1
            for start in range(0, len(names), size):
                part = names[start : start + size]
                await self._refresh_all({name: heads[name] for name in part})
                found += sum(self._agents[name].exists for name in part)
                if found >= size:
                    return

    def check_room(self) -> None:
        """Raise if there are as many agents as there may be."""
        if sum(agent.exists for agent in self._agents.values()) >= self.limits.max_agents:
            raise LimitExceededError(
                f"the server has {self.limits.max_agents} agents, the most that it allows", "TOO_MANY_AGENTS"
            )

    # --- writing

    async def decide(self, name: str, decide: Decide[Reply], *, may_create: bool = False) -> Reply:
        """Append what `decide` makes of the agent's record, then return its reply. The agent must exist, or `may_create`.

        Once begun it is carried out even if the caller goes away, so that the record never falls behind the store. If
        somebody else appended first, the record is read again and decided on anew.
        """
        self.check_ready()
        if self._store.is_shared:
            with _reached():
                await self._find(name, may_create=may_create)
        elif not may_create:
            self.record(name)
        elif name not in self._agents:
            self.check_room()
        try:
            async with asyncio.timeout(self.limits.call_seconds):
                return await asyncio.shield(self._in_background(self._decide(name, decide, may_create)))
        except TimeoutError:
            raise DeadlineError(
                f"not done within {self.limits.call_seconds:g} s; it goes on, and can be asked for again"
            ) from None

    async def plan(self, learner: SafePsrl, state: AgentState) -> tuple[Plan, float]:
        """The next episode's plan and the seconds that it took. A long one is made in a thread, off the loop."""
        began = time.perf_counter()
        if _is_short(learner):
            _, plan = learner.start_episode(state)
        else:
            _, plan = await asyncio.get_running_loop().run_in_executor(self._planners, learner.start_episode, state)
        return plan, time.perf_counter() - began

    async def snapshot(self, name: str) -> None:
        """Shorten the agent's stream, if anything was added to it."""
        agent = self._agents[name]
        async with agent.lock:
            record = agent.record
            if record is None or record.version <= agent.snapshot_version:
                return
            data = await asyncio.to_thread(lambda: snapshot_of(record).SerializeToString())
            try:
                await self._store.save_snapshot(name, record.version, data)
            except DamagedStreamError as error:
                log.critical("snapshot refused", agent=name, error=str(error))
                return
            except StoreUnavailableError as error:
                log.warning("snapshot postponed", agent=name, error=str(error))
                return
            agent.snapshot_version, agent.snapshot_seconds = record.version, time.monotonic()
            agent.unsaved_since_micros, agent.was_changed_here = None, False
            self.meter.snapshot_stored(len(data))

    async def verify(self, name: str) -> Verification:
        """Fold what is stored of an agent, and compare it with what is served."""
        await self.fresh_record(name)
        agent = self._agents[name]
        async with agent.lock:
            try:
                with _reached():
                    stream = await self._store.load(name)
                    if stream.version != self._whole(agent).version:  # another replica goes on meanwhile
                        await self._catch_up(agent)
                        stream = await self._store.load(name)
                stored = folded(name, stream)
            except DamagedStreamError as error:
                raise DataLossError(f"what is stored of agent {name!r} is damaged: {error}", agent=name) from error
            served = self._whole(agent)
            same = snapshot_of(served) == snapshot_of(stored)
            return Verification(same, served.version, stored.version, len(stream.events), stored.digest())

    # --- inside

    async def _decide(self, name: str, decide: Decide[Reply], may_create: bool) -> Reply:
        agent = self._agents.setdefault(name, Hosted(name, AgentRecord(name)))
        async with agent.lock:
            for _ in range(MOST_CONFLICTS):
                record = self._whole(agent)
                try:
                    if not (record.exists or may_create):  # deleted while this call waited
                        raise _no_agent(name)
                    decision = decide(record)
                    events, reply = decision if isinstance(decision, tuple) else await decision
                except ServiceError:
                    if await self._was_behind(agent):  # what stood in the way may be gone
                        continue
                    raise
                if not events:
                    if await self._was_behind(agent):
                        continue
                    return reply
                if await self._append(agent, record, events):
                    return reply
        raise UnavailableError(f"others changed agent {name!r} {MOST_CONFLICTS} times meanwhile; try again", "CONTENTION")

    def _is_ours_to_save(self, agent: Hosted) -> bool:
        """Of replicas, the one that changes an agent takes its snapshots."""
        return agent.was_changed_here or not self._store.is_shared

    async def _append(self, agent: Hosted, record: AgentRecord, events: Sequence[events_pb2.Event]) -> bool:
        """Whether `events` are stored and applied. If somebody else appended first, the record is up to date instead."""
        try:
            await self._store.append(agent.name, record.version, [event.SerializeToString() for event in events])
        except VersionConflictError:
            with _reached():
                await self._read_on(agent)
            return False
        except StoreFailedError as error:
            raise UnavailableError(f"the server is stopping: {error}", "STORE_FAILED") from error
        except StoreUnavailableError as error:  # stored or not: the next call on this agent will see
            raise _unreachable(error) from error
        try:
            for event in events:
                record.apply(event)
        except Exception as error:  # for want of memory, say: half of it may be applied, so what is stored is read again
            agent.record, agent.damage = None, f"it could not be read again after {error!r}: start the server again"
            await self._read_on(agent)
            raise UnavailableError(f"agent {agent.name!r} had to be read again; try again", "READ_AGAIN") from error
        self.meter.applied(events)
        agent.was_changed_here = True
        if agent.unsaved_since_micros is None:
            agent.unsaved_since_micros = events[0].time_micros
        if record.version - agent.snapshot_version >= self._snapshots.every_events:
            self._in_background(self.snapshot(agent.name))
        return True

    async def _was_behind(self, agent: Hosted) -> bool:
        """Whether the agent's record lacked something that another replica did. It does not any more."""
        if not self._store.is_shared:
            return False
        with _reached():
            return await self._catch_up(agent)

    async def _catch_up(self, agent: Hosted) -> bool:
        """Whether there was anything to read. The caller holds the agent's lock."""
        if not await self._is_behind(agent):
            return False
        await self._read_on(agent)
        return True

    async def _is_behind(self, agent: Hosted) -> bool:
        if not self._store.is_shared or agent.record is None:
            return False
        version = await self._store.version(agent.name)
        return agent.record is not None and version != agent.record.version

    async def _read_on(self, agent: Hosted) -> None:
        """Fold what was appended after the record's version; if that is not kept any more, begin at the latest snapshot."""
        record = agent.record
        try:
            tail = await self._store.load_tail(agent.name, record.version) if record is not None else None
            if record is not None and tail is not None:
                events = parsed(tail)
                apply_all(record, events)
                if events and agent.unsaved_since_micros is None:
                    agent.unsaved_since_micros = events[0].time_micros
                return
        except DamagedStreamError as error:
            log.critical("agent quarantined", agent=agent.name, damage=str(error))
            agent.record, agent.damage = None, str(error)
            return
        reread = await self._load(agent.name)
        agent.record, agent.damage = reread.record, reread.damage
        agent.snapshot_version, agent.unsaved_since_micros = reread.snapshot_version, reread.unsaved_since_micros

    async def _find(self, name: str, *, may_create: bool = False) -> Hosted:
        """An agent of a shared store, read if it is not known here. Raises if there is none, unless it may be created."""
        if name in self._agents:
            return self._agents[name]
        if await self._store.version(name):
            loaded = await self._load(name)
            return self._agents.setdefault(name, loaded)
        if not may_create:
            raise _no_agent(name)
        self.check_room()
        return self._agents.setdefault(name, Hosted(name, AgentRecord(name)))

    async def _refresh_all(self, heads: Mapping[str, StreamHead]) -> None:
        rest = iter(heads.items())

        async def read() -> None:
            for name, head in rest:
                await self._refresh(name, head)

        await asyncio.gather(*(read() for _ in range(READS_AT_ONCE)))

    async def _refresh(self, name: str, head: StreamHead) -> None:
        if name not in self._agents:
            loaded = await self._load(name)
            self._agents.setdefault(name, loaded)
            return
        agent = self._agents[name]
        if agent.record is None or (agent.record.version >= head.version and agent.snapshot_version >= head.snapshot_version):
            return
        async with agent.lock:
            await self._catch_up(agent)
            if agent.record is not None and agent.snapshot_version < head.snapshot_version:  # another replica's
                agent.snapshot_version, agent.snapshot_seconds = head.snapshot_version, time.monotonic()
                if head.snapshot_version >= agent.record.version:
                    agent.unsaved_since_micros, agent.was_changed_here = None, False

    async def _load(self, name: str) -> Hosted:
        try:
            stream = await self._store.load(name)
            record = folded(name, stream)
        except DamagedStreamError as error:
            log.critical("agent quarantined", agent=name, damage=str(error))
            return Hosted(name, None, str(error))
        unsaved = events_pb2.Event.FromString(stream.events[0]).time_micros if stream.events else None
        return Hosted(name, record, snapshot_version=stream.version - len(stream.events), unsaved_since_micros=unsaved)

    def _whole(self, agent: Hosted) -> AgentRecord:
        if agent.record is None:
            raise DataLossError(
                f"what is stored of agent {agent.name!r} is damaged: {agent.damage}. Restore it from a backup", agent=agent.name
            )
        return agent.record

    def check_ready(self) -> None:
        """Raise while agents are being read, and once the host is closed."""
        if not self.ready:
            raise UnavailableError("the server is starting or stopping; try again", "NOT_READY")

    def _in_background(self, work: Awaitable[Reply]) -> "asyncio.Task[Reply]":
        task: asyncio.Task[Reply] = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even if the caller has gone away


def _is_short(learner: SafePsrl) -> bool:
    """Whether a plan may be made on the loop. An adaptive one is about as many ordinary ones, or linear programs."""
    spec, options = learner.spec, learner.options
    if options.is_adaptive and spec.num_constraints > 1:
        return False
    work = spec.num_states**2 * spec.num_actions * (spec.horizon + 20)
    plans = ADAPTIVE_PLANS if options.is_adaptive else 1
    return work * plans <= INLINE_PLAN and work * learner.problem.max_draws <= INLINE_PLAN_AT_WORST


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    """A shared store that does not answer is no fault of the call, which can be repeated."""
    try:
        yield
    except StoreUnavailableError as error:
        raise _unreachable(error) from error


def _unreachable(error: StoreUnavailableError) -> UnavailableError:
    return UnavailableError(f"{error}; try again", "STORE_UNAVAILABLE")


def _no_agent(name: str) -> NotFoundError:
    return NotFoundError(f"there is no agent {name!r}", "AGENT_NOT_FOUND", agent=name)
