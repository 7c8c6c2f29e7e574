"""Replies that are promised: kept, or called late in time, whatever becomes of the caller."""

import asyncio

import pytest

from safe_psrl_server.errors import DeadlineError
from safe_psrl_server.promises import LATE, MOST_LATE, Promises


async def test_a_promise_that_is_kept_gives_its_reply() -> None:
    """And is forgotten: nothing of it is kept until the time is over."""
    promises = Promises(30.0)
    promise = promises.make()
    promise.settle("reply", None)
    assert await promise.future == "reply"
    assert not promises._waiting


@pytest.mark.parametrize("seconds", [0.05, 0.2])
async def test_whoever_waits_too_long_is_told_so(seconds: float) -> None:
    """Not before the time is over, and a little later at most; what comes then is not told any more."""
    promises, loop = Promises(seconds), asyncio.get_running_loop()
    first = promises.make()
    await asyncio.sleep(LATE * seconds / 2)
    second, began = promises.make(), loop.time()
    with pytest.raises(DeadlineError, match=f"not done within {seconds:g} s; it goes on"):
        await asyncio.wait_for(second.future, 10)
    assert loop.time() - began >= seconds * 0.99  # of a clock in milliseconds
    assert isinstance(first.future.exception(), DeadlineError)
    second.settle("late", None)
    assert isinstance(second.future.exception(), DeadlineError)


async def test_those_of_a_later_time_have_a_later_end() -> None:
    """Promises share a timer with those of about the same time only."""
    promises = Promises(0.2)
    early = promises.make()
    await asyncio.sleep(3 * LATE * 0.2)
    late = promises.make()
    await asyncio.wait([early.future], timeout=10)
    assert early.future.done()
    assert not late.future.done()
    assert pytest.approx(MOST_LATE) == Promises(1000.0)._width, "the longer the time, the coarser it may be, up to a second"


async def test_work_that_is_cancelled_cancels_its_promise() -> None:
    promises = Promises(30.0)
    promise = promises.make()
    work = asyncio.create_task(asyncio.sleep(30))
    promise.follow(work)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await promise.future
    assert not promises._waiting
