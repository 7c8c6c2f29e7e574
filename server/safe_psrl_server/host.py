"""Hosting agents: one call at a time for each, persist, then acknowledge.

A call decides on the agent's record, appends what it decided, and only then changes the record: so a record, whenever it is
read, holds durable facts only. Agents do not wait for each other; a long plan is made in a thread.

A store that is shared has other writers. There a record is a cache that may be behind: nothing is answered from it before
the store was asked for the version, or has taken an append at it.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numba
import numpy as np
import structlog

from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.version import __version__
from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.census import Census
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.errors import (
    DataLossError,
    LimitExceededError,
    NotFoundError,
    ServiceError,
    UnavailableError,
)
from safe_psrl_server.folding import apply_all, attach, folded, parsed
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.planners import Planners, TimedPlan
from safe_psrl_server.policies import concerns_policies, is_large, stored
from safe_psrl_server.promises import Decide, Made, Promise, Promises, Reply, given
from safe_psrl_server.snapshot import restored, snapshot_of
from safe_psrl_server.store import (
    NO_POLICIES,
    DamagedStreamError,
    EventStore,
    StoreFailedError,
    StoreUnavailableError,
    StreamHead,
    VersionConflictError,
)
from safe_psrl_server.store.appends import when_over
from safe_psrl_server.turns import Turns

PLANNED_BY = f"safe-psrl {__version__}, numpy {np.__version__}, numba {numba.__version__}"
READS_AT_ONCE = 4  # so that the store reads while agents are made of what it read
SNAPSHOTS_AT_ONCE = 64  # so that they share commits
STEPS_AN_EVENT = 4  # of a trajectory that are read in the time of an event: so that a long one does not put snapshots off
LARGE_TABLE = 100_000  # entries of an agent whose snapshot is made in a thread: a millisecond or more
REFRESH_PAUSE = 9  # times what a refresh took: it may have a tenth of the time
MOST_CONFLICTS = 100  # of one call

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
    unsaved_steps: int = 0  # that were reported here and are in no snapshot
    unsaved_since_micros: int | None = None  # time of the oldest event that no snapshot holds
    turns: Turns = field(default_factory=Turns)
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
        self.census = Census()
        self._store = store
        self._snapshots = snapshots
        self._refresh_seconds = refresh_seconds
        self._agents: dict[str, Hosted] = {}
        self._sought: dict[str, Turns] = {}  # those that calls wait for to be found in a shared store
        self._planners = Planners(limits.planning_threads)
        self._promises = Promises(limits.call_seconds)
        self._background: set[asyncio.Task[object]] = set()

    # --- life

    async def recover(self) -> None:
        """Read every agent from the store. Damaged ones are quarantined, the others served."""
        began = time.monotonic()

        async def read(name: str) -> None:
            self._keep(await self._load(name))

        with _without_collection():
            await _for_each(await self._store.agents(), read, READS_AT_ONCE)
        self.recovery_seconds = time.monotonic() - began

    async def run(self) -> None:
        """Snapshots by time, and what other replicas did, until cancelled."""
        await asyncio.gather(self._keep_snapshots(), self._keep_fresh())

    async def _keep_snapshots(self) -> None:
        while True:
            await asyncio.sleep(self._snapshots.check_seconds)
            await self.save_old()

    async def save_old(self) -> None:
        """Snapshots of the agents that have events in none which are old by now, or of the future: clocks are set back."""
        micros = self._snapshots.every_seconds * 1e6
        for agent in list(self._agents.values()):
            since = agent.unsaved_since_micros
            if since is not None and not 0 <= self.now_micros() - since < micros and self._is_ours_to_save(agent):
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
            ours = [agent.name for agent in self._agents.values() if self._is_ours_to_save(agent)]
            await _for_each(ours, self.snapshot, SNAPSHOTS_AT_ONCE)
        self._planners.close()

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

    @property
    def is_always_fresh(self) -> bool:
        """Whether nobody else writes to the store, so that `record` is as good as `fresh_record`."""
        return not self._store.is_shared

    async def fresh_record(self, name: str) -> AgentRecord:
        """The same, with everything in it that was acknowledged before this call, by whichever replica."""
        self.check_ready()
        if self._store.is_shared:
            with _reached():
                agent = await self._find(name)
                if await self._is_behind(agent):  # asked out of turn, for a long plan may have it
                    async with agent.turns:
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
        if len(self.census) >= self.limits.max_agents:
            raise LimitExceededError(
                f"the server has {self.limits.max_agents} agents, the most that it allows", "TOO_MANY_AGENTS"
            )

    # --- writing

    def decide(self, name: str, decide: Decide[Reply], *, may_create: bool = False) -> "asyncio.Future[Reply]":
        """Append what `decide` makes of the agent's record, then give its reply. The agent must exist, or `may_create`.

        Calls on an agent are decided in the order of calling this. Once begun a call is carried out even if the caller goes
        away, so that the record never falls behind the store. If somebody else appended first, the record is read again and
        decided on anew.
        """
        self.check_ready()
        if self._store.is_shared:
            return self._promised(self._in_background(self._decide_shared(name, decide, may_create)))
        agent = self._agents.get(name)
        if not may_create and (agent is None or not agent.exists):
            raise _no_agent(name)
        if agent is None:
            self.check_room()
            agent = self._agents[name] = Hosted(name, AgentRecord(name))
        place = agent.turns.take()
        if place is None:
            return self._decide_at_once(agent, decide, may_create)
        return self._promised(self._in_background(self._decide_in_turn(agent, place, decide, may_create)))

    def plan(self, learner: SafePsrl, state: AgentState) -> TimedPlan | Awaitable[TimedPlan]:
        """The next episode's plan; at once, or when a thread has made it."""
        return self._planners.plan(learner, state)

    async def snapshot(self, name: str) -> None:
        """Shorten the agent's stream, if anything was added to it."""
        agent = self._agents[name]
        async with agent.turns:
            record = agent.record
            if record is None or record.version <= agent.snapshot_version:
                return
            data = await _in_thread_if(_is_large(record), lambda: snapshot_of(record).SerializeToString())
            try:
                await self._store.save_snapshot(name, record.version, data)
            except DamagedStreamError as error:
                log.critical("snapshot refused", agent=name, error=str(error))
                return
            except StoreUnavailableError as error:
                log.warning("snapshot postponed", agent=name, error=str(error))
                return
            agent.snapshot_version = record.version
            agent.unsaved_since_micros, agent.unsaved_steps, agent.was_changed_here = None, 0, False
            self.meter.snapshot_stored(len(data))
            if not record.exists:  # of a deleted agent only the name is kept; the tables go with whoever still reads the record
                agent.record = restored(name, data)

    async def verify(self, name: str) -> Verification:
        """Fold what is stored of an agent, and compare it with what is served."""
        await self.fresh_record(name)
        agent = self._agents[name]
        async with agent.turns:
            try:
                with _reached():
                    stream = await self._store.load(name)
                    if stream.version != self._whole(agent).version:  # another replica goes on meanwhile
                        await self._catch_up(agent)
                        stream = await self._store.load(name)
                found = folded(name, stream)
            except DamagedStreamError as error:
                raise DataLossError(f"what is stored of agent {name!r} is damaged: {error}", agent=name) from error
            served = self._whole(agent)
            same = snapshot_of(served) == snapshot_of(found)
            return Verification(same, served.version, found.version, len(stream.events), found.digest())

    # --- inside

    async def _decide_shared(self, name: str, decide: Decide[Reply], may_create: bool) -> Reply:
        with _reached():
            agent = await self._find(name, may_create=may_create)
        return await self._decide_in_turn(agent, agent.turns.take(), decide, may_create)

    def _decide_at_once(self, agent: Hosted, decide: Decide[Reply], may_create: bool) -> "asyncio.Future[Reply]":
        """With the agent's turn, in a store that nobody else writes to: without a task, for most calls need none."""
        try:
            record = self._whole(agent)
            decision = decide(record)
        except BaseException:
            agent.turns.give()
            raise
        concerned = isinstance(decision, tuple) and concerns_policies(decision[0])
        if not isinstance(decision, tuple) or (concerned and any(map(is_large, decision[0]))):
            made = Made(decision, decide)
            return self._promised(self._in_background(self._decide_in_turn(agent, None, made, may_create)))
        events, reply = decision
        if not events:
            agent.turns.give()
            return given(reply)

        def finish(error: BaseException | None) -> None:
            if isinstance(error, VersionConflictError):
                promise.follow(self._in_background(self._decide_again(agent, decide, may_create)))
                return
            if error is None:
                try:
                    self._apply(agent, record, events)
                except Exception as half:  # noqa: BLE001  # whatever it is, the record may be half changed
                    promise.follow(self._in_background(self._read_again_in_turn(agent, half)))
                    return
            agent.turns.give()
            promise.settle(reply, None if error is None else _store_failed(error))

        try:
            payloads = [event.SerializeToString() for event in events]
            dropped = record.forgotten_by(events) if concerned else ()
            appended = self._store.append(agent.name, record.version, payloads, NO_POLICIES, dropped)
        except BaseException:
            agent.turns.give()
            raise
        promise: Promise[Reply] = self._promises.make()
        when_over(appended, finish)
        return promise.future

    def _promised(self, work: "asyncio.Task[Reply]") -> "asyncio.Future[Reply]":
        """What `work` gives, for a caller who may go away: the work goes on."""
        promise: Promise[Reply] = self._promises.make()
        promise.follow(work)
        return promise.future

    async def _decide_again(self, agent: Hosted, decide: Decide[Reply], may_create: bool) -> Reply:
        """Somebody else appended first. The caller has the agent's turn, and this gives it."""
        try:
            with _reached():
                await self._read_on(agent)
        except BaseException:
            agent.turns.give()
            raise
        return await self._decide_in_turn(agent, None, decide, may_create)

    async def _decide_in_turn(
        self, agent: Hosted, place: "asyncio.Future[None] | None", decide: Decide[Reply], may_create: bool
    ) -> Reply:
        await agent.turns.arrival(place)
        try:
            for _ in range(MOST_CONFLICTS):
                record = self._whole(agent)
                try:
                    if not (record.exists or may_create):  # deleted while this call waited
                        raise _no_agent(agent.name)
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
        finally:
            agent.turns.give()
        raise UnavailableError(f"others changed agent {agent.name!r} {MOST_CONFLICTS} times meanwhile; try again", "CONTENTION")

    def _is_ours_to_save(self, agent: Hosted) -> bool:
        """Of replicas, the one that changes an agent takes its snapshots."""
        return agent.was_changed_here or not self._store.is_shared

    async def _append(self, agent: Hosted, record: AgentRecord, events: Sequence[events_pb2.Event]) -> bool:
        """Whether `events` are stored and applied. If somebody else appended first, the record is up to date instead."""
        try:
            payloads, policies = await _stored(events)
            await self._store.append(agent.name, record.version, payloads, policies, record.forgotten_by(events))
        except VersionConflictError:
            with _reached():
                await self._read_on(agent)
            return False
        except (StoreFailedError, StoreUnavailableError) as error:
            raise _store_failed(error) from error
        try:
            self._apply(agent, record, events)
        except Exception as error:  # noqa: BLE001  # whatever it is, the record may be half changed
            await self._read_again(agent, error)
        return True

    async def _read_again(self, agent: Hosted, error: Exception) -> NoReturn:
        """What is stored could not be applied, for want of memory, say: half of it may be, so all of it is read again."""
        agent.record, agent.damage = None, f"it could not be read again after {error!r}: start the server again"
        await self._read_on(agent)
        raise UnavailableError(f"agent {agent.name!r} had to be read again; try again", "READ_AGAIN") from error

    async def _read_again_in_turn(self, agent: Hosted, error: Exception) -> NoReturn:
        try:
            await self._read_again(agent, error)
        finally:
            agent.turns.give()

    def _apply(self, agent: Hosted, record: AgentRecord, events: Sequence[events_pb2.Event]) -> None:
        """`events` are durable."""
        existed, known = record.exists, record.totals.transitions
        for event in events:
            record.apply(event)
        if record.exists != existed:
            self.census.note(agent.name, record)
        if existed:  # an imported agent has learned elsewhere
            self.meter.learned(record.totals.transitions - known)
            agent.unsaved_steps += record.totals.transitions - known
        agent.was_changed_here = True
        if agent.unsaved_since_micros is None:
            agent.unsaved_since_micros = events[0].time_micros
        to_read = max(record.version - agent.snapshot_version, agent.unsaved_steps // STEPS_AN_EVENT)
        if to_read >= self._snapshots.every_events:
            self._in_background(self.snapshot(agent.name))

    async def _was_behind(self, agent: Hosted) -> bool:
        """Whether the agent's record lacked something that another replica did. It does not any more."""
        if not self._store.is_shared:
            return False
        with _reached():
            return await self._catch_up(agent)

    async def _catch_up(self, agent: Hosted) -> bool:
        """Whether there was anything to read. The caller has the agent's turn."""
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

    async def _find(self, name: str, *, may_create: bool = False) -> Hosted:
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
                    raise _no_agent(name)
                self.check_room()
                return self._agents.setdefault(name, Hosted(name, AgentRecord(name)))
        finally:
            if line.is_free and self._sought.get(name) is line:
                del self._sought[name]

    async def _refresh_all(self, heads: Mapping[str, StreamHead]) -> None:
        await _for_each(heads, lambda name: self._refresh(name, heads[name]), READS_AT_ONCE)

    async def _refresh(self, name: str, head: StreamHead) -> None:
        if name not in self._agents:
            self._keep(await self._load(name))
            return
        agent = self._agents[name]
        if agent.record is None or (agent.record.version >= head.version and agent.snapshot_version >= head.snapshot_version):
            return
        async with agent.turns:
            await self._catch_up(agent)
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


async def _for_each(names: Iterable[str], work: Callable[[str], Awaitable[object]], at_once: int) -> None:
    rest = iter(names)

    async def some() -> None:
        for name in rest:
            await work(name)

    await asyncio.gather(*(some() for _ in range(at_once)))


async def _in_thread_if(large: bool, work: Callable[[], Reply]) -> Reply:
    return await asyncio.to_thread(work) if large else work()


def _is_large(record: AgentRecord) -> bool:
    return record.exists and record.definition.table_entries > LARGE_TABLE


async def _stored(events: Sequence[events_pb2.Event]) -> tuple[list[bytes], Mapping[int, bytes]]:
    """What is stored of `events`, and the policies beside them. A large policy is packed in a thread, off the loop."""
    if any(map(is_large, events)):
        return await asyncio.to_thread(stored, events)
    return [event.SerializeToString() for event in events], NO_POLICIES


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """What is read stays, and has no cycles: looking for garbage again and again takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    """A shared store that does not answer is no fault of the call, which can be repeated."""
    try:
        yield
    except StoreUnavailableError as error:
        raise _unreachable(error) from error


def _store_failed(error: BaseException) -> BaseException:
    """What a caller is told whose append failed with `error`."""
    if isinstance(error, StoreFailedError):
        return UnavailableError(f"the server is stopping: {error}", "STORE_FAILED")
    if isinstance(error, StoreUnavailableError):  # stored or not: the next call on this agent will see
        return _unreachable(error)
    return error


def _unreachable(error: StoreUnavailableError) -> UnavailableError:
    return UnavailableError(f"{error}; try again", "STORE_UNAVAILABLE")


def _no_agent(name: str) -> NotFoundError:
    return NotFoundError(f"there is no agent {name!r}", "AGENT_NOT_FOUND", agent=name)
