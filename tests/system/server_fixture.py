"""The fixture that makes servers, for every directory whose tests start some."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.server_process import ServerProcess


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """`new_server(**settings)`: a server with its own directory, not started yet. What still runs at the end is killed."""
    made: list[ServerProcess] = []

    def make(**settings: Any) -> ServerProcess:
        made.append(ServerProcess(tmp_path / f"server-{len(made)}", **settings))
        return made[-1]

    yield make
    for server in made:
        server.kill()
        server.close()
