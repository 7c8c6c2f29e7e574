"""Channels to the service: targets, options and the routing header."""

import re
from typing import Any, Final
from urllib.parse import quote

import grpc

from safe_psrl_client.errors import InvalidTargetError

DEFAULT_TARGET: Final = "127.0.0.1:50551"
DEFAULT_TIMEOUT: Final = 10.0  # seconds
MAX_MESSAGE_BYTES: Final = 256 * 2**20
LONGEST_HEADER: Final = 512
SCHEMES: Final = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "xds:")

OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A restarted server is found again within a second, not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # despite its name, the timeout of one attempt to connect
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]


def checked_target(text: str) -> str:
    """`host:port`, `[v6]:port`, `unix:PATH`, or another gRPC address with its scheme."""
    if text.startswith(SCHEMES) and text.partition(":")[2].strip("/"):
        return text
    matched = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", text)
    if matched is None or not 1 <= int(matched[2]) <= 65535:
        raise InvalidTargetError(f"target {text!r}: write host:port or unix:PATH, for example {DEFAULT_TARGET}")
    return text


def open_channel(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.Channel:
    """A channel that connects on first use; with `credentials`, over TLS."""
    if credentials is None:
        return grpc.insecure_channel(checked_target(target), OPTIONS)
    return grpc.secure_channel(checked_target(target), credentials, OPTIONS)


def open_aio_channel(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """`open_channel` for asyncio."""
    if credentials is None:
        return grpc.aio.insecure_channel(checked_target(target), OPTIONS)
    return grpc.aio.secure_channel(checked_target(target), credentials, OPTIONS)


def call_metadata(agent: str) -> tuple[tuple[str, str], ...]:
    """The header `agent`, by which a proxy can route an agent's calls to one replica. Non-ASCII is percent-encoded."""
    return (("agent", quote(agent, safe="/:")[:LONGEST_HEADER]),) if agent else ()
