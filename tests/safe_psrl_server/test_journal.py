"""The journal of the embedded store and its log: filed in time, whole after a crash, never less than what was acknowledged."""

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from safe_psrl_server.store import DamagedStreamError, StoreError, backup
from safe_psrl_server.store.backup import copy_directory
from safe_psrl_server.store.journal import LARGE, LONG, Journal
from safe_psrl_server.store.log import BLOCK, LOG, ROOM, LogFile, Record, following, record
from safe_psrl_server.store.schema import APPLICATION_ID, MIGRATIONS
from safe_psrl_server.store.sqlite import FILE, SqliteStore, _Group


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store whose last events, of two agents in turns, are in its journal alone; a and b have others that are filed."""
    store = SqliteStore(tmp_path / "data")
    await store.open()
    for agent in ("a", "b"):
        await store.append(agent, 0, [b"filed"])
    await store.agents()
    for version in (1, 2):
        for agent in ("a", "b"):
            await store.append(agent, version, [f"{agent}{version}".encode()])
    yield store
    await store.close()


def in_journal(store: SqliteStore) -> int:
    """Commits that are not filed, of an event each."""
    (filed,) = store._writing.execute("SELECT number FROM commits").fetchone()
    count = len(following(store._log.read(), filed, store._witness.noted()))
    assert count == len(store._journal)
    return count


def crashed(store: SqliteStore, directory: Path) -> Path:
    """What a process finds that starts after this one was killed."""
    shutil.copytree(store._directory, directory, ignore=shutil.ignore_patterns("lock", "*-shm"))
    return directory


async def test_events_are_entered_in_the_journal_and_filed_before_they_are_read(data: SqliteStore) -> None:
    """Whoever reads sees everything; after that the journal is empty."""
    assert in_journal(data) == 4
    assert (await data.load("a")).events == [b"filed", b"a1", b"a2"]
    assert in_journal(data) == 0
    assert (await data.heads())["b"].version == 3


async def test_whoever_reads_while_it_is_being_filed_sees_everything(
    data: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filed, but not committed, it is in neither place for a reader, who waits."""
    entered, go_on, commit = threading.Event(), threading.Event(), data._commit

    def held(group: _Group) -> None:
        entered.set()
        go_on.wait(30)
        commit(group)

    monkeypatch.setattr(data, "_commit", held)
    filing = asyncio.ensure_future(data.save_snapshot("b", 3, b"state"))
    assert await asyncio.to_thread(entered.wait, 30)
    reading = asyncio.create_task(data.load("a"))
    await asyncio.wait([reading], timeout=0.2)
    go_on.set()
    assert (await reading).events == [b"filed", b"a1", b"a2"]
    await filing


async def test_a_snapshot_finds_the_event_that_it_stands_for(data: SqliteStore) -> None:
    await data.save_snapshot("a", 3, b"state")
    stream = await data.load("a")
    assert (stream.snapshot, stream.events, stream.version) == (b"state", [], 3)


async def test_a_long_journal_is_filed_without_being_read(data: SqliteStore) -> None:
    """By itself, soon after it has become long; what comes meanwhile is entered after it."""
    await data.append("c", 0, [b"x"] * LONG)
    version = LONG
    async with asyncio.timeout(20):
        while len(data._journal) >= LONG:
            version = await data.append("c", version, [b"y"])
    assert (await data.load("c")).version == version


async def test_a_large_journal_is_filed_without_being_read(data: SqliteStore) -> None:
    """However few events it has: they are in memory, too."""
    await data.append("c", 0, [b"x" * LARGE])
    assert data._journal.is_long
    async with asyncio.timeout(20):
        version = 1
        while data._journal.is_long:
            version = await data.append("c", version, [b"y"])
    assert (await data.load("c")).version == version


async def test_what_a_crash_left_in_the_log_is_there(tmp_path: Path, data: SqliteStore) -> None:
    """Filed when the store is opened; the chain goes on from it."""
    again = SqliteStore(crashed(data, tmp_path / "again"))
    await again.open()
    try:
        assert in_journal(again) == 0
        assert (await again.load("a")).events == [b"filed", b"a1", b"a2"]
        assert await again.append("b", 3, [b"more"]) == 4
        assert (await again.load("b")).events == [b"filed", b"b1", b"b2", b"more"]
    finally:
        await again.close()


Change = Callable[[list[Record]], list[Record]]


def rewritten(directory: Path, change: Change) -> None:
    """Another log, of records that are whole."""
    found = following((directory / LOG).read_bytes(), 3, 0)
    assert [one.number for one in found] == [4, 5, 6, 7]
    changed = [record(one.number, one.entries, one.payloads) for one in change(found)]
    (directory / LOG).write_bytes(b"".join(changed))


@pytest.mark.parametrize(
    "change",
    [
        lambda _found: [],
        lambda found: found[1:],
        lambda found: found[:-1],
        lambda found: [found[0], *found[2:]],
        lambda found: [found[0]._replace(number=99), *found[1:]],
        lambda found: [found[1], found[0], *found[2:]],
    ],
)
async def test_a_log_that_lost_something_is_not_opened(tmp_path: Path, data: SqliteStore, change: Change) -> None:
    """Whatever is missing at its end looks as if it had never been; but it was counted elsewhere, too."""
    directory = crashed(data, tmp_path / "again")
    rewritten(directory, change)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(StoreError, match=r"commits behind what was acknowledged: its log was damaged. Restore"):
        await SqliteStore(directory).open()
    assert {name: (directory / name).read_bytes() for name in before} == before


async def test_a_log_that_does_not_follow_the_database_is_not_opened(tmp_path: Path, data: SqliteStore) -> None:
    """Which has some of it already, whatever its count says."""
    directory = crashed(data, tmp_path / "again")
    with sqlite3.connect(directory / FILE) as db:
        db.execute("INSERT INTO events VALUES ('a', 2, x'00', x'00')")
    db.close()
    with pytest.raises(StoreError, match=r"is damaged \(the log does not follow the database.*\): restore it from a backup"):
        await SqliteStore(directory).open()


async def test_a_record_that_was_under_way_does_not_count(tmp_path: Path, data: SqliteStore) -> None:
    """Nobody was told of it. What comes next takes its place and its number."""
    directory = crashed(data, tmp_path / "again")
    used, more = data._log._end, record(8, b"", b"payload of some length")
    for length in range(len(more)):
        content = bytearray((data._directory / LOG).read_bytes())
        content[used : used + length] = more[:length]
        (directory / LOG).write_bytes(content)
        assert len(following(bytes(content), 3, 7)) == 4
    again = SqliteStore(directory)
    await again.open()
    try:
        assert again._journal.commits == 7
        assert (await again.load("b")).events == [b"filed", b"b1", b"b2"]
    finally:
        await again.close()


async def test_records_of_before_are_not_taken_for_new_ones(data: SqliteStore) -> None:
    """The log begins anew where the old one began; what is left of that ends it."""
    await data.agents()
    commits = data._journal.commits
    await data.append("a", 3, [b"new"])
    (found,) = following(data._log.read(), commits, 0)
    assert (found.number, found.payloads) == (commits + 1, b"new")
    assert following(data._log.read(), commits + 1, 0) == []


async def test_a_log_is_empty_when_it_has_been_opened(tmp_path: Path, data: SqliteStore) -> None:
    directory = crashed(data, tmp_path / "again")
    again = SqliteStore(directory)
    await again.open()
    try:
        assert (directory / LOG).read_bytes() == bytes(ROOM)
    finally:
        await again.close()


async def test_a_log_gives_back_the_room_that_it_took(data: SqliteStore) -> None:
    await data.append("c", 0, [b"x" * (2 * ROOM)])
    assert (data._directory / LOG).stat().st_size > 2 * ROOM
    assert (await data.load("c")).events == [b"x" * (2 * ROOM)]
    assert (data._directory / LOG).stat().st_size == ROOM


def test_a_disk_that_takes_a_part_is_given_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    log = LogFile(tmp_path / LOG)
    log.clear()
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, data[:BLOCK], place))
    large = bytes(range(256)) * 50
    log.append(record(1, b"entries", large))
    log.append(record(2, b"", b""))
    log.close()
    assert following(log.read(), 0, 2) == [Record(1, b"entries", large, True), Record(2, b"", b"", True)]


@pytest.mark.parametrize("filed_meanwhile", [True, False])
async def test_a_copy_has_what_is_in_the_log(
    tmp_path: Path, data: SqliteStore, monkeypatch: pytest.MonkeyPatch, filed_meanwhile: bool
) -> None:
    """Taken while the server goes on; and also if the log is filed between the two parts of the copy."""
    loop, read = asyncio.get_running_loop(), LogFile.read

    def and_file(log: LogFile) -> bytes:
        content = read(log)
        if filed_meanwhile and log._path.parent == data._directory:
            asyncio.run_coroutine_threadsafe(data.agents(), loop).result(20)
        return content

    monkeypatch.setattr(LogFile, "read", and_file)
    monkeypatch.setattr(backup, "folded", lambda _name, _stream: None)  # these events say nothing
    copied = await asyncio.to_thread(copy_directory, data._directory, tmp_path / "copy")
    assert (copied.agents, copied.events) == (2, 6)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["commits", FILE]
    again = SqliteStore(tmp_path / "copy")
    await again.open()
    try:
        assert (await again.load("b")).events == [b"filed", b"b1", b"b2"]
    finally:
        await again.close()


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda log: log[: log.rindex(b"b2")], "agent b is damaged"),
        (lambda log: log.replace(b"b2", b"b3"), "agent b is damaged"),
        (lambda log: log[: log.rindex(b"b2") - 1], "is 1 commits behind what was acknowledged: its log was damaged"),
        (lambda _log: b"", "is 4 commits behind what was acknowledged: its log was damaged"),
    ],
)
async def test_a_copy_has_all_that_was_acknowledged_before_it(
    tmp_path: Path, data: SqliteStore, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes], refusal: str
) -> None:
    """A log whose end is missing or damaged looks like one whose last commit was under way; the count of commits tells."""
    monkeypatch.setattr(backup, "folded", lambda _name, _stream: None)  # these events say nothing
    directory = crashed(data, tmp_path / "again")
    log = directory / LOG
    log.write_bytes(change(log.read_bytes()))
    with pytest.raises(StoreError, match=refusal):
        await asyncio.to_thread(copy_directory, directory, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    (directory / "commits").unlink()  # to go on with what is left
    await asyncio.to_thread(copy_directory, directory, tmp_path / "copy")


@pytest.mark.parametrize("damage", ["DELETE FROM commits", "UPDATE commits SET number = 'x'"])
async def test_without_a_count_of_commits_it_is_not_opened(tmp_path: Path, data: SqliteStore, damage: str) -> None:
    """Whatever the journal says: nobody knows what it goes on from."""
    directory = crashed(data, tmp_path / "again")
    with sqlite3.connect(directory / FILE) as db:
        assert db.execute(damage).rowcount
    db.close()
    with pytest.raises(StoreError, match=r"is damaged \(no count of commits\): restore it from a backup"):
        await SqliteStore(directory).open()


async def test_a_commit_of_many_agents_is_filed_by_few_statements(data: SqliteStore) -> None:
    """Whatever their number: those that fill no statement of many rows are entered, too."""
    for count in (1, 15, 16, 17, 255, 256, 257, 300, 1023):
        await asyncio.gather(*(data.append(f"{count}-{agent}", 0, [b"x", b"y"]) for agent in range(count)))
        assert (await data.load(f"{count}-{count - 1}")).events == [b"x", b"y"]
        assert in_journal(data) == 0
        heads = await data.heads()
        assert {name: head.version for name, head in heads.items() if name.startswith(f"{count}-")} == {
            f"{count}-{agent}": 2 for agent in range(count)
        }


async def test_a_disk_without_room_to_file_is_no_damage(
    tmp_path: Path, data: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong is said, and nothing is lost: with room, the store opens."""

    def full(_journal: Journal) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    directory = crashed(data, tmp_path / "again")
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "file", full)
        with pytest.raises(StoreError, match=r"cannot be opened for writing: database or disk is full"):
            await SqliteStore(directory).open()
    again = SqliteStore(directory)
    await again.open()
    assert (await again.load("a")).version == 3
    await again.close()


async def test_an_event_that_was_changed_in_the_log_is_its_agents_damage(tmp_path: Path, data: SqliteStore) -> None:
    """The chain of checksums finds it; the others go on."""
    directory = crashed(data, tmp_path / "again")
    content = (directory / LOG).read_bytes()
    assert content.count(b"a1") == 1
    (directory / LOG).write_bytes(content.replace(b"a1", b"b1"))
    again = SqliteStore(directory)
    await again.open()
    try:
        with pytest.raises(DamagedStreamError, match="event 2 was changed"):
            await again.load("a")
        assert (await again.load("b")).events == [b"filed", b"b1", b"b2"]
    finally:
        await again.close()


@pytest.mark.parametrize("schema", [2, 3])
async def test_an_older_store_is_brought_up(tmp_path: Path, data: SqliteStore, schema: int) -> None:
    """One that had no journal; and one whose journal had a row for each event, some of them not filed."""
    rows = [(agent, *row) for agent in ("a", "b") for row in enumerate((await data.load(agent)).events, 1)]
    links = data._writing.execute("SELECT link FROM events ORDER BY agent, version").fetchall()
    heads = data._writing.execute("SELECT agent, version, link FROM streams").fetchall()
    whole = [(*row, *link) for row, link in zip(rows, links, strict=True)]
    filed = whole if schema == 2 else [row for row in whole if row[1] == 1]
    old = tmp_path / "old"
    old.mkdir()
    db = sqlite3.connect(old / FILE)
    db.executescript("".join(MIGRATIONS[:schema]))
    db.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {schema};")
    db.execute("UPDATE commits SET number = 7")
    db.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", filed)
    if schema == 2:
        db.executemany("INSERT INTO streams VALUES (?, ?, ?)", heads)
    else:
        db.executemany("INSERT INTO streams VALUES (?, ?, ?)", [(agent, 1, link) for agent, _, _, link in filed])
        waiting = [row for row in whole if row[1] > 1]
        db.executemany("INSERT INTO journal (agent, version, payload, link) VALUES (?, ?, ?, ?)", waiting)
    db.commit()
    db.close()
    (old / "commits").write_text("7\n")
    again = SqliteStore(old)
    await again.open()
    try:
        assert (await again.load("a")).events == [b"filed", b"a1", b"a2"]
        assert await again.append("a", 3, [b"more"]) == 4
        assert (await again.load("b")).events == [b"filed", b"b1", b"b2"]
    finally:
        await again.close()
    again = SqliteStore(old)
    await again.open()
    try:
        assert (await again.load("a")).version == 4
    finally:
        await again.close()
