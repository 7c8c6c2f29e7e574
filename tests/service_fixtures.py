"""Fixtures for tests that need a running service, or the command: conftest modules import them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from safe_psrl_cli.main import main
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


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


Command = Callable[..., Finished]


@pytest.fixture
def safe_psrl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`safe_psrl("spec", "show", "inventory")`, through the entry point's own function."""

    def run(*arguments: str) -> Finished:
        monkeypatch.setattr("sys.argv", ["safe-psrl", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        return Finished(left.value.code, shown.out, shown.err)

    return run
