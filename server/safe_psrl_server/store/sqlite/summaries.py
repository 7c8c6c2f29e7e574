"""Summaries in SQLite. Functions that write run inside a transaction of the caller."""

import sqlite3
from collections.abc import Collection, Sequence
from typing import Final

from safe_psrl_server.store.summaries import (
    COLUMNS,
    FleetTotals,
    Summary,
    SummaryQuery,
    Unsaved,
    overlaid,
    overlaid_names,
    overlaid_totals,
    replaced,
    replaces,
    select,
    totals_statement,
    wider,
)

# The first index has all that totals need: the payloads are not read for them.
TABLES: Final = """
    CREATE TABLE IF NOT EXISTS summaries (
        agent TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        condition INTEGER NOT NULL,
        cost_ratio REAL NOT NULL,
        changed_micros INTEGER NOT NULL,
        created_micros INTEGER NOT NULL,
        table_entries INTEGER NOT NULL,
        payload BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS summaries_by_cost_ratio ON summaries (cost_ratio, agent, condition, table_entries);
    CREATE INDEX IF NOT EXISTS summaries_by_condition ON summaries (condition, agent);
    CREATE INDEX IF NOT EXISTS summaries_by_change ON summaries (changed_micros, agent);
    CREATE INDEX IF NOT EXISTS summaries_by_creation ON summaries (created_micros, agent);
    CREATE INDEX IF NOT EXISTS summaries_by_version ON summaries (agent, version);
    CREATE INDEX IF NOT EXISTS summaries_by_events ON summaries (version, agent);
    CREATE INDEX IF NOT EXISTS summaries_by_size ON summaries (table_entries, agent);
"""
# Streams without a summary or with one of another version, then summaries without a stream.
OUTDATED: Final = """
    SELECT streams.agent, coalesce(summaries.version, 0) FROM streams LEFT JOIN summaries INDEXED BY summaries_by_version
        ON summaries.agent = streams.agent
    WHERE summaries.version IS NOT streams.version
    UNION ALL
    SELECT agent, version FROM summaries INDEXED BY summaries_by_version
    WHERE NOT EXISTS (SELECT 1 FROM streams WHERE streams.agent = summaries.agent)
"""
SAVE: Final = f"INSERT OR REPLACE INTO summaries ({', '.join(COLUMNS)}) VALUES ({','.join('?' * len(COLUMNS))})"  # noqa: S608  # names
TOTALS: Final = totals_statement("summaries INDEXED BY summaries_by_cost_ratio")
MOST_NAMES: Final = 500  # of one statement: SQLite limits the parameters


def create(db: sqlite3.Connection) -> None:
    """Create the table and its indexes unless they exist: an earlier release had none, or not every index."""
    found = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'summaries_by_size'").fetchone()
    if not found[0]:
        db.executescript(f"BEGIN IMMEDIATE; {TABLES} COMMIT;")


def save(db: sqlite3.Connection, rows: Sequence[Summary]) -> None:
    for start in range(0, len(rows), MOST_NAMES):
        part = rows[start : start + MOST_NAMES]
        names = [row.agent for row in part]
        marks = ",".join("?" * len(names))
        streams = dict(db.execute(f"SELECT agent, version FROM streams WHERE agent IN ({marks})", names))  # noqa: S608  # marks
        stored = dict(db.execute(f"SELECT agent, version FROM summaries WHERE agent IN ({marks})", names))  # noqa: S608  # marks
        kept = [row for row in part if row.payload and replaces(row, stored.get(row.agent), streams.get(row.agent, 0))]
        db.executemany(SAVE, kept)
        gone = [(row.agent,) for row in part if not row.payload and row.agent not in streams]
        db.executemany("DELETE FROM summaries WHERE agent = ?", gone)


def find(db: sqlite3.Connection, query: SummaryQuery, unsaved: Unsaved) -> list[Summary]:
    statement, values = select(wider(query, unsaved), "summaries", "?")
    return overlaid(query, [Summary(*row) for row in db.execute(statement, values)], unsaved)


def of(db: sqlite3.Connection, agents: Collection[str], unsaved: Unsaved) -> list[Summary]:
    return replaced(_stored(db, agents), {agent: unsaved[agent] for agent in agents if agent in unsaved})


def _stored(db: sqlite3.Connection, agents: Collection[str]) -> list[Summary]:
    names, found = list(agents), list[Summary]()
    for start in range(0, len(names), MOST_NAMES):
        part = names[start : start + MOST_NAMES]
        query = f"SELECT {', '.join(COLUMNS)} FROM summaries WHERE agent IN ({','.join('?' * len(part))})"  # noqa: S608  # marks
        found += [Summary(*row) for row in db.execute(query, part)]
    return found


def names(db: sqlite3.Connection, unsaved: Unsaved) -> list[str]:
    rows = db.execute("SELECT agent FROM summaries INDEXED BY summaries_by_version")
    return overlaid_names((agent for (agent,) in rows), unsaved)


def totals(db: sqlite3.Connection, unsaved: Unsaved) -> FleetTotals:
    db.execute("BEGIN")  # one view for both reads
    try:
        return overlaid_totals(db.execute(TOTALS).fetchall(), _stored(db, unsaved), unsaved)
    finally:
        db.execute("COMMIT")


def outdated(db: sqlite3.Connection) -> dict[str, int]:
    return dict(db.execute(OUTDATED).fetchall())
