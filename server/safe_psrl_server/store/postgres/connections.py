"""Connections to PostgreSQL: how they are set up, kept, and made anew after a loss."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

CONNECT_SECONDS: Final = 5
STATEMENT_SECONDS: Final = 10
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
# A peer that is gone without a word is noticed within the time of a statement.
DEFAULTS: Final[dict[str, Any]] = {
    "application_name": "safe-psrl",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": STATEMENT_SECONDS * 1000,
}
SESSION: Final = (
    "SET default_transaction_isolation = 'read committed'",  # of single statements
    f"SET statement_timeout = '{STATEMENT_SECONDS}s'",
    f"SET lock_timeout = '{STATEMENT_SECONDS}s'",
    f"SET idle_in_transaction_session_timeout = '{STATEMENT_SECONDS}s'",  # a replica that stands still holds nobody up
)
WEAK_COMMITS: Final = {"off", "local"}

Database = AsyncConnection[Any]


class Connections:
    """At most `most` at once; those that are given back whole are used again."""

    def __init__(self, address: str, most: int) -> None:
        self._conninfo = make_conninfo("", **(DEFAULTS | conninfo_to_dict(address)))
        self._free = asyncio.Semaphore(most)
        self._idle: list[Database] = []
        self._pause = 0.0
        self._not_before = 0.0
        self._closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Database]:
        """In autocommit mode; transactions that are begun on it have one view of the database."""
        async with self._free:
            db = self._idle.pop() if self._idle else await self.connect()
            try:
                yield db
            finally:
                if self._closed or db.closed or db.info.transaction_status != TransactionStatus.IDLE:
                    await db.close()
                else:
                    self._idle.append(db)

    async def connect(self) -> Database:
        """A new one. After a failure the next attempt waits, longer each time, up to a second."""
        await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
        try:
            async with asyncio.timeout(CONNECT_SECONDS + 1):
                db = await AsyncConnection.connect(self._conninfo, autocommit=True)
                await _set_up(db)
        except (psycopg.Error, OSError, TimeoutError):
            self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
            self._not_before = time.monotonic() + self._pause
            raise
        self._pause = self._not_before = 0.0
        return db

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().close()


async def _set_up(db: Database) -> None:
    await db.set_isolation_level(IsolationLevel.REPEATABLE_READ)
    for statement in SESSION:
        await db.execute(statement)
    found = await (await db.execute("SHOW synchronous_commit")).fetchone()
    if found is None or found[0] in WEAK_COMMITS:  # stronger settings stay
        await db.execute("SET synchronous_commit = on")
