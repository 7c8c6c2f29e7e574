"""The embedded store alone: its files, its lock, its commits, its compaction."""

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
from safe_psrl_server.store.gathering import LONE_COMMITS, MANY_ARRIVALS, PATIENT_PASSES, QUIET_PASSES
from safe_psrl_server.store.schema import APPLICATION_ID, MIGRATIONS

from safe_psrl_server.store import DamagedStreamError, StoredStream, StoreError, StoreFailedError, gathering
from safe_psrl_server.store.sqlite.store import DATABASE_FILE, SqliteStore


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An open store in `tmp_path`."""
    store = SqliteStore(tmp_path)
    await store.open()
    yield store
    await store.close()


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


async def reopened(directory: Path, agent: str) -> StoredStream:
    """What another process would read of `agent` after this one has closed."""
    store = SqliteStore(directory)
    await store.open()
    try:
        return await store.load(agent)
    finally:
        await store.close()


async def refused(directory: Path) -> str:
    """The message of the error that opening ends in; one line."""
    store = SqliteStore(directory)
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_stream_outlives_the_store(tmp_path: Path, data: SqliteStore) -> None:
    """Closed and opened again: the same events, and appending goes on."""
    await data.append("a", 0, [b"1", b"2"])
    await data.close()
    assert await reopened(tmp_path, "a") == StoredStream(None, [b"1", b"2"], 2)
    again = SqliteStore(tmp_path)
    await again.open()
    assert await again.append("a", 2, [b"3"]) == 3
    await again.save_snapshot("a", 3, b"three")
    await again.close()
    assert await reopened(tmp_path, "a") == StoredStream(b"three", [], 3)


async def test_commits_are_flushed_and_logged_ahead(data: SqliteStore) -> None:
    """The connection that writes has synchronous=FULL and a write-ahead log: a commit that returned is on the disk. So is a
    write to our own log."""
    assert data._log._file is not None
    assert fcntl.fcntl(data._log._file, fcntl.F_GETFL) & os.O_DSYNC
    assert data._writing.execute("PRAGMA synchronous").fetchone() == (2,)
    assert data._writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_second_store_on_the_directory_is_refused(tmp_path: Path, data: SqliteStore) -> None:
    """At once, naming the process that has it; the first one is not disturbed, and the place is free once it closes."""
    assert f"in use by process {os.getpid()}: stop that server, or choose another" in await refused(tmp_path)
    await data.append("a", 0, [b"x"])
    await data.close()
    assert (await reopened(tmp_path, "a")).version == 1


async def test_appends_that_wait_share_a_commit(data: SqliteStore) -> None:
    """Group commit: far fewer commits than appends when many come at once."""
    await asyncio.gather(*(data.append(f"a{i}", 0, [b"x"]) for i in range(200)))
    assert 1 <= data._journal.commits <= 20
    assert len(await data.agents()) == 200


async def test_where_calls_come_one_by_one_a_commit_waits_longer(data: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The passes of the loop that are waited for are many after a commit to which calls came in many passes, else few."""
    looks, look = list[int](), data._gathering._look

    def counted(*place: Any) -> None:
        looks[-1] += 1
        look(*place)

    async def passes(appends: int) -> int:
        """That pass before the commit of the first of `appends`, which come one in each pass."""
        looks.append(0)
        waiting = []
        for number in range(appends):
            waiting.append(data.append(f"{len(looks)}-{number}", 0, [b"x"]))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        return looks[-1]

    monkeypatch.setattr(gathering, "EMPTY_PASS", inf)  # however slow this machine is, no pass does anything
    monkeypatch.setattr(gathering, "MOST_DELAY", inf)
    monkeypatch.setattr(gathering, "FAST_COMMIT", -inf)  # however fast this disk is, nobody is committed at once
    monkeypatch.setattr(data._gathering, "_look", counted)
    assert await passes(1) == QUIET_PASSES
    assert await passes(1) == QUIET_PASSES
    data._gathering._arrivals = MANY_ARRIVALS
    assert await passes(2 * MANY_ARRIVALS) == PATIENT_PASSES
    assert data._gathering._arrivals == 2 * MANY_ARRIVALS
    assert await passes(1) == PATIENT_PASSES
    assert await passes(1) == QUIET_PASSES


async def test_whoever_was_alone_is_not_waited_for(data: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a commit that nobody came to share some more are made at once; then it is seen whether that is still so."""
    monkeypatch.setattr(gathering, "EMPTY_PASS", inf)
    waited, look = list[int](), data._gathering._look

    def counted(*place: Any) -> None:
        waited.append(0)
        look(*place)

    monkeypatch.setattr(data._gathering, "_look", counted)
    is_at_once = list[bool]()
    for version in range(LONE_COMMITS + 2):
        data._gathering._usual_seconds = 0.0
        waited.clear()
        append = data.append("a", version, [b"x"])
        is_at_once.append(append.is_over)
        await append
        assert is_at_once[-1] == (not waited)
    assert is_at_once == [False, *[True] * LONE_COMMITS, False]
    assert (await data.load("a")).version == LONE_COMMITS + 2


async def test_a_store_that_is_closed_amid_commits_keeps_all_of_them(
    tmp_path: Path, data: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is under way in the thread, and another call, which would be committed at once if it were alone, waits for it."""
    await data.append("a", 0, [b"1"])
    assert (await data.load("a")).version == 1  # for which everything is filed
    monkeypatch.setattr(gathering, "FAST_COMMIT", inf)
    data._gathering._lone_commits = 0  # those who come next are waited with
    began, may_end, append = threading.Event(), threading.Event(), data._log.append

    def slow(commit: bytes) -> None:
        began.set()
        assert may_end.wait(10)
        append(commit)

    monkeypatch.setattr(data._log, "append", slow)
    under_way = [data.append("a", 1, [b"2"]), data.append("b", 0, [b"1"])]  # shared: made in the thread
    await asyncio.to_thread(began.wait, 10)
    monkeypatch.setattr(data._log, "append", append)
    waiting, closing = data.append("c", 0, [b"1"]), asyncio.create_task(data.close())
    await asyncio.sleep(0)
    may_end.set()
    await closing
    assert [await one for one in (*under_way, waiting)] == [2, 1, 1]
    for agent, events in (("a", [b"1", b"2"]), ("b", [b"1"]), ("c", [b"1"])):
        assert (await reopened(tmp_path, agent)).events == events


@pytest.mark.parametrize("others", [True, False])
async def test_whoever_is_not_alone_any_more_is_waited_for(
    data: SqliteStore, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """One who comes right after a commit was there while it was made; and so were those who share one."""
    data._gathering._usual_seconds = 0.0
    await data.append("a", 0, [b"x"])
    assert data._gathering._lone_commits == LONE_COMMITS
    if others:
        data._gathering._lone_commits = 0
        await asyncio.gather(data.append("b", 0, [b"x"]), data.append("c", 0, [b"x"]))
        assert data._gathering._lone_commits == 0
    else:
        data._gathering._usual_seconds = 1e-4
        monkeypatch.setattr(data._gathering, "_last_commit", inf)  # later than any time
        assert not data.append("a", 1, [b"x"]).is_over


@pytest.mark.parametrize(
    ("usual_seconds", "together", "was_shared", "by_the_loop"),
    [
        (0.0002, 1, False, True),
        (0.0002, 1, True, False),
        (0.0002, 2, False, False),
        (0.02, 1, False, False),
        (inf, 1, False, False),
    ],
)
async def test_a_call_that_is_alone_waits_for_a_fast_disk(
    data: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    usual_seconds: float,
    together: int,
    was_shared: bool,
    by_the_loop: bool,
) -> None:
    """Without a thread. A slow disk, several calls, or the first of many are for the thread: the loop goes on meanwhile."""
    if was_shared:
        await asyncio.gather(data.append("x", 0, [b"x"]), data.append("y", 0, [b"x"]))
    threads, commit = list[threading.Thread](), data._commit

    def noted(group: _Group) -> None:
        threads.append(threading.current_thread())
        commit(group)

    monkeypatch.setattr(data, "_commit", noted)
    data._gathering._usual_seconds = usual_seconds
    await asyncio.gather(*(data.append(f"a{number}", 0, [b"x"]) for number in range(together)))
    assert [thread is threading.main_thread() for thread in threads] == [by_the_loop]
    assert 0 < data._gathering._usual_seconds < inf
    assert (await data.load("a0")).version == 1


async def test_a_large_policy_is_committed_by_the_thread(data: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the disk: its plan took long, and those who wait for actions need not wait for the disk."""
    threads, commit = list[threading.Thread](), data._commit

    def noted(group: _Group) -> None:
        threads.append(threading.current_thread())
        commit(group)

    monkeypatch.setattr(data, "_commit", noted)
    data._gathering._usual_seconds = 0.0002
    await data.append("a", 0, [b"x"], {1: b"policy"})
    assert threads == [data._thread]
    assert (await data.load("a")).policies == {1: b"policy"}


@pytest.mark.parametrize("usual_seconds", [0.0, inf])
async def test_a_commit_that_fails_by_the_loop_stops_everything_too(
    data: SqliteStore, monkeypatch: pytest.MonkeyPatch, usual_seconds: float
) -> None:
    def fail(_number: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(data._witness, "note", fail)
    data._gathering._usual_seconds = usual_seconds
    for agent in ("a", "b"):
        with pytest.raises(StoreFailedError, match="the disk is gone"):
            await asyncio.wait_for(data.append(agent, 0, [b"x"]), 10)
    assert data.failure.done()


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """A file of no bytes is a database of version 0 and is brought to the newest."""
    (tmp_path / DATABASE_FILE).touch()
    assert await reopened(tmp_path, "a") == StoredStream(None, [], 0)
    with sqlite3.connect(tmp_path / DATABASE_FILE) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    db.close()


async def test_a_newer_schema_is_refused(tmp_path: Path, data: SqliteStore) -> None:
    """A database of a later release is left alone."""
    await data.append("a", 0, [b"x"])
    await data.close()
    newer = len(MIGRATIONS) + 1
    db = sqlite3.connect(tmp_path / DATABASE_FILE)
    db.execute(f"PRAGMA user_version = {newer}")
    db.close()
    assert f"schema version {newer}, this release knows {len(MIGRATIONS)}: use a newer release" in await refused(tmp_path)


async def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """And not changed: no table is added to it."""
    db = sqlite3.connect(tmp_path / DATABASE_FILE)
    db.executescript("CREATE TABLE songs (title TEXT); INSERT INTO songs VALUES ('x');")
    db.close()
    assert "not one of this service" in await refused(tmp_path)
    db = sqlite3.connect(tmp_path / DATABASE_FILE)
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]
    db.close()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """It says damaged, and what to do."""
    (tmp_path / DATABASE_FILE).write_bytes(b"no database at all" * 100)
    assert "is damaged (file is not a database): restore it from a backup" in await refused(tmp_path)


async def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "file").touch()
    assert "cannot be opened for writing" in await refused(tmp_path / "file")


async def test_a_log_that_was_cut_off_is_noticed(tmp_path: Path, data: SqliteStore) -> None:
    """SQLite opens a database whose write-ahead log is gone without a word; acknowledged commits are counted elsewhere. The
    event is in our own log; that it was filed is not."""
    await data.append("a", 0, [b"1"])
    await data.close()
    older = (tmp_path / DATABASE_FILE).read_bytes()
    again = SqliteStore(tmp_path)
    await again.open()
    await again.append("a", 1, [b"2"])
    await again.close()
    (tmp_path / DATABASE_FILE).write_bytes(older)
    assert "1 commits behind what was acknowledged" in await refused(tmp_path)


async def test_two_snapshots_are_kept_and_events_go_behind_the_older(data: SqliteStore) -> None:
    """So that one damaged snapshot can be made good from the one before and the events between."""
    for version in range(1, 9):
        await data.append("a", version - 1, [b"%d" % version])
        if version % 2 == 0:
            await data.save_snapshot("a", version, b"at %d" % version)
    snapshots = data._writing.execute("SELECT version FROM snapshots ORDER BY version").fetchall()
    versions = data._writing.execute("SELECT version FROM events ORDER BY version").fetchall()
    assert snapshots == [(6,), (8,)]
    assert versions == [(7,), (8,)]


async def test_the_first_snapshot_drops_no_event(data: SqliteStore) -> None:
    """Nothing older has been verified yet."""
    await data.append("a", 0, [b"1", b"2"])
    await data.save_snapshot("a", 2, b"two")
    assert data._writing.execute("SELECT count(*) FROM events").fetchone() == (2,)


@pytest.mark.parametrize(
    "damage", ["payload = x'00'", "digest = x'00'", "link = x'00'", "payload = 7", "version = -3", "version = 'x'"]
)
async def test_a_damaged_newest_snapshot_is_made_good(data: SqliteStore, damage: str) -> None:
    """The older one and the events after it give the same stream."""
    await data.append("a", 0, [b"1", b"2", b"3"])
    await data.save_snapshot("a", 1, b"one")
    await data.save_snapshot("a", 3, b"three")
    data._writing.execute(f"UPDATE snapshots SET {damage} WHERE version = 3")  # noqa: S608  # ours
    assert await data.load("a") == StoredStream(b"one", [b"2", b"3"], 3)
    await data.save_snapshot("a", 3, b"three")
    assert await data.load("a") == StoredStream(b"three", [], 3)


async def test_events_stay_while_the_older_snapshot_is_damaged(data: SqliteStore) -> None:
    """Compaction reads it back first, and drops nothing behind what cannot be read."""
    await data.append("a", 0, [b"1", b"2", b"3"])
    await data.save_snapshot("a", 1, b"one")
    data._writing.execute("UPDATE snapshots SET payload = x'00'")
    await data.save_snapshot("a", 3, b"three")
    assert data._writing.execute("SELECT count(*) FROM events").fetchone() == (3,)
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
async def test_a_stream_that_is_not_what_was_written_is_refused(data: SqliteStore, damage: str, message: str) -> None:
    """Changed, lost, moved and cut-off events all break the chain of checksums; the other agents are not affected."""
    await data.append("a", 0, [b"1", b"2", b"3"])
    await data.append("b", 0, [b"x"])
    await data.agents()  # files the journal
    data._writing.execute(f"{damage} {'AND' if 'WHERE' in damage else 'WHERE'} agent = 'a'")
    with pytest.raises(DamagedStreamError, match=message):
        await data.load("a")
    assert (await data.load("b")).events == [b"x"]


async def test_two_events_that_changed_places_are_refused(data: SqliteStore) -> None:
    """Each checksum is chained to the one before, so an order is part of it."""
    await data.append("a", 0, [b"1", b"2"])
    await data.agents()  # files the journal
    data._writing.execute("UPDATE events SET payload = CASE version WHEN 1 THEN x'32' ELSE x'31' END")
    with pytest.raises(DamagedStreamError, match="event 1 was changed"):
        await data.load("a")


def fill(data: SqliteStore, database: bool) -> None:
    """No room any more: for pages of the database, or for the log, whose file is the one that is always full."""
    if database:
        (pages,) = data._writing.execute("PRAGMA page_count").fetchone()
        data._writing.execute(f"PRAGMA max_page_count = {pages}")
    else:
        full = os.open("/dev/full", os.O_RDWR)
        assert data._log._file is not None
        os.dup2(full, data._log._file)
        os.close(full)


@pytest.mark.parametrize("database", [True, False])
async def test_a_failed_commit_is_the_last(tmp_path: Path, data: SqliteStore, database: bool) -> None:
    """Fail-stop: the append that failed and all later ones raise, `failure` tells, and what was acknowledged is there."""
    await data.append("a", 0, [b"kept"])
    fill(data, database)
    with pytest.raises(StoreFailedError, match=r"full|No space left"):
        await data.append("a", 1, [b"x" * 100_000], {1: b"policy"} if database else {})
    assert isinstance(data.failure.result(), StoreFailedError)
    data._writing.execute("PRAGMA max_page_count = 1000000")
    for call in (data.append("a", 1, [b"y"]), data.append("b", 0, [b"y"]), data.save_snapshot("a", 1, b"s")):
        with pytest.raises(StoreFailedError):
            await call
    await data.close()
    assert await reopened(tmp_path, "a") == StoredStream(None, [b"kept"], 1)


@pytest.mark.parametrize("database", [True, False])
async def test_a_failed_commit_fails_everyone_in_its_group(data: SqliteStore, database: bool) -> None:
    """Nobody who waited for it is left waiting or told that it went well."""
    fill(data, database)
    calls = [data.append(f"a{i}", 0, [b"x" * 100_000], {1: b"policy"} if database else {}) for i in range(20)]
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
    assert all(isinstance(outcome, StoreFailedError) for outcome in outcomes)


async def test_a_surprise_in_the_writing_thread_is_a_failure_too(data: SqliteStore) -> None:
    """Whatever goes wrong between BEGIN and COMMIT stops the store; nobody waits for an answer that never comes."""
    await data.append("a", 0, [b"x"])
    data._heads["a"] = (1, "no bytes")
    with pytest.raises(StoreFailedError):
        await asyncio.wait_for(data.append("a", 1, [b"y"]), 10)
    assert data.failure.done()


async def test_a_caller_who_goes_away_does_not_undo_the_append(data: SqliteStore) -> None:
    """Cancelling the wait cancels nothing else: the writing thread goes on for the others."""
    waiting = asyncio.ensure_future(data.append("a", 0, [b"x"]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await data.append("b", 0, [b"x"])
    assert (await data.load("a")).version == 1


@pytest.mark.parametrize("noted", [b"", b"00000000000000000099"])
async def test_refused_opening_holds_nothing(tmp_path: Path, data: SqliteStore, noted: bytes) -> None:
    """A store that could not be opened keeps neither the lock nor a file open: the next one may try."""
    await data.append("a", 0, [b"x"])
    await data.close()
    if noted:
        (tmp_path / "commits").write_bytes(noted)
    else:
        (tmp_path / DATABASE_FILE).write_bytes(b"no database at all" * 100)
    before = open_files()
    message = await refused(tmp_path)
    assert open_files() <= before
    assert await refused(tmp_path) == message
