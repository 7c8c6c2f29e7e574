"""Faults of the clock: it jumps by seconds, hours, days and a year, there and back."""

import time
from typing import Final

from tests.faults.checker import gauges_of
from tests.faults.disks import Shimmed
from tests.system.server_process import wait_until

JUMPS: Final = (-400 * 86_400, -86_400, -3_601, -5, 5, 3_601, 86_400, 400 * 86_400)
STEADY: Final = 60.0  # seconds


class ClockJumps(Shimmed):
    """The wall clock of the server jumps while episodes are open, whose time-out is an hour. It jumps back half of the time.

    The times of events go on: the server reads the wall clock once, when it starts.
    """

    title = "clock jumps by -400 to 400 days (shim)"
    short_rounds = 2

    def strike(self) -> float:
        wait_until(lambda: self._newest() > 0, 30, "an event is stored")
        before = self._newest()
        self.shim.shift = self.chosen.choice(JUMPS) if self.shim.shift == 0 or self.chosen.random() < 0.5 else 0
        struck = time.monotonic()
        wait_until(lambda: self._newest() > before, 30, "an event is stored after the clock has jumped")
        assert self._newest() < before + STEADY, "the time of an event has jumped"
        return struck

    def _newest(self) -> float:
        """The time of the newest event."""
        _, metrics = self.server.http("/metrics")
        times = [value for (name, _, _), value in gauges_of(metrics).items() if name == "last_transition_timestamp_seconds"]
        return max(times, default=0.0)
