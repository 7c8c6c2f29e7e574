"""Faults of the clock: it jumps by seconds, hours, days and a year, there and back."""

import time
from typing import Final

from tests.faults.checker import gauges_of
from tests.faults.disks import Shimmed
from tests.system.server_process import wait_until

JUMPS: Final = (-400 * 86_400, -86_400, -3_601, -5, 5, 3_601, 86_400, 400 * 86_400)
NEAR: Final = 3.0  # seconds


class ClockJumps(Shimmed):
    """The wall clock of the server jumps while episodes are open, whose time-out is an hour. It jumps back half of the time."""

    title = "clock jumps by -400 to 400 days (shim)"
    short_rounds = 2

    def strike(self) -> float:
        self.shim.shift = self.chosen.choice(JUMPS) if self.shim.shift == 0 or self.chosen.random() < 0.5 else 0
        struck = time.monotonic()
        wait_until(self._has_jumped, 30, "the server's clock jumps")
        return struck

    def _has_jumped(self) -> bool:
        """The time of the newest event is the shifted one: the server does not look at another clock."""
        _, metrics = self.server.http("/metrics")
        times = [value for (name, _, _), value in gauges_of(metrics).items() if name == "last_transition_timestamp_seconds"]
        return any(abs(seen - (time.time() + self.shim.shift)) < NEAR for seen in times)
