"""The one connection to the service, whatever the number of browsers: watches all agents, and begins again when it breaks."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, cast

from safe_psrl_client import AsyncClient, SafePsrlClientError
from safe_psrl_console.fleet import Fleet
from safe_psrl_proto.v1 import admin_pb2

INTERVAL: Final = 1.0  # seconds between replies
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 3.0
SILENCE: Final = 4.0  # seconds without a first reply after which nobody is said to be there


async def watch(client: AsyncClient, fleet: Fleet) -> None:
    """Feed `fleet` until cancelled."""
    pause = FIRST_PAUSE
    while True:
        failure = await _watch_once(client, fleet)
        pause = FIRST_PAUSE if fleet.connected else min(2 * pause, LONGEST_PAUSE)
        fleet.lose(failure, time.time())
        await asyncio.sleep(random.uniform(pause / 2, pause))


async def _watch_once(client: AsyncClient, fleet: Fleet) -> str:
    """Until the connection breaks; why it did."""
    replies = cast("AsyncGenerator[admin_pb2.WatchAgentsResponse]", client.watch_agents(interval=INTERVAL))
    try:
        async with aclosing(replies):
            first = await asyncio.wait_for(anext(replies), SILENCE)  # the call itself would wait for a server for ever
            fleet.begin(first, time.time())
            async for reply in replies:
                fleet.apply(reply, time.time())
    except TimeoutError:
        return "no answer"
    except SafePsrlClientError as error:
        return str(error)
    except StopAsyncIteration:
        pass
    return "the service ended the watch"
