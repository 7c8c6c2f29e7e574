"""The SQLite store: its files, its lock, its commits, its compaction."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from safe_psrl_server.store import Append, DamagedStreamError, StoredStream, StoreError, StoreFailedError
from safe_psrl_server.store.sqlite import streams
from safe_psrl_server.store.sqlite.directory import COUNTER_FILE
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore
from safe_psrl_server.store.sqlite.streams import APPLICATION_ID, SCHEMA_VERSION
from tests.safe_psrl_server.store.appending import append, execute


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An open store in `tmp_path`."""
    store = SqliteStore(tmp_path)
    await store.open()
    yield store
    await store.close()


def files_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


async def reopened(directory: Path, agent: str) -> StoredStream:
    """What another process reads of `agent` after this one has closed the store."""
    store = SqliteStore(directory)
    await store.open()
    try:
        return await store.load(agent)
    finally:
        await store.close()


async def refused(directory: Path) -> str:
    """The one-line message of the error that opening ends in."""
    store = SqliteStore(directory)
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_stream_outlives_the_store(tmp_path: Path, data: SqliteStore) -> None:
    """Closed and opened again: the same events, and appending continues."""
    await append(data, "a", 0, [b"1", b"2"])
    await data.close()
    assert await reopened(tmp_path, "a") == StoredStream(None, [b"1", b"2"], 2)
    again = SqliteStore(tmp_path)
    await again.open()
    assert await append(again, "a", 2, [b"3"]) == 3
    await again.save_snapshot("a", 3, b"three")
    await again.close()
    assert await reopened(tmp_path, "a") == StoredStream(b"three", [], 3)


async def test_everything_acknowledged_is_in_the_database(tmp_path: Path, data: SqliteStore) -> None:
    """Beside it there is SQLite's own write-ahead log and the commit counter."""
    await append(data, "a", 0, [b"1"])
    assert files_in(tmp_path) == {DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm", COUNTER_FILE}
    assert execute(tmp_path, "SELECT agent, version, payload FROM events") == [("a", 1, b"1")]
    assert execute(tmp_path, "PRAGMA journal_mode") == [("wal",)]


async def test_commits_run_in_one_thread_that_is_not_the_loops(data: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """With synchronous=FULL: a commit that returned is on the disk."""
    threads, levels, work = set[threading.Thread](), set[int](), streams.append

    def observed(db: sqlite3.Connection, appends: list[Append]) -> streams.Appended:
        threads.add(threading.current_thread())
        levels.add(db.execute("PRAGMA synchronous").fetchone()[0])
        return work(db, appends)

    monkeypatch.setattr(streams, "append", observed)
    await asyncio.gather(*(append(data, f"a{i}", 0, [b"x"]) for i in range(20)))
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    assert levels == {2}


async def test_a_second_store_on_the_directory_is_refused(tmp_path: Path, data: SqliteStore) -> None:
    """The first one is not disturbed, and the directory is free once it closes."""
    assert "is in use by another server: stop it, or choose another directory" in await refused(tmp_path)
    await append(data, "a", 0, [b"x"])
    assert "is in use" in await refused(tmp_path)
    await data.close()
    assert (await reopened(tmp_path, "a")).version == 1


async def test_the_lock_is_on_the_database_itself(tmp_path: Path, data: SqliteStore) -> None:
    """There is no lock file to delete: removing every other file does not let a second server in."""
    await append(data, "a", 0, [b"x"])
    (tmp_path / COUNTER_FILE).unlink()
    assert "is in use" in await refused(tmp_path)


@pytest.mark.parametrize("change", ["move", "delete", "replace"])
async def test_a_directory_that_was_moved_or_deleted_stops_the_store(tmp_path: Path, data: SqliteStore, change: str) -> None:
    """Nothing is acknowledged into a file that no restart would find."""
    await append(data, "a", 0, [b"x"])
    database = tmp_path / DATABASE_FILE
    if change == "delete":
        database.unlink()
    else:
        database.rename(tmp_path / "elsewhere")
    if change == "replace":
        database.write_bytes((tmp_path / "elsewhere").read_bytes())
    with pytest.raises(StoreFailedError, match="was moved, deleted or replaced"):
        await append(data, "a", 1, [b"y"])


async def test_a_store_that_is_closed_amid_commits_keeps_all_of_them(
    tmp_path: Path, data: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing waits for the writer thread."""
    began, may_end, work = threading.Event(), threading.Event(), streams.append

    def slow(db: sqlite3.Connection, appends: list[Append]) -> streams.Appended:
        began.set()
        assert may_end.wait(10)
        return work(db, appends)

    monkeypatch.setattr(streams, "append", slow)
    under_way = [asyncio.ensure_future(data.commit([Append(name, 0, [b"1"])])) for name in ("a", "b")]
    await asyncio.to_thread(began.wait, 10)
    closing = asyncio.create_task(data.close())
    may_end.set()
    await closing
    assert [await one for one in under_way] == [set(), set()]
    assert [(await reopened(tmp_path, name)).events for name in ("a", "b")] == [[b"1"], [b"1"]]


async def test_a_stalled_commit_does_not_stall_reads(data: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads have a connection and a thread of their own."""
    await append(data, "a", 0, [b"1"])
    may_end, work = threading.Event(), streams.append

    def stalled(db: sqlite3.Connection, appends: list[Append]) -> streams.Appended:
        assert may_end.wait(30)
        return work(db, appends)

    monkeypatch.setattr(streams, "append", stalled)
    waiting = asyncio.ensure_future(append(data, "a", 1, [b"2"]))
    assert (await asyncio.wait_for(data.load("a"), 10)).version == 1
    assert not waiting.done()
    may_end.set()
    assert await waiting == 2


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """A file of no bytes is a new database."""
    (tmp_path / DATABASE_FILE).touch()
    assert await reopened(tmp_path, "a") == StoredStream(None, [], 0)
    assert execute(tmp_path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert execute(tmp_path, "PRAGMA application_id") == [(APPLICATION_ID,)]


async def test_a_newer_schema_is_refused(tmp_path: Path, data: SqliteStore) -> None:
    """A database of a later release is left alone."""
    await append(data, "a", 0, [b"x"])
    await data.close()
    newer = SCHEMA_VERSION + 1
    execute(tmp_path, f"PRAGMA user_version = {newer}")
    assert f"schema version {newer}, this release reads {SCHEMA_VERSION}: use a newer release" in await refused(tmp_path)


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    """And not changed: no table is added to it."""
    db = sqlite3.connect(tmp_path / DATABASE_FILE)
    db.executescript("CREATE TABLE songs (title TEXT); INSERT INTO songs VALUES ('x');")
    db.close()
    assert "not created by this service" in await refused(tmp_path)
    assert execute(tmp_path, "SELECT name FROM sqlite_master") == [("songs",)]


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """It says damaged, and what to do."""
    (tmp_path / DATABASE_FILE).write_bytes(b"no database at all" * 100)
    assert "is damaged (file is not a database): restore it from a backup" in await refused(tmp_path)


async def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "file").touch()
    assert "cannot be opened for writing" in await refused(tmp_path / "file")


async def test_a_lost_write_ahead_log_is_detected(tmp_path: Path, data: SqliteStore) -> None:
    """SQLite opens a database whose write-ahead log is gone without complaint; the commit counter reveals it."""
    await append(data, "a", 0, [b"1"])
    await data.close()
    older = (tmp_path / DATABASE_FILE).read_bytes()
    again = SqliteStore(tmp_path)
    await again.open()
    await append(again, "a", 1, [b"2"])
    await again.close()
    (tmp_path / DATABASE_FILE).write_bytes(older)
    assert "1 commits behind what was acknowledged" in await refused(tmp_path)


async def test_two_snapshots_are_kept_and_events_go_behind_the_older(tmp_path: Path, data: SqliteStore) -> None:
    """So that one damaged snapshot can be made good from the one before and the events between."""
    for version in range(1, 9):
        await append(data, "a", version - 1, [b"%d" % version])
        if version % 2 == 0:
            await data.save_snapshot("a", version, b"at %d" % version)
    assert execute(tmp_path, "SELECT version FROM snapshots ORDER BY version") == [(6,), (8,)]
    assert execute(tmp_path, "SELECT version FROM events ORDER BY version") == [(7,), (8,)]


async def test_the_first_snapshot_drops_no_event(tmp_path: Path, data: SqliteStore) -> None:
    """Nothing older has been verified yet."""
    await append(data, "a", 0, [b"1", b"2"])
    await data.save_snapshot("a", 2, b"two")
    assert execute(tmp_path, "SELECT count(*) FROM events") == [(2,)]


@pytest.mark.parametrize(
    "damage", ["payload = x'00'", "digest = x'00'", "link = x'00'", "payload = 7", "version = -3", "version = 'x'"]
)
async def test_a_damaged_newest_snapshot_is_made_good(tmp_path: Path, data: SqliteStore, damage: str) -> None:
    """The older one and the events after it give the same stream."""
    await append(data, "a", 0, [b"1", b"2", b"3"])
    await data.save_snapshot("a", 1, b"one")
    await data.save_snapshot("a", 3, b"three")
    execute(tmp_path, f"UPDATE snapshots SET {damage} WHERE version = 3")  # noqa: S608  # ours
    assert await data.load("a") == StoredStream(b"one", [b"2", b"3"], 3)
    await data.save_snapshot("a", 3, b"three")
    assert await data.load("a") == StoredStream(b"three", [], 3)


async def test_events_stay_while_the_older_snapshot_is_damaged(tmp_path: Path, data: SqliteStore) -> None:
    """Compaction reads it back first, and drops nothing behind what cannot be read."""
    await append(data, "a", 0, [b"1", b"2", b"3"])
    await data.save_snapshot("a", 1, b"one")
    execute(tmp_path, "UPDATE snapshots SET payload = x'00'")
    await data.save_snapshot("a", 3, b"three")
    assert execute(tmp_path, "SELECT count(*) FROM events") == [(3,)]
    assert await data.load("a") == StoredStream(b"three", [], 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("UPDATE events SET payload = x'00' WHERE version = 2", "event 2 was changed"),
        ("UPDATE events SET payload = 'text' WHERE version = 2", "event 2 is unreadable"),
        ("DELETE FROM events WHERE version = 2", "event 2 is missing"),
        ("DELETE FROM events WHERE version = 3", "ends at event 2; 3 were acknowledged"),
        ("DELETE FROM events", "ends at event 0; 3 were acknowledged"),
        ("DELETE FROM streams", "its head is missing"),
        ("UPDATE streams SET version = 2", "ends at event 3; 2 were acknowledged"),
        ("UPDATE streams SET link = x'00'", "ends at event 3; 3 were acknowledged"),
        ("UPDATE events SET version = -version", "ends at event 0; 3 were acknowledged"),
    ],
)
async def test_a_stream_that_is_not_what_was_written_is_refused(
    tmp_path: Path, data: SqliteStore, damage: str, message: str
) -> None:
    """Changed, lost, moved and cut-off events all break the chain of checksums; the other agents are not affected."""
    await append(data, "a", 0, [b"1", b"2", b"3"])
    await append(data, "b", 0, [b"x"])
    execute(tmp_path, f"{damage} {'AND' if 'WHERE' in damage else 'WHERE'} agent = 'a'")
    with pytest.raises(DamagedStreamError, match=message):
        await data.load("a")
    assert (await data.load("b")).events == [b"x"]


async def test_two_events_that_changed_places_are_refused(tmp_path: Path, data: SqliteStore) -> None:
    """Each checksum is chained to the one before, so an order is part of it."""
    await append(data, "a", 0, [b"1", b"2"])
    execute(tmp_path, "UPDATE events SET payload = CASE version WHEN 1 THEN x'32' ELSE x'31' END")
    with pytest.raises(DamagedStreamError, match="event 1 was changed"):
        await data.load("a")


async def test_a_failed_commit_is_the_last(tmp_path: Path, data: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail-stop: the append that failed and all later writes raise; what was acknowledged is there."""
    await append(data, "a", 0, [b"kept"])
    work = streams.append

    def full(db: sqlite3.Connection, appends: list[Append]) -> streams.Appended:
        """The database may not grow any more."""
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")
        return work(db, appends)

    with monkeypatch.context() as patch:
        patch.setattr(streams, "append", full)
        with pytest.raises(StoreFailedError, match="full"):
            await append(data, "a", 1, [b"x" * 100_000])
    for call in (append(data, "a", 1, [b"y"]), append(data, "b", 0, [b"y"]), data.save_snapshot("a", 1, b"s")):
        with pytest.raises(StoreFailedError):
            await call
    await data.close()
    assert await reopened(tmp_path, "a") == StoredStream(None, [b"kept"], 1)


async def test_an_unexpected_error_in_the_writer_thread_is_a_failure(
    data: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong between BEGIN and COMMIT stops the store; no caller waits for ever."""

    def broken(_db: sqlite3.Connection, _appends: list[Append]) -> streams.Appended:
        raise ZeroDivisionError

    monkeypatch.setattr(streams, "append", broken)
    for _ in range(2):
        with pytest.raises(StoreFailedError):
            await asyncio.wait_for(append(data, "a", 0, [b"y"]), 10)


async def test_an_unreadable_commit_counter_is_refused(tmp_path: Path, data: SqliteStore) -> None:
    """It is not taken for 0, which would hide a lost commit."""
    await append(data, "a", 0, [b"x"])
    await data.close()
    (tmp_path / COUNTER_FILE).write_bytes(b"\xff\xfe garbage")
    assert "is unreadable: restore the directory from a backup" in await refused(tmp_path)


@pytest.mark.parametrize("damage", ["DELETE FROM commits", "UPDATE commits SET number = -1"])
async def test_a_database_without_a_commit_number_is_refused(tmp_path: Path, data: SqliteStore, damage: str) -> None:
    await append(data, "a", 0, [b"x"])
    await data.close()
    execute(tmp_path, damage)
    assert "is damaged (no commit number): restore it from a backup" in await refused(tmp_path)


@pytest.mark.parametrize("noted", [b"", b"00000000000000000099"])
async def test_refused_opening_holds_nothing(tmp_path: Path, data: SqliteStore, noted: bytes) -> None:
    """A store that could not be opened keeps neither the lock nor a file open: the next one may try."""
    await append(data, "a", 0, [b"x"])
    await data.close()
    if noted:
        (tmp_path / COUNTER_FILE).write_bytes(noted)
    else:
        (tmp_path / DATABASE_FILE).write_bytes(b"no database at all" * 100)
    before = open_files()
    message = await refused(tmp_path)
    assert open_files() <= before
    assert await refused(tmp_path) == message
