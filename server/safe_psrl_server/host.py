"""Hosting agents: reading them from the store, serving what is known of them, taking snapshots. How calls change them is in
`transactions.py`; a long plan is made in a thread.

A store that is shared has other writers. There a record may be behind: nothing is answered from it before the store was asked
for the version, or has taken an append at it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numba
import numpy as np
import structlog

from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.version import __version__
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.background import Background
from safe_psrl_server.census import Census
from safe_psrl_server.config import Limits, SnapshotPolicy
from safe_psrl_server.errors import (
    DataLossError,
    LimitExceededError,
    UnavailableError,
)
from safe_psrl_server.folding import folded
from safe_psrl_server.hosted import Hosted, HostedAgents, for_each, no_agent, reached
from safe_psrl_server.metrics.meter import Meter
from safe_psrl_server.planners import Planners, TimedPlan
from safe_psrl_server.promises import Decide, Promises, Reply, Told
from safe_psrl_server.snapshot import restored, snapshot_of
from safe_psrl_server.store import (
    DamagedStreamError,
    EventStore,
    StoreFailedError,
    StoreUnavailableError,
)
from safe_psrl_server.transactions import Transactions
from safe_psrl_server.vigil import Vigil

PLANNED_BY = f"safe-psrl {__version__}, numpy {np.__version__}, numba {numba.__version__}"
SNAPSHOTS_AT_ONCE = 64  # so that they share commits
STEPS_AN_EVENT = 4  # of a trajectory that are read in the time of an event: so that a long one does not put snapshots off
LARGE_TABLE = 100_000  # entries of an agent whose snapshot is made in a thread: a millisecond or more
REFRESH_PAUSE = 9  # times what a refresh took: it may have a tenth of the time

log = structlog.get_logger()


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
        self._background = Background()
        promises = Promises(limits.call_seconds)
        self._transactions = Transactions(store, self._agents, self.meter, promises, self._background, self._save_if_long)

    # --- life

    def keep_vigils(self) -> None:
        """Let the loop stay awake for callers who are alone. For a process that has nothing else to do."""
        self._transactions.vigil = Vigil(asyncio.get_running_loop())

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
        await self._background.ended()
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
        self._transactions.apply_answered()
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
        """What `Transactions.decide` does, of a host that is ready."""
        self.check_ready()
        return self._transactions.decide(name, decide, may_create=may_create)

    def answer(self, name: str, decide: Decide[Reply], answer: Callable[[Reply], Told]) -> "asyncio.Future[Told]":
        self.check_ready()
        return self._transactions.answer(name, decide, answer)

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

    def _save_if_long(self, agent: Hosted, record: AgentRecord) -> None:
        """A snapshot, if too much would have to be read without."""
        to_read = max(record.version - agent.snapshot_version, agent.unsaved_steps // STEPS_AN_EVENT)
        if to_read >= self._snapshots.every_events:
            self._background.start(self.snapshot(agent.name))

    def _is_ours_to_save(self, agent: Hosted) -> bool:
        """Of replicas, the one that changes an agent takes its snapshots."""
        return agent.was_changed_here or not self._store.is_shared

    def check_ready(self) -> None:
        """Raise while agents are being read, and once the host is closed."""
        if not self.ready:
            raise UnavailableError("the server is starting or stopping; try again", "NOT_READY")


async def _in_thread_if(large: bool, work: Callable[[], Reply]) -> Reply:
    return await asyncio.to_thread(work) if large else work()


def _is_large(record: AgentRecord) -> bool:
    return record.exists and record.definition.table_entries > LARGE_TABLE
