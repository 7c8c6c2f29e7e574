"""Deleting a stream leaves nothing of it, in any store."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from safe_psrl_server.store import NO_POLICIES, Append, EventStore, StoredStream
from safe_psrl_server.store.backup import copy_directory
from safe_psrl_server.store.postgres import streams as postgres_streams
from safe_psrl_server.store.postgres.store import PostgresStore
from safe_psrl_server.store.sqlite.store import SqliteStore
from tests.safe_psrl_server.store.appending import append, execute

NOTHING = StoredStream(None, [], 0)
TABLES = ("streams", "events", "snapshots", "policies")


def deletion(agent: str, expected: int) -> Append:
    return Append(agent, expected, (), NO_POLICIES, (), deleted=True)


async def filled(store: EventStore, agent: str) -> None:
    """Three events, two snapshots and a policy."""
    await append(store, agent, 0, [b"1", b"2", b"3"], {1: b"policy"})
    await store.save_snapshot(agent, 1, b"one")
    await store.save_snapshot(agent, 2, b"two")


async def test_a_deleted_stream_is_gone(store: EventStore) -> None:
    await filled(store, "a")
    await filled(store, "b")
    kept = await store.load("b")
    assert await store.commit([deletion("a", 3)]) == set()
    assert await store.load("a") == NOTHING
    assert list(await store.heads()) == ["b"]
    assert await store.heads(["a"]) == {}
    assert await store.load_tail("a", 3) is None
    assert await store.load_tail("a", 0) == NOTHING
    assert await store.load("b") == kept


@pytest.mark.parametrize("expected", [0, 2, 4])
async def test_a_deletion_at_another_version_is_a_conflict(store: EventStore, expected: int) -> None:
    await filled(store, "a")
    before = await store.load("a")
    assert await store.commit([deletion("a", expected), Append("b", 0, [b"x"])]) == {"a"}
    assert await store.load("a") == before
    assert (await store.load("b")).version == 1


async def test_the_stream_of_a_deleted_agent_starts_anew(store: EventStore) -> None:
    """Also in another commit of several agents, and by `restore`."""
    await filled(store, "a")
    assert await store.commit([deletion("a", 3), Append("b", 0, [b"x"]), deletion("absent", 0)]) == set()
    assert await store.commit([Append("a", 3, [b"4"])]) == {"a"}
    assert await append(store, "a", 0, [b"anew"]) == 1
    assert await store.load("a") == StoredStream(None, [b"anew"], 1)
    assert await store.commit([deletion("a", 1), deletion("b", 1)]) == set()
    assert await store.heads() == {}
    await store.restore("a", StoredStream(b"four", [b"5"], 5))
    assert await store.load("a") == StoredStream(b"four", [b"5"], 5)


async def test_a_snapshot_of_a_deleted_stream_is_ignored(store: EventStore) -> None:
    await filled(store, "a")
    await store.commit([deletion("a", 3)])
    await store.save_snapshot("a", 3, b"three")
    assert await store.heads() == {}
    assert await store.load("a") == NOTHING


# --- SQLite


@pytest.mark.parametrize("is_small", [True, False])
async def test_no_file_has_the_bytes_of_a_deleted_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    """Neither in rows nor in unused parts of pages, where SQLite leaves copies when it moves rows. A database that is too large
    to be rewritten at the stop is rewritten by its backup."""
    if not is_small:
        monkeypatch.setattr("safe_psrl_server.store.sqlite.store.MOST_BYTES_REWRITTEN", 0)
    chosen, versions = random.Random(5), dict.fromkeys([f"agent-{i:02d}" for i in range(40)], 0)
    data = SqliteStore(tmp_path / "data")
    await data.open()
    for _ in range(300):
        batch = []
        for name in chosen.sample(sorted(versions), 8):
            content = f"<{name}>".encode() + chosen.randbytes(chosen.choice([20, 60, 200, 3000]))
            policy = {versions[name]: content + bytes(5000)} if chosen.random() < 0.1 else {}
            batch.append(Append(name, versions[name], [content], policy, [versions[name] - 20]))
            versions[name] += 1
        assert await data.commit(batch) == set()
        name = batch[0].agent
        if versions[name] % 5 == 0:
            await data.save_snapshot(name, versions[name], f"<{name}>".encode() * 500)
    gone = sorted(versions)[::3]
    assert await data.commit([deletion(name, versions[name]) for name in gone]) == set()
    for table in TABLES:
        assert not {name for (name,) in execute(tmp_path / "data", f"SELECT agent FROM {table}")} & set(gone)  # noqa: S608
    await data.close()
    if not is_small:
        monkeypatch.setattr("safe_psrl_server.store.backup.folded", lambda *_: None)  # these events cannot be folded
        await asyncio.to_thread(copy_directory, tmp_path / "data", tmp_path / "copy")
    content = b"".join(path.read_bytes() for path in (tmp_path / ("data" if is_small else "copy")).iterdir())
    assert [name for name in gone if f"<{name}>".encode() in content] == []
    assert all(f"<{name}>".encode() in content for name in versions.keys() - set(gone))


# --- PostgreSQL


@pytest.fixture
async def replicas(database: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    stores = PostgresStore(database), PostgresStore(database)
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


async def test_nothing_is_left_in_any_table(replicas: tuple[PostgresStore, PostgresStore], database: str) -> None:
    await filled(replicas[0], "a")
    await replicas[0].commit([deletion("a", 3)])
    with psycopg.connect(database) as connection:
        for table in TABLES:
            assert connection.execute(f"SELECT * FROM safe_psrl_{table}").fetchall() == []  # type: ignore[call-overload]  # noqa: S608


async def test_a_replica_with_the_old_head_gets_a_conflict(replicas: tuple[PostgresStore, PostgresStore]) -> None:
    """After the deletion, and when the name was created again and is at the same version: for appends, deletions and checks."""
    first, second = replicas
    await append(first, "a", 0, [b"1", b"2"])
    await second.load("a")
    stale = [Append("a", 2, [b"3"]), deletion("a", 2), Append("a", 2, [])]
    await first.commit([deletion("a", 2)])
    for one in stale:
        assert await second.commit([one]) == {"a"}
    await append(first, "a", 0, [b"eins", b"zwei"])
    for one in stale:
        assert await second.commit([one]) == {"a"}
    assert await second.load_tail("a", 2) is None
    assert (await second.load("a")).events == [b"eins", b"zwei"]
    assert await second.commit([Append("a", 2, [])]) == set()
    assert await second.commit([Append("a", 2, [b"drei"])]) == set()
    assert await second.commit([deletion("a", 3)]) == set()
    assert await append(second, "a", 0, [b"x"]) == 1  # its own link is forgotten, too


@pytest.mark.parametrize("events", [[b"eins"], [b"eins", b"zwei"], [b"eins", b"zwei", b"drei"]])
async def test_a_snapshot_of_another_stream_of_the_name_is_ignored(
    replicas: tuple[PostgresStore, PostgresStore], events: list[bytes]
) -> None:
    first, second = replicas
    await append(first, "a", 0, [b"1", b"2"])
    await second.load("a")
    await first.commit([deletion("a", 2)])
    await append(first, "a", 0, events)
    await second.save_snapshot("a", 1, b"of the old stream")
    assert await first.load("a") == StoredStream(None, events, len(events))


async def test_a_deletion_includes_a_snapshot_that_was_being_stored(
    replicas: tuple[PostgresStore, PostgresStore], database: str
) -> None:
    """It waits for the snapshot's transaction, and then sees what that has written. Appends do not wait for it."""
    first, _ = replicas
    await append(first, "a", 0, [b"1", b"2"])
    async with await psycopg.AsyncConnection.connect(database) as other:
        async with other.transaction():
            await postgres_streams.save_snapshot(other, "a", 2, b"two", None)
            assert await asyncio.wait_for(first.commit([Append("a", 2, [b"3"])]), 5) == set()
            deleting = asyncio.create_task(first.commit([deletion("a", 3)]))
            await _until_a_lock_is_waited_for(database)
            assert not deleting.done()
        assert await deleting == set()
    assert await first.heads() == {}
    assert await first.load("a") == NOTHING


async def _until_a_lock_is_waited_for(database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection, asyncio.timeout(10):
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while not await (await connection.execute(waiting)).fetchone():
            await connection.execute("SELECT pg_sleep(0.01)")
