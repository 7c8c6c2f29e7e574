import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for what the tests of this directory share
sys.path.insert(1, str(Path(__file__).parents[1] / "system"))  # and those that start servers

from prometheus_tools import Tools, find_tools
from server_fixture import new_server  # noqa: F401  # a fixture


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Debian's Prometheus; installed if need be and possible."""
    return find_tools()
