"""The head record in PostgreSQL: the XOR of the rows of a table.

Each store writes to one row of its own choice. With a single row for all, a replica would wait for the disk flush of another
replica's commit. A commit locks this row last, after the rows of its streams, so it cannot deadlock.
"""

from typing import Any, Final

from psycopg import AsyncConnection

from safe_psrl_server.store.heads import explains, is_intact_head

SLOTS: Final = 64
CHANGE: Final = "UPDATE safe_psrl_heads SET digest = digest # %s::bigint WHERE slot = %s"
RECORD: Final = "SELECT coalesce(bit_xor(digest), 0) FROM safe_psrl_heads"
# In one statement, so of one time.
BOTH: Final = f"SELECT ({RECORD}), (SELECT coalesce(bit_xor(digest), 0) FROM safe_psrl_streams)"  # noqa: S608  # ours
ROWS: Final = "SELECT agent, version, link, digest FROM safe_psrl_streams"
TAILS: Final = """
    SELECT DISTINCT ON (agent) agent, version, link
    FROM (SELECT agent, version, link FROM safe_psrl_events UNION ALL SELECT agent, version, link FROM safe_psrl_snapshots)
        AS kept
    WHERE NOT EXISTS (SELECT 1 FROM unnest(%s::text[]) AS intact (agent) WHERE intact.agent = kept.agent)
    ORDER BY agent, version DESC
"""


async def heads_match(db: AsyncConnection[Any]) -> bool:
    """Whether the streams are those of the head record, except for damaged rows. `db` is in autocommit."""
    return await is_whole(db) or await _is_explained(db)


async def is_whole(db: AsyncConnection[Any]) -> bool:
    """Whether they are, without exception."""
    record, found = (await (await db.execute(BOTH)).fetchall())[0]
    return bool(record == found)


async def _is_explained(db: AsyncConnection[Any]) -> bool:
    async with db.transaction():
        await db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((record,),) = await (await db.execute(RECORD)).fetchall()
        rows = await (await db.execute(ROWS)).fetchall()
        intact = [row[0] for row in rows if is_intact_head(row)]
        tails = await (await db.execute(TAILS, (intact,))).fetchall()
    return explains(int(record), rows, tails)
