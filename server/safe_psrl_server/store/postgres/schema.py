"""The tables of the PostgreSQL store."""

from typing import Any, Final

from psycopg import AsyncConnection, errors

from safe_psrl_server.store.interface import StoreError
from safe_psrl_server.store.postgres import summaries
from safe_psrl_server.store.postgres.streams import SLOTS

SCHEMA_VERSION: Final = 1
ADVISORY_LOCK: Final = 0x5AFE_0951  # held while the tables are created, so that replicas can start together
TABLES: Final = """
    CREATE TABLE safe_psrl_schema (version INTEGER NOT NULL);
    CREATE TABLE safe_psrl_streams (
        agent TEXT PRIMARY KEY,
        version BIGINT NOT NULL,
        link BYTEA NOT NULL,
        digest BIGINT NOT NULL
    );
    CREATE TABLE safe_psrl_heads (slot INTEGER PRIMARY KEY, digest BIGINT NOT NULL);
    CREATE TABLE safe_psrl_events (
        agent TEXT NOT NULL,
        version BIGINT NOT NULL,
        payload BYTEA NOT NULL,
        link BYTEA NOT NULL,
        PRIMARY KEY (agent, version)
    );
    CREATE TABLE safe_psrl_snapshots (
        agent TEXT NOT NULL,
        version BIGINT NOT NULL,
        link BYTEA NOT NULL,
        payload BYTEA NOT NULL,
        digest BYTEA NOT NULL,
        PRIMARY KEY (agent, version)
    );
    CREATE TABLE safe_psrl_policies (
        agent TEXT NOT NULL,
        episode BIGINT NOT NULL,
        version BIGINT NOT NULL,
        payload BYTEA NOT NULL,
        PRIMARY KEY (agent, episode)
    );
"""


async def create_tables(db: AsyncConnection[Any]) -> None:
    """Create the tables unless they exist; if they do, the role needs no right to create tables.

    Raises `StoreError` for another schema version.
    """
    version = await _version(db)
    if version is None:
        async with db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock(%s)", (ADVISORY_LOCK,))
            version = await _version(db)  # another replica may have created them meanwhile
            if version is None:
                await db.execute(TABLES)
                await db.execute("INSERT INTO safe_psrl_heads SELECT generate_series(0, %s), 0", (SLOTS - 1,))
                await db.execute("INSERT INTO safe_psrl_schema VALUES (%s)", (SCHEMA_VERSION,))
                await db.execute(summaries.TABLES)
                return
    if version != SCHEMA_VERSION:
        raise StoreError(f"the database has schema version {version}, this release needs {SCHEMA_VERSION}: use a newer release")
    await _create_summaries(db)


async def _create_summaries(db: AsyncConnection[Any]) -> None:
    """Create the summaries' table and indexes unless they exist: an earlier release had none, or not every index."""
    found = await (await db.execute("SELECT to_regclass('safe_psrl_summaries_by_size') IS NOT NULL")).fetchone()
    if found is None or not found[0]:
        async with db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock(%s)", (ADVISORY_LOCK,))
            await db.execute(summaries.TABLES)


async def _version(db: AsyncConnection[Any]) -> int | None:
    """The version of the schema; None without tables."""
    try:
        async with db.transaction():
            found = await (await db.execute("SELECT version FROM safe_psrl_schema")).fetchone()
    except errors.UndefinedTable:
        return None
    return int(found[0]) if found else 0
