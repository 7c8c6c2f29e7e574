import pytest

from tests.deploy.prometheus_tools import Tools, find_tools
from tests.system.server_fixture import new_server  # noqa: F401  # a fixture


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Debian's Prometheus; installed if need be and possible."""
    return find_tools()
