"""The tables of the PostgreSQL store, and how older ones become newer ones while several replicas start at once.

The lock is a row of an ordinary table: whoever holds it migrates, the others wait and find the work done.
"""

from contextlib import suppress
from typing import Any, Final

from psycopg import AsyncConnection, IsolationLevel, errors

from safe_psrl_server.store.interface import StoreError

# One entry a version: the statements that make it from the one before. Entries are never changed, only added.
MIGRATIONS: Final = (
    (
        """
        CREATE TABLE safe_psrl_streams (
            agent TEXT PRIMARY KEY,
            version BIGINT NOT NULL,
            link BYTEA NOT NULL
        )
        """,
        """
        CREATE TABLE safe_psrl_events (
            agent TEXT NOT NULL,
            version BIGINT NOT NULL,
            payload BYTEA NOT NULL,
            link BYTEA NOT NULL,
            PRIMARY KEY (agent, version)
        )
        """,
        """
        CREATE TABLE safe_psrl_snapshots (
            agent TEXT NOT NULL,
            version BIGINT NOT NULL,
            link BYTEA NOT NULL,
            payload BYTEA NOT NULL,
            digest BYTEA NOT NULL,
            PRIMARY KEY (agent, version)
        )
        """,
    ),
    (
        """
        CREATE TABLE safe_psrl_policies (
            agent TEXT NOT NULL,
            episode BIGINT NOT NULL,
            version BIGINT NOT NULL,
            payload BYTEA NOT NULL,
            PRIMARY KEY (agent, episode)
        )
        """,
    ),
)
LOCK_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS safe_psrl_schema (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), version INTEGER NOT NULL)
"""
CREATED_MEANWHILE: Final = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject)


async def migrate(connection: AsyncConnection[Any]) -> None:
    """Bring the database to the newest version, or say why that cannot be. `connection` is in autocommit mode."""
    if await _version(connection) == len(MIGRATIONS):  # so that a role without the right to create tables can serve
        return
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)  # who waited for the lock sees what was done
    with suppress(*CREATED_MEANWHILE):  # by another replica: IF NOT EXISTS looks before it leaps
        await connection.execute(LOCK_TABLE)
    await connection.execute("INSERT INTO safe_psrl_schema VALUES (1, 0) ON CONFLICT (only_row) DO NOTHING")
    async with connection.transaction():
        found = await (await connection.execute("SELECT version FROM safe_psrl_schema FOR UPDATE")).fetchone()
        version = found[0] if found else 0
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the database has schema version {version}, this release knows {len(MIGRATIONS)}: use a newer release"
            )
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                await connection.execute(statement)
        await connection.execute("UPDATE safe_psrl_schema SET version = %s", (len(MIGRATIONS),))


async def _version(connection: AsyncConnection[Any]) -> int:
    """0 if there is no table yet that would tell."""
    try:
        found = await (await connection.execute("SELECT version FROM safe_psrl_schema")).fetchone()
    except errors.UndefinedTable:
        return 0
    return int(found[0]) if found else 0
