"""The one connection to the service, for any number of browsers: watches all agents, and reconnects when it breaks."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, cast

from safe_psrl_client import AsyncClient, InvalidArgumentError, SafePsrlClientError
from safe_psrl_client.visible_text import visible
from safe_psrl_console.fleet import Fleet
from safe_psrl_proto.v1 import admin_pb2

INTERVAL_SECONDS: Final = 1.0  # between replies
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 3.0
MOST_WATCHED: Final = 2_000  # agents
LIST_SECONDS: Final = 3.0  # between two lists of a larger fleet
FIRST_REPLY_SECONDS: Final = 4.0  # after which the service counts as unreachable


@dataclass(frozen=True)
class Connection:
    """Shared by all pages: the fleet, and the client for what it does not hold."""

    client: AsyncClient
    fleet: Fleet


async def watch(connection: Connection) -> None:
    """Feed the fleet until cancelled."""
    fleet, pause = connection.fleet, FIRST_PAUSE_SECONDS
    while True:
        failure = await _watch_once(connection.client, fleet)
        pause = FIRST_PAUSE_SECONDS if fleet.connected else min(2 * pause, LONGEST_PAUSE_SECONDS)
        fleet.lose(failure, time.time())
        await asyncio.sleep(random.uniform(pause / 2, pause))


async def _watch_once(client: AsyncClient, fleet: Fleet) -> str:
    """Watch until the connection breaks; returns the reason."""
    try:
        async with asyncio.timeout(FIRST_REPLY_SECONDS):
            statuses = await _worst(client)
        if len(statuses) > MOST_WATCHED:
            return await _list_again_and_again(client, fleet)
    except TimeoutError:
        return "no answer"
    except SafePsrlClientError as error:
        return visible(str(error))
    fleet.shown = 0
    replies = cast("AsyncGenerator[admin_pb2.WatchAgentsResponse]", client.watch_agents(interval=INTERVAL_SECONDS))
    try:
        async with aclosing(replies):
            first = await asyncio.wait_for(anext(replies), FIRST_REPLY_SECONDS)
            fleet.begin(with_visible_texts(first), time.time())
            async for reply in replies:
                fleet.apply(with_visible_texts(reply))
    except TimeoutError:
        return "no answer"
    except SafePsrlClientError as error:
        return visible(str(error))
    except StopAsyncIteration:
        pass
    return "the service ended the watch"


async def _worst(client: AsyncClient) -> list[admin_pb2.AgentStatus]:
    """The agents with the greatest share of their budgets: all, or MOST_WATCHED and one more."""
    order, found = admin_pb2.AGENT_ORDER_COST_RATIO, list[admin_pb2.AgentStatus]()
    async for status in client.list_agents(order_by=order, descending=True):
        found.append(status)
        if len(found) > MOST_WATCHED:
            break
    return found


async def _list_again_and_again(client: AsyncClient, fleet: Fleet) -> str:
    """Too many agents to hold here and in a browser: the closest to their budgets, and those whose pages were opened."""
    while len(statuses := await _worst(client)) > MOST_WATCHED:
        statuses, wanted = statuses[:MOST_WATCHED], list(fleet.wanted)
        listed = {status.agent for status in statuses}
        for name in wanted:
            if name not in listed:
                with suppress(InvalidArgumentError):  # a page was opened whose address is not an agent's name
                    found = await anext(aiter(client.list_agents(prefix=name, page_size=1)), None)
                    statuses += [found] if found is not None and found.agent == name else []
        shown = with_visible_texts(admin_pb2.WatchAgentsResponse(agents=statuses))
        fleet.begin_large(shown.agents, wanted, MOST_WATCHED, time.time())
        await asyncio.sleep(LIST_SECONDS)
    return "the fleet is small enough to be watched"


def with_visible_texts(reply: admin_pb2.WatchAgentsResponse) -> admin_pb2.WatchAgentsResponse:
    """`reply`, whose texts are shown in pages, without control characters. Names that a service accepts do not change."""
    for status in reply.agents:
        status.agent, status.condition_reason = visible(status.agent), visible(status.condition_reason)
        status.method, status.on_detect = visible(status.method), visible(status.on_detect)
        for constraint in status.constraints:
            constraint.name = visible(constraint.name)
    reply.deleted[:] = [visible(name) for name in reply.deleted]
    return reply
