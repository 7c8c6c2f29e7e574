"""The status of all agents for any number of watchers: computed once for all, and only where an agent has changed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, NamedTuple

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.registry import Agent
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.status import status_of
from safe_psrl_server.errors import UnavailableError
from safe_psrl_server.rpc.errors import draining
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.roles import Role

SHORTEST_SECONDS: Final = 0.1  # between two computations
AGENTS_PER_PASS: Final = 16  # before the event loop serves others
AGENTS_PER_MESSAGE: Final = 100


class _Entry(NamedTuple):
    """An agent's status, and the revision of the feed in which it changed."""

    seen: tuple[Agent, object, int]
    status: admin_pb2.AgentStatus
    revision: int


class StatusFeed:
    """Statuses by agent. Each computation that finds a change has a number, its revision."""

    def __init__(self, agents: AgentService) -> None:
        self._agents = agents
        self._entries: dict[str, _Entry] = {}
        self._revision = 0
        self._computed = -1.0  # time
        self._computing = asyncio.Lock()

    async def watch(self, interval: float, wanted: set[str]) -> AsyncIterator[admin_pb2.WatchAgentsResponse]:
        """All statuses that the caller may read, then those that change, until the server drains or the watch ends."""
        loop = asyncio.get_running_loop()
        ends, seen, shown, first = loop.time() + self._agents.limits.watch_seconds, 0, set[str](), True
        while not self._agents.draining.is_set():
            await self._compute(0.0 if first else SHORTEST_SECONDS)
            identity, current = caller().identity, self._revision
            fresh = [entry.status for entry in self._entries.values() if entry.revision > seen]
            changed = [
                status for status in fresh if (not wanted or status.agent in wanted) and identity.may(Role.READ, status.agent)
            ]
            gone = sorted(name for name in shown if name not in self._entries) if current > seen else []
            shown |= {status.agent for status in changed}
            shown -= set(gone)
            for start in range(0, max(len(changed), 1), AGENTS_PER_MESSAGE):
                part = changed[start : start + AGENTS_PER_MESSAGE]
                if part or gone or first:
                    yield admin_pb2.WatchAgentsResponse(agents=part, deleted=gone)
                first, gone = False, []
            seen = current
            if loop.time() >= ends:
                raise UnavailableError("the watch has lasted long enough; watch again", "WATCH_ENDED")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._agents.draining.wait(), interval)
        raise draining()

    async def _compute(self, age_seconds: float) -> None:
        """Bring the entries up to date, unless another watcher did so within `age_seconds`."""
        loop = asyncio.get_running_loop()
        async with self._computing:
            if loop.time() - self._computed < age_seconds:
                return
            following, names = self._revision + 1, set[str]()
            for number, agent in enumerate(self._agents.agents()):
                names.add(agent.name)
                state = agent, agent.record, agent.record.version if agent.record is not None else 0
                known = self._entries.get(agent.name)
                if known is None or known.seen != state:
                    self._entries[agent.name] = _Entry(state, status_of(agent), following)
                    self._revision = following
                if number % AGENTS_PER_PASS == 0:
                    await asyncio.sleep(0)
            for name in self._entries.keys() - names:
                del self._entries[name]
                self._revision = following
            self._computed = loop.time()
