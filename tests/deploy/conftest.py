import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for what the tests of this directory share
sys.path.insert(1, str(Path(__file__).parents[1] / "system"))  # and those that start servers

from prometheus_tools import Tools, find_tools
from server_process import ServerProcess


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Debian's Prometheus; installed if need be and possible."""
    return find_tools()


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """`new_server(**settings)`: a server that is not started yet. What still runs at the end is killed."""
    made: list[ServerProcess] = []

    def make(**settings: Any) -> ServerProcess:
        made.append(ServerProcess(tmp_path / f"server-{len(made)}", **settings))
        return made[-1]

    yield make
    for server in made:
        server.kill()
        server.close()
