"""Servers as processes."""

from tests.system.server_fixture import new_server, started_server  # noqa: F401  # fixtures
