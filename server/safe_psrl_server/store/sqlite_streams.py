"""Reading and shortening streams in SQLite. What writes runs inside a transaction of the caller's."""

import sqlite3
from collections.abc import Collection, Mapping
from typing import Final

from safe_psrl_server.store.chain import BEGINNING, Link, followed, is_whole, snapshot_digest
from safe_psrl_server.store.interface import DamagedStreamError, StoredStream

EVENTS_AFTER: Final = "SELECT version, payload, link FROM events WHERE agent = ? AND version > ? ORDER BY version"
POLICIES_AFTER: Final = "SELECT episode, payload FROM policies WHERE agent = ? AND version > ?"
NAMES: Final = """
    SELECT agent FROM streams UNION SELECT agent FROM events UNION SELECT agent FROM snapshots
    UNION SELECT agent FROM policies ORDER BY agent
"""


def load(db: sqlite3.Connection, agent: str) -> StoredStream:
    """From the newest snapshot that is whole, every event up to the head, each one checked."""
    db.execute("BEGIN")  # one view for all reads
    try:
        head = db.execute("SELECT version, link FROM streams WHERE agent = ?", (agent,)).fetchone()
        snapshots = db.execute(
            "SELECT version, link, payload, digest FROM snapshots WHERE agent = ? ORDER BY version DESC", (agent,)
        ).fetchall()
        whole = next((row for row in snapshots if is_whole(agent, row)), None)
        start = Link(whole[0], whole[1]) if whole else BEGINNING
        rows = db.execute(EVENTS_AFTER, (agent, start.version)).fetchall()
        policies = dict(db.execute(POLICIES_AFTER, (agent, 0)))
    finally:
        db.execute("COMMIT")
    if head is None:
        if snapshots or rows or policies:
            raise DamagedStreamError("its head is missing")
        return StoredStream(None, [], 0)
    events = followed(start, rows, Link(*head))
    return StoredStream(whole[2] if whole else None, events, head[0], policies)


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
    return StoredStream(None, followed(start, rows, Link(*head)), head[0], policies)


def insert_policies(db: sqlite3.Connection, agent: str, version: int, policies: Mapping[int, bytes]) -> None:
    rows = [(agent, episode, version, policy) for episode, policy in policies.items()]
    db.executemany("INSERT OR REPLACE INTO policies (agent, episode, version, payload) VALUES (?, ?, ?, ?)", rows)


def drop_policies(db: sqlite3.Connection, agent: str, episodes: Collection[int]) -> None:
    db.executemany("DELETE FROM policies WHERE agent = ? AND episode = ?", [(agent, episode) for episode in episodes])


def insert_snapshot(db: sqlite3.Connection, agent: str, at: Link, snapshot: bytes) -> None:
    digest = snapshot_digest(agent, at.version, at.link, snapshot)
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", (agent, at.version, at.link, snapshot, digest))


def save_snapshot(db: sqlite3.Connection, agent: str, version: int, snapshot: bytes) -> None:
    """Two snapshots are kept. Events go only behind the older one, and only after it was read back whole."""
    rows = db.execute("SELECT version, link, payload, digest FROM snapshots WHERE agent = ? ORDER BY version DESC", (agent,))
    older = next((row for row in rows if is_whole(agent, row)), None)
    if older is not None and older[0] >= version:
        return
    found = db.execute("SELECT link FROM events WHERE agent = ? AND version = ?", (agent, version)).fetchone()
    if found is None:
        raise DamagedStreamError(f"event {version}, of which a snapshot was taken, is missing")
    insert_snapshot(db, agent, Link(version, found[0]), snapshot)
    if older is not None:
        db.execute("DELETE FROM events WHERE agent = ? AND version <= ?", (agent, older[0]))
        db.execute("DELETE FROM snapshots WHERE agent = ? AND version < ?", (agent, older[0]))
