"""The SQLite store: which snapshots and events are kept, and which damage is made good or refused."""

from pathlib import Path

import pytest

from safe_psrl_server.store import DamagedStreamError, StoredStream
from safe_psrl_server.store.sqlite.store import SqliteStore
from tests.safe_psrl_server.store.appending import append, execute


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
