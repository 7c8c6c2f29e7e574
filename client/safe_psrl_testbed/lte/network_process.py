"""A simulated network in its own process: actions in, received media units out.

ns-3 is single-threaded, global and slow to load. So networks are forked from one process that has loaded it and was itself
started afresh, without threads or connections of this process.
"""

import multiprocessing
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl_testbed.lte.bindings import require_ns3
from safe_psrl_testbed.lte.settings import CellSettings

LEAVE_SECONDS: Final = 5.0


class NetworkFailedError(RuntimeError):
    """The simulator's process ended unexpectedly."""


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

    def advance(self, fast: NDArray[np.bool_]) -> list[float]:
        try:
            self._connection.send(fast.tolist())
            received: list[float] = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(LEAVE_SECONDS)
            code = self._process.exitcode
            raise NetworkFailedError(f"the network simulator ended with exit code {code}") from None
        return received

    def close(self) -> None:
        """The process ends when its connection is closed."""
        self._connection.close()
        self._process.join(LEAVE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def serve(connection: Connection, settings: CellSettings) -> None:
    """The network's process: answer until the connection is closed."""
    from safe_psrl_testbed.lte.network import LteNetwork  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    network = LteNetwork(settings)
    with suppress(EOFError, OSError):
        while True:
            connection.send(network.advance(connection.recv()))
