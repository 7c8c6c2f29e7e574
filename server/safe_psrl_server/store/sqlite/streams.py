"""Streams in SQLite. Functions that write run inside a transaction of the caller."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from safe_psrl_server.store.checksums import (
    BEGINNING,
    EventRow,
    Link,
    chained,
    head_digest,
    is_intact,
    is_intact_head,
    rechained,
    snapshot_digest,
    verified,
)
from safe_psrl_server.store.interface import (
    Append,
    DamagedStreamError,
    StoredStream,
    StoreError,
    StreamHead,
    VersionConflictError,
)

APPLICATION_ID: Final = 0x5AFE0001  # marks the file as ours
SCHEMA_VERSION: Final = 1

# Events are clustered by agent: loading and dropping a range is sequential. Appending them in arrival order was measured two
# to three times faster for a commit of 64 agents, which is a few per cent of serving the 64 calls.
TABLES: Final = """
    CREATE TABLE streams (
        agent TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        link BLOB NOT NULL,
        digest INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE events (
        agent TEXT NOT NULL,
        version INTEGER NOT NULL,
        payload BLOB NOT NULL,
        link BLOB NOT NULL,
        PRIMARY KEY (agent, version)
    ) WITHOUT ROWID;
    CREATE TABLE snapshots (
        agent TEXT NOT NULL,
        version INTEGER NOT NULL,
        link BLOB NOT NULL,
        payload BLOB NOT NULL,
        digest BLOB NOT NULL,
        PRIMARY KEY (agent, version)
    );
    CREATE TABLE policies (
        agent TEXT NOT NULL,
        episode INTEGER NOT NULL,
        version INTEGER NOT NULL,
        payload BLOB NOT NULL,
        PRIMARY KEY (agent, episode)
    );
    CREATE TABLE commits (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        number INTEGER NOT NULL,
        heads INTEGER NOT NULL,
        remnants INTEGER NOT NULL
    );
    INSERT INTO commits VALUES (1, 0, 0, 0);
"""


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables of a new file; check those of an existing one. Raises `StoreError`."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        db.executescript(f"BEGIN IMMEDIATE; {TABLES} {marks} COMMIT;")
    elif application != APPLICATION_ID:
        raise StoreError("the database file was not created by this service; choose another directory with --store")
    elif version > SCHEMA_VERSION:
        raise StoreError(f"the database has schema version {version}, this release reads {SCHEMA_VERSION}: use a newer release")
    elif version < SCHEMA_VERSION:
        raise StoreError("the database file is damaged: it has tables, but no schema version; restore it from a backup")


EVENTS_AFTER: Final = "SELECT version, payload, link FROM events WHERE agent = ? AND version > ? ORDER BY version"
POLICIES_AFTER: Final = "SELECT episode, payload FROM policies WHERE agent = ? AND version > ?"
ALL_HEADS: Final = """
    SELECT names.agent, coalesce(streams.version, 0), coalesce((
        SELECT max(version) FROM snapshots WHERE snapshots.agent = names.agent
    ), 0)
    FROM (
        SELECT agent FROM streams UNION SELECT agent FROM events UNION SELECT agent FROM snapshots
        UNION SELECT agent FROM policies
    ) AS names LEFT JOIN streams ON streams.agent = names.agent
"""
SOME_HEADS: Final = """
    SELECT agent, version, coalesce((SELECT max(version) FROM snapshots WHERE snapshots.agent = streams.agent), 0)
    FROM streams WHERE agent IN ({})
"""
UPSERT: Final = """
    ON CONFLICT (agent) DO UPDATE SET version = excluded.version, link = excluded.link, digest = excluded.digest
"""
Row = TypeVar("Row")
MOST_ROWS: Final = 500  # of one INSERT: SQLite limits the parameters of a statement


def heads(db: sqlite3.Connection, agents: Collection[str] | None) -> dict[str, StreamHead]:
    """The heads of `agents`, or of all agents, which reads every event. Raises sqlite3.DatabaseError if a name is not text."""
    rows = list[tuple[str, int, int]]()
    if agents is None:
        rows += db.execute(ALL_HEADS).fetchall()
    else:
        for part in _parts(list(agents)):
            rows += db.execute(SOME_HEADS.format(_marks(part)), part).fetchall()
    if not all(isinstance(agent, str) for agent, _, _ in rows):
        raise sqlite3.DatabaseError("an agent's name is not text")
    return {agent: StreamHead(version, snapshot) for agent, version, snapshot in rows}


def load(db: sqlite3.Connection, agent: str) -> StoredStream:
    """The newest intact snapshot, and every event after it up to the head, each one verified."""
    db.execute("BEGIN")  # one view for all reads
    try:
        head = db.execute("SELECT version, link, digest FROM streams WHERE agent = ?", (agent,)).fetchone()
        snapshots = db.execute(
            "SELECT version, link, payload, digest FROM snapshots WHERE agent = ? ORDER BY version DESC", (agent,)
        ).fetchall()
        intact = next((row for row in snapshots if is_intact(agent, row)), None)
        start = Link(intact[0], intact[1]) if intact else BEGINNING
        rows = db.execute(EVENTS_AFTER, (agent, start.version)).fetchall()
        policies = dict(db.execute(POLICIES_AFTER, (agent, 0)))
    finally:
        db.execute("COMMIT")
    if head is None:
        if snapshots or rows or policies:
            raise DamagedStreamError("its head is missing")
        return StoredStream(None, [], 0)
    version, link, _ = head
    events = verified(start, rows, Link(version, link))
    if not is_intact_head((agent, *head)):
        raise DamagedStreamError("its head was changed")
    return StoredStream(intact[2] if intact else None, events, version, policies)


def load_tail(db: sqlite3.Connection, agent: str, after: int) -> StoredStream | None:
    db.execute("BEGIN")
    try:
        head = db.execute("SELECT version, link FROM streams WHERE agent = ?", (agent,)).fetchone() or BEGINNING
        row = db.execute("SELECT version, link FROM events WHERE agent = ? AND version = ?", (agent, after)).fetchone()
        start = BEGINNING if after == 0 else row and Link(*row)
        rows = db.execute(EVENTS_AFTER, (agent, after)).fetchall()
        policies = dict(db.execute(POLICIES_AFTER, (agent, after)))
    finally:
        db.execute("COMMIT")
    if start is None or (rows and rows[0][0] != after + 1) or (not rows and head[0] != after):
        return None
    return StoredStream(None, verified(start, rows, Link(*head)), head[0], policies)


class Appended(NamedTuple):
    """The agents in conflict, and the change of the head record by the others."""

    conflicts: set[str]
    change: int


def append(db: sqlite3.Connection, appends: Sequence[Append]) -> Appended:
    """Compare and append, or delete. A few statements, however many appends there are."""
    names = [one.agent for one in appends]
    found = db.execute(f"SELECT agent, version, link FROM streams WHERE agent IN ({_marks(names)})", names)  # noqa: S608  # marks
    links = {agent: Link(version, link) for agent, version, link in found}
    rows, conflicts, deleted = list[tuple[str, EventRow]](), set[str](), list[str]()
    moved, change = list[tuple[str, int, bytes, int]](), 0
    for one in appends:
        start = links.get(one.agent, BEGINNING)
        if start.version != one.expected_version:
            conflicts.add(one.agent)
        elif one.deleted:
            deleted.append(one.agent)
            change ^= head_digest(one.agent, start)
        elif one.events:
            added = chained(start, one.events)
            rows += [(one.agent, row) for row in added]
            head = Link(added[-1].version, added[-1].link)
            digest = head_digest(one.agent, head)
            moved.append((one.agent, *head, digest))
            change ^= head_digest(one.agent, start) ^ digest
            drop_policies(db, one.agent, one.dropped_policies)
            insert_policies(db, one.agent, head.version, one.policies)
    insert_events(db, rows)
    for part in _parts(moved):
        values = [value for row in part for value in row]
        db.execute(f"INSERT INTO streams (agent, version, link, digest) VALUES {_rows(len(part), 4)} {UPSERT}", values)  # noqa: S608  # marks
    _delete(db, deleted)
    return Appended(conflicts, change)


def _delete(db: sqlite3.Connection, agents: Sequence[str]) -> None:
    for part in _parts(agents):
        for table in ("streams", "events", "snapshots", "policies", "summaries"):
            db.execute(f"DELETE FROM {table} WHERE agent IN ({_marks(part)})", part)  # noqa: S608  # marks
    if agents:
        db.execute("UPDATE commits SET remnants = 1")


def erase_remnants(db: sqlite3.Connection) -> None:
    """Rewrite the database if agents were deleted since it was last rewritten. `secure_delete` overwrites their rows, but not
    the copies that SQLite leaves in unused parts of pages when it moves rows between pages."""
    (due,) = db.execute("SELECT remnants FROM commits").fetchone()
    if due:
        db.execute("VACUUM")
        db.execute("UPDATE commits SET remnants = 0")


def insert_events(db: sqlite3.Connection, rows: Sequence[tuple[str, EventRow]]) -> None:
    for part in _parts(rows):
        values = [value for agent, row in part for value in (agent, *row)]
        db.execute(f"INSERT INTO events (agent, version, payload, link) VALUES {_rows(len(part), 4)}", values)  # noqa: S608  # marks


def insert_policies(db: sqlite3.Connection, agent: str, version: int, policies: Mapping[int, bytes]) -> None:
    if policies:
        rows = [(agent, episode, version, policy) for episode, policy in policies.items()]
        db.executemany("INSERT OR REPLACE INTO policies (agent, episode, version, payload) VALUES (?, ?, ?, ?)", rows)


def drop_policies(db: sqlite3.Connection, agent: str, episodes: Collection[int]) -> None:
    if episodes:
        db.executemany("DELETE FROM policies WHERE agent = ? AND episode = ?", [(agent, episode) for episode in episodes])


def save_snapshot(db: sqlite3.Connection, agent: str, version: int, snapshot: bytes) -> None:
    """Keep two snapshots. Drop the events behind the older one, and only after it was read back intact."""
    rows = db.execute("SELECT version, link, payload, digest FROM snapshots WHERE agent = ? ORDER BY version DESC", (agent,))
    older = next((row for row in rows if is_intact(agent, row)), None)
    if older is not None and older[0] >= version:
        return
    found = db.execute("SELECT link FROM events WHERE agent = ? AND version = ?", (agent, version)).fetchone()
    if found is None:
        if db.execute("SELECT 1 FROM streams WHERE agent = ?", (agent,)).fetchone() is None:
            return
        raise DamagedStreamError(f"event {version}, which the snapshot includes, is missing")
    _insert_snapshot(db, agent, Link(version, found[0]), snapshot)
    if older is not None:
        db.execute("DELETE FROM events WHERE agent = ? AND version <= ?", (agent, older[0]))
        db.execute("DELETE FROM snapshots WHERE agent = ? AND version < ?", (agent, older[0]))


def restore(db: sqlite3.Connection, agent: str, stream: StoredStream) -> int:
    """Store a whole stream. Returns the change of the head record. Raises `VersionConflictError` if the agent has a stream."""
    found = db.execute("SELECT version FROM streams WHERE agent = ?", (agent,)).fetchone()
    if found is not None:
        raise VersionConflictError(agent, 0, found[0])
    start, rows = rechained(stream)
    if stream.snapshot is not None:
        _insert_snapshot(db, agent, start, stream.snapshot)
    insert_events(db, [(agent, row) for row in rows])
    insert_policies(db, agent, stream.version, stream.policies)
    head = Link(rows[-1].version, rows[-1].link) if rows else start
    digest = head_digest(agent, head)
    db.execute("INSERT INTO streams (agent, version, link, digest) VALUES (?, ?, ?, ?)", (agent, *head, digest))
    return digest


def _insert_snapshot(db: sqlite3.Connection, agent: str, at: Link, snapshot: bytes) -> None:
    digest = snapshot_digest(agent, at.version, at.link, snapshot)
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", (agent, at.version, at.link, snapshot, digest))


def _parts(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[start : start + MOST_ROWS] for start in range(0, len(rows), MOST_ROWS)]


def _rows(count: int, columns: int) -> str:
    return ",".join([f"({','.join('?' * columns)})"] * count)


def _marks(values: Collection[object]) -> str:
    return ",".join("?" * len(values))
