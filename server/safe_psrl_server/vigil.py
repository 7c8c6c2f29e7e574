"""Staying awake for whoever calls alone, one call after the other.

A loop with nothing to do sleeps, and its processor with it. On a virtual machine it takes both tens of microseconds to wake;
a caller who is alone waits for that at every call. So after an answer to such a caller the loop stays awake for the next call,
if that usually comes soon, and gives way to every other thread meanwhile.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

LONGEST: Final = 0.002  # seconds from one answer to the next: about twice what they take from a caller nearby
GIVEN_AWAY: Final = 0.001  # seconds without the processor, after which another program is taken to need it
LOOK_AGAIN: Final = 16  # calls alone after a vigil that was of no use, until the next one


class Vigil:
    """Of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter) -> None:
        self._loop = loop
        self._clock = clock
        self._is_kept = False
        self._until = 0.0
        self._calls_asleep = 0  # that are still to come

    def answered(self) -> None:
        """Somebody who is alone was."""
        if self._calls_asleep:
            self._calls_asleep -= 1
            return
        self._until = self._clock() + LONGEST
        if not self._is_kept:
            self._is_kept = True
            self._loop.call_soon(self._keep)

    def _keep(self) -> None:
        """A pass of the loop."""
        before = self._clock()
        os.sched_yield()  # to the threads that bring calls, and to all others
        now = self._clock()
        if now < self._until and now - before < GIVEN_AWAY:
            self._loop.call_soon(self._keep)
        else:
            self._is_kept, self._calls_asleep = False, LOOK_AGAIN
