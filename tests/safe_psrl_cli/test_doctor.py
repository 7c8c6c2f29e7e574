"""`safe-psrl doctor`: a line for each check, and exit code 1 if something needs a change."""

import json
import socket
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from safe_psrl.version import __version__
from safe_psrl_cli import doctor
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.store.sqlite.store import DATABASE_FILE
from tests.service_fixtures import Command
from tests.system.debian import program

UNUSED = 'listen = "127.0.0.1:0"\nmetrics = ""\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a service that would listen on a free port."""
    file = tmp_path / "service.toml"
    file.write_text(UNUSED, encoding="utf-8")
    return file


def findings(safe_psrl: Command, *arguments: Any) -> tuple[int, dict[str, tuple[bool, str]]]:
    ended = safe_psrl("doctor", "--json", *map(str, arguments))
    return ended.code, {found["check"]: (found["ok"], found["detail"]) for found in json.loads(ended.out)}


def test_a_sound_machine_and_service(safe_psrl: Command, config: Path, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'data'}"
    with EmbeddedServer(store=store) as server:
        code, found = findings(safe_psrl, "--config", config, "--store", store, "--target", server.target)
    assert code == 0
    names = ["python", "packages", "kernels", "sqlite", "clock", "disk", "fsync", "schema", "listen", "service"]
    assert list(found) == names
    assert all(ok for ok, _ in found.values())
    assert found["schema"][1] == f"{store}: schema 1"
    assert found["service"][1] == f"{server.target} is serving, version {__version__}"


def test_each_finding_is_one_line_with_its_result(safe_psrl: Command, config: Path) -> None:
    ended = safe_psrl("doctor", "--config", str(config), "--target", "127.0.0.1:1")
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert {line.split()[0] for line in lines} == {"ok", "FIX"}
    (broken,) = [line for line in lines if line.startswith("FIX")]
    assert broken.split()[1] == "service"
    assert "start it with safe-psrl serve" in broken


def test_a_store_of_another_schema(safe_psrl: Command, config: Path, tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / DATABASE_FILE)
    database.execute("PRAGMA user_version = 9")
    database.close()
    code, found = findings(safe_psrl, "--config", config, "--store", f"sqlite:{tmp_path}")
    assert code == 1
    ok, detail = found["schema"]
    assert not ok
    assert "schema 9: this release needs 1" in detail


@pytest.mark.parametrize(
    ("store", "detail"),
    [
        ("sqlite:/proc/nowhere", "cannot write to /proc (No such file or directory); change its permissions"),
        ("sqlite:/proc/version", "cannot write to /proc/version (Not a directory)"),
        ("sqlitee:data", "store 'sqlitee:data': write sqlite:DIRECTORY"),
        ("postgresql://127.0.0.1:1/nowhere", "Connection refused"),
    ],
)
def test_a_store_that_cannot_be_used(safe_psrl: Command, config: Path, store: str, detail: str) -> None:
    code, found = findings(safe_psrl, "--config", config, "--store", store)
    assert code == 1
    assert not found["store"][0]
    assert detail in found["store"][1]


def test_missing_packages_are_named_and_end_the_checks(
    safe_psrl: Command, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("grpcio", "no-such-package"))
    code, found = findings(safe_psrl, "--config", config)
    assert code == 1
    assert list(found) == ["python", "packages"]
    assert found["packages"][1] == "missing no-such-package: pip install 'safe-psrl[server]'"


def test_a_port_that_is_taken_by_another_program(safe_psrl: Command, config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config.write_text(f'listen = "{address}"\nmetrics = ""\n', encoding="utf-8")
        code, found = findings(safe_psrl, "--config", config, "--store", "memory:")
    assert code == 1
    assert found["listen"] == (False, f"{address}: Address already in use; stop the program there, or use --listen HOST:PORT")


def test_a_port_that_is_taken_by_a_service(safe_psrl: Command, config: Path, server: str) -> None:
    config.write_text(f'listen = "{server}"\nmetrics = ""\n', encoding="utf-8")
    code, found = findings(safe_psrl, "--config", config, "--store", "memory:")
    assert (code, found["listen"][0]) == (0, True)
    assert "a Safe PSRL service is running" in found["listen"][1]


@pytest.mark.parametrize(
    ("validity", "ok", "part"),
    [(("-days", "90"), True, "valid for 90 days"), (("-days", "3"), False, "valid for 3 days: renew it")],
)
def test_the_certificate_of_the_configuration(
    safe_psrl: Command, config: Path, tmp_path: Path, validity: tuple[str, str], ok: bool, part: str
) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    new = [program("openssl", "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*new, *validity, *files], check=True, capture_output=True, timeout=60)
    security = f'[security]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    config.write_text(UNUSED + security, encoding="utf-8")
    code, found = findings(safe_psrl, "--config", config, "--store", "memory:")
    assert (code, found["certificate"][0]) == (0 if ok else 1, ok)
    assert part in found["certificate"][1]
    key.write_text("not a key", encoding="utf-8")
    code, found = findings(safe_psrl, "--config", config, "--store", "memory:")
    assert (code, found["certificate"][0]) == (1, False)


@pytest.mark.parametrize(
    ("version", "has_bug"),
    [((3, 40, 1), True), ((3, 44, 6), False), ((3, 50, 6), True), ((3, 51, 2), True), ((3, 53, 0), False)],
)
def test_versions_of_sqlite_with_the_wal_reset_bug(
    safe_psrl: Command, config: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], has_bug: bool
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    _, found = findings(safe_psrl, "--config", config, "--store", "memory:")
    assert found["sqlite"][0]
    assert ("WAL-reset bug" in found["sqlite"][1]) is has_bug
