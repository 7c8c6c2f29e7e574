"""The command in this process."""

from tests.service_fixtures import safe_psrl  # noqa: F401  # a fixture
