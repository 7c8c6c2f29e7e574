"""TLS, mutual TLS, certificates that are replaced while the server runs, and where plain text is allowed."""

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from tests.system.server_process import wait_until

from safe_psrl_client import Client, PermissionDeniedError, UnauthenticatedError, tls_credentials
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc
from safe_psrl_server.config import ConfigError
from safe_psrl_server.embedded import EmbeddedServer

LOCAL = ("DNS:localhost", "IP:127.0.0.1")
MUTUAL = """
[[certificate]]
name = "line-7"
subject = "line-7.example"
roles = ["act"]
agents = ["site/*"]

[[certificate]]
name = "consoles"
subject = "*.console.example"
roles = ["read"]
agents = ["*"]

[[certificate]]
name = "by-common-name"
subject = "operator"
roles = ["admin"]
agents = ["*"]
"""


def code_of_call(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.StatusCode:
    """Of one call on a connection of its own that does not wait for better times."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.secure_channel(target, credentials, alone) if credentials is not None else grpc.insecure_channel(target, alone)
    )
    with channel:
        try:
            admin_pb2_grpc.AdminServiceStub(channel).ListAgents(admin_pb2.ListAgentsRequest(), timeout=20)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_tls_answers_those_who_trust_its_authority(make_authority: Any) -> None:
    authority, stranger = make_authority("authority"), make_authority("stranger")
    certificate, key = authority.sign("server", *LOCAL)
    with EmbeddedServer(security={"certificate": certificate, "key": key}) as server:
        with Client(server.target, credentials=tls_credentials(authority.certificate)) as client:
            client.create_agent("a", "inventory")
            assert [status.agent for status in client.list_agents()] == ["a"]
        assert code_of_call(server.target, tls_credentials(authority.certificate)) is grpc.StatusCode.OK
        assert code_of_call(server.target, tls_credentials(stranger.certificate)) is grpc.StatusCode.UNAVAILABLE
        assert code_of_call(server.target, None) is grpc.StatusCode.UNAVAILABLE


def test_a_client_certificate_is_an_identity(make_authority: Any, tmp_path: Path) -> None:
    """Its alternative names count; the common name only if there are none."""
    authority, stranger = make_authority("authority"), make_authority("stranger")
    certificate, key = authority.sign("server", *LOCAL)
    identities = tmp_path / "identities.toml"
    identities.write_text(MUTUAL)
    security = {"certificate": certificate, "key": key, "client_ca": authority.certificate, "identities": identities}
    agents = [{"name": "site/a", "preset": "inventory"}]
    with EmbeddedServer(security=security, agents=agents) as server:

        def connect(*names: str, signed_by: Any = authority, common: str = "client") -> Client:
            pair = signed_by.sign(common, *names)
            return Client(server.target, credentials=tls_credentials(authority.certificate, *pair), timeout=20)

        with connect("DNS:line-7.example") as client:
            assert client.start_episode("site/a", 0).episode == 1
            with pytest.raises(PermissionDeniedError):
                client.get_agent("site/a")
        with connect("DNS:other.example", "DNS:a.console.example") as client:
            assert client.get_agent("site/a").status.episode == 1
            with pytest.raises(PermissionDeniedError):
                client.pause_agent("site/a")
        with connect(common="operator") as client:
            client.pause_agent("site/a")
        for unknown in (("DNS:line-8.example",), ("DNS:nobody.example",)):
            with connect(*unknown, common="operator") as client, pytest.raises(UnauthenticatedError):
                client.get_agent("site/a")
        forged = tls_credentials(authority.certificate, *stranger.sign("forged", "DNS:line-7.example"))
        for credentials in (forged, tls_credentials(authority.certificate)):
            assert code_of_call(server.target, credentials) is grpc.StatusCode.UNAVAILABLE


def test_certificates_are_replaced_while_the_server_runs(make_authority: Any, tmp_path: Path) -> None:
    """New connections get the new one; open ones go on; files that do not fit together change nothing."""
    old, new = make_authority("old"), make_authority("new")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    for source, place in zip(old.sign("first", *LOCAL), (certificate, key), strict=True):
        shutil.copy(source, place)
    with (
        EmbeddedServer(security={"certificate": certificate, "key": key}) as server,
        Client(server.target, credentials=tls_credentials(old.certificate)) as client,
    ):
        client.create_agent("a", "inventory")
        second = new.sign("second", *LOCAL)
        shutil.copy(second[0], certificate)
        for _ in range(3):  # the old key does not fit the new certificate
            assert code_of_call(server.target, tls_credentials(old.certificate)) is grpc.StatusCode.OK
        shutil.copy(second[1], key)
        trusted = tls_credentials(new.certificate)
        wait_until(lambda: code_of_call(server.target, trusted) is grpc.StatusCode.OK, 20, "the new certificate is in use")
        assert code_of_call(server.target, tls_credentials(old.certificate)) is grpc.StatusCode.UNAVAILABLE
        assert client.get_agent("a").status.agent == "a"


@pytest.mark.parametrize(
    ("broken", "content"),
    [
        *product(["certificate", "key", "client_ca"], [None, "", "nonsense"]),
        ("certificate", "other"),
        ("key", "other"),
    ],
)
def test_a_server_does_not_start_with_files_that_cannot_be_used(
    make_authority: Any, tmp_path: Path, broken: str, content: str | None
) -> None:
    authority = make_authority("authority")
    certificate, key = authority.sign("server", *LOCAL)
    (tmp_path / "identities.toml").write_text(MUTUAL)
    security = {"certificate": certificate, "key": key, "client_ca": authority.certificate}
    bad = tmp_path / "bad"
    if content == "other":
        bad = authority.sign("other", *LOCAL)[0 if broken == "certificate" else 1]
    elif content is not None:
        bad.write_text(content)
    security[broken] = bad
    with (
        pytest.raises(ConfigError) as caught,
        EmbeddedServer(security={**security, "identities": tmp_path / "identities.toml"}),
    ):
        pass
    assert str(caught.value).startswith("security: the certificate cannot be used: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("security", "message"),
    [
        ({"certificate": "a"}, "must be set together"),
        ({"key": "a"}, "must be set together"),
        ({"client_ca": "a"}, "client_ca needs certificate"),
        ({"client_ca": "a", "certificate": "a", "key": "a"}, "client_ca needs identities"),
    ],
)
def test_half_a_setting_is_refused(security: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EmbeddedServer(security=security)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    log = structlog.testing.CapturingLogger()
    monkeypatch.setattr("safe_psrl_server.server.log", log)
    return lambda: [call.args[0] for call in log.calls if call.method_name == "warning"]


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_plain_text_elsewhere_than_on_the_loopback_interface_must_be_asked_for(
    listen: str, warnings: Callable[[], list[str]]
) -> None:
    with pytest.raises(ConfigError, match="--insecure"), EmbeddedServer(listen=listen):
        pass
    with EmbeddedServer(listen=listen, security={"insecure": True}):
        pass
    (warning,) = warnings()
    assert warning.startswith("plain text: ")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0", "unix:SOCKET"])
def test_plain_text_that_stays_on_the_machine_needs_no_asking(
    listen: str, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    with EmbeddedServer(listen=listen.replace("SOCKET", str(tmp_path / "s"))):
        pass
    assert warnings() == []
