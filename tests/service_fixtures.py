"""Fixtures for tests that need a running service: conftest modules import them."""

from collections.abc import Callable, Iterator

import pytest

from safe_psrl_client import Client
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.logs import set_up_logs
from safe_psrl_testbed import Scenario, TabularEnvironment, scenario_named


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The target of a service in this process, with its state in memory."""
    set_up_logs("console", "error")
    with EmbeddedServer(store="memory:") as running:
        yield running.target


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server) as connected:
        yield connected


@pytest.fixture
def agent_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.nodeid)[-128:].lstrip("-")


@pytest.fixture(scope="session")
def buffer() -> Scenario:
    return scenario_named("streaming-buffer")


@pytest.fixture
def world(buffer: Scenario) -> Callable[[int], TabularEnvironment]:
    """Makes the streaming buffer of a seed."""
    return buffer.environment
