"""Reading and compacting streams, and the head record over all of them.

Functions on streams run inside a transaction with one consistent view of the database. The head record is the XOR of the rows
of a table. Each store writes to one row of its own choice: with a single row for all, a replica would wait for the disk flush
of another replica's commit. A commit locks this row last, after the rows of its streams, so it cannot deadlock.
"""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection

from safe_psrl_server.store.checksums import (
    BEGINNING,
    Link,
    explains,
    head_digest,
    is_intact,
    is_intact_head,
    rechained,
    snapshot_digest,
    verified,
)
from safe_psrl_server.store.interface import DamagedStreamError, StoredStream, StreamHead, VersionConflictError

HEAD: Final = "SELECT version, link, digest FROM safe_psrl_streams WHERE agent = %s"
SNAPSHOTS: Final = "SELECT version, link, payload, digest FROM safe_psrl_snapshots WHERE agent = %s ORDER BY version DESC"
EVENTS_FROM: Final = "SELECT version, payload, link FROM safe_psrl_events WHERE agent = %s AND version >= %s ORDER BY version"
POLICIES_AFTER: Final = "SELECT episode, payload FROM safe_psrl_policies WHERE agent = %s AND version > %s"
# An agent that only has a snapshot or policies has lost its row in safe_psrl_streams.
_HEADS: Final = """
    SELECT known.agent, coalesce(stream.version, 0), coalesce(max(snapshot.version), 0)
    FROM (SELECT agent FROM safe_psrl_streams {where} UNION SELECT agent FROM safe_psrl_snapshots {where}
          UNION SELECT agent FROM safe_psrl_policies {where}) AS known
    LEFT JOIN safe_psrl_streams AS stream ON stream.agent = known.agent
    LEFT JOIN safe_psrl_snapshots AS snapshot ON snapshot.agent = known.agent
    GROUP BY known.agent, stream.version
"""
ALL_HEADS: Final = _HEADS.format(where="")
HEADS: Final = _HEADS.format(where="WHERE agent = ANY(%(agents)s)")
SAVE_SNAPSHOT: Final = """
    INSERT INTO safe_psrl_snapshots (agent, version, link, payload, digest) VALUES (%s, %s, %b, %b, %b)
    ON CONFLICT (agent, version) DO UPDATE SET link = excluded.link, payload = excluded.payload, digest = excluded.digest
"""
NEW_STREAM: Final = """
    INSERT INTO safe_psrl_streams (agent, version, link, digest) VALUES (%s, %s, %b, %s) ON CONFLICT (agent) DO NOTHING
"""
LOCK_HEAD: Final = "SELECT version, link FROM safe_psrl_streams WHERE agent = %s FOR KEY SHARE"  # against its deletion
LINK: Final = "SELECT link FROM safe_psrl_events WHERE agent = %s AND version = %s"
NEW_EVENTS: Final = """
    INSERT INTO safe_psrl_events (agent, version, payload, link)
    SELECT %s, event.* FROM unnest(%s::bigint[], %b::bytea[], %b::bytea[]) AS event
"""
NEW_POLICIES: Final = """
    INSERT INTO safe_psrl_policies (agent, version, episode, payload)
    SELECT %s, %s, policy.* FROM unnest(%s::bigint[], %b::bytea[]) AS policy
"""

SLOTS: Final = 64  # rows of the head record
CHANGE: Final = "UPDATE safe_psrl_heads SET digest = digest # %s::bigint WHERE slot = %s"
HEAD_RECORD: Final = "SELECT coalesce(bit_xor(digest), 0) FROM safe_psrl_heads"
# In one statement, so of one time.
BOTH: Final = f"SELECT ({HEAD_RECORD}), (SELECT coalesce(bit_xor(digest), 0) FROM safe_psrl_streams)"  # noqa: S608  # ours
HEAD_ROWS: Final = "SELECT agent, version, link, digest FROM safe_psrl_streams"
TAILS: Final = """
    SELECT DISTINCT ON (agent) agent, version, link
    FROM (SELECT agent, version, link FROM safe_psrl_events UNION ALL SELECT agent, version, link FROM safe_psrl_snapshots)
        AS kept
    WHERE NOT EXISTS (SELECT 1 FROM unnest(%s::text[]) AS intact (agent) WHERE intact.agent = kept.agent)
    ORDER BY agent, version DESC
"""
Database = AsyncConnection[Any]


class Loaded(NamedTuple):
    """A stream, or the tail of one, and its head."""

    stream: StoredStream
    head: Link


async def heads(db: Database, agents: Collection[str] | None) -> dict[str, StreamHead]:
    query = db.execute(ALL_HEADS) if agents is None else db.execute(HEADS, {"agents": list(agents)})
    return {agent: StreamHead(version, newest) for agent, version, newest in await (await query).fetchall()}


async def load(db: Database, agent: str) -> Loaded:
    """The newest intact snapshot and every event after it, up to the head, each one verified."""
    found = await _rows(db, HEAD, agent)
    snapshots = await _rows(db, SNAPSHOTS, agent)
    intact = next((row for row in snapshots if is_intact(agent, row)), None)
    start = Link(intact[0], intact[1]) if intact else BEGINNING
    rows = await _rows(db, EVENTS_FROM, agent, start.version + 1)
    policies = dict(await _rows(db, POLICIES_AFTER, agent, 0))
    if not found:
        if snapshots or rows or policies:
            raise DamagedStreamError("its head is missing")
        return Loaded(StoredStream(None, [], 0), BEGINNING)
    version, link, _ = found[0]
    head = Link(version, link)
    events = verified(start, rows, head)
    if not is_intact_head((agent, *found[0])):
        raise DamagedStreamError("its head was changed")
    return Loaded(StoredStream(intact[2] if intact else None, events, version, policies), head)


async def load_tail(db: Database, agent: str, after: int, known: bytes | None) -> Loaded | None:
    """The events after `after`, whose checksum was `known`; None if some are gone, or belong to another history."""
    found = await _rows(db, HEAD, agent)
    rows = await _rows(db, EVENTS_FROM, agent, after)
    start = BEGINNING
    if after:
        if not rows or rows[0][0] != after or known not in {None, rows[0][2]}:
            return None
        start, rows = Link(after, rows[0][2]), rows[1:]
    head = Link(*found[0][:2]) if found else BEGINNING
    if head.version < after or (rows[0][0] if rows else head.version + 1) != after + 1:
        return None
    policies = dict(await _rows(db, POLICIES_AFTER, agent, after))
    return Loaded(StoredStream(None, verified(start, rows, head), head.version, policies), head)


async def save_snapshot(db: Database, agent: str, version: int, snapshot: bytes, known: Link | None) -> None:
    """Keeps two snapshots. Events are deleted up to the older one, and only after that was verified.

    Nothing is stored if the stream was deleted, or has another event than `known`: then it was created again.
    """
    await db.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # the lock does not fail because of an append
    found = await _rows(db, LOCK_HEAD, agent)
    if not found or (known is not None and await _is_another(db, agent, Link(*found[0]), known)):
        return
    older = next((row for row in await _rows(db, SNAPSHOTS, agent) if is_intact(agent, row)), None)
    if older is not None and older[0] >= version:
        return
    found = await _rows(db, LINK, agent, version)
    if not found:
        raise DamagedStreamError(f"event {version}, of which a snapshot was taken, is missing")
    await _write_snapshot(db, agent, Link(version, found[0][0]), snapshot)
    if older is not None:
        await db.execute("DELETE FROM safe_psrl_events WHERE agent = %s AND version <= %s", (agent, older[0]))
        await db.execute("DELETE FROM safe_psrl_snapshots WHERE agent = %s AND version < %s", (agent, older[0]))


async def _is_another(db: Database, agent: str, head: Link, known: Link) -> bool:
    """Whether the stream at `head` is a different one from that with the event `known`."""
    if head.version <= known.version:
        return head != known
    return any(link != known.link for (link,) in await _rows(db, LINK, agent, known.version))


async def restore(db: Database, agent: str, stream: StoredStream, slot: int) -> None:
    start, rows = rechained(stream)
    head = Link(rows[-1].version, rows[-1].link) if rows else start
    digest = head_digest(agent, head)
    made = await db.execute(NEW_STREAM, (agent, *head, digest))
    if not made.rowcount:
        found = await _rows(db, HEAD, agent)
        raise VersionConflictError(agent, 0, found[0][0] if found else 0)
    if stream.snapshot is not None:
        await _write_snapshot(db, agent, start, stream.snapshot)
    if rows:
        columns = ([row.version for row in rows], [row.payload for row in rows], [row.link for row in rows])
        await db.execute(NEW_EVENTS, (agent, *columns))
    if stream.policies:
        await db.execute(NEW_POLICIES, (agent, stream.version, list(stream.policies), list(stream.policies.values())))
    await db.execute(CHANGE, (digest, slot))


async def _write_snapshot(db: Database, agent: str, at: Link, snapshot: bytes) -> None:
    await db.execute(SAVE_SNAPSHOT, (agent, *at, snapshot, snapshot_digest(agent, at.version, at.link, snapshot)))


async def _rows(db: Database, query: str, *values: object) -> list[Any]:
    return await (await db.execute(query, values)).fetchall()


async def heads_match(db: Database) -> bool:
    """Whether the streams are those of the head record, except for damaged rows. `db` is in autocommit."""
    return await is_whole(db) or await _is_explained(db)


async def is_whole(db: Database) -> bool:
    """Whether the streams match exactly, without damaged rows."""
    record, found = (await (await db.execute(BOTH)).fetchall())[0]
    return bool(record == found)


async def _is_explained(db: Database) -> bool:
    async with db.transaction():
        await db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((record,),) = await (await db.execute(HEAD_RECORD)).fetchall()
        rows = await (await db.execute(HEAD_ROWS)).fetchall()
        intact = [row[0] for row in rows if is_intact_head(row)]
        tails = await (await db.execute(TAILS, (intact,))).fetchall()
    return explains(int(record), rows, tails)
