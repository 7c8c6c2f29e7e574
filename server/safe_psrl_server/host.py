"""Hosting agents: one call at a time for each, persist, then acknowledge.

A call decides on the agent's record, appends what it decided, and only then changes the record: so a record, whenever it is
read, holds durable facts only. What is durable at once may be answered before the record is changed, which is then done
before anybody reads it. Agents do not wait for each other; a long plan is made in a thread.

A store that is shared has other writers. There a record may be behind: nothing is answered from it before the store was asked
for the version, or has taken an append at it.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

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
    ServiceError,
    UnavailableError,
)
from safe_psrl_server.folding import folded
from safe_psrl_server.hosted import Hosted, HostedAgents, for_each, no_agent, reached, unreachable
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.planners import Planners, TimedPlan
from safe_psrl_server.policies import concerns_policies, is_large, stored
from safe_psrl_server.promises import Answer, Decide, Decided, Decision, Made, Promise, Promises, Reply, as_it_is, tell
from safe_psrl_server.snapshot import restored, snapshot_of
from safe_psrl_server.store import (
    NO_POLICIES,
    DamagedStreamError,
    EventStore,
    StoreFailedError,
    StoreUnavailableError,
    VersionConflictError,
    nothing,
)
from safe_psrl_server.store.appends import Append, when_over
from safe_psrl_server.vigil import Vigil

PLANNED_BY = f"safe-psrl {__version__}, numpy {np.__version__}, numba {numba.__version__}"
SNAPSHOTS_AT_ONCE = 64  # so that they share commits
STEPS_AN_EVENT = 4  # of a trajectory that are read in the time of an event: so that a long one does not put snapshots off
LARGE_TABLE = 100_000  # entries of an agent whose snapshot is made in a thread: a millisecond or more
REFRESH_PAUSE = 9  # times what a refresh took: it may have a tenth of the time
MOST_CONFLICTS = 100  # of one call

log = structlog.get_logger()

Told = TypeVar("Told")


class Verification(NamedTuple):
    """What reading an agent again has shown."""

    same: bool
    served_version: int
    stored_version: int
    events_read: int
    digest: str  # of what is stored


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
        self._agents = HostedAgents(store, self.check_room)
        self._planners = Planners(limits.planning_threads)
        self._promises = Promises(limits.call_seconds)
        self._vigil: Vigil | None = None
        self._background: set[asyncio.Task[object]] = set()
        self._answered: deque[Callable[[], object]] = deque()  # what is durable, and is to be applied before a record is read

    # --- life

    def keep_vigils(self) -> None:
        """Let the loop stay awake for callers who are alone. For a process that has nothing else to do."""
        self._vigil = Vigil(asyncio.get_running_loop())

    async def recover(self) -> None:
        """Read every agent from the store. Damaged ones are quarantined, the others served."""
        began = time.monotonic()

        await self._agents.read_all()
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
        for agent in self._agents.all():
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
            ours = [agent.name for agent in self._agents.all() if self._is_ours_to_save(agent)]
            await for_each(ours, self.snapshot, SNAPSHOTS_AT_ONCE)
        self._planners.close()

    # --- reading

    @property
    def census(self) -> Census:
        return self._agents.census

    def hosted(self) -> list[Hosted]:
        """Every agent that exists, by name. The records hold durable facts and must not be changed."""
        agents = self._agents.all()
        return sorted((agent for agent in agents if agent.exists), key=lambda agent: agent.name)

    def record(self, name: str) -> AgentRecord:
        """The record of an agent that exists and is whole."""
        self.check_ready()
        self._apply_answered()
        agent = self._agents.get(name)
        if agent is None or not agent.exists:
            raise no_agent(name)
        return agent.whole

    @property
    def is_always_fresh(self) -> bool:
        """Whether nobody else writes to the store, so that `record` is as good as `fresh_record`."""
        return not self._store.is_shared

    async def fresh_record(self, name: str) -> AgentRecord:
        """The same, with everything in it that was acknowledged before this call, by whichever replica."""
        self.check_ready()
        if self._store.is_shared:
            with reached():
                agent = await self._agents.find(name)
                if await self._agents.is_behind(agent):  # asked out of turn, for a long plan may have it
                    async with agent.turns:
                        await self._agents.catch_up(agent)
        return self.record(name)

    async def refresh(
        self, after: str = "", enough: int | None = None, wanted: Callable[[str], bool] = lambda _name: True
    ) -> None:
        """Look for what others did to the `wanted` agents whose names come after `after`: to `enough` of them, or to all."""
        if self._store.is_shared:
            with reached():
                await self._agents.refresh(after, enough, wanted)

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
        return self._decide(name, decide, may_create, None)

    def answer(self, name: str, decide: Decide[Reply], answer: Callable[[Reply], Told]) -> "asyncio.Future[Told]":
        """The same for a reply that does not need the record as it will be; give what `answer` makes of it.

        That is made while the disk writes, if the caller is kept waiting for that, and told before the append is applied.
        """
        return self._decide(name, decide, False, answer)

    def _decide(self, name: str, decide: Decide[Any], may_create: bool, answer: Answer | None) -> "asyncio.Future[Any]":
        self.check_ready()
        self._apply_answered()
        if self._store.is_shared:
            return self._promised(self._decide_shared(name, decide, may_create), answer)
        if self._store.is_gathering:
            promise = self._promises.make(answer or as_it_is)
            self._store.gather(partial(self._decide_gathered, promise, name, decide, may_create))
            return promise.future
        agent = self._place_for(name, may_create)
        place = agent.turns.take()
        if place is None:
            return self._decide_at_once(agent, decide, may_create, answer)
        return self._promised(self._decide_in_turn(agent, place, decide, may_create), answer)

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
                with reached():
                    stream = await self._store.load(name)
                    if stream.version != agent.whole.version:  # another replica goes on meanwhile
                        await self._agents.catch_up(agent)
                        stream = await self._store.load(name)
                found = folded(name, stream)
            except DamagedStreamError as error:
                raise DataLossError(f"what is stored of agent {name!r} is damaged: {error}", agent=name) from error
            served = agent.whole
            same = snapshot_of(served) == snapshot_of(found)
            return Verification(same, served.version, found.version, len(stream.events), found.digest())

    # --- inside

    async def _decide_shared(self, name: str, decide: Decide[Reply], may_create: bool) -> Reply:
        with reached():
            agent = await self._agents.find(name, may_create=may_create)
        return await self._decide_in_turn(agent, agent.turns.take(), decide, may_create)

    def _place_for(self, name: str, may_create: bool) -> Hosted:
        agent = self._agents.get(name)
        if not may_create and (agent is None or not agent.exists):
            raise no_agent(name)
        return agent or self._agents.add(name)

    # Most calls can be decided without a task. Whoever calls these has the agent's turn, in a store that nobody else writes to.

    def _decide_at_once(
        self, agent: Hosted, decide: Decide[Any], may_create: bool, answer: Answer | None
    ) -> "asyncio.Future[Any]":
        """One call by itself."""
        record, decision = self._decided(agent, decide)
        if not isinstance(decision, tuple):
            return self._promised(self._decide_in_turn(agent, None, Made(decision, decide), may_create), answer)
        events, reply = decision
        told = self._promises.loop.create_future()
        prepare = partial(tell, told, answer or as_it_is, reply)
        if not events:
            agent.turns.give()
            prepare()
            return told
        appended = self._begin_append(agent, record, events, nothing if answer is None else prepare)
        if answer is not None and isinstance(appended, Append) and appended.is_durable:
            if not told.done():
                prepare()
            self._apply_soon(agent, record, events)
            return told
        promise = self._promises.make(answer or as_it_is)
        again = partial(self._decide_again, agent, decide, may_create)
        when_over(appended, partial(self._finish, agent, record, decision, promise, again))
        return promise.future

    def _decide_gathered(self, promise: Promise[Any], name: str, decide: Decide[Any], may_create: bool) -> None:
        """One of many that are decided in a row. Whatever stands in its way is told to its caller."""
        try:
            agent = self._place_for(name, may_create)
            place = agent.turns.take()
            if place is not None:
                promise.follow(self._in_background(self._decide_in_turn(agent, place, decide, may_create)))
                return
            record, decision = self._decided(agent, decide)
            if not isinstance(decision, tuple):
                made = Made(decision, decide)
                promise.follow(self._in_background(self._decide_in_turn(agent, None, made, may_create)))
                return
            events, reply = decision
            if not events:
                agent.turns.give()
                promise.settle(reply, None)
                return
            appended = self._begin_append(agent, record, events, nothing)
        except Exception as error:  # noqa: BLE001  # whatever it is, the others are decided
            promise.settle(None, error)
            return
        again = partial(self._decide_again, agent, decide, may_create)
        when_over(appended, partial(self._finish, agent, record, decision, promise, again))

    def _decided(self, agent: Hosted, decide: Decide[Any]) -> tuple[AgentRecord, Decided[Any]]:
        """What is decided on the agent's record. It is waited for if it takes time: a long plan, or a large policy."""
        try:
            record = agent.whole
            decision = decide(record)
            if isinstance(decision, tuple) and _may_be_large(record) and any(map(is_large, decision[0])):
                return record, _in_time(decision)
        except BaseException:
            agent.turns.give()
            raise
        return record, decision

    def _begin_append(
        self, agent: Hosted, record: AgentRecord, events: Sequence[events_pb2.Event], meanwhile: Callable[[], None]
    ) -> Awaitable[int]:
        try:
            payloads = [event.SerializeToString() for event in events]
            concerned = _may_be_large(record) and concerns_policies(events)
            dropped = record.forgotten_by(events) if concerned else ()
            return self._store.append(agent.name, record.version, payloads, NO_POLICIES, dropped, meanwhile)
        except BaseException:
            agent.turns.give()
            raise

    def _finish(
        self,
        agent: Hosted,
        record: AgentRecord,
        decision: Decision[Any],
        promise: Promise[Any],
        again: Callable[[], Awaitable[Any]],
        error: BaseException | None,
    ) -> None:
        """An append that was waited for is over."""
        events, reply = decision
        if isinstance(error, VersionConflictError):
            promise.follow(self._in_background(again()))
        elif error is not None:
            agent.turns.give()
            promise.settle(None, _store_failed(error))
        elif (reading := self._apply_in_turn(agent, record, events)) is not None:
            promise.follow(reading)
        else:
            promise.settle(reply, None)

    def _apply_soon(self, agent: Hosted, record: AgentRecord, events: Sequence[events_pb2.Event]) -> None:
        """What is durable, and answered to somebody who is alone."""
        self._answered.append(partial(self._apply_in_turn, agent, record, events))
        self._promises.loop.call_soon(self._apply_answered)
        if self._vigil is not None:
            self._vigil.answered()

    def _apply_answered(self) -> None:
        while self._answered:
            self._answered.popleft()()

    def _apply_in_turn(
        self, agent: Hosted, record: AgentRecord, events: Sequence[events_pb2.Event]
    ) -> "asyncio.Task[NoReturn] | None":
        """Apply what is durable, and give the agent's turn. If that fails, both are left to the task that reads it again."""
        try:
            self._apply(agent, record, events)
        except Exception as half:  # noqa: BLE001  # whatever it is, the record may be half changed
            return self._in_background(self._read_again_in_turn(agent, half))
        agent.turns.give()
        return None

    def _promised(self, work: Awaitable[Any], answer: Answer | None) -> "asyncio.Future[Any]":
        """What is made of what `work` gives, for a caller who may go away: the work goes on."""
        promise = self._promises.make(answer or as_it_is)
        promise.follow(self._in_background(work))
        return promise.future

    async def _decide_again(self, agent: Hosted, decide: Decide[Reply], may_create: bool) -> Reply:
        """Somebody else appended first. The caller has the agent's turn, and this gives it."""
        try:
            with reached():
                await self._agents.read_on(agent)
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
                record = agent.whole
                try:
                    if not (record.exists or may_create):  # deleted while this call waited
                        raise no_agent(agent.name)
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
            with reached():
                await self._agents.read_on(agent)
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
        await self._agents.read_on(agent)
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
        with reached():
            return await self._agents.catch_up(agent)

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


def _may_be_large(record: AgentRecord) -> bool:
    """Whether policies may be stored apart, or dropped there, by what is appended."""
    return not record.exists or record.definition.has_large_policies


async def _in_time(decision: Decision[Reply]) -> Decision[Reply]:
    return decision


async def _in_thread_if(large: bool, work: Callable[[], Reply]) -> Reply:
    return await asyncio.to_thread(work) if large else work()


def _is_large(record: AgentRecord) -> bool:
    return record.exists and record.definition.table_entries > LARGE_TABLE


async def _stored(events: Sequence[events_pb2.Event]) -> tuple[list[bytes], Mapping[int, bytes]]:
    """What is stored of `events`, and the policies beside them. A large policy is packed in a thread, off the loop."""
    if any(map(is_large, events)):
        return await asyncio.to_thread(stored, events)
    return [event.SerializeToString() for event in events], NO_POLICIES


def _store_failed(error: BaseException) -> BaseException:
    """What a caller is told whose append failed with `error`."""
    if isinstance(error, StoreFailedError):
        return UnavailableError(f"the server is stopping: {error}", "STORE_FAILED")
    if isinstance(error, StoreUnavailableError):  # stored or not: the next call on this agent will see
        return unreachable(error)
    return error
