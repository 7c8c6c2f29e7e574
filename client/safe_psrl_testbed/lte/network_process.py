"""A simulated network in a process of its own: actions in, received media units out.

ns-3 is single-threaded and global, and takes long to load. So networks are forked from one process that has it loaded, and that
was itself started afresh: no thread or connection of this one comes along.
"""

import multiprocessing
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final, Protocol, Self

from safe_psrl_testbed.lte.bindings import require_ns3
from safe_psrl_testbed.lte.settings import CellSettings

LEAVE_SECONDS: Final = 5.0


class Network(Protocol):
    def advance(self, fast: Sequence[bool]) -> list[float]:
        """An epoch in which the UEs get the fast or the slow service; the media units that each of them received."""
        ...


class NetworkFailedError(RuntimeError):
    """The simulator's process ended by itself."""


class NetworkProcess:
    """Starts at once; the first `advance` waits until the network is built."""

    def __init__(self, settings: CellSettings) -> None:
        require_ns3()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["safe_psrl_testbed.lte.preload"])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, settings), daemon=True)
        self._process.start()
        theirs.close()

    def advance(self, fast: Sequence[bool]) -> list[float]:
        try:
            self._connection.send(list(fast))
            received: list[float] = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(LEAVE_SECONDS)
            code = self._process.exitcode
            raise NetworkFailedError(f"the network simulator ended with exit code {code}") from None
        return received

    def close(self) -> None:
        """It ends when nobody asks it any more."""
        self._connection.close()
        self._process.join(LEAVE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(connection: Connection, settings: CellSettings) -> None:
    """In the network's process: answer until the other side is closed."""
    from safe_psrl_testbed.lte.network import LteNetwork  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    network = LteNetwork(settings)
    with suppress(EOFError, OSError):
        while True:
            connection.send(network.advance(connection.recv()))
