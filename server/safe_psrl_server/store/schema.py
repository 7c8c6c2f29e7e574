"""The tables of the SQLite store, and how older files become newer ones."""

import sqlite3
from typing import Final

from safe_psrl_server.store.interface import StoreError

APPLICATION_ID: Final = 0x5AFE0001  # so that a file of somebody else is not taken for ours

# One entry a version: what makes it from the one before. Entries are never changed, only added.
MIGRATIONS: Final = (
    """
    CREATE TABLE streams (
        agent TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        link BLOB NOT NULL
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
    CREATE TABLE commits (only INTEGER PRIMARY KEY CHECK (only = 1), number INTEGER NOT NULL);
    INSERT INTO commits VALUES (1, 0);
    """,
    """
    CREATE TABLE policies (
        agent TEXT NOT NULL,
        episode INTEGER NOT NULL,
        version INTEGER NOT NULL,
        payload BLOB NOT NULL,
        PRIMARY KEY (agent, episode)
    );
    """,
    """
    CREATE TABLE journal (
        place INTEGER PRIMARY KEY,
        agent TEXT NOT NULL,
        version INTEGER NOT NULL,
        payload BLOB NOT NULL,
        link BLOB NOT NULL
    );
    ALTER TABLE commits ADD COLUMN journal BLOB NOT NULL DEFAULT x'';
    """,
    """
    INSERT INTO events SELECT agent, version, payload, link FROM journal ORDER BY agent, version;
    INSERT OR REPLACE INTO streams SELECT agent, max(version), link FROM journal GROUP BY agent;
    DROP TABLE journal;
    ALTER TABLE commits DROP COLUMN journal;
    """,
)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest version, or say why that cannot be."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise StoreError("the database file is not one of this service; choose another directory with --store")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the database has schema version {version}, this release knows {len(MIGRATIONS)}: use a newer release"
        )
    if tables and version == 0:
        raise StoreError("the database file is damaged: it has tables, but no schema version; restore it from a backup")
    for number in range(version, len(MIGRATIONS)):
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number + 1};"
        connection.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[number]} {marks} COMMIT;")
