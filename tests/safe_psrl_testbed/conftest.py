"""A running service, and environments with a seed."""

from tests.service_fixtures import agent_name, buffer, client, server, world  # noqa: F401  # fixtures
