"""Staying awake for whoever calls alone: while it is of use, and no longer."""

import asyncio
import gc
import os
from collections.abc import Callable
from typing import Any

import pytest

from safe_psrl_server.config import load_config
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.server import Server
from safe_psrl_server.vigil import GIVEN_AWAY, LONGEST, LOOK_AGAIN, Vigil


class Loop:
    """Whose passes are made by the test, and whose clock goes on by as much as a pass takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.yielding = 1e-6  # seconds
        self.soon: list[Callable[[], None]] = []
        monkeypatch.setattr(os, "sched_yield", self.give_way)

    def call_soon(self, do: Callable[[], None]) -> None:
        self.soon.append(do)

    def give_way(self) -> None:
        self.now += self.yielding

    def turn(self) -> bool:
        """A pass. Whether there was anything to do: else the loop sleeps."""
        soon, self.soon = self.soon, []
        for do in soon:
            do()
        return bool(soon)

    def fall_asleep(self) -> float:
        """The seconds until the loop has nothing to do."""
        began = self.now
        while self.turn():
            pass
        return self.now - began


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


@pytest.fixture
def vigil(loop: Any) -> Vigil:
    return Vigil(loop, lambda: loop.now)


def test_the_loop_stays_awake_as_long_as_calls_come_soon(loop: Loop, vigil: Vigil) -> None:
    """By one pass after the other, however often it is told."""
    for _ in range(10 * LOOK_AGAIN):
        vigil.answered()
        assert len(loop.soon) == 1
        loop.now += 0.9 * LONGEST
        assert loop.turn()
    assert loop.fall_asleep() == pytest.approx(0.1 * LONGEST, rel=0.1)


def test_a_caller_who_takes_long_is_not_waited_for_but_now_and_then(loop: Loop, vigil: Vigil) -> None:
    awake = list[float]()
    for _ in range(2 * LOOK_AGAIN + 3):
        vigil.answered()
        awake.append(loop.fall_asleep())
        loop.now += 10 * LONGEST
    kept = [number for number, seconds in enumerate(awake) if seconds]
    assert kept == [0, LOOK_AGAIN + 1, 2 * (LOOK_AGAIN + 1)]
    assert max(awake) == pytest.approx(LONGEST, rel=0.01)


def test_another_program_that_needs_the_processor_has_it(loop: Loop, vigil: Vigil) -> None:
    """Giving way to it took long: there is no vigil after that for a while, even if calls come soon."""
    vigil.answered()
    loop.yielding = GIVEN_AWAY
    assert loop.turn()
    assert not loop.turn()
    for _ in range(LOOK_AGAIN):
        vigil.answered()
        assert not loop.turn()
    vigil.answered()
    assert loop.turn()


async def test_others_are_served_meanwhile() -> None:
    vigil, order = Vigil(asyncio.get_running_loop()), list[str]()
    vigil.answered()
    for name in ("one", "two", "three"):
        await asyncio.sleep(0)
        order.append(name)
    assert order == ["one", "two", "three"]


async def test_a_service_of_its_own_process_keeps_vigils(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"store": "memory:", "listen": "127.0.0.1:0", "metrics": ""}
    server = Server(load_config(None, {}, settings))
    monkeypatch.setattr(server, "until", lambda _stopping: asyncio.sleep(0))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    await server.run()
    assert server.host._transactions.vigil is not None


def test_one_inside_another_program_does_not() -> None:
    """Which has other work for the processor and the interpreter."""
    with EmbeddedServer() as server:
        assert server._server.host._transactions.vigil is None
