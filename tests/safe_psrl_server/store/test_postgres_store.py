"""What is particular to PostgreSQL: several writers, lost connections, and a schema that is made once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import psycopg
import pytest
from postgres_process import PostgresProcess
from safe_psrl_server.store.postgres_schema import MIGRATIONS

from safe_psrl_server.store import (
    DamagedStreamError,
    StoredStream,
    StoreError,
    StoreUnavailableError,
    VersionConflictError,
    open_store,
    redacted_address,
)
from safe_psrl_server.store.postgres.store import PostgresStore

NewStore = Callable[[], PostgresStore]


@pytest.fixture
async def new_store(database: str) -> AsyncIterator[NewStore]:
    """Stores on the same database, not opened yet."""
    made: list[PostgresStore] = []

    def make() -> PostgresStore:
        made.append(PostgresStore(database))
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture
def own_postgres() -> Iterator[PostgresProcess]:
    """A database server that may be stopped."""
    with PostgresProcess("fsync=off") as postgres:
        yield postgres


def execute(database: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[call-overload]  # of a test
        return cursor.fetchall() if cursor.description else []


async def opened(store: PostgresStore) -> PostgresStore:
    await store.open()
    return store


async def test_replicas_that_start_at_once_make_the_tables_once(new_store: NewStore, database: str) -> None:
    """Whoever comes second waits for the row that is locked, and finds the work done."""
    stores = [new_store() for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await stores[0].append("a", 0, [b"one"])
    assert await stores[7].load("a") == StoredStream(None, [b"one"], 1)
    assert execute(database, "SELECT version FROM safe_psrl_schema") == [(len(MIGRATIONS),)]


async def test_a_schema_of_a_newer_release_is_refused(new_store: NewStore, database: str) -> None:
    await opened(new_store())
    execute(database, "UPDATE safe_psrl_schema SET version = 99")
    with pytest.raises(StoreError, match=f"schema version 99, this release knows {len(MIGRATIONS)}: use a newer release"):
        await new_store().open()


async def test_of_racing_replicas_one_wins_and_the_others_append_of_the_same_group_are_kept(new_store: NewStore) -> None:
    """A conflict in a group fails its own append only."""
    first, second = await opened(new_store()), await opened(new_store())
    names = [f"agent-{i}" for i in range(20)]
    for name in names:
        await first.append(name, 0, [b"begin"])
        await second.load(name)
    outcomes = await asyncio.gather(
        *(store.append(name, 1, [mark]) for store, mark in ((first, b"first"), (second, b"second")) for name in names),
        *(second.append(f"own-{i}", 0, [b"x"]) for i in range(20)),
        return_exceptions=True,
    )
    for i, name in enumerate(names):
        pair = outcomes[i], outcomes[20 + i]
        assert pair.count(2) == 1
        assert sum(isinstance(outcome, VersionConflictError) for outcome in pair) == 1
        assert (await first.load(name)).events == [b"begin", b"first" if pair[0] == 2 else b"second"]
    assert outcomes[40:] == [1] * 20


async def test_two_replicas_that_write_the_same_agents_never_wait_in_a_circle(
    new_store: NewStore, postgres: PostgresProcess
) -> None:
    """Rows are locked in one order, new streams begun in one order."""
    stores = [await opened(new_store()), await opened(new_store())]

    async def fill(store: PostgresStore, names: list[str]) -> None:
        async def one(name: str) -> None:
            written = 0
            while written < 10:
                try:
                    await store.append(name, await store.version(name), [b"x"])
                except VersionConflictError:
                    continue
                written += 1

        await asyncio.gather(*map(one, names))

    names = [f"agent-{i}" for i in range(30)]
    await asyncio.gather(fill(stores[0], names), fill(stores[1], names[::-1]))
    assert {(await stores[0].load(name)).version for name in names} == {20}
    assert "deadlock detected" not in postgres.log


async def test_an_event_that_was_changed_is_noticed(new_store: NewStore, database: str) -> None:
    """By all of a load, and by reading on."""
    store = await opened(new_store())
    await store.append("a", 0, [b"one", b"two", b"three"])
    execute(database, "UPDATE safe_psrl_events SET payload = 'x' WHERE version = 2")
    with pytest.raises(DamagedStreamError, match="event 2 was changed"):
        await store.load("a")
    with pytest.raises(DamagedStreamError, match="event 2 was changed"):
        await store.load_tail("a", 1)


async def test_an_event_that_was_lost_is_noticed(new_store: NewStore, database: str) -> None:
    store = await opened(new_store())
    await store.append("a", 0, [b"one", b"two", b"three"])
    execute(database, "DELETE FROM safe_psrl_events WHERE version = 3")
    with pytest.raises(DamagedStreamError, match="it ends at event 2; 3 were acknowledged"):
        await store.load("a")


async def test_a_damaged_snapshot_gives_way_to_the_one_before(new_store: NewStore, database: str) -> None:
    store = await opened(new_store())
    await store.append("a", 0, [b"1", b"2", b"3", b"4"])
    await store.save_snapshot("a", 2, b"two")
    await store.save_snapshot("a", 3, b"three")
    execute(database, "UPDATE safe_psrl_snapshots SET payload = 'x' WHERE version = 3")
    assert await store.load("a") == StoredStream(b"two", [b"3", b"4"], 4)


async def test_another_history_under_the_same_version_is_not_appended_to(new_store: NewStore, database: str) -> None:
    """A database that was restored from a backup: what a replica knows is not what is stored any more."""
    store, other = await opened(new_store()), await opened(new_store())
    await store.append("a", 0, [b"one", b"two"])
    execute(database, "DELETE FROM safe_psrl_events; DELETE FROM safe_psrl_streams")
    await other.append("a", 0, [b"eins", b"zwei"])
    with pytest.raises(VersionConflictError):
        await store.append("a", 2, [b"three"])
    assert await store.load_tail("a", 2) is None
    assert (await store.load("a")).events == [b"eins", b"zwei"]
    assert await store.append("a", 2, [b"drei"]) == 3


async def test_sessions_that_are_ended_are_replaced(new_store: NewStore, database: str) -> None:
    """Reads are repeated without a word; an append whose fate is unknown is told so, and the next one goes through."""
    store = await opened(new_store())
    await store.append("a", 0, [b"one"])
    await asyncio.gather(*(store.load("a") for _ in range(8)))
    execute(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'safe-psrl'"
        " AND pid <> pg_backend_pid()",
    )
    assert (await store.load("a")).version == 1
    assert await store.version("a") == 1
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        await store.append("a", 1, [b"two"])
    assert await store.append("a", await store.version("a"), [b"two"]) == 2


async def test_a_restarted_database_is_found_again(own_postgres: PostgresProcess) -> None:
    """While it is away everything is unavailable, after it everything is as it was."""
    store = await opened(PostgresStore(own_postgres.new_database()))
    await store.append("a", 0, [b"one"])
    await asyncio.to_thread(own_postgres.stop)
    with pytest.raises(StoreUnavailableError):
        await store.append("a", 1, [b"two"])
    with pytest.raises(StoreUnavailableError):
        await store.load("a")
    with pytest.raises(StoreUnavailableError):
        await store.version("a")
    await asyncio.to_thread(own_postgres.start)
    assert await store.append("a", 1, [b"two"]) == 2
    assert (await store.load("a")).events == [b"one", b"two"]
    assert not store.failure.done()
    await store.close()


async def test_commits_are_on_the_disk_even_if_the_database_is_set_up_otherwise(database: str) -> None:
    """`synchronous_commit` is switched on where it is off."""
    separator = "%20-csynchronous_commit%3Doff"
    store = await opened(PostgresStore(database + separator))
    assert store._writing is not None
    assert await (await store._writing.execute("SHOW synchronous_commit")).fetchone() == ("on",)
    await store.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (
            "postgresql://me:secret@127.0.0.1:1/x?connect_timeout=1",
            r"^the database postgresql://127.0.0.1:1/x cannot be",
        ),
        (
            "postgresql://me:secret@host:port/x",
            r"^(store|the database) postgresql://host:port/x",
        ),
        ("postgresql://host/x?nonsense=1", r"^store postgresql://host/x: invalid URI query parameter"),
    ],
)
async def test_an_address_where_no_database_is_is_one_line_without_the_password(
    address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safe_psrl_server.store.postgres.START_SECONDS", 0.1)
    with pytest.raises(StoreError, match=said) as refused:
        await open_store(address).open()
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_password_of_an_address_is_never_shown() -> None:
    assert redacted_address("postgresql://me:secret@host:5432/x?password=secret") == "postgresql://host:5432/x"
    assert redacted_address("sqlite:data") == "sqlite:data"
