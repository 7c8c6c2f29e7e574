"""Servers as processes."""

from tests.system.server_fixture import new_server  # noqa: F401  # a fixture
