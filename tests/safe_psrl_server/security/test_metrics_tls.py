"""`/metrics` outside the loopback interface: TLS with the service's certificate, or plain text on request."""

import http.client
import shutil
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from safe_psrl_server.config import ConfigError
from safe_psrl_server.embedded import EmbeddedServer

LOCAL = ("DNS:localhost", "IP:127.0.0.1")
EVERYWHERE = "0.0.0.0:0"


def status_of(server: EmbeddedServer, path: str, context: ssl.SSLContext | None, host: str = "127.0.0.1") -> int:
    port = server.metrics_port
    connection = (
        http.client.HTTPConnection(host, port, timeout=20)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=20, context=context)
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def trusting(authority: Any) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, str]]]:
    log = structlog.testing.CapturingLogger()
    monkeypatch.setattr("safe_psrl_server.server.log", log)
    return lambda: [call.kwargs for call in log.calls if call.method_name == "warning"]


@pytest.mark.parametrize("metrics", [EVERYWHERE, "[::]:0"])
def test_plain_text_needs_the_flag(metrics: str, warnings: Callable[[], list[dict[str, str]]]) -> None:
    with (
        pytest.raises(ConfigError, match=r"^metrics: .* is not on the loopback interface: set a certificate, or --insecure"),
        EmbeddedServer(metrics=metrics),
    ):
        pass
    assert warnings() == []
    with EmbeddedServer(metrics=metrics, security={"insecure": True}) as server:
        assert status_of(server, "/metrics", None) == 200
    assert warnings() == [{"metrics": metrics}]


@pytest.mark.parametrize("metrics", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_the_loopback_interface_stays_plain_http(metrics: str, make_authority: Any) -> None:
    """For a scraper or a health check on the same machine, whatever names the certificate has."""
    certificate, key = make_authority("authority").sign("server", *LOCAL)
    host = "::1" if "::1" in metrics else "127.0.0.1"
    for security in ({}, {"certificate": certificate, "key": key}):
        with EmbeddedServer(metrics=metrics, security=security) as server:
            assert status_of(server, "/metrics", None, host) == 200


@pytest.mark.parametrize("insecure", [False, True])
def test_with_a_certificate_it_is_https_only(insecure: bool, make_authority: Any) -> None:
    authority, stranger = make_authority("authority"), make_authority("stranger")
    certificate, key = authority.sign("server", *LOCAL)
    security = {"certificate": certificate, "key": key, "insecure": insecure}
    with EmbeddedServer(metrics=EVERYWHERE, security=security) as server:
        for path in ("/metrics", "/healthz"):
            assert status_of(server, path, trusting(authority)) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            status_of(server, "/metrics", trusting(stranger))
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            status_of(server, "/metrics", None)


def test_a_scraper_needs_no_client_certificate_where_calls_do(make_authority: Any, tmp_path: Path) -> None:
    authority = make_authority("authority")
    certificate, key = authority.sign("server", *LOCAL)
    (tmp_path / "identities.toml").write_text("")
    security = {"certificate": certificate, "key": key, "client_ca": authority.certificate}
    with EmbeddedServer(metrics=EVERYWHERE, security={**security, "identities": tmp_path / "identities.toml"}) as server:
        assert status_of(server, "/healthz", trusting(authority)) == 200


def test_a_renewed_certificate_is_used_without_a_restart(make_authority: Any, tmp_path: Path) -> None:
    old, new = make_authority("old"), make_authority("new")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    for source, place in zip(old.sign("first", *LOCAL), (certificate, key), strict=True):
        shutil.copy(source, place)
    with EmbeddedServer(metrics=EVERYWHERE, security={"certificate": certificate, "key": key}) as server:
        second = new.sign("second", *LOCAL)
        shutil.copy(second[0], certificate)  # the old key does not fit
        assert status_of(server, "/healthz", trusting(old)) == 200
        shutil.copy(second[1], key)
        until = time.monotonic() + 20
        while True:
            try:
                assert status_of(server, "/healthz", trusting(new)) == 200
                break
            except ssl.SSLError:
                assert time.monotonic() < until
        with pytest.raises(ssl.SSLCertVerificationError):
            status_of(server, "/healthz", trusting(old))
