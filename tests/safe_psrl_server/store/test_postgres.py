"""What is particular to PostgreSQL: several writers, lost connections, and tables that are created once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import psycopg
import pytest

from safe_psrl_server.store import (
    Append,
    DamagedStreamError,
    StoredStream,
    StoreError,
    StoreUnavailableError,
    open_store,
    redacted_address,
)
from safe_psrl_server.store.postgres.store import PostgresStore
from tests.system.postgres_process import PostgresProcess

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
        cursor = connection.execute(statement)  # type: ignore[call-overload]  # a test's own statement
        return cursor.fetchall() if cursor.description else []


async def opened(store: PostgresStore) -> PostgresStore:
    await store.open()
    return store


async def append(store: PostgresStore, agent: str, expected: int, events: Sequence[bytes]) -> bool:
    """Whether the stream was at the expected version."""
    return not await store.commit([Append(agent, expected, events)])


async def version_of(store: PostgresStore, agent: str) -> int:
    heads = await store.heads([agent])
    return heads[agent].version if agent in heads else 0


async def test_replicas_that_start_together_create_the_tables_once(new_store: NewStore, database: str) -> None:
    stores = [new_store() for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    assert await append(stores[0], "a", 0, [b"one"])
    assert await stores[7].load("a") == StoredStream(None, [b"one"], 1)
    assert execute(database, "SELECT version FROM safe_psrl_schema") == [(1,)]


async def test_the_schema_of_a_newer_release_is_rejected(new_store: NewStore, database: str) -> None:
    await opened(new_store())
    execute(database, "UPDATE safe_psrl_schema SET version = 99")
    with pytest.raises(StoreError, match="schema version 99, this release needs 1: use a newer release"):
        await new_store().open()


async def test_a_conflict_fails_its_own_append_only(new_store: NewStore) -> None:
    """Two replicas append to the same streams: one wins each, and what else was in the losing batch is written."""
    first, second = await opened(new_store()), await opened(new_store())
    names, own = [f"agent-{i}" for i in range(20)], [f"own-{i}" for i in range(20)]
    assert not await first.commit([Append(name, 0, [b"begin"]) for name in names])
    for name in names:
        await second.load(name)
    lost = await asyncio.gather(
        first.commit([Append(name, 1, [b"first"]) for name in names]),
        second.commit([*(Append(name, 1, [b"second"]) for name in names), *(Append(name, 0, [b"x"]) for name in own)]),
    )
    assert lost[0] | lost[1] == set(names)
    assert not lost[0] & lost[1]
    for name in names:
        assert (await first.load(name)).events == [b"begin", b"second" if name in lost[0] else b"first"]
    assert [(await first.load(name)).events for name in own] == [[b"x"]] * 20


async def test_appends_and_checks_share_a_batch(new_store: NewStore) -> None:
    """Streams that continue, begin, are checked, conflict, or do not exist; read by a replica that has seen none of them."""
    store = await opened(new_store())
    assert not await store.commit([Append(name, 0, [b"1"]) for name in ("continued", "checked", "stale", "moved")])
    other = await opened(new_store())
    batch = [
        Append("continued", 1, [b"2", b"3"], {7: b"policy"}),
        Append("new", 0, [b"1"]),
        Append("checked", 1, []),
        Append("absent", 0, []),
        Append("stale", 0, [b"x"]),
        Append("moved", 2, []),
        Append("missing", 3, [b"x"]),
    ]
    assert await other.commit(batch) == {"stale", "moved", "missing"}
    assert await store.load("continued") == StoredStream(None, [b"1", b"2", b"3"], 3, {7: b"policy"})
    heads = {name: head.version for name, head in (await store.heads()).items()}
    assert heads == {"continued": 3, "new": 1, "checked": 1, "stale": 1, "moved": 1}
    assert not await other.commit([Append("continued", 3, [b"4"], {8: b"next"}, [7])])
    assert (await store.load("continued")).policies == {8: b"next"}
    assert await other.commit([]) == set()


async def test_replicas_that_write_the_same_agents_do_not_deadlock(new_store: NewStore, postgres: PostgresProcess) -> None:
    deadlocks = postgres.log.count("deadlock detected")
    stores = [await opened(new_store()), await opened(new_store())]

    async def fill(store: PostgresStore, names: list[str]) -> None:
        missing = dict.fromkeys(names, 10)
        while missing:
            heads = await store.heads(missing)
            appends = [Append(name, heads[name].version if name in heads else 0, [b"x"]) for name in missing]
            conflicts = await store.commit(appends)
            missing = {name: left - (name not in conflicts) for name, left in missing.items()}
            missing = {name: left for name, left in missing.items() if left}

    names = [f"agent-{i}" for i in range(30)]
    await asyncio.gather(fill(stores[0], names), fill(stores[1], names[::-1]))
    assert {(await stores[0].load(name)).version for name in names} == {20}
    assert postgres.log.count("deadlock detected") == deadlocks


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE safe_psrl_events SET payload = 'x' WHERE version = 2", "event 2 was changed"),
        ("DELETE FROM safe_psrl_events WHERE version = 3", "it ends at event 2; 3 were acknowledged"),
        ("DELETE FROM safe_psrl_streams", "its head is missing"),
    ],
)
async def test_damage_is_detected(new_store: NewStore, database: str, damage: str, problem: str) -> None:
    store = await opened(new_store())
    await append(store, "a", 0, [b"one", b"two", b"three"])
    execute(database, damage)
    with pytest.raises(DamagedStreamError, match=problem):
        await store.load("a")
    if "changed" in problem:
        with pytest.raises(DamagedStreamError, match=problem):
            await store.load_tail("a", 1)


async def test_a_damaged_snapshot_is_replaced_by_the_previous_one(new_store: NewStore, database: str) -> None:
    store = await opened(new_store())
    await append(store, "a", 0, [b"1", b"2", b"3", b"4"])
    await store.save_snapshot("a", 2, b"two")
    await store.save_snapshot("a", 3, b"three")
    execute(database, "UPDATE safe_psrl_snapshots SET payload = 'x' WHERE version = 3")
    assert await store.load("a") == StoredStream(b"two", [b"3", b"4"], 4)


async def test_a_history_restored_from_a_backup_is_not_continued(new_store: NewStore, database: str) -> None:
    """The version is the same, the events are others."""
    store, other = await opened(new_store()), await opened(new_store())
    await append(store, "a", 0, [b"one", b"two"])
    execute(database, "DELETE FROM safe_psrl_events; DELETE FROM safe_psrl_streams")
    await append(other, "a", 0, [b"eins", b"zwei"])
    assert not await append(store, "a", 2, [b"three"])
    assert await store.load_tail("a", 2) is None
    assert (await store.load("a")).events == [b"eins", b"zwei"]
    assert await append(store, "a", 2, [b"drei"])


TERMINATE = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE application_name = 'safe-psrl' AND pid <> pg_backend_pid()
"""


async def test_terminated_sessions_are_replaced(new_store: NewStore, database: str) -> None:
    """Reads are repeated silently; a commit with an unknown outcome fails, and the next one succeeds."""
    store = await opened(new_store())
    await append(store, "a", 0, [b"one"])
    await asyncio.gather(*(store.load("a") for _ in range(8)))
    execute(database, TERMINATE)
    assert (await store.load("a")).version == 1
    assert await version_of(store, "a") == 1
    execute(database, TERMINATE)
    with pytest.raises(StoreUnavailableError, match="does not respond"):
        await append(store, "a", 1, [b"two"])
    assert await append(store, "a", await version_of(store, "a"), [b"two"])
    assert (await store.load("a")).events == [b"one", b"two"]


async def test_a_restarted_database_is_found_again(own_postgres: PostgresProcess) -> None:
    """While it is stopped every call is unavailable; afterwards everything is as it was."""
    store = await opened(PostgresStore(own_postgres.new_database()))
    await append(store, "a", 0, [b"one"])
    await asyncio.to_thread(own_postgres.stop)
    for call in (append(store, "a", 1, [b"two"]), store.load("a"), store.heads(["a"])):
        with pytest.raises(StoreUnavailableError):
            await call
    await asyncio.to_thread(own_postgres.start)
    assert await append(store, "a", 1, [b"two"])
    assert (await store.load("a")).events == [b"one", b"two"]
    await store.close()


async def test_commits_are_durable_even_if_the_database_is_configured_otherwise(database: str) -> None:
    """`synchronous_commit` is switched on where it is off: a trigger records what a commit runs with."""
    store = await opened(PostgresStore(database + "%20-csynchronous_commit%3Doff"))
    execute(
        database,
        "CREATE TABLE seen (setting TEXT);"
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;"
        "CREATE TRIGGER see BEFORE INSERT ON safe_psrl_events FOR EACH ROW EXECUTE FUNCTION see()",
    )
    assert await append(store, "a", 0, [b"one"])
    await store.close()
    assert execute(database, "SELECT setting FROM seen") == [("on",)]


@pytest.mark.parametrize("name", ["a\0b", "x" * 100_000, ""])
async def test_a_name_that_cannot_be_stored_fails_no_other(new_store: NewStore, name: str) -> None:
    store = await opened(new_store())
    await append(store, "a", 0, [b"one"])
    assert list(await store.heads(["a", name])) == ["a"]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("postgresql://me:secret@127.0.0.1:1/x?connect_timeout=1", r"^the database postgresql://127.0.0.1:1/x cannot be"),
        ("postgresql://me:secret@host:port/x", r"^(store|the database) postgresql://host:port/x"),
        ("postgresql://host/x?nonsense=1", r"^store postgresql://host/x: invalid URI query parameter"),
    ],
)
async def test_an_address_without_a_database_is_one_line_without_the_password(
    address: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safe_psrl_server.store.postgres.store.START_SECONDS", 0.1)
    with pytest.raises(StoreError, match=problem) as raised:
        await open_store(address).open()
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_the_password_of_an_address_is_never_shown() -> None:
    assert redacted_address("postgresql://me:secret@host:5432/x?password=secret") == "postgresql://host:5432/x"
    assert redacted_address("sqlite:data") == "sqlite:data"
