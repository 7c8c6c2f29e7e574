"""A server that wants to know who calls, tokens of several kinds for it, and an authority that signs certificates."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.service_fixtures import Command, Finished, safe_psrl  # noqa: F401  # a fixture
from tests.system.debian import program

from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.logs import set_up_logs
from safe_psrl_server.security.identities import create_token
from safe_psrl_server.security.roles import Role


class Guarded(NamedTuple):
    """A running server with identities, and a token of each."""

    server: EmbeddedServer
    file: Path
    tokens: dict[str, str]

    @property
    def target(self) -> str:
        return self.server.target


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    set_up_logs("console", "error")


def make_tokens(file: Path) -> dict[str, str]:
    return {
        "act": create_token(file, "act", [Role.ACT], ["site/*"]),
        "read": create_token(file, "read", [Role.READ], ["site/*"]),
        "admin": create_token(file, "admin", [Role.ADMIN], ["*"]),
        "act elsewhere": create_token(file, "act-elsewhere", [Role.ACT], ["other/*"]),
        "read elsewhere": create_token(file, "read-elsewhere", [Role.READ], ["other/*"]),
        "admin elsewhere": create_token(file, "admin-elsewhere", [Role.ADMIN], ["other/*"]),
    }


@pytest.fixture
def identities(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    file = tmp_path / "identities.toml"
    return file, make_tokens(file)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    file = tmp_path_factory.mktemp("identities") / "identities.toml"
    tokens = make_tokens(file)
    agents = [{"name": name, "preset": "inventory"} for name in ("other/a", "site/a", "site/b")]
    settings: dict[str, Any] = {"security": {"identities": file}, "agents": agents, "metrics": "127.0.0.1:0"}
    with EmbeddedServer(drain_seconds=1.0, **settings) as server:
        yield Guarded(server, file, tokens)


class Authority:
    """Signs certificates for servers and clients, by the command `openssl`; all of its files are in `directory`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self.certificate, self._key = directory / f"{name}.pem", directory / f"{name}.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate),
        )

    def sign(self, name: str, *alternative_names: str) -> tuple[Path, Path]:
        """Certificate and key of `name`, with subject alternative names such as "DNS:localhost"."""
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        names = ["-addext", f"subjectAltName={','.join(alternative_names)}"] if alternative_names else []
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-CA", self.certificate, "-CAkey", self._key, "-addext", "basicConstraints=CA:FALSE"),
            *("-subj", f"/CN={name}", *names, "-keyout", key, "-out", certificate),
        )
        return certificate, key


def _openssl(*arguments: str | Path) -> None:
    command = [program("openssl", "openssl"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def make_authority(tmp_path: Path) -> Callable[[str], Authority]:
    def make(name: str) -> Authority:
        directory = tmp_path / name
        directory.mkdir()
        return Authority(directory, name)

    return make


@pytest.fixture
def command(safe_psrl: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """`safe-psrl` in a temporary directory, with no `SAFE_PSRL_` variables but those given."""

    def run(*arguments: str | Path, **variables: str | Path) -> Finished:
        with monkeypatch.context() as environment:
            environment.chdir(tmp_path)
            for name in [name for name in os.environ if name.startswith("SAFE_PSRL_")]:
                environment.delenv(name)
            for name, value in variables.items():
                environment.setenv(name, str(value))
            return safe_psrl(*map(str, arguments))

    return run
