"""The server's certificate, its key and the clients' authority: reloaded when the files change, without a restart."""

import ssl
import stat
import threading
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

import grpc
import structlog

from safe_psrl_server.config import ConfigError, Security
from safe_psrl_server.security.identities import Signature, signature_of


def is_local(address: str) -> bool:
    """Whether HOST:PORT or unix:PATH can be reached from this machine only."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


log = structlog.get_logger()


T = TypeVar("T")


class Certificates:
    """For new connections of one port. Open ones keep theirs until their maximum age."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._lock = threading.Lock()  # gRPC calls `_changed` from its own threads
        self._context: ssl.SSLContext | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """With `client_ca`, clients need a certificate too. Raises `ConfigError`."""
        first = self._first(self._read)
        if self._key.stat().st_mode & stat.S_IROTH:
            log.warning("every user of this machine may read the private key; run chmod 600", key=str(self._key))
        return grpc.dynamic_ssl_server_credentials(
            first,
            self._changed,  # type: ignore[arg-type]  # the stubs leave None out
            require_client_authentication=self._client_ca is not None,
        )

    def context(self) -> ssl.SSLContext:
        """For a new HTTPS connection, whose client needs no certificate. Raises `ConfigError`, the first time only."""
        if self._context is None:
            self._context = self._first(self._load)
        else:
            self._context = self._reloaded(self._load) or self._context
        return self._context

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called before each handshake; None without a change."""
        return self._reloaded(self._read)

    def _first(self, read: Callable[[], T]) -> T:
        self._seen = self._signatures()
        try:
            return read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"security: the certificate cannot be used: {error}") from None

    def _reloaded(self, read: Callable[[], T]) -> T | None:
        """None without a change. Files that do not match keep the previous configuration."""
        with self._lock:
            signatures = self._signatures()
            if signatures == self._seen:
                return None
            self._seen = signatures
        try:
            configuration = read()
        except (OSError, ValueError) as error:
            log.error("certificate not reloaded", problem=str(error))  # noqa: TRY400  # not a defect
            return None
        log.info("certificate reloaded", certificate=str(self._certificate))
        return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = self._certificate.read_bytes(), self._key.read_bytes()
        authority = None if self._client_ca is None else self._client_ca.read_bytes()
        self._load()  # gRPC would only fail at the handshake
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(f"{self._certificate} and {self._key}: {error.reason or error}") from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise ValueError(f"{self._client_ca}: {error.reason or error}") from None
        return context

    def _signatures(self) -> list[Signature]:
        return [signature_of(path) for path in (self._certificate, self._key, self._client_ca) if path is not None]


def certificates_of(security: Security) -> Certificates | None:
    """None for plain text."""
    if security.certificate is None or security.key is None:
        return None
    return Certificates(security.certificate, security.key, security.client_ca)


def _no_password() -> bytes:
    """Instead of a prompt on the terminal."""
    raise ValueError("the key must not need a password")
