"""Calls that change agents: one at a time for each, decide, persist, then acknowledge.

A call decides on the agent's record, appends what it decided, and only then changes the record: so a record, whenever it is
read, holds durable facts only. What is durable at once may be answered before the record is changed, which is then done
before anybody reads it. Calls that share a commit are decided in a row, right before it. Agents do not wait for each other.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.background import Background
from safe_psrl_server.errors import ServiceError, UnavailableError
from safe_psrl_server.hosted import Hosted, HostedAgents, no_agent, reached, unreachable
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.policies import concerns_policies, is_large, stored
from safe_psrl_server.promises import Answer, Decide, Decided, Decision, Made, Promise, Promises, Reply, Told, as_it_is, tell
from safe_psrl_server.store import (
    NO_POLICIES,
    EventStore,
    StoreFailedError,
    StoreUnavailableError,
    VersionConflictError,
    nothing,
)
from safe_psrl_server.store.appends import Append, when_over
from safe_psrl_server.vigil import Vigil

MOST_CONFLICTS = 100  # of one call


class Transactions:
    """Of the agents of one host, which is told of every change."""

    def __init__(
        self,
        store: EventStore,
        agents: HostedAgents,
        meter: Meter,
        promises: Promises,
        background: Background,
        on_change: Callable[[Hosted, AgentRecord], None],
    ) -> None:
        self.vigil: Vigil | None = None
        self._store = store
        self._agents = agents
        self._meter = meter
        self._promises = promises
        self._background = background
        self._on_change = on_change
        self._answered: deque[Callable[[], object]] = deque()  # what is durable, and is to be applied before a record is read

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
        self.apply_answered()
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

    def apply_answered(self) -> None:
        """Before a record is read: what was answered already and is not in it yet."""
        while self._answered:
            self._answered.popleft()()

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
                promise.follow(self._background.start(self._decide_in_turn(agent, place, decide, may_create)))
                return
            record, decision = self._decided(agent, decide)
            if not isinstance(decision, tuple):
                made = Made(decision, decide)
                promise.follow(self._background.start(self._decide_in_turn(agent, None, made, may_create)))
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
            promise.follow(self._background.start(again()))
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
        self._promises.loop.call_soon(self.apply_answered)
        if self.vigil is not None:
            self.vigil.answered()

    def _apply_in_turn(
        self, agent: Hosted, record: AgentRecord, events: Sequence[events_pb2.Event]
    ) -> "asyncio.Task[NoReturn] | None":
        """Apply what is durable, and give the agent's turn. If that fails, both are left to the task that reads it again."""
        try:
            self._apply(agent, record, events)
        except Exception as half:  # noqa: BLE001  # whatever it is, the record may be half changed
            return self._background.start(self._read_again_in_turn(agent, half))
        agent.turns.give()
        return None

    def _promised(self, work: Awaitable[Any], answer: Answer | None) -> "asyncio.Future[Any]":
        """What is made of what `work` gives, for a caller who may go away: the work goes on."""
        promise = self._promises.make(answer or as_it_is)
        promise.follow(self._background.start(work))
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
            self._agents.census.note(agent.name, record)
        if existed:  # an imported agent has learned elsewhere
            self._meter.learned(record.totals.transitions - known)
            agent.unsaved_steps += record.totals.transitions - known
        agent.was_changed_here = True
        if agent.unsaved_since_micros is None:
            agent.unsaved_since_micros = events[0].time_micros
        self._on_change(agent, record)

    async def _was_behind(self, agent: Hosted) -> bool:
        """Whether the agent's record lacked something that another replica did. It does not any more."""
        if not self._store.is_shared:
            return False
        with reached():
            return await self._agents.catch_up(agent)


def _may_be_large(record: AgentRecord) -> bool:
    """Whether policies may be stored apart, or dropped there, by what is appended."""
    return not record.exists or record.definition.has_large_policies


async def _in_time(decision: Decision[Reply]) -> Decision[Reply]:
    return decision


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
