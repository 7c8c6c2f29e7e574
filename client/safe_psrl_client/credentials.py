"""Tokens and certificates."""

from ipaddress import ip_address
from pathlib import Path
from typing import Final

import grpc

from safe_psrl_client.errors import InvalidCredentialsError

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
