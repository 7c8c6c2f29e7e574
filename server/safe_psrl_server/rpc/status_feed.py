"""The status of all agents for any number of watchers: all of them once, then those that changed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.agent import Agent
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.status import status_of
from safe_psrl_server.agents.summaries import status_in
from safe_psrl_server.errors import UnavailableError
from safe_psrl_server.rpc.errors import draining
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.roles import Role
from safe_psrl_server.store import Order, SummaryQuery, key_of

AGENTS_PER_PASS: Final = 16  # before the event loop serves others
AGENTS_PER_MESSAGE: Final = 100
MOST_STATUSES: Final = 10_000  # kept for the other watchers
Messages = AsyncIterator[admin_pb2.WatchAgentsResponse]


class _Entry(NamedTuple):
    """An agent's status, and what it was computed from."""

    seen: tuple[int, int, str]  # time of creation, version, damage
    status: admin_pb2.AgentStatus


class StatusFeed:
    """Statuses of agents that are not in memory come from their summaries."""

    def __init__(self, agents: AgentService) -> None:
        self._agents = agents
        self._entries: dict[str, _Entry] = {}  # of agents that changed lately

    async def watch(self, interval: float, wanted: set[str]) -> Messages:
        """All statuses that the caller may read, then those that change, until the server drains or the watch ends."""
        loop, log = asyncio.get_running_loop(), self._agents.summaries.changes
        ends, seen = loop.time() + self._agents.limits.watch_seconds, -1
        while not self._agents.draining.is_set():
            changes, identity = log.since(seen), caller().identity

            def shown(name: str) -> bool:
                return (not wanted or name in wanted) and identity.may(Role.READ, name)  # noqa: B023  # used at once

            is_first, seen = seen < 0 or not changes.complete, log.revision
            if is_first:
                messages = self._everything(wanted, shown)
            else:
                messages = self._changes(list(filter(shown, changes.changed)), list(filter(shown, changes.deleted)))
            async for message in messages:
                yield message
            if loop.time() >= ends:
                raise UnavailableError("the watch has reached its maximum duration; watch again", "WATCH_ENDED")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._agents.draining.wait(), interval)
        raise draining()

    async def _everything(self, wanted: Collection[str], shown: Callable[[str], bool]) -> Messages:
        """At least one message. An agent in it may have been changed or deleted since: the next message reports that."""
        query, is_empty = SummaryQuery(AGENTS_PER_MESSAGE), True
        while True:
            page = await (self._agents.summaries_of(wanted) if wanted else self._agents.find(query))
            statuses = [status_in(summary) for summary in page if shown(summary.agent)]
            if statuses:
                is_empty = False
                yield admin_pb2.WatchAgentsResponse(agents=statuses)
            if wanted or len(page) < query.limit:
                break
            query = query._replace(after=key_of(page[-1], Order.AGENT))
        if is_empty:
            yield admin_pb2.WatchAgentsResponse()

    async def _changes(self, changed: list[str], deleted: list[str]) -> Messages:
        for start in range(0, max(len(changed), 1), AGENTS_PER_MESSAGE):
            statuses = await self._statuses(changed[start : start + AGENTS_PER_MESSAGE])
            if statuses or deleted:
                yield admin_pb2.WatchAgentsResponse(agents=statuses, deleted=deleted)
            deleted = []

    async def _statuses(self, names: list[str]) -> list[admin_pb2.AgentStatus]:
        """Of those that exist."""
        statuses, absent = list[admin_pb2.AgentStatus](), list[str]()
        for number, name in enumerate(names, 1):
            agent = self._agents.registry.members.find(name)
            if agent is None:
                absent.append(name)
            elif agent.exists:
                statuses.append(self._status(agent))
            if number % AGENTS_PER_PASS == 0:
                await asyncio.sleep(0)
        if absent:
            statuses += [status_in(summary) for summary in await self._agents.summaries_of(absent)]
        return statuses

    def _status(self, agent: Agent) -> admin_pb2.AgentStatus:
        """Computed once for all watchers."""
        state = (agent.record.created_micros, agent.record.version, "") if agent.record is not None else (0, 0, agent.damage)
        known = self._entries.pop(agent.name, None)
        if known is None or known.seen != state:
            known = _Entry(state, status_of(agent))
        self._entries[agent.name] = known
        if len(self._entries) > MOST_STATUSES:
            del self._entries[next(iter(self._entries))]
        return known.status
