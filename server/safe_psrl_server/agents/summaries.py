"""Stored summaries of agents, kept up to date, and a log of which agents changed, for watches.

A summary is written in the background, soon after the commit that it describes, and before its agent leaves memory. Readers
pass the summaries that are not written yet to the store, where they replace the stored ones, so no reader waits for a write. A
killed process leaves some summaries outdated; the next start finds them by their versions and writes them again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

import structlog

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.residency import Agent
from safe_psrl_server.agents.status import status_of
from safe_psrl_server.store import EventStore, StoreUnavailableError, Summary
from safe_psrl_server.store.summaries import QUARANTINED

FLUSH_SECONDS: Final = 1.0  # the shortest time between two writes of changed summaries
FLUSH_PAUSE: Final = 19  # the pause after a write, times its duration: writes use at most a twentieth of the time
AGENTS_AT_ONCE: Final = 16  # summarised before the event loop handles other work
REPAIRED_AT_ONCE: Final = 500  # agents whose summaries are written together
MOST_NAMES: Final = 100_000  # kept in the log of changes
log = structlog.get_logger()


class Summaries:
    """Changes are noted at once and written by `flush`."""

    def __init__(self, store: EventStore) -> None:
        self.changes = ChangeLog()
        self._store = store
        self._changed: dict[str, Agent] = {}
        self._unsaved: dict[str, Summary] = {}
        self._flushing = asyncio.Lock()

    def note(self, agent: Agent) -> None:
        """The agent has changed, or was created or found damaged."""
        self._changed[agent.name] = agent
        self.changes.changed(agent.name)

    def forget(self, name: str) -> None:
        """The agent was deleted."""
        self._changed.pop(name, None)
        self._unsaved.pop(name, None)
        self.changes.deleted(name)

    def leave(self, agent: Agent) -> None:
        """The agent leaves memory."""
        if self._changed.get(agent.name) is agent:
            del self._changed[agent.name]
            self._summarise(agent)

    async def unsaved(self) -> dict[str, Summary]:
        """The summaries, by agent, of all changes before this call that are not known to be written."""
        for number, name in enumerate(list(self._changed), 1):
            agent = self._changed.pop(name, None)
            if agent is not None and agent.exists:
                self._summarise(agent)
            if number % AGENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return dict(self._unsaved)

    async def flush(self) -> None:
        """Write all changes before this call. Raises `StoreUnavailableError`; unwritten changes are kept for the next call."""
        async with self._flushing:
            rows = await self.unsaved()
            if rows:
                await self._store.save_summaries(list(rows.values()))
            for name, row in rows.items():
                if self._unsaved.get(name) is row:
                    del self._unsaved[name]

    async def run(self) -> None:
        """Write summaries until cancelled."""
        pause = FLUSH_SECONDS
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                await self.flush()
            except StoreUnavailableError as error:
                log.warning("summaries were not written", error=str(error))
            pause = max(FLUSH_SECONDS, FLUSH_PAUSE * (time.monotonic() - began))

    async def repair(self, names: Iterable[str], load: Callable[[str], Awaitable[Agent]]) -> None:
        """Make the summaries of `names` from their agents; write them if there are many. Raises `StoreUnavailableError`."""
        for number, name in enumerate(names, 1):
            agent = await load(name)
            if agent.record is not None and agent.record.version == 0:  # nothing is stored under the name
                self._unsaved[name] = Summary(name, 0, 0, 0.0, 0, 0, 0, b"")
            else:
                self._summarise(agent)
            if number % REPAIRED_AT_ONCE == 0:
                await self.flush()

    def _summarise(self, agent: Agent) -> None:
        """Summarise the agent. An exception is logged and loses only this summary."""
        try:
            new, known = summary_of(agent), self._unsaved.get(agent.name)
        except Exception:
            log.exception("an agent could not be summarised", agent=agent.name)
            return
        if known is None or new.version >= known.version or new.condition == QUARANTINED:
            self._unsaved[agent.name] = new


def summary_of(agent: Agent) -> Summary:
    status = status_of(agent)
    entries = agent.record.definition.table_entries if agent.record is not None else 0
    return Summary(
        agent.name,
        status.version,
        status.condition,
        status.cost_ratio if status.HasField("cost_ratio") else -1.0,
        status.changed_micros,
        status.created_micros,
        entries,
        status.SerializeToString(),
    )


def status_in(summary: Summary) -> admin_pb2.AgentStatus:
    """The status that a summary was made from; nothing but the name if it is damaged."""
    try:
        return admin_pb2.AgentStatus.FromString(summary.payload)
    except Exception:  # noqa: BLE001  # protobuf raises a type of its own for every implementation
        return admin_pb2.AgentStatus(agent=summary.agent)


class Changes(NamedTuple):
    """Names that changed and names that were deleted after a revision; `complete` unless that was too long ago."""

    changed: list[str]
    deleted: list[str]
    complete: bool


class ChangeLog:
    """Every change has a number, its revision. The log keeps the latest changes."""

    def __init__(self) -> None:
        self.revision = 0
        self._revisions: dict[str, int] = {}  # by name, latest last; negative for deletions
        self._forgotten = 0  # the latest revision that is no longer kept

    def changed(self, name: str) -> None:
        self._note(name, 1)

    def deleted(self, name: str) -> None:
        self._note(name, -1)

    def since(self, revision: int) -> Changes:
        """What happened after `revision`."""
        changed, deleted = list[str](), list[str]()
        for name, signed in reversed(self._revisions.items()):
            if abs(signed) <= revision:
                break
            (changed if signed > 0 else deleted).append(name)
        return Changes(sorted(changed), sorted(deleted), revision >= self._forgotten)

    def _note(self, name: str, sign: int) -> None:
        self.revision += 1
        self._revisions.pop(name, None)
        self._revisions[name] = sign * self.revision
        if len(self._revisions) > MOST_NAMES:
            oldest = next(iter(self._revisions))
            self._forgotten = abs(self._revisions.pop(oldest))
