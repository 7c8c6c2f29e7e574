"""The fair lock of an agent: whoever asks first is served first, whatever becomes of those who wait."""

import asyncio

import pytest

from safe_psrl_server.turns import Turns


async def test_a_free_turn_is_taken_at_once() -> None:
    """Without waiting; whoever comes then gets a place."""
    turns = Turns()
    assert turns.take() is None
    place = turns.take()
    assert place is not None
    assert not place.done()
    turns.give()
    assert place.done()


async def test_turns_come_in_the_order_of_asking() -> None:
    """Also of those who ask for a place now and wait for it later."""
    turns, order = Turns(), list[int]()
    assert turns.take() is None
    places = [turns.take() for _ in range(5)]

    async def play(number: int) -> None:
        await turns.arrival(places[number])
        order.append(number)
        turns.give()

    players = [asyncio.create_task(play(number)) for number in (3, 1, 4, 0, 2)]
    await asyncio.sleep(0)
    turns.give()
    await asyncio.gather(*players)
    assert order == [0, 1, 2, 3, 4]
    assert turns.take() is None


@pytest.mark.parametrize("handed", [False, True])
async def test_who_goes_away_is_passed_over(handed: bool) -> None:
    """Before the turn came, or just as it was handed over."""
    turns = Turns()
    assert turns.take() is None
    place = turns.take()
    waiting = asyncio.create_task(turns.arrival(place))
    after = turns.take()
    await asyncio.sleep(0)
    if handed:
        turns.give()
    waiting.cancel()
    await asyncio.wait([waiting])
    if not handed:
        turns.give()
    assert after is not None
    assert after.done()
    turns.give()
    assert turns.take() is None


async def test_it_is_given_back_after_an_error() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="inside"):
        async with turns:
            raise ValueError("inside")
    assert turns.take() is None
