"""The shared store: PostgreSQL, for several replicas on one database.

The version of a stream is the only concurrency control. A commit whose outcome is unknown raises `StoreUnavailableError`; the
caller determines the outcome by reading.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DeadlockDetected, SerializationFailure
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from safe_psrl_server.store import redacted_address
from safe_psrl_server.store.checksums import BEGINNING, MISMATCH, Link, chained
from safe_psrl_server.store.interface import (
    Append,
    StoredStream,
    StoreError,
    StoreUnavailableError,
    StoreUsage,
    StreamHead,
)
from safe_psrl_server.store.postgres import commit, streams, summaries
from safe_psrl_server.store.postgres.schema import create_tables
from safe_psrl_server.store.postgres.streams import SLOTS, heads_match, is_whole
from safe_psrl_server.store.summaries import NOTHING_UNSAVED, FleetTotals, Summary, SummaryQuery, Unsaved

MAX_NAME_LENGTH: Final = 500  # characters; longer names do not fit into an index
MAX_CONNECTIONS: Final = 5
ATTEMPTS: Final = MAX_CONNECTIONS + 2  # after a restart of the database each connection in the pool fails once
START_SECONDS: Final = 10.0  # how long a database that is starting is waited for
CONNECT_SECONDS: Final = 5
STATEMENT_SECONDS: Final = 10
ROUND_TRIP_SECONDS: Final = STATEMENT_SECONDS + 2
RECONNECT_SECONDS: Final = 1.0
STARTING: Final = {None, "57P03"}  # SQL states of errors that pass: nothing listens yet, or the database is starting
ROLLED_BACK: Final = (SerializationFailure, DeadlockDetected)
LOST: Final = (psycopg.Error, OSError, TimeoutError)
WEAK_COMMITS: Final = {"off", "local"}
CONNECTION_DEFAULTS: Final[dict[str, Any]] = {  # a peer that is gone is noticed within the time of a statement
    "application_name": "safe-psrl",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": STATEMENT_SECONDS * 1000,
}
SESSION: Final = f"""
    SET default_transaction_isolation = 'read committed';
    SET statement_timeout = '{STATEMENT_SECONDS}s';
    SET lock_timeout = '{STATEMENT_SECONDS}s';
    SET idle_in_transaction_session_timeout = '{STATEMENT_SECONDS}s';
"""

Database = AsyncConnection[Any]
Result = TypeVar("Result")
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # failures are raised to the caller


class PostgresStore:
    """All agents in the database at `address`, which other replicas may use at the same time."""

    is_shared = True

    def __init__(self, address: str) -> None:
        self._shown = redacted_address(address)
        try:
            self._conninfo = make_conninfo("", **(CONNECTION_DEFAULTS | conninfo_to_dict(address)))
        except psycopg.ProgrammingError as error:
            raise StoreError(f"store {self._shown}: {_one_line(error)}") from None
        self._pool: AsyncConnectionPool[Database] | None = None
        self._links: dict[str, Link] = {}  # the head of each stream when it was last read or written here
        self._slot = random.randrange(SLOTS)  # of the head record

    async def open(self) -> None:
        try:
            async with await self._first_connection() as db:
                await create_tables(db)
                if not await heads_match(db):
                    raise StoreError(f"the database {self._shown} {MISMATCH}")
        except LOST as error:
            raise StoreError(f"the database {self._shown} cannot be used: {_one_line(error)}") from error
        self._pool = AsyncConnectionPool(
            self._conninfo,
            min_size=1,
            max_size=MAX_CONNECTIONS,
            kwargs={"autocommit": True},
            configure=_configure,
            timeout=CONNECT_SECONDS,
            reconnect_timeout=RECONNECT_SECONDS,
            open=False,
        )
        await self._pool.open()

    async def heads(self, agents: Collection[str] | None = None) -> dict[str, StreamHead]:
        wanted = None if agents is None else [agent for agent in agents if _is_storable(agent)]
        return await self._transaction(lambda db: streams.heads(db, wanted))

    async def load(self, agent: str) -> StoredStream:
        if not _is_storable(agent):
            return StoredStream(None, [], 0)
        loaded = await self._transaction(lambda db: streams.load(db, agent))
        self._remember({agent: loaded.head})
        return loaded.stream

    async def load_tail(self, agent: str, after: int) -> StoredStream | None:
        known = self._links.get(agent)
        link = known.link if known is not None and known.version == after else None
        loaded = await self._transaction(lambda db: streams.load_tail(db, agent, after, link))
        if loaded is None:
            return None
        self._remember({agent: loaded.head})
        return loaded.stream

    async def commit(self, appends: Sequence[Append]) -> set[str]:
        for _ in range(ATTEMPTS):
            try:
                async with asyncio.timeout(ROUND_TRIP_SECONDS), self._connections.connection() as db:
                    return await self._commit(db, appends)
            except ROLLED_BACK:
                continue  # nothing was written
            except LOST as error:
                await self._discard_broken_connections()
                raise self._unavailable(error) from error
        raise StoreUnavailableError(f"the database {self._shown} rolled back {ATTEMPTS} times")

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        await self._transaction(lambda db: streams.save_snapshot(db, agent, version, snapshot, self._links.get(agent)))

    async def restore(self, agent: str, stream: StoredStream) -> None:
        await self._transaction(lambda db: streams.restore(db, agent, stream, self._slot))

    async def save_summaries(self, rows: Sequence[Summary]) -> None:
        await self._transaction(lambda db: summaries.save(db, rows))

    async def find_summaries(self, query: SummaryQuery, unsaved: Unsaved = NOTHING_UNSAVED) -> list[Summary]:
        return await self._transaction(lambda db: summaries.find(db, query, unsaved))

    async def summaries_of(self, agents: Collection[str], unsaved: Unsaved = NOTHING_UNSAVED) -> list[Summary]:
        wanted = [agent for agent in agents if _is_storable(agent)]
        return await self._transaction(lambda db: summaries.of(db, wanted, unsaved))

    async def summarised_agents(self, unsaved: Unsaved = NOTHING_UNSAVED) -> list[str]:
        return await self._transaction(lambda db: summaries.names(db, unsaved))

    async def totals(self, unsaved: Unsaved = NOTHING_UNSAVED) -> FleetTotals:
        return await self._transaction(lambda db: summaries.totals(db, unsaved))

    async def outdated_summaries(self) -> dict[str, int]:
        if not await self._transaction(is_whole):
            return dict.fromkeys(await self.heads(), 0)
        return await self._transaction(summaries.outdated)

    def forget(self, agent: str) -> None:
        self._links.pop(agent, None)

    def usage(self) -> StoreUsage | None:
        return None

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def _commit(self, db: Database, appends: Sequence[Append]) -> set[str]:
        links = await self._links_of(db, appends)
        ready, checks, deletions = list[commit.LinkedAppend](), dict[str, Link](), dict[str, Link]()
        for append in appends:
            link = links.get(append.agent, Link(append.expected_version, b""))
            if not _changes(append):
                checks[append.agent] = link if link.version else Link(0, b"")
            elif link.version == append.expected_version:
                if append.deleted:
                    deletions[append.agent] = link
                else:
                    rows = chained(link, append.events)
                    ready.append(commit.LinkedAppend(append.agent, link, rows, append.policies, append.dropped_policies))
        written = set[str]()
        if deletions:
            written = await commit.write_and_delete(db, ready, checks, deletions, self._slot)
        elif ready or checks:
            written = await commit.write(db, ready, checks, self._slot)
        heads = {append.agent: append.head for append in ready} | dict.fromkeys(deletions, BEGINNING)
        self._remember({agent: head for agent, head in heads.items() if agent in written})
        return {append.agent for append in appends} - written

    async def _links_of(self, db: Database, appends: Sequence[Append]) -> Mapping[str, Link]:
        """The heads to which `appends` append. A head is read only if it is not known at the expected version."""
        links, unknown = dict[str, Link](), list[str]()
        for append in appends:
            agent, expected = append.agent, append.expected_version
            known = BEGINNING if expected == 0 else self._links.get(agent)
            if known is not None and known.version == expected:
                links[agent] = known
            elif _changes(append):
                unknown.append(agent)
        return links | await commit.read_links(db, unknown) if unknown else links

    def _remember(self, links: Mapping[str, Link]) -> None:
        for agent, link in links.items():
            if link.version:
                self._links[agent] = link
            else:
                self._links.pop(agent, None)  # deleted, or never created

    async def _transaction(self, work: Callable[[Database], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction. Repeated if a connection is lost, or if other replicas interfere."""
        for attempt in range(ATTEMPTS):
            try:
                async with (
                    asyncio.timeout(ROUND_TRIP_SECONDS),
                    self._connections.connection() as db,
                    db.transaction(),
                ):
                    return await work(db)
            except LOST as error:
                transient = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
                if not transient or attempt == ATTEMPTS - 1 or isinstance(error, PoolTimeout):
                    raise self._unavailable(error) from error
        raise AssertionError("unreachable")

    @property
    def _connections(self) -> "AsyncConnectionPool[Database]":
        if self._pool is None:
            raise StoreUnavailableError(f"the database {self._shown} is closed")
        return self._pool

    async def _discard_broken_connections(self) -> None:
        with suppress(*LOST):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connections.check()

    async def _first_connection(self) -> Database:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return await AsyncConnection.connect(self._conninfo, autocommit=True)
            except LOST as error:
                if getattr(error, "sqlstate", None) not in STARTING or time.monotonic() >= until:
                    raise
                await asyncio.sleep(0.1)

    def _unavailable(self, error: BaseException) -> StoreUnavailableError:
        return StoreUnavailableError(f"the database {self._shown} does not respond: {_one_line(error)}")


async def _configure(db: Database) -> None:
    await db.set_isolation_level(IsolationLevel.REPEATABLE_READ)  # of transactions with several statements
    await db.execute(SESSION)
    found = await (await db.execute("SHOW synchronous_commit")).fetchone()
    if found is None or found[0] in WEAK_COMMITS:  # stronger settings stay
        await db.execute("SET synchronous_commit = on")


def _changes(append: Append) -> bool:
    """Whether the append does more than check the version."""
    return bool(append.expected_version) if append.deleted else bool(append.events)


def _is_storable(agent: str) -> bool:
    """Whether PostgreSQL can store the name. Any other name would fail the whole query."""
    return "\0" not in agent and len(agent) <= MAX_NAME_LENGTH


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
