"""The fixture that makes servers, for every directory whose tests start some."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.server_process import NewServer, ServerProcess


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    """`new_server(**settings)`: a server with its own directory, not started yet. What still runs at the end is killed."""
    made: list[ServerProcess] = []

    def make(**settings: Any) -> ServerProcess:
        made.append(ServerProcess(tmp_path / f"server-{len(made)}", **settings))
        return made[-1]

    yield make
    for server in made:
        server.kill()
        server.close()


@pytest.fixture
def started_server(new_server: NewServer) -> NewServer:
    """`started_server(**settings)`: a server that serves."""

    def start(**settings: Any) -> ServerProcess:
        server = new_server(**settings)
        server.start()
        return server

    return start
