"""Statuses of many agents: the order, the filters and the pages of `ListAgents`, and the feed of `WatchAgents`.

Each watcher receives all statuses once, then those that changed.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.residency import Agent
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.agents.status import status_of
from safe_psrl_server.agents.summaries import status_in
from safe_psrl_server.errors import InvalidArgumentError, UnavailableError
from safe_psrl_server.rpc.errors import draining
from safe_psrl_server.security.caller import caller
from safe_psrl_server.security.roles import Role
from safe_psrl_server.store import Order, Summary, SummaryQuery, key_of

ORDERS: Final = {
    admin_pb2.AGENT_ORDER_UNSPECIFIED: Order.AGENT,
    admin_pb2.AGENT_ORDER_CONDITION: Order.CONDITION,
    admin_pb2.AGENT_ORDER_COST_RATIO: Order.COST_RATIO,
    admin_pb2.AGENT_ORDER_CHANGED: Order.CHANGED,
    admin_pb2.AGENT_ORDER_CREATED: Order.CREATED,
    admin_pb2.AGENT_ORDER_EVENTS: Order.EVENTS,
    admin_pb2.AGENT_ORDER_SIZE: Order.SIZE,
}
PREFIX: Final = re.compile(r"[A-Za-z0-9._:/-]{0,128}")
TOKEN: Final = re.compile(r"(-?[0-9][0-9.e+-]{0,30}) (.{1,128})")
AGENTS_PER_PASS: Final = 16  # before the event loop serves others
AGENTS_PER_MESSAGE: Final = 100
MOST_STATUSES: Final = 10_000  # kept for the other watchers
Messages = AsyncIterator[admin_pb2.WatchAgentsResponse]


def query_of(request: admin_pb2.ListAgentsRequest, limit: int) -> SummaryQuery:
    """The query of a listing request. Raises `InvalidArgumentError`."""
    order = ORDERS.get(request.order_by)
    if order is None:
        raise InvalidArgumentError("order_by", f"must be one of AgentOrder, got {request.order_by}")
    if request.condition not in admin_pb2.AgentCondition.values():
        raise InvalidArgumentError("condition", f"must be one of AgentCondition, got {request.condition}")
    if not PREFIX.fullmatch(request.prefix):
        raise InvalidArgumentError("prefix", "must be at most 128 letters, digits and . _ - : /")
    ratio = request.min_cost_ratio if request.HasField("min_cost_ratio") else None
    if ratio is not None and not ratio >= 0:
        raise InvalidArgumentError("min_cost_ratio", f"must be at least 0, got {ratio}")
    query = SummaryQuery(limit, request.prefix, request.condition, ratio, order, request.descending)
    return query._replace(after=_key_in(request.page_token, order)) if request.page_token else query


def token_of(last: Summary, query: SummaryQuery) -> str:
    """The token of the page that comes after `last`."""
    value, agent = key_of(last, query.order)
    return agent if query.order is Order.AGENT else f"{value!r} {agent}"


def _key_in(token: str, order: Order) -> tuple[float | str, str]:
    if order is Order.AGENT and PREFIX.fullmatch(token):
        return token, token
    found = TOKEN.fullmatch(token)
    try:
        if found is not None and order is not Order.AGENT and PREFIX.fullmatch(found[2]):
            return float(found[1]) if order is Order.COST_RATIO else int(found[1]), found[2]
    except ValueError:
        pass
    raise InvalidArgumentError("page_token", "must be that of an earlier reply to a request with the same order")


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
        """All statuses, in at least one message. If an agent changes or is deleted meanwhile, the next message reports that."""
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
        """The statuses of those agents that exist."""
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
        """The agent's status, computed once for all watchers."""
        state = (agent.record.created_micros, agent.record.version, "") if agent.record is not None else (0, 0, agent.damage)
        known = self._entries.pop(agent.name, None)
        if known is None or known.seen != state:
            known = _Entry(state, status_of(agent))
        self._entries[agent.name] = known
        if len(self._entries) > MOST_STATUSES:
            del self._entries[next(iter(self._entries))]
        return known.status
