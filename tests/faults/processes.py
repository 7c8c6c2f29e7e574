"""Faults of the process: killed, killed while it starts, stopped and continued, restarted."""

import signal
import time
from typing import ClassVar

from tests.faults.fault import Fault, pause


class Killed(Fault):
    """SIGKILL amid calls. It is started again at once."""

    title = "SIGKILL amid calls"
    short_rounds = 3
    restarts_at_the_end = True

    def strike(self) -> float:
        pause(self.chosen.uniform(0.0, 0.01))
        self.server.kill()
        struck = time.monotonic()
        self.server.spawn()
        return struck


class KilledSingle(Killed):
    title = "SIGKILL amid the calls of a single client"
    single_client = True


class KilledWhileStarting(Fault):
    """Killed, and killed again up to three times while it loads its code or reads its store."""

    title = "SIGKILL, again while it starts"
    USUAL: ClassVar[float] = 1.6  # seconds to start

    def strike(self) -> float:
        for _ in range(self.chosen.randint(1, 3)):
            self.server.kill()
            self.server.spawn()
            pause(self.chosen.uniform(0.3, 1.2) * self.USUAL)
        self.server.kill()
        struck = time.monotonic()
        self.server.spawn()
        return struck


class Stopped(Fault):
    """SIGSTOP for longer than clients wait: they call again while their first attempts are still in its sockets."""

    title = "SIGSTOP for 0.5 to 3 s, SIGCONT"
    patience = 1.0

    def strike(self) -> float:
        self.server.signal(signal.SIGSTOP)
        pause(self.chosen.uniform(0.5, 3.0))
        self.server.signal(signal.SIGCONT)
        return time.monotonic()


class Restarted(Fault):
    """As an operator does: it drains, takes snapshots, and comes back."""

    title = "SIGTERM and start"

    def strike(self) -> float:
        struck = time.monotonic()
        assert self.server.stop() == 0, self.server.log
        self.server.spawn()
        return struck
