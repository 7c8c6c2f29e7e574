"""Summaries in PostgreSQL. Each function is one statement, or runs inside a transaction of the caller."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from psycopg import AsyncConnection

from safe_psrl_server.store.summaries import (
    COLUMNS,
    QUARANTINED,
    FleetTotals,
    Summary,
    SummaryQuery,
    Unsaved,
    overlaid,
    overlaid_names,
    overlaid_totals,
    replaced,
    select,
    totals_statement,
    wider,
)

# Names are compared by their bytes, as everywhere else, whatever the collation of the database.
TABLES: Final = """
    CREATE TABLE IF NOT EXISTS safe_psrl_summaries (
        agent TEXT COLLATE "C" PRIMARY KEY,
        version BIGINT NOT NULL,
        condition INTEGER NOT NULL,
        cost_ratio DOUBLE PRECISION NOT NULL,
        changed_micros BIGINT NOT NULL,
        created_micros BIGINT NOT NULL,
        table_entries BIGINT NOT NULL,
        payload BYTEA NOT NULL
    );
    CREATE INDEX IF NOT EXISTS safe_psrl_summaries_by_cost_ratio
        ON safe_psrl_summaries (cost_ratio, agent) INCLUDE (condition, table_entries);
    CREATE INDEX IF NOT EXISTS safe_psrl_summaries_by_condition ON safe_psrl_summaries (condition, agent);
    CREATE INDEX IF NOT EXISTS safe_psrl_summaries_by_change ON safe_psrl_summaries (changed_micros, agent);
    CREATE INDEX IF NOT EXISTS safe_psrl_summaries_by_creation ON safe_psrl_summaries (created_micros, agent);
    CREATE INDEX IF NOT EXISTS safe_psrl_summaries_by_events ON safe_psrl_summaries (version, agent);
    CREATE INDEX IF NOT EXISTS safe_psrl_summaries_by_size ON safe_psrl_summaries (table_entries, agent);
"""
# Rows are written in the order of names, so that two replicas do not deadlock. See `summaries.replaces`.
SAVE: Final = f"""
    WITH wanted AS (
        SELECT * FROM unnest(%s::text[], %s::bigint[], %s::integer[], %s::double precision[], %s::bigint[], %s::bigint[],
                             %s::bigint[], %b::bytea[]) AS wanted ({", ".join(COLUMNS)})
    )
    INSERT INTO safe_psrl_summaries AS stored ({", ".join(COLUMNS)})
    SELECT wanted.* FROM wanted LEFT JOIN safe_psrl_streams AS stream ON stream.agent = wanted.agent
    WHERE wanted.condition = {QUARANTINED} OR (wanted.version BETWEEN 1 AND stream.version)
    ORDER BY wanted.agent
    ON CONFLICT (agent) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])}
    WHERE excluded.condition = {QUARANTINED} OR stored.version <= excluded.version
        OR stored.version > (SELECT version FROM safe_psrl_streams WHERE agent = excluded.agent COLLATE "default")
"""  # noqa: S608  # names of columns
DROP: Final = """
    DELETE FROM safe_psrl_summaries AS stored WHERE agent = ANY(%s::text[])
        AND NOT EXISTS (SELECT 1 FROM safe_psrl_streams WHERE agent = stored.agent COLLATE "default")
"""
OUTDATED: Final = """
    SELECT coalesce(stream.agent, summary.agent COLLATE "default"), coalesce(summary.version, 0)
    FROM safe_psrl_streams AS stream FULL JOIN safe_psrl_summaries AS summary
        ON summary.agent COLLATE "default" = stream.agent
    WHERE summary.version IS DISTINCT FROM stream.version
"""
OF: Final = f"SELECT {', '.join(COLUMNS)} FROM safe_psrl_summaries WHERE agent = ANY(%s::text[])"  # noqa: S608  # names of columns
TOTALS: Final = totals_statement("safe_psrl_summaries")

Database = AsyncConnection[Any]


async def save(db: Database, rows: Sequence[Summary]) -> None:
    await db.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # another replica's summary is no conflict
    kept = [row for row in rows if row.payload]
    if kept:
        await db.execute(SAVE, [list(column) for column in zip(*kept, strict=True)])
    gone = [row.agent for row in rows if not row.payload]
    if gone:
        await db.execute(DROP, (gone,))


async def find(db: Database, query: SummaryQuery, unsaved: Unsaved) -> list[Summary]:
    statement, values = select(wider(query, unsaved), "safe_psrl_summaries", "%s")
    return overlaid(query, [Summary(*row) for row in await (await db.execute(statement, values)).fetchall()], unsaved)


async def of(db: Database, agents: Collection[str], unsaved: Unsaved) -> list[Summary]:
    return replaced(await _stored(db, agents), {agent: unsaved[agent] for agent in agents if agent in unsaved})


async def _stored(db: Database, agents: Collection[str]) -> list[Summary]:
    return [Summary(*row) for row in await (await db.execute(OF, (list(agents),))).fetchall()]


async def names(db: Database, unsaved: Unsaved) -> list[str]:
    rows = await (await db.execute("SELECT agent FROM safe_psrl_summaries")).fetchall()
    return overlaid_names((agent for (agent,) in rows), unsaved)


async def totals(db: Database, unsaved: Unsaved) -> FleetTotals:
    return overlaid_totals(await (await db.execute(TOTALS)).fetchall(), await _stored(db, unsaved), unsaved)


async def outdated(db: Database) -> dict[str, int]:
    return dict(await (await db.execute(OUTDATED)).fetchall())
