"""Channels to the service: targets, options, the routing header, tokens and certificates."""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc

from safe_psrl_client.errors import InvalidCredentialsError, InvalidTargetError

DEFAULT_TARGET: Final = "127.0.0.1:50551"
DEFAULT_TIMEOUT: Final = 10.0  # seconds
MAX_MESSAGE_BYTES: Final = 256 * 2**20
LONGEST_HEADER: Final = 512
SCHEMES: Final = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "xds:")

Options = Sequence[tuple[str, Any]]
OPTIONS: Final[Options] = [
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


def open_channel(target: str, credentials: grpc.ChannelCredentials | None = None, options: Options = OPTIONS) -> grpc.Channel:
    """A channel that connects on first use; with `credentials`, over TLS."""
    if credentials is None:
        return grpc.insecure_channel(checked_target(target), options)
    return grpc.secure_channel(checked_target(target), credentials, options)


def open_aio_channel(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """`open_channel` for asyncio."""
    if credentials is None:
        return grpc.aio.insecure_channel(checked_target(target), OPTIONS)
    return grpc.aio.secure_channel(checked_target(target), credentials, OPTIONS)


def call_metadata(agent: str) -> tuple[tuple[str, str], ...]:
    """The header `agent`, by which a proxy can route an agent's calls to one replica. Non-ASCII is percent-encoded."""
    return (("agent", quote(agent, safe="/:")[:LONGEST_HEADER]),) if agent else ()


Metadata = tuple[tuple[str, str], ...]
LONGEST_TOKEN: Final = 4096


def tls_credentials(
    ca: Path | str | None = None, certificate: Path | str | None = None, key: Path | str | None = None
) -> grpc.ChannelCredentials:
    """For TLS, from PEM files. ca: the authority to trust instead of the system's; certificate and key: the client's own."""
    if (certificate is None) != (key is None):
        raise InvalidCredentialsError("a client certificate needs its key, and a key its certificate")
    return grpc.ssl_channel_credentials(
        root_certificates=_content(ca), private_key=_content(key), certificate_chain=_content(certificate)
    )


def token_metadata(token: str | None, target: str, credentials: grpc.ChannelCredentials | None) -> Metadata:
    """The metadata of every call. A token is refused where it could be read: in plain text, to another machine."""
    if token is None:
        return ()
    if not token.isascii() or not token.isprintable() or " " in token or not 0 < len(token) <= LONGEST_TOKEN:
        raise InvalidCredentialsError("the token is malformed: it must be printable ASCII without spaces")
    if credentials is None and not is_local(target):
        raise InvalidCredentialsError(f"the token is not sent to {target} in plain text: use TLS")
    return (("authorization", f"Bearer {token}"),)


def is_local(target: str) -> bool:
    """Whether what is sent to `target` stays on this machine."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = target.removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0].removeprefix("[").removesuffix("]")
    return host == "localhost" or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _content(file: Path | str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidCredentialsError(f"{file}: {error.strerror}") from None
