"""A running service for the kit."""

from tests.service_fixtures import server  # noqa: F401  # a fixture
