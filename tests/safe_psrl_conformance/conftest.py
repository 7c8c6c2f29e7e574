"""A running service for the kit."""

from tests.service_fixtures import safe_psrl, server  # noqa: F401  # fixtures
