"""Targets, options and the routing header."""

import pytest

from safe_psrl_cli import connection
from safe_psrl_client import InvalidTargetError, channel


@pytest.mark.parametrize(
    "target", ["127.0.0.1:50551", "example.org:443", "[::1]:50551", "unix:/tmp/s", "unix:///tmp/s", "dns:///host:1"]
)
def test_addresses_of_hosts_and_sockets_are_targets(target: str) -> None:
    assert channel.checked_target(target) == target


@pytest.mark.parametrize("target", ["", "localhost", "host:", "host:0", "host:65536", "host:x", "a b:1", "unix:", "http://h:1"])
def test_other_text_is_refused_with_an_example(target: str) -> None:
    with pytest.raises(InvalidTargetError, match="host:port or unix:PATH"):
        channel.checked_target(target)


def test_the_agent_header_is_ascii_whatever_the_name() -> None:
    assert channel.call_metadata("site-1/buffer:a.b_c") == (("agent", "site-1/buffer:a.b_c"),)
    ((_, value),) = channel.call_metadata("Zürich\n" * 1000)
    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= channel.LONGEST_HEADER
    assert channel.call_metadata("") == ()


def test_the_command_and_the_client_have_one_default_target() -> None:
    assert connection.DEFAULT_TARGET == channel.DEFAULT_TARGET
