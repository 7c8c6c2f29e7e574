"""Giving way inside long compiled loops.

Linux interrupts a thread of idle time (`SCHED_IDLE`) when another one wakes. But where one woke while a third was running, the
idle thread may get the core before it, and keeps it until the clock ticks: for up to 4 ms, if it does not give way by itself.
"""

import sys
from typing import Any, Final

from numba import types

from safe_psrl.compiled import compiled

THIS_THREAD: Final = 0
SCHED_IDLE: Final = 5

policy_of: Any = types.ExternalFunction("sched_getscheduler", types.int32(types.int32))
yield_core: Any = types.ExternalFunction("sched_yield", types.int32())

if sys.platform == "linux":

    @compiled
    def give_way() -> None:
        """Let others have the core if this thread is one of idle time. Any other has a right to its time, and keeps it."""
        if policy_of(THIS_THREAD) == SCHED_IDLE:
            yield_core()

else:

    @compiled
    def give_way() -> None:
        """Nothing: threads of idle time are asked for on Linux only."""


@compiled
def done_since(done: int, at_a_stretch: int) -> int:
    """How much was done since this thread gave way last: `done`, or nothing, if that was enough for it to give way now."""
    if done < at_a_stretch:
        return done
    give_way()
    return 0
