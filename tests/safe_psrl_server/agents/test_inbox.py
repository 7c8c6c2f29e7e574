"""The inbox: order, batches, holding an agent."""

import asyncio
from typing import Any

import pytest

from safe_psrl_server.agents.decisions import Decision
from safe_psrl_server.agents.inbox import Inbox


@pytest.fixture
async def inbox() -> Inbox:
    made = Inbox(call_seconds=60.0)
    made.rejection = None
    return made


def put(inbox: Inbox, agent: str) -> "asyncio.Future[None]":
    return inbox.submit(agent, lambda _record: Decision([], None))


async def take(inbox: Inbox) -> "list[asyncio.Future[Any]]":
    return [call.future for call in await inbox.take()]


async def hold(inbox: Inbox, until: asyncio.Event) -> None:
    async with inbox.exclusive("a"):
        await until.wait()


async def test_a_batch_has_one_call_of_each_agent_in_order_of_arrival(inbox: Inbox) -> None:
    calls = [put(inbox, agent) for agent in "aba"]
    assert await take(inbox) == calls[:2]
    inbox.release("a")
    inbox.release("b")
    assert await take(inbox) == calls[2:]


async def test_a_held_agent_does_not_delay_the_others(inbox: Inbox) -> None:
    async with inbox.exclusive("a"):
        held, other = put(inbox, "a"), put(inbox, "b")
        assert await take(inbox) == [other]
    assert await take(inbox) == [held]


async def test_a_call_that_is_put_back_is_the_agents_next(inbox: Inbox) -> None:
    first, _ = put(inbox, "a"), put(inbox, "a")
    (call,) = await inbox.take()
    inbox.put_back(call)
    inbox.release("a")
    assert await take(inbox) == [first]


async def test_a_holder_that_waits_goes_before_calls(inbox: Inbox) -> None:
    """Otherwise an agent that is called without pause would never get a snapshot."""
    for _ in range(3):
        put(inbox, "a")
    await inbox.take()
    done = asyncio.Event()
    holding = asyncio.create_task(hold(inbox, done))
    await asyncio.sleep(0)
    taking = asyncio.create_task(inbox.take())
    inbox.release("a")
    await asyncio.sleep(0)
    assert not taking.done()
    done.set()
    await holding
    assert len(await taking) == 1


@pytest.mark.parametrize("granted", [False, True])
async def test_a_holder_that_is_cancelled_holds_nothing(inbox: Inbox, granted: bool) -> None:
    done = asyncio.Event()
    first = asyncio.create_task(hold(inbox, done))
    waiting = asyncio.create_task(hold(inbox, asyncio.Event()))
    await asyncio.sleep(0)
    if granted:
        done.set()
        await first
        waiting.cancel()
    else:
        waiting.cancel()
        await asyncio.wait([waiting])
        done.set()
    await asyncio.wait([waiting, first])
    await asyncio.wait_for(inbox.wait_until_idle(), 10)


async def test_idle_means_no_call_and_no_held_agent(inbox: Inbox) -> None:
    await asyncio.wait_for(inbox.wait_until_idle(), 10)
    put(inbox, "a")
    idle = asyncio.create_task(inbox.wait_until_idle())
    await inbox.take()
    await asyncio.sleep(0)
    assert not idle.done()
    inbox.release("a")
    await asyncio.wait_for(idle, 10)


async def test_after_a_shared_batch_the_next_one_waits_to_grow(inbox: Inbox) -> None:
    """Calls that arrive within the gathering time share its commit."""
    for agent in "ab":
        put(inbox, agent)
    assert len(await inbox.take()) == 2
    for agent in "ab":
        inbox.release(agent)
    put(inbox, "a")
    taking = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    put(inbox, "b")
    assert len(await taking) == 2


async def test_callers_that_alternate_come_to_share_a_batch(inbox: Inbox) -> None:
    """A batch waits for the agents of the previous two, so that batches do not stay as small as they happened to begin."""
    for pair in ("ab", "cd"):
        for agent in pair:
            put(inbox, agent)
        assert len(await inbox.take()) == 2
    for agent in "abcd":
        inbox.release(agent)
    for agent in "ab":
        put(inbox, agent)
    taking = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    for agent in "cd":
        put(inbox, agent)
    assert len(await taking) == 4


async def test_a_batch_that_does_not_grow_is_taken_after_the_gathering_time(inbox: Inbox) -> None:
    for agent in "ab":
        put(inbox, agent)
    await inbox.take()
    inbox.release("a")
    only = put(inbox, "a")
    assert await asyncio.wait_for(take(inbox), 10) == [only]
