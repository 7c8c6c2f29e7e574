"""The inbox: what calls cannot show of order, batches and holding an agent."""

import asyncio
from typing import Any

import pytest

from safe_psrl_server.agents.inbox import Call, Decision, Inbox


def call(agent: str) -> Call[None]:
    return Call(agent, lambda _record: Decision([], None), False, asyncio.get_running_loop().create_future())


async def test_a_held_agent_does_not_hold_up_the_others() -> None:
    inbox, held, other = Inbox(), call("a"), call("b")
    await inbox.hold("a")
    inbox.put(held)
    inbox.put(other)
    assert await inbox.take() == [other]
    inbox.release("a")
    assert await inbox.take() == [held]


async def test_a_call_that_is_put_back_is_the_agents_next() -> None:
    inbox, first, second = Inbox(), call("a"), call("a")
    inbox.put(first)
    inbox.put(second)
    assert await inbox.take() == [first]
    inbox.put_back(first)
    inbox.release("a")
    assert await inbox.take() == [first]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_holder_that_is_cancelled_holds_nothing(granted: bool) -> None:
    inbox = Inbox()
    await inbox.hold("a")
    waiting: asyncio.Task[Any] = asyncio.create_task(inbox.hold("a"))
    await asyncio.sleep(0)
    if granted:
        inbox.release("a")
        waiting.cancel()
    else:
        waiting.cancel()
        await asyncio.wait([waiting])
        inbox.release("a")
    await asyncio.wait([waiting])
    await asyncio.wait_for(inbox.wait_until_idle(), 10)


async def test_idle_means_no_call_and_no_held_agent() -> None:
    inbox = Inbox()
    await asyncio.wait_for(inbox.wait_until_idle(), 10)
    inbox.put(call("a"))
    idle = asyncio.create_task(inbox.wait_until_idle())
    await inbox.take()
    await asyncio.sleep(0)
    assert not idle.done()
    inbox.release("a")
    await asyncio.wait_for(idle, 10)


async def test_after_a_shared_batch_the_next_one_waits_to_grow() -> None:
    """Calls that arrive within the gathering time share its commit; a lone call does not wait after a lone call."""
    inbox = Inbox()
    for name in "ab":
        inbox.put(call(name))
    assert len(await inbox.take()) == 2
    for name in "ab":
        inbox.release(name)
    inbox.put(call("a"))
    taking = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.put(call("b"))
    assert len(await taking) == 2
