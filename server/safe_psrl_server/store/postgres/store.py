"""The shared store: PostgreSQL, for several replicas on one database.

One task writes, in groups; reads use connections of their own. The version of a stream is the only concurrency control.
A commit whose outcome is unknown is not guessed at: its callers are told that the store is unavailable, and whoever asks
again finds out by reading.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import psycopg
import structlog
from psycopg.errors import DeadlockDetected, SerializationFailure

from safe_psrl_server.store.address import redacted_address
from safe_psrl_server.store.chain import Link, chained
from safe_psrl_server.store.grouping import GroupedReads
from safe_psrl_server.store.interface import (
    NO_POLICIES,
    OnCommit,
    StoredStream,
    StoreError,
    StoreFailedError,
    StoreUnavailableError,
    StoreUsage,
    StreamHead,
    VersionConflictError,
    nothing,
)
from safe_psrl_server.store.postgres import streams
from safe_psrl_server.store.postgres.commit import Wanted, commit, parts, read_heads
from safe_psrl_server.store.postgres.connections import STATEMENT_SECONDS, Connections, Database
from safe_psrl_server.store.postgres.schema import migrate

MAX_GROUP: Final = 256
LONGEST_NAME: Final = 500  # characters; longer ones do not fit into an index
READERS: Final = 4
ATTEMPTS: Final = READERS + 2  # a restarted database is noticed once on each connection
START_SECONDS: Final = 10.0  # how long a database that does not answer yet is waited for
ROUND_TRIP_SECONDS: Final = STATEMENT_SECONDS + 2
VERSIONS: Final = "SELECT agent, version FROM safe_psrl_streams WHERE agent = ANY(%s)"
STARTING: Final = {None, "57P03"}  # states of errors that pass: nobody listens, or the database is starting
ROLLED_BACK: Final = (SerializationFailure, DeadlockDetected)
LOST: Final = (psycopg.Error, OSError, TimeoutError)

Result = TypeVar("Result")
log = structlog.get_logger()


class _Entry(NamedTuple):
    agent: str
    expected: int
    events: Sequence[bytes]
    policies: Mapping[int, bytes]
    dropped: Collection[int]
    future: "asyncio.Future[int]"


class PostgresStore:
    """All agents in the database at `address`, which other replicas may use at the same time."""

    is_shared = True
    is_gathering = False

    def __init__(self, address: str, on_commit: OnCommit = lambda _seconds, _events: None) -> None:
        self._shown = redacted_address(address)
        self._on_commit = on_commit
        try:
            self._connections = Connections(address, READERS)
        except psycopg.ProgrammingError as error:
            raise StoreError(f"store {self._shown}: {_one_line(error)}") from None
        self._versions = GroupedReads(self._read_versions)
        self._waiting: list[_Entry] = []
        self._wake = asyncio.Event()
        self._seen: dict[str, Link] = {}  # where each stream was when it was last read or written here
        self._writing: Database | None = None
        self._writer: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def failure(self) -> "asyncio.Future[StoreFailedError]":
        """Not done by a database that is away: when it comes back, it is as good as before."""
        return self._failure

    async def open(self) -> None:
        self._failure: asyncio.Future[StoreFailedError] = asyncio.get_running_loop().create_future()
        try:
            self._writing = await self._first_connection()
            await migrate(self._writing)
        except LOST as error:
            await self.close()
            raise StoreError(f"the database {self._shown} cannot be used: {_one_line(error)}") from error
        except StoreError:
            await self.close()
            raise
        self._writer = asyncio.create_task(self._write())
        self._writer.add_done_callback(self._stopped)

    async def agents(self) -> list[str]:
        return await self._transaction(streams.names)

    async def load(self, agent: str) -> StoredStream:
        loaded = await self._transaction(lambda db: streams.load(db, agent))
        self._seen[agent] = loaded.head
        return loaded.stream

    async def load_tail(self, agent: str, after: int) -> StoredStream | None:
        seen = self._seen.get(agent)
        known = seen.link if seen is not None and seen.version == after else None
        loaded = await self._transaction(lambda db: streams.load_tail(db, agent, after, known))
        if loaded is None:
            return None
        self._seen[agent] = loaded.head
        return loaded.stream

    async def version(self, agent: str) -> int:
        if "\0" in agent or len(agent) > LONGEST_NAME:  # it would fail the whole query, which others share
            return 0
        return await self._versions.get(agent) or 0

    async def heads(self) -> dict[str, StreamHead]:
        return await self._transaction(streams.heads)

    async def append(
        self,
        agent: str,
        expected_version: int,
        events: Sequence[bytes],
        policies: Mapping[int, bytes] = NO_POLICIES,
        dropped: Collection[int] = (),
        meanwhile: Callable[[], None] = nothing,  # noqa: ARG002  # nobody is kept waiting
    ) -> int:
        if not events:
            version = await self.version(agent)
            if version != expected_version:
                raise VersionConflictError(agent, expected_version, version)
            return version
        if self._writer is None or self._writer.done() or self._closing:
            raise StoreUnavailableError(f"the database {self._shown} is closed")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(agent, expected_version, events, policies, dropped, future))
        self._wake.set()
        return await future

    def gather(self, work: Callable[[], None]) -> None:
        work()

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        await self._transaction(lambda db: streams.save_snapshot(db, agent, version, snapshot))

    async def restore(self, agent: str, stream: StoredStream) -> None:
        await self._transaction(lambda db: streams.restore(db, agent, stream))

    def usage(self) -> StoreUsage | None:
        return None

    async def close(self) -> None:
        if self._writer is not None:
            self._closing = True
            self._wake.set()
            await asyncio.wait([self._writer])  # it finishes what waits
            self._writer = None
        await self._hang_up()
        await self._connections.close()

    # --- reading

    async def _transaction(self, work: Callable[[Database], Awaitable[Result]]) -> Result:
        """What `work` returns, in a transaction. Repeated on another connection if one is lost, or if others interfered."""
        for attempt in range(ATTEMPTS):
            try:
                async with asyncio.timeout(ROUND_TRIP_SECONDS), self._connections.one() as db, db.transaction():
                    return await work(db)
            except LOST as error:
                passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
                if not passing or attempt == ATTEMPTS - 1:
                    raise self._unavailable(error) from error
        raise AssertionError("unreachable")

    async def _read_versions(self, agents: Sequence[str]) -> Mapping[str, int]:
        async def read(db: Database) -> Mapping[str, int]:
            return dict(await (await db.execute(VERSIONS, (list(agents),))).fetchall())

        for attempt in range(ATTEMPTS):
            try:
                async with asyncio.timeout(ROUND_TRIP_SECONDS), self._connections.one() as db:
                    return await read(db)
            except LOST as error:
                if attempt == ATTEMPTS - 1:
                    raise self._unavailable(error) from error
        raise AssertionError("unreachable")

    # --- writing

    async def _write(self) -> None:
        """The task that writes."""
        while self._waiting or not self._closing:
            await self._wake.wait()
            group = self._next_group()
            try:
                async with asyncio.timeout(ROUND_TRIP_SECONDS):
                    await self._commit(group)
            except ROLLED_BACK:
                await self._hang_up()
                self._waiting[:0] = [entry for entry in group if not entry.future.done()]  # nothing has happened: once more
                self._wake.set()
            except LOST as error:
                await self._hang_up()
                _settle_all(group, self._unavailable(error))
                log.warning("append failed", store=self._shown, error=_one_line(error), appends=len(group))
            except BaseException as error:
                _settle_all(group, self._unavailable(error))
                raise

    def _stopped(self, writer: "asyncio.Task[None]") -> None:
        """Should it ever end by itself, the process must: nobody would be answered any more."""
        error = None if writer.cancelled() else writer.exception()
        if self._closing and error is None:
            return
        failure = StoreFailedError(f"writing to {self._shown} ended: {error!r}")
        _settle_all(self._waiting, failure)
        self._waiting = []
        if not self._failure.done():
            self._failure.set_result(failure)

    def _next_group(self) -> list[_Entry]:
        """What waits, but one append for each agent: the next one depends on its outcome."""
        group: dict[str, _Entry] = {}
        rest: list[_Entry] = []
        for entry in self._waiting:
            if entry.agent in group or len(group) == MAX_GROUP:
                rest.append(entry)
            else:
                group[entry.agent] = entry
        self._waiting = rest
        if not rest:
            self._wake.clear()
        return list(group.values())

    async def _commit(self, group: list[_Entry]) -> None:
        if not group:
            return
        if self._writing is None or self._writing.closed:
            self._writing = await self._connections.connect()
        entries = {entry.agent: entry for entry in group}
        seen = await self._where(self._writing, group)
        ready = [
            Wanted(entry.agent, seen[entry.agent], chained(seen[entry.agent], entry.events), entry.policies, entry.dropped)
            for entry in group
            if _is_at(entry, seen)
        ]
        for part in parts(ready):
            began = time.perf_counter()
            won = await commit(self._writing, part)
            self._note([entry for entry in part if entry.agent in won], time.perf_counter() - began)
            for agent in won:
                entry = entries.pop(agent)
                _settle(entry, entry.expected + len(entry.events))
        if entries:
            found = await read_heads(self._writing, list(entries))
            for agent, entry in entries.items():
                _settle(entry, VersionConflictError(agent, entry.expected, found[agent].version))

    async def _where(self, db: Database, group: list[_Entry]) -> Mapping[str, Link]:
        """Where each stream was last seen; read again if that is not where the caller saw it."""
        seen = {entry.agent: self._seen[entry.agent] for entry in group if _is_at(entry, self._seen)}
        doubtful = [entry.agent for entry in group if entry.agent not in seen]
        return seen | await read_heads(db, doubtful) if doubtful else seen

    def _note(self, appended: list[Wanted], seconds: float) -> None:
        for entry in appended:
            self._seen[entry.agent] = entry.head
        if appended:
            self._on_commit(seconds, sum(len(entry.rows) for entry in appended))

    # --- connections

    async def _first_connection(self) -> Database:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return await self._connections.connect()
            except LOST as error:
                if getattr(error, "sqlstate", None) not in STARTING or time.monotonic() >= until:
                    raise

    async def _hang_up(self) -> None:
        if self._writing is not None:
            await self._writing.close()
            self._writing = None

    def _unavailable(self, error: BaseException) -> StoreUnavailableError:
        return StoreUnavailableError(f"the database {self._shown} does not answer: {_one_line(error)}")


def _is_at(entry: _Entry, seen: Mapping[str, Link]) -> bool:
    return entry.agent in seen and seen[entry.agent].version == entry.expected


def _settle(entry: _Entry, outcome: int | Exception) -> None:
    if entry.future.done():  # its caller has gone away
        return
    if isinstance(outcome, Exception):
        entry.future.set_exception(outcome)
    else:
        entry.future.set_result(outcome)


def _settle_all(entries: Sequence[_Entry], error: StoreError) -> None:
    for entry in entries:
        _settle(entry, error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
