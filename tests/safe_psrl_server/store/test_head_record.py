"""The head record: missing rows are noticed, and damage to one agent stays damage to one agent."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from safe_psrl_server.store import NO_POLICIES, Append, DamagedStreamError, EventStore, StoredStream, StoreError
from safe_psrl_server.store.backup import copy_directory
from safe_psrl_server.store.checksums import Link, head_digest, head_record
from safe_psrl_server.store.postgres.store import PostgresStore
from safe_psrl_server.store.sqlite.store import SqliteStore
from tests.safe_psrl_server.bench import Bench
from tests.safe_psrl_server.store.appending import append, execute

TABLES = ("streams", "events", "snapshots", "policies")
REFUSAL = "does not match its head record: files or rows from different times were combined, or rows are missing"
Run = Callable[[str], list[Any]]
Place = tuple[Callable[[], EventStore], Run]


# --- one agent


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """How to make a store that is not open yet, and to execute statements in its database; {} is the prefix of tables."""
    if request.param == "sqlite":
        yield lambda: SqliteStore(tmp_path), lambda statement: execute(tmp_path, statement.format(""))
        return
    database = request.getfixturevalue("database")

    def run(statement: str) -> list[Any]:
        with psycopg.connect(database, autocommit=True) as connection:
            cursor = connection.execute(statement.format("safe_psrl_"))
            return cursor.fetchall() if cursor.description else []

    yield lambda: PostgresStore(database), run


async def opened(store: EventStore) -> EventStore:
    await store.open()
    return store


async def filled(store: EventStore) -> None:
    """Three agents; `b` has two snapshots, and policies."""
    await store.open()
    for name in "abc":
        await append(store, name, 0, [b"1", b"2", b"3"], {1: b"policy"})
    await store.save_snapshot("b", 1, b"one")
    await store.save_snapshot("b", 3, b"three")
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE {}streams SET version = 2 WHERE agent = 'b'",
        "UPDATE {}streams SET link = '12345678' WHERE agent = 'b'",
        "UPDATE {}streams SET digest = digest + 1 WHERE agent = 'b'",
        "UPDATE {}streams SET agent = 'x' WHERE agent = 'b'",
        "DELETE FROM {}streams WHERE agent = 'b'",
        "DELETE FROM {}events WHERE agent = 'b' AND version = 2; DELETE FROM {}snapshots WHERE agent = 'b'",
    ],
)
async def test_a_damaged_row_is_damage_to_its_agent_only(place: Place, damage: str) -> None:
    make, run = place
    await filled(make())
    for statement in damage.split("; "):
        run(statement)
    for _ in range(2):
        store = await opened(make())
        assert {"a", "b", "c"} <= (await store.heads()).keys()
        with pytest.raises(DamagedStreamError):
            await store.load("b")
        for name in "ac":
            version = (await store.load(name)).version
            assert await append(store, name, version, [b"next"]) == version + 1
        await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        [f"DELETE FROM {{}}{table} WHERE agent = 'b'" for table in TABLES],  # noqa: S608  # ours
        ["DELETE FROM {}streams WHERE agent = 'b'", "DELETE FROM {}events WHERE agent = 'b' AND version = 3",
         "DELETE FROM {}snapshots WHERE agent = 'b' AND version = 3"],
    ],
)  # fmt: skip
async def test_missing_rows_of_an_agent_are_noticed(place: Place, damage: list[str]) -> None:
    """All of them, or so many that what is left does not say how far the agent was."""
    make, run = place
    await filled(make())
    for statement in damage:
        run(statement)
    for _ in range(2):
        store = make()
        with pytest.raises(StoreError, match=f"^the database .* {REFUSAL}. Restore the whole store from a backup$"):
            await store.open()
        await store.close()


async def test_damage_to_one_agent_does_not_hide_that_another_is_older(
    place: Place,
) -> None:
    """`a` is set back, with all its rows; `b` has lost its own."""
    make, run = place
    await filled(make())
    ((link,),) = run("SELECT link FROM {}events WHERE agent = 'a' AND version = 2")
    digest = head_digest("a", Link(2, bytes(link)))
    value = f"x'{link.hex()}'" if isinstance(make(), SqliteStore) else f"'\\x{link.hex()}'"
    run(f"UPDATE {{}}streams SET version = 2, link = {value}, digest = {digest} WHERE agent = 'a'")  # noqa: S608  # ours
    run("DELETE FROM {}events WHERE agent = 'a' AND version = 3")
    run("DELETE FROM {}streams WHERE agent = 'b'")
    with pytest.raises(StoreError, match=REFUSAL):
        await make().open()


# --- the record is right


def record_and_rows(make: Callable[[], EventStore], run: Run) -> tuple[int, int]:
    """The head record, and what it must be."""
    ((record,),) = run(
        "SELECT heads FROM commits" if isinstance(make(), SqliteStore) else "SELECT bit_xor(digest) FROM {}heads"
    )
    wanted = 0
    for agent, version, link, digest in run("SELECT agent, version, link, digest FROM {}streams"):
        assert digest == head_digest(agent, Link(version, link))
        wanted ^= digest
    return record, wanted


async def test_every_kind_of_commit_keeps_the_record(place: Place) -> None:
    """Creation, appends, conflicts, deletions, snapshots and `restore`."""
    make, run = place
    store = await opened(make())
    chosen = random.Random(3)
    for number in range(30):
        names = chosen.sample("abcdefgh", 3)
        versions = {name: (await store.load(name)).version for name in names}
        conflict = chosen.choice([0, 0, 1])
        batch = [Append(name, versions[name] + conflict, [b"%d" % number]) for name in names[:2]]
        batch.append(Append(names[2], versions[names[2]], (), NO_POLICIES, (), deleted=True))
        await store.commit(batch)
        if chosen.random() < 0.2:
            await store.restore(f"restored-{number}", StoredStream(b"two", [b"3"] * chosen.randrange(2), 3))
        if versions[names[0]]:
            await store.save_snapshot(names[0], versions[names[0]], b"snapshot")
        record, wanted = record_and_rows(make, run)
        assert record == wanted
    assert record
    await store.close()
    await (await opened(make())).close()


@pytest.mark.parametrize("slots", [(7, 7), (7, 8)])
async def test_concurrent_commits_of_replicas_keep_the_record(database: str, slots: tuple[int, int]) -> None:
    """Two that append to, create and delete the same agents, on one row of the record and on two."""
    stores = [PostgresStore(database), PostgresStore(database)]
    for store, slot in zip(stores, slots, strict=True):
        store._slot = slot  # chosen at random otherwise
        await store.open()
    await asyncio.gather(*(_commit_at_random(store, random.Random(seed)) for seed, store in enumerate(stores * 2)))
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT agent, version, link FROM safe_psrl_streams").fetchall()
        records = connection.execute("SELECT digest FROM safe_psrl_heads").fetchall()
    assert rows
    assert head_record(head_digest(agent, Link(version, link)) for agent, version, link in rows) == head_record(
        d for (d,) in records
    )
    for store in stores:
        await store.close()


async def _commit_at_random(store: PostgresStore, chosen: random.Random) -> None:
    for _ in range(60):
        names = chosen.sample("abcdefghij", 5)
        heads = await store.heads(names)
        versions = {name: heads[name].version if name in heads else 0 for name in names}
        await store.commit(
            [
                Append(name, versions[name], [b"x"], NO_POLICIES, (), deleted=chosen.random() < 0.2 and versions[name] > 0)
                for name in names
            ]
        )


# --- copies


async def test_a_backup_has_the_record_and_one_of_mixed_files_is_refused(
    tmp_path: Path,
) -> None:
    bench = await Bench(f"sqlite:{tmp_path / 'data'}").open()
    await bench.create(*"ab")
    await bench.close()
    copied = await asyncio.to_thread(copy_directory, tmp_path / "data", tmp_path / "copy")
    assert copied.agents == 2
    for file in ("data", "copy"):
        await (await opened(SqliteStore(tmp_path / file))).close()
    execute(tmp_path / "data", "DELETE FROM streams WHERE agent = 'a'")
    execute(tmp_path / "data", "DELETE FROM events WHERE agent = 'a'")
    execute(tmp_path / "data", "DELETE FROM snapshots WHERE agent = 'a'")
    with pytest.raises(StoreError, match=f"the database in {tmp_path / 'data'} {REFUSAL}"):
        await asyncio.to_thread(copy_directory, tmp_path / "data", tmp_path / "another")
    assert not (tmp_path / "another").exists()


async def test_the_record_of_many_agents_is_compared_quickly(tmp_path: Path) -> None:
    """A time that leaves room for a busy machine; 200,000 rows take a fifth of a second."""
    await (await opened(SqliteStore(tmp_path))).close()
    rows, record = [], 0
    for number in range(200_000):
        agent, head = f"agent-{number:07d}", Link(number + 1, number.to_bytes(8, "little"))
        digest = head_digest(agent, head)
        rows.append(f"('{agent}', {head.version}, x'{head.link.hex()}', {digest})")
        record ^= digest
    execute(tmp_path, f"INSERT INTO streams VALUES {','.join(rows)}")  # noqa: S608  # ours
    execute(tmp_path, f"UPDATE commits SET heads = {record}")  # noqa: S608  # ours
    began = time.perf_counter()
    store = await opened(SqliteStore(tmp_path))
    assert time.perf_counter() - began < 2.0
    await store.close()
