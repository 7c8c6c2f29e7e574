"""Hosting agents: one call at a time for each, persist, then acknowledge.

A call decides on the agent's record, appends what it decided, and only then changes the record: so a record, whenever it is
read, holds durable facts only. Agents do not wait for each other; a long plan is made in a thread.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
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
from safe_psrl_server.errors import DataLossError, DeadlineError, LimitExceededError, NotFoundError, UnavailableError
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.snapshot import restored, snapshot_of
from safe_psrl_server.store import (
    DamagedStreamError,
    EventStore,
    StoredStream,
    StoreFailedError,
    VersionConflictError,
)

PLANNED_BY = f"safe-psrl {__version__}, numpy {np.__version__}, numba {numba.__version__}"
INLINE_PLAN = 300_000  # products and draws of a plan that is made without a thread: about a millisecond
ADAPTIVE_PLANS = 25  # ordinary plans that an adaptive one takes
INLINE_PLAN_AT_WORST = 10 * INLINE_PLAN  # if every kernel that may be drawn must be

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
    ) -> None:
        self.meter = meter or Meter()
        self.now_micros = now_micros
        self.limits = limits
        self.ready = False
        self.draining = asyncio.Event()  # streams that have no end of their own end when it is set
        self.recovery_seconds = 0.0
        self._store = store
        self._snapshots = snapshots
        self._agents: dict[str, Hosted] = {}
        self._planners = ThreadPoolExecutor(limits.planning_threads, "planner")
        self._background: set[asyncio.Task[object]] = set()

    # --- life

    async def recover(self) -> None:
        """Read every agent from the store. Damaged ones are quarantined, the others served."""
        began = time.monotonic()
        for name in await self._store.agents():
            self._agents[name] = await self._load(name)
        self.recovery_seconds = time.monotonic() - began

    async def run(self) -> None:
        """Snapshots by time, until cancelled."""
        while True:
            await asyncio.sleep(self._snapshots.check_seconds)
            due = time.monotonic() - self._snapshots.every_seconds
            for agent in list(self._agents.values()):
                if agent.snapshot_seconds <= due:
                    await self.snapshot(agent.name)

    async def close(self) -> None:
        """Finish what is under way, and take a snapshot of everything."""
        self.ready = False
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
        with contextlib.suppress(StoreFailedError):  # whoever waits for the store's failure hears of it there
            for name in list(self._agents):
                await self.snapshot(name)
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
        if not may_create:
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
            agent.snapshot_version, agent.snapshot_seconds = record.version, time.monotonic()
            agent.unsaved_since_micros = None
            self.meter.snapshot_stored(len(data))

    async def verify(self, name: str) -> Verification:
        """Fold what is stored of an agent, and compare it with what is served."""
        self.record(name)
        agent = self._agents[name]
        async with agent.lock:
            served = self._whole(agent)
            try:
                stream = await self._store.load(name)
                stored = _folded(name, stream)
            except DamagedStreamError as error:
                raise DataLossError(f"what is stored of agent {name!r} is damaged: {error}", agent=name) from error
            same = snapshot_of(served) == snapshot_of(stored)
            return Verification(same, served.version, stored.version, len(stream.events), stored.digest())

    # --- inside

    async def _decide(self, name: str, decide: Decide[Reply], may_create: bool) -> Reply:
        agent = self._agents.setdefault(name, Hosted(name, AgentRecord(name)))
        async with agent.lock:
            while True:
                record = self._whole(agent)
                if not (record.exists or may_create):  # deleted while this call waited
                    raise _no_agent(name)
                decision = decide(record)
                events, reply = decision if isinstance(decision, tuple) else await decision
                if not events:
                    return reply
                try:
                    await self._store.append(name, record.version, [event.SerializeToString() for event in events])
                except VersionConflictError:
                    reread = await self._load(name)
                    agent.record, agent.damage = reread.record, reread.damage
                    agent.snapshot_version, agent.unsaved_since_micros = reread.snapshot_version, reread.unsaved_since_micros
                    continue
                except StoreFailedError as error:
                    raise UnavailableError(f"the server is stopping: {error}", "STORE_FAILED") from error
                for event in events:
                    record.apply(event)
                self.meter.applied(events)
                if agent.unsaved_since_micros is None:
                    agent.unsaved_since_micros = events[0].time_micros
                if record.version - agent.snapshot_version >= self._snapshots.every_events:
                    self._in_background(self.snapshot(name))
                return reply

    async def _load(self, name: str) -> Hosted:
        try:
            stream = await self._store.load(name)
            record = _folded(name, stream)
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


def _no_agent(name: str) -> NotFoundError:
    return NotFoundError(f"there is no agent {name!r}", "AGENT_NOT_FOUND", agent=name)


def _folded(name: str, stream: StoredStream) -> AgentRecord:
    """The record that a stored stream gives, which has events. Raises `DamagedStreamError`."""
    if stream.version == 0:
        raise DamagedStreamError("nothing is stored under its name")
    try:
        record = restored(name, stream.snapshot) if stream.snapshot is not None else AgentRecord(name)
        for payload in stream.events:
            record.apply(events_pb2.Event.FromString(payload))
    except Exception as error:  # whatever it is, it is this agent's alone
        raise DamagedStreamError(f"its events cannot be folded: {error!r}") from error
    if record.version != stream.version:
        raise DamagedStreamError(f"it folds to version {record.version}, not {stream.version}")
    return record
