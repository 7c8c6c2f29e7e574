"""The server's certificate, its key and the authority of its clients: read again when the files change, without a restart."""

import ssl
import stat
import threading
from pathlib import Path

import grpc
import structlog

from safe_psrl_server.config import ConfigError, Security

log = structlog.get_logger()
Signature = tuple[tuple[int, int, int] | None, ...]


class Certificates:
    """What new connections are greeted with. Those that are open stay as they are, until they are too old."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._lock = threading.Lock()  # gRPC asks from threads of its own

    def credentials(self) -> grpc.ServerCredentials:
        """With `client_ca`, clients need a certificate too. Raises `ConfigError`."""
        self._seen = self._signature()
        try:
            first = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"security: the certificate cannot be used: {error}") from None
        if self._key.stat().st_mode & stat.S_IROTH:
            log.warning("everybody on this machine may read the private key; chmod 600", key=str(self._key))
        return grpc.dynamic_ssl_server_credentials(
            first,
            self._changed,  # type: ignore[arg-type]  # the stubs leave None out
            require_client_authentication=self._client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked before each handshake; None: nothing new. Files that do not fit together leave things as they were."""
        with self._lock:
            signature = self._signature()
            if signature == self._seen:
                return None
            self._seen = signature
        try:
            configuration = self._read()
        except (OSError, ValueError) as error:
            log.error("certificate not changed: the new files cannot be used", problem=str(error))  # noqa: TRY400  # no defect
            return None
        log.info("certificate read again", certificate=str(self._certificate))
        return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = self._certificate.read_bytes(), self._key.read_bytes()
        authority = None if self._client_ca is None else self._client_ca.read_bytes()
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # gRPC would only notice at the handshake
        try:
            trial.load_cert_chain(self._certificate, self._key, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(f"{self._certificate} and {self._key}: {error.reason or error}") from None
        if self._client_ca is not None:
            try:
                trial.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise ValueError(f"{self._client_ca}: {error.reason or error}") from None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)

    def _signature(self) -> Signature:
        return tuple(_signature(path) for path in (self._certificate, self._key, self._client_ca) if path is not None)


def certificates_of(security: Security) -> Certificates | None:
    """None for plain text."""
    if security.certificate is None or security.key is None:
        return None
    return Certificates(security.certificate, security.key, security.client_ca)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _no_password() -> bytes:
    """Instead of a question on the terminal."""
    raise ValueError("the key must not need a password")
