"""Faults of the network, by proxies: delays, cuts in mid-message, silence, and messages that come twice or much later."""

import random
import time
from pathlib import Path

from tests.faults.duplicator import Duplicator
from tests.faults.fault import Fault, pause
from tests.faults.proxy import TcpProxy
from tests.system.server_process import wait_until


class Proxied(Fault):
    """Clients call through a proxy of bytes."""

    def start(self) -> None:
        super().start()
        self.proxy = TcpProxy(self.server.target).start()

    @property
    def targets(self) -> list[str]:
        return [self.proxy.target]

    def close(self) -> None:
        self.proxy.close()
        super().close()


class Delays(Proxied):
    """Every piece waits, for about as long as clients do: replies come after the deadline."""

    title = "delays of 0.05 to 0.4 s each way, deadlines of 0.4 s"
    patience = 0.4

    def strike(self) -> float:
        for _ in range(3):
            self.proxy.delay = self.chosen.uniform(0.05, 0.4)
            pause(self.chosen.uniform(0.2, 0.6))
        self.proxy.delay = 0.0
        return time.monotonic()


class Cuts(Proxied):
    """All connections are cut after a number of bytes, in the midst of messages."""

    title = "connections cut in mid-message"
    short_rounds = 3
    uncertain = frozenset({"INTERNAL"})

    def strike(self) -> float:
        cuts = self.proxy.cuts
        self.proxy.cut_after(self.chosen.randrange(1, 3000))
        while self.proxy.cuts == cuts:
            pause(0.01)
        return time.monotonic()


class Silence(Proxied):
    """Whatever is sent is swallowed, either way; then the connections are gone."""

    title = "packets dropped for 0.3 to 1.5 s, then the connection"
    patience = 1.0

    def strike(self) -> float:
        self.proxy.swallow = True
        pause(self.chosen.uniform(0.3, 1.5))
        self.proxy.cut()
        self.proxy.swallow = False
        return time.monotonic()


class Duplicates(Fault):
    """Half of all messages are sent twice, some again up to two seconds later, and replies are held back."""

    title = "messages duplicated, some up to 2 s late; replies held back"
    repeats_by_network = True

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        super().__init__(directory, chosen)
        self._duplicator = Duplicator(self.server.target, random.Random(chosen.random()))

    def start(self) -> None:
        super().start()
        self._duplicator.start()

    @property
    def targets(self) -> list[str]:
        return [self._duplicator.target]

    def strike(self) -> float:
        before = self._duplicator.repeated
        self._duplicator.repeat, self._duplicator.late, self._duplicator.hold = 0.5, 0.2, 0.05
        pause(self.chosen.uniform(0.5, 2.0))
        wait_until(lambda: self._duplicator.repeated > before + 20, 60, "messages are sent twice")
        self._duplicator.repeat = self._duplicator.late = self._duplicator.hold = 0.0
        return time.monotonic()

    def settle(self) -> None:
        """What is still to come late comes before the verdict."""
        self._duplicator.settle()
        self.note = f"{self._duplicator.repeated:,} messages sent twice"

    def close(self) -> None:
        self._duplicator.close()
        super().close()
