"""Tokens and certificates from the client library, the command, the conformance kit and the console."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.service_fixtures import Command

from safe_psrl_client import (
    AsyncClient,
    Client,
    InvalidCredentialsError,
    PermissionDeniedError,
    RemoteAgent,
    UnauthenticatedError,
    tls_credentials,
)
from safe_psrl_client.channel import is_local
from safe_psrl_conformance import Wire, run, selected
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.security.identities import create_token
from safe_psrl_server.security.roles import Role


@pytest.mark.parametrize("mode", ["step", "stream", "local"])
def test_an_agent_plays_with_a_token(guarded: Any, mode: Any) -> None:
    with (
        Client(guarded.target, token=guarded.tokens["act"]) as client,
        RemoteAgent(client, "site/a", mode, abandon_open=True) as agent,
    ):
        assert agent.begin(0) >= 0


def test_every_call_carries_the_token(guarded: Any) -> None:
    with Client(guarded.target, token=guarded.tokens["admin"]) as client:
        export = client.export_agent("site/b")
        client.import_agent("site/copy", export)
        assert next(iter(client.watch_agents())).agents
        assert client.verify_agent("site/copy").ok
        client.delete_agent("site/copy")
    with Client(guarded.target) as nobody, pytest.raises(UnauthenticatedError):
        nobody.get_agent("site/b")


async def test_so_it_is_with_asyncio(guarded: Any) -> None:
    async with AsyncClient(guarded.target, token=guarded.tokens["read"]) as client:
        assert (await client.get_agent("site/b")).status.agent == "site/b"
        replies = client.watch_agents()
        assert [status.agent for status in (await anext(replies)).agents] == ["site/a", "site/b"]
        await replies.aclose()
        assert await client.export_agent("site/b")
        with pytest.raises(PermissionDeniedError):
            await client.pause_agent("site/b")


@pytest.mark.parametrize(
    "target", ["example.org:50551", "192.0.2.1:50551", "[2001:db8::1]:1", "dns:///example.org:1", "127.0.0.1.example.org:1"]
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_token_does_not_leave_the_machine_in_plain_text(target: str, kind: Any) -> None:
    with pytest.raises(InvalidCredentialsError, match="plain text"):
        kind(target, token="spsrl_00000000_x")  # noqa: S106  # not one


@pytest.mark.parametrize("target", ["127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1", "unix:/tmp/s", "ipv4:127.0.0.1:1"])
def test_to_this_machine_it_may(target: str) -> None:
    assert is_local(target)


@pytest.mark.parametrize("token", ["", "a b", "a\n", "ü", "x" * 5000])
def test_what_is_no_token_is_refused_before_it_is_sent(token: str) -> None:
    with pytest.raises(InvalidCredentialsError):
        Client("127.0.0.1:1", token=token)


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidCredentialsError, match="nowhere"):
        tls_credentials(tmp_path / "nowhere")
    with pytest.raises(InvalidCredentialsError, match="needs its key"):
        tls_credentials(certificate=tmp_path / "a")


def test_the_command_takes_a_token_from_a_file_or_the_environment(guarded: Any, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(guarded.tokens["read"] + "\n")
    listing = ("agent", "list", "--json", "--target", guarded.target)
    for ended in (
        command(*listing, "--token-file", file),
        command(*listing, SAFE_PSRL_TOKEN_FILE=file),
        command(*listing, SAFE_PSRL_TOKEN=guarded.tokens["read"]),
    ):
        assert ended.code == 0, ended.err
        assert "site/a" in ended.out
        assert "other/a" not in ended.out
    played = command(
        *("simulate", "inventory", "--agent", "site/a", "--episodes", "2", "--target", guarded.target),
        SAFE_PSRL_TOKEN=guarded.tokens["admin"],
    )
    assert played.code == 0, played.err


def test_its_mistakes_are_one_line(guarded: Any, command: Command, tmp_path: Path) -> None:
    listing = ("agent", "list", "--target", guarded.target)
    for ended, hint in (
        (command(*listing), "--token-file"),
        (command(*listing, SAFE_PSRL_TOKEN="spsrl_00000000_x"), "not valid"),  # noqa: S106  # not one
        (command(*listing, SAFE_PSRL_TOKEN=guarded.tokens["act"]), "does not have the role read"),
        (command(*listing, "--token-file", tmp_path / "nowhere"), "nowhere"),
        (command("agent", "list", "--target", "192.0.2.1:1", SAFE_PSRL_TOKEN=guarded.tokens["read"]), "plain text"),
        (command(*listing, "--tls-cert", tmp_path / "nowhere"), "needs its key"),
    ):
        assert ended.code == 2, ended
        assert ended.err.startswith("safe-psrl: ")
        assert ended.err.count("\n") == 1
        assert hint in ended.err


@pytest.fixture
def closed(make_authority: Any, identities: Any) -> Iterator[dict[str, Any]]:
    """A server with TLS and tokens."""
    file, tokens = identities
    authority = make_authority("authority")
    certificate, key = authority.sign("server", "IP:127.0.0.1")
    security = {"certificate": certificate, "key": key, "identities": file}
    with EmbeddedServer(security=security) as server:
        yield {"target": server.target, "ca": authority.certificate, "tokens": tokens, "file": file}


def test_the_whole_way_with_tls_and_a_token_that_the_command_made(closed: dict[str, Any], command: Command) -> None:
    made = command(*("token", "create", "--name", "ops", "--role", "admin", "--agents", "*", "--identities", closed["file"]))
    assert made.code == 0, made.err
    secrets = {"SAFE_PSRL_TOKEN": made.out.strip(), "SAFE_PSRL_TLS_CA": closed["ca"], "SAFE_PSRL_TARGET": closed["target"]}
    ended = command("agent", "create", "site/x", "--preset", "inventory", "--wait", "20", **secrets)
    for _ in range(100):
        if ended.code == 0 or "not valid" not in ended.err:  # the server looks at the file once a second
            break
        ended = command("agent", "create", "site/x", "--preset", "inventory", **secrets)
    assert ended.code == 0, ended.err
    assert "ops" in command("token", "list", "--identities", closed["file"]).out
    assert command("token", "revoke", "ops", "--identities", closed["file"]).code == 0
    assert command("token", "revoke", "ops", "--identities", closed["file"]).code == 2


def test_a_token_for_the_kits_agents_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    token = create_token(file, "kit", [Role.ADMIN], ["kit/*"])
    weak = create_token(file, "weak", [Role.ACT], ["*"])
    with EmbeddedServer(drain_seconds=1.0, security={"identities": file}) as server:
        with Wire(server.target, token=token, prefix="kit/") as wire:
            wire.probe()
            verdicts = list(run(wire, [check for check in selected() if check.chapter != "deadlines"]))
        assert [(verdict.check.name, verdict.reason) for verdict in verdicts if verdict.result != "pass"] == []
        with Wire(server.target, token=weak) as wire, pytest.raises(PermissionDeniedError):
            wire.probe()
        with Wire(server.target) as wire, pytest.raises(UnauthenticatedError):
            wire.probe()


BIN = Path(sys.executable).parent / "safe-psrl"
WATCHES = re.compile(r'grpc_server_msg_sent_total{.*"WatchAgents".*} (\S+)')
REFUSED = re.compile(r'safe_psrl_rejections_total{reason="CREDENTIAL_MISSING"} (\S+)')


def counted(port: int, sample: re.Pattern[str]) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        found = sample.search(page.read().decode())
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(("with_token", "grows"), [(True, WATCHES), (False, REFUSED)], ids=["token", "none"])
def test_a_console_watches_with_its_token_only(guarded: Any, tmp_path: Path, with_token: bool, grows: re.Pattern[str]) -> None:
    """Told by the service's own counters: replies to its watch, or refusals."""
    (tmp_path / "token").write_text(guarded.tokens["admin"], encoding="utf-8")
    before = {sample: counted(guarded.server.metrics_port, sample) for sample in (WATCHES, REFUSED)}
    command = [BIN, "console", "--target", guarded.target, "--listen", "127.0.0.1:0"]
    command += ["--token-file", tmp_path / "token"] if with_token else []
    outside = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # NiceGUI looks for it
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=outside) as process:
        until = time.monotonic() + 60
        while counted(guarded.server.metrics_port, grows) == before[grows]:
            assert time.monotonic() < until, "the console does not reach the service"
            assert process.poll() is None, "the console has ended"
            Event().wait(0.1)
        process.send_signal(signal.SIGTERM)
    other = REFUSED if grows is WATCHES else WATCHES
    assert counted(guarded.server.metrics_port, other) == before[other]
