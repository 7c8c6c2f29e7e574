"""How the system's scheduler treats the threads of this process. On Linux; elsewhere nothing is asked for."""

import os
import sys
from contextlib import suppress


def wake_without_interrupting() -> None:
    """From now on a thread that wakes waits until the one that runs has nothing more to do; for this one, and those it starts.

    gRPC wakes a thread for every part of every call. If each of them interrupts the loop, half a dozen times a call, a
    quarter of the throughput is lost; a call that is alone takes as long as before.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # a system that does not allow it serves all the same
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def run_when_idle() -> None:
    """This thread runs when no other wants the core, and is interrupted as soon as one does."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
