"""The head record in SQLite: a column of the row that numbers the commits."""

import sqlite3
from contextlib import suppress
from typing import Final, NamedTuple

from safe_psrl_server.store.heads import explains, total

TAILS: Final = """
    SELECT agent, max(version), link
    FROM (SELECT agent, version, link FROM events UNION ALL SELECT agent, version, link FROM snapshots) GROUP BY agent
"""


class LastCommit(NamedTuple):
    """The number of a commit, and the head record after it."""

    number: int
    heads: int


def last_commit(db: sqlite3.Connection) -> LastCommit | None:
    """None if the row is unusable."""
    row = db.execute("SELECT number, heads FROM commits").fetchone()
    if row is None or not all(isinstance(value, int) for value in row) or row[0] < 0:
        return None
    return LastCommit(*row)


def heads_match(db: sqlite3.Connection, record: int) -> bool:
    """Whether the streams are those of the commit with this head record, except for damaged rows."""
    return is_whole(db, record) or is_explained(db, record)


def is_whole(db: sqlite3.Connection, record: int) -> bool:
    """Whether they are, without exception."""
    found = db.execute("SELECT agent, digest FROM streams").fetchall()
    digests = dict(found)
    with suppress(TypeError):  # a damaged row
        if total(digests.values()) == record and len(digests) == len(found):  # no agent twice
            return True
    return False


def is_explained(db: sqlite3.Connection, record: int) -> bool:
    """Whether damaged and missing rows alone are why they are not."""
    rows = db.execute("SELECT agent, version, link, digest FROM streams").fetchall()
    return explains(record, rows, db.execute(TAILS).fetchall())
