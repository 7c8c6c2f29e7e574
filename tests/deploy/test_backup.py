"""Backups under load: what docs/backup.md says to type, restored elsewhere, verified, and a prefix of the original."""

import shutil
from pathlib import Path

import pytest

from tests.deploy.backups import (
    AGENTS,
    KEEP_EVENTS,
    Row,
    check_prefix,
    documented,
    load_on,
    transitions,
    type_in,
    verify,
    wait_for_more,
)
from tests.deploy.commands import run
from tests.safe_psrl_server.store.appending import execute
from tests.service_fixtures import Command, safe_psrl  # noqa: F401  # a fixture
from tests.system.postgres_process import PostgresProcess, binaries
from tests.system.server_process import SCRIPT, NewServer, wait_until


def stored(directory: Path) -> list[Row]:
    """All events, while nobody writes."""
    return execute(directory, "SELECT agent, version, payload, link FROM events ORDER BY agent, version")


@pytest.mark.slow
def test_an_embedded_store_is_backed_up_under_load(new_server: NewServer, tmp_path: Path) -> None:
    busy, other = new_server(settings=KEEP_EVENTS), new_server(settings=KEEP_EVENTS)
    data = tmp_path / "data"
    data.symlink_to(busy.data)
    busy.start()
    with load_on(busy):
        before = wait_for_more(busy, {})
        assert f"{AGENTS} agents" in type_in(documented("back up"), tmp_path)
        after = wait_for_more(busy, transitions(busy))
        assert busy.stop() == 0

    data.unlink()
    data.mkdir()
    (data / "safe-psrl.db").write_bytes(b"what was left of it")
    type_in(documented("restore"), tmp_path)
    check_prefix(stored(data), stored(busy.data))

    other.store = f"sqlite:{data}"
    other.start()
    verify(other, tmp_path)
    restored = transitions(other)
    assert all(before[agent] <= restored[agent] < after[agent] for agent in before)
    with load_on(other):
        wait_for_more(other, restored)  # it goes on from there


@pytest.mark.slow
def test_scheduled_backups_under_load_are_kept_and_restored(new_server: NewServer, tmp_path: Path) -> None:
    """Made every two seconds while agents play and the server is killed; the newest two are whole, and prefixes."""
    busy = new_server(settings=f'{KEEP_EVENTS}[backups]\ndirectory = "{tmp_path / "kept"}"\nevery_seconds = 2\nkeep = 2\n')

    def kept() -> list[Path]:
        return sorted(path for path in (tmp_path / "kept").glob("*Z"))

    busy.start()
    with load_on(busy):
        before = wait_for_more(busy, {})
        first = wait_until(kept, 60, "a backup is made")[0]
        busy.kill()
        busy.start()
        wait_until(lambda: len(kept()) == 2 and first not in kept(), 60, "the first is replaced")
        wait_for_more(busy, transitions(busy))
        assert busy.stop() == 0
    for number, backup in enumerate(kept()):
        restored = tmp_path / f"restored-{number}"
        assert run(*SCRIPT, "store", "restore", backup, "--to", f"sqlite:{restored}").returncode == 0
        check_prefix(stored(restored), stored(busy.data))
    other = new_server()
    other.store = f"sqlite:{restored}"
    other.start()
    verify(other, tmp_path)
    assert all(before[agent] <= count for agent, count in transitions(other).items())


@pytest.mark.slow
def test_postgresql_is_backed_up_under_load(new_server: NewServer, tmp_path: Path) -> None:
    busy, other = new_server(settings=KEEP_EVENTS), new_server(settings=KEEP_EVENTS)
    with PostgresProcess() as postgres:
        programs, who = str(binaries()), {"PGHOST": str(postgres.directory), "PGUSER": "postgres"}

        def type_there(commands: str) -> str:
            return type_in(commands, tmp_path, who, programs=programs)

        def events(database: str) -> str:
            ordered = 'SELECT agent, version, payload, link FROM safe_psrl_events ORDER BY agent COLLATE "C", version'
            return type_there(f"psql --dbname={database} --csv --tuples-only --command='{ordered}'")

        type_there("createdb safe_psrl")
        busy.store = f"postgresql://postgres@/safe_psrl?host={postgres.directory}"
        busy.start()
        with load_on(busy):
            before = wait_for_more(busy, {})
            type_there(documented("back up PostgreSQL"))
            after = wait_for_more(busy, transitions(busy))
            assert busy.stop() == 0

        type_there(documented("restore PostgreSQL"))
        check_prefix(parsed(events("safe_psrl_restored")), parsed(events("safe_psrl")))

        other.store = f"postgresql://postgres@/safe_psrl_restored?host={postgres.directory}"
        other.start()
        verify(other, tmp_path)
        restored = transitions(other)
        assert all(before[agent] <= restored[agent] < after[agent] for agent in before)
        other.kill()


def parsed(table: str) -> list[Row]:
    cells = (line.split(",") for line in table.splitlines())
    return [(agent, int(version), payload.encode(), link.encode()) for agent, version, payload, link in cells]


def small_store(new_server: NewServer) -> Path:
    """The data of a server that has stopped."""
    server = new_server()
    server.start()
    assert run(*SCRIPT, "agent", "create", "one", "--preset", "factored-toy", "--target", server.target).returncode == 0
    assert server.stop() == 0
    return server.data


def test_backups_refuse_what_would_do_harm(new_server: NewServer, tmp_path: Path, safe_psrl: Command) -> None:
    data = small_store(new_server)
    backup = tmp_path / "backup"
    assert safe_psrl("store", "backup", str(backup), "--from", f"sqlite:{data}").code == 0
    assert sorted(path.name for path in backup.iterdir()) == ["commit-counter", "safe-psrl.db"]

    for arguments, why in (
        (("store", "backup", backup, "--from", f"sqlite:{data}"), "exists already"),
        (("store", "restore", backup, "--to", f"sqlite:{data}"), "exists already"),
        (("store", "backup", tmp_path / "new", "--from", f"sqlite:{tmp_path}"), "has no database"),
        (("store", "backup", tmp_path / "new", "--from", "memory:"), "not an embedded store"),
    ):
        ended = safe_psrl(*map(str, arguments))
        assert ended.code == 2, arguments
        assert why in ended.err
        assert ended.err.count("\n") == 1
        assert not (tmp_path / "new").exists()

    shutil.copytree(backup, tmp_path / "cut")
    execute(tmp_path / "cut", "UPDATE events SET payload = x'00'")
    execute(tmp_path / "cut", "DELETE FROM snapshots")
    ended = safe_psrl("store", "restore", str(tmp_path / "cut"), "--to", f"sqlite:{tmp_path / 'new'}")
    assert ended.code == 2
    assert "agent one is damaged" in ended.err
    assert not (tmp_path / "new").exists()
