"""A running service, and a network that fails in front of it."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.service_fixtures import agent_name, buffer, client, server, world  # noqa: F401  # fixtures


class FlakyNetwork:
    """Carries bytes to a service and tears each connection after a random number of them, in the middle of anything."""

    def __init__(self, target: str, seed: int, bytes_per_connection: tuple[int, int]) -> None:
        host, _, port = target.rpartition(":")
        self._upstream = (host, int(port))
        self._random = random.Random(seed)
        self._allowance = bytes_per_connection
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = set()
        self.torn = 0
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in [self._listener, *self._sockets]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._upstream)
                self._sockets |= {near, far}
                budget = [self._random.randint(*self._allowance)]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink, budget), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, budget: list[int]) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                budget[0] -= len(data)
                if budget[0] < 0:
                    self.torn += 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def flaky(server: str) -> Iterator[Callable[[int], FlakyNetwork]]:
    with ExitStack() as stack:

        def connect(seed: int) -> FlakyNetwork:
            network = FlakyNetwork(server, seed, (1_000, 6_000))
            stack.callback(network.close)
            return network

        yield connect
