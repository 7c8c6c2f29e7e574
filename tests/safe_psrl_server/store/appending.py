"""Appending to a store, and damaging one."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from safe_psrl_server.store import NO_POLICIES, Append, EventStore, VersionConflictError
from safe_psrl_server.store.sqlite.store import DATABASE_FILE


async def append(
    store: EventStore,
    agent: str,
    expected: int,
    events: Sequence[bytes],
    policies: Mapping[int, bytes] = NO_POLICIES,
    dropped: Collection[int] = (),
) -> int:
    """Commit one append; returns the new version. Raises `VersionConflictError`."""
    if await store.commit([Append(agent, expected, events, policies, dropped)]):
        raise VersionConflictError(agent, expected, (await store.heads([agent])).get(agent, (0, 0))[0])
    return expected + len(events)


def execute(directory: Path, statement: str) -> list[Any]:
    """Run one statement on a SQLite store's database, as anyone with the `sqlite3` command could."""
    db = sqlite3.connect(directory / DATABASE_FILE)
    try:
        with db:
            return db.execute(statement).fetchall()
    finally:
        db.close()
