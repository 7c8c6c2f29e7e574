"""A running service, and a network that fails in front of it."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from safe_psrl_client import Client
from tests.faults.proxy import TcpProxy
from tests.service_fixtures import agent_name, buffer, client, server, world  # noqa: F401  # fixtures


@pytest.fixture
def toy(client: Client, agent_name: str) -> str:
    """An agent for three states in a ring and six steps."""
    client.create_agent(agent_name, "factored-toy", seed=2)
    return agent_name


class FlakyNetwork(TcpProxy):
    """Cuts all connections each time that a random number of bytes has passed, in the middle of anything."""

    def __init__(self, target: str, seed: int) -> None:
        super().__init__(target)
        self._random = random.Random(seed)
        self._left = self._random.randint(1_000, 6_000)

    def _abort(self) -> None:
        super()._abort()
        self._left = self._random.randint(1_000, 6_000)


@pytest.fixture
def flaky(server: str) -> Iterator[Callable[[int], FlakyNetwork]]:
    with ExitStack() as stack:

        def connect(seed: int) -> FlakyNetwork:
            network = FlakyNetwork(server, seed).start()
            stack.callback(network.close)
            return network

        yield connect
