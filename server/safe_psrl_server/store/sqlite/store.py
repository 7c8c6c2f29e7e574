"""The embedded store: one SQLite database in a directory, in WAL mode with `synchronous=FULL`.

One connection writes, in one thread; another reads, in another thread. The event loop never touches the disk. A commit that
fails has an unknown outcome, so the store accepts nothing after it.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from safe_psrl_server.store.checksums import MISMATCH
from safe_psrl_server.store.interface import (
    Append,
    DamagedStreamError,
    StoredStream,
    StoreError,
    StoreFailedError,
    StoreUsage,
    StreamHead,
    VersionConflictError,
)
from safe_psrl_server.store.sqlite import streams, summaries
from safe_psrl_server.store.sqlite.directory import CommitCounter, DatabaseLock, LastCommit, is_explained, is_whole, last_commit
from safe_psrl_server.store.sqlite.streams import create_tables
from safe_psrl_server.store.summaries import NOTHING_UNSAVED, FleetTotals, Summary, SummaryQuery, Unsaved

DATABASE_FILE: Final = "safe-psrl.db"
MOST_BYTES_REWRITTEN: Final = 2**28  # at a stop, which must not take long
UNREADABLE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)  # the latter from messages that quote damaged bytes
Result = TypeVar("Result")


class SqliteStore:
    """All agents of one server in `directory`, which no other process may write to."""

    is_shared = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / DATABASE_FILE
        self._lock = DatabaseLock(self._path)
        self._counter = CommitCounter(directory)
        self._writer = ThreadPoolExecutor(1, "store-writer")
        self._reader = ThreadPoolExecutor(1, "store-reader")
        self._failure: StoreFailedError | None = None
        self._is_whole = True  # no row of a stream was damaged when the store was opened
        self._closing = ExitStack()

    async def open(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._open)
        except (OSError, sqlite3.Error) as error:
            message = f"the store in {self._directory} cannot be opened for writing: {_one_line(error)}"
            raise StoreError(message) from error

    async def heads(self, agents: Collection[str] | None = None) -> dict[str, StreamHead]:
        return await self._read_rows(lambda db: streams.heads(db, agents))

    async def load(self, agent: str) -> StoredStream:
        return await self._read_stream(lambda db: streams.load(db, agent))

    async def load_tail(self, agent: str, after: int) -> StoredStream | None:
        return await self._read_stream(lambda db: streams.load_tail(db, agent, after))

    async def commit(self, appends: Sequence[Append]) -> set[str]:
        append = partial(streams.append, appends=appends)
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._transaction, append)

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        def save(db: sqlite3.Connection) -> tuple[None, int]:
            streams.save_snapshot(db, agent, version, snapshot)
            return None, 0

        await self._write(save)

    async def restore(self, agent: str, stream: StoredStream) -> None:
        await self._write(lambda db: (None, streams.restore(db, agent, stream)))

    async def save_summaries(self, rows: Sequence[Summary]) -> None:
        def save(db: sqlite3.Connection) -> tuple[None, int]:
            summaries.save(db, rows)
            return None, 0

        await self._write(save)

    async def find_summaries(self, query: SummaryQuery, unsaved: Unsaved = NOTHING_UNSAVED) -> list[Summary]:
        return await self._read_rows(lambda db: summaries.find(db, query, unsaved))

    async def summaries_of(self, agents: Collection[str], unsaved: Unsaved = NOTHING_UNSAVED) -> list[Summary]:
        return await self._read_rows(lambda db: summaries.of(db, agents, unsaved))

    async def summarised_agents(self, unsaved: Unsaved = NOTHING_UNSAVED) -> list[str]:
        return await self._read_rows(lambda db: summaries.names(db, unsaved))

    async def totals(self, unsaved: Unsaved = NOTHING_UNSAVED) -> FleetTotals:
        return await self._read_rows(lambda db: summaries.totals(db, unsaved))

    async def outdated_summaries(self) -> dict[str, int]:
        if not self._is_whole:
            return dict.fromkeys(await self.heads(), 0)
        return await self._read_rows(summaries.outdated)

    def forget(self, agent: str) -> None:
        pass

    def usage(self) -> StoreUsage | None:
        used = 0
        for name in (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"):
            with suppress(FileNotFoundError):
                used += self._directory.joinpath(name).stat().st_size
        return StoreUsage(used, shutil.disk_usage(self._directory).free)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.shutdown()
        self._reader.shutdown()
        self._closing.close()

    def _erase_remnants(self) -> None:
        """Erase what deletions left in unused pages. If this fails, the next close tries again."""
        with suppress(OSError, sqlite3.Error):
            if self._failure is None and self._path.stat().st_size <= MOST_BYTES_REWRITTEN:
                streams.erase_remnants(self._writing)

    # --- threads

    async def _write(self, work: Callable[[sqlite3.Connection], tuple[Result, int]]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._transaction, work)

    async def _read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._reader, lambda: query(self._reading))

    async def _read_rows(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return await self._read(query)
        except UNREADABLE as error:
            raise self._damaged(error) from error

    async def _read_stream(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return await self._read(query)
        except UNREADABLE as error:
            raise DamagedStreamError(f"the database cannot be read: {_one_line(error)}") from error

    # --- in the writer thread

    def _transaction(self, work: Callable[[sqlite3.Connection], tuple[Result, int]]) -> Result:
        """Commit what `work` does and its change of the head record; durable on return. Whatever it raises by
        intent rolls back and changes nothing."""
        if self._failure is not None:
            raise self._failure
        db = self._writing
        try:
            if not self._lock.is_in_place():
                raise OSError(f"{self._path} was moved, deleted or replaced")  # noqa: TRY301  # handled like a failed write
            db.execute("BEGIN IMMEDIATE")
            try:
                result, change = work(db)
            except (VersionConflictError, DamagedStreamError):
                db.execute("ROLLBACK")
                raise
            db.execute("UPDATE commits SET number = number + 1, heads = ?", (self._heads ^ change,))
            db.execute("COMMIT")
            self._commits += 1
            self._counter.write(self._commits)
            self._heads ^= change
        except (VersionConflictError, DamagedStreamError):
            raise
        except Exception as error:
            self._failure = StoreFailedError(f"a commit to {self._directory} failed: {_one_line(error)}")
            raise self._failure from error
        return result

    def _open(self) -> None:
        with ExitStack() as undo:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            undo.callback(self._lock.release)
            is_verified = self._refuse_loss()
            self._counter.open()
            undo.callback(self._counter.close)
            self._writing = self._connect()
            undo.callback(self._writing.close)
            self._commits, self._heads = self._last_commit(is_verified=is_verified)
            self._reading = self._connect()
            undo.callback(self._reading.close)
            undo.callback(self._erase_remnants)
            self._closing = undo.pop_all()

    def _refuse_loss(self) -> bool:
        """Compare with the counter and the head record before a byte is changed: a connection that may write drops a log it
        cannot read. Returns False if there is nothing that could be compared."""
        db = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            commit = last_commit(db)
            if commit is not None:
                self._check(db, commit)
        except UNREADABLE as error:
            if "no such table" in str(error):  # a new file, or one whose content was in the write-ahead log
                self._counter.check(0)
            return False  # `_connect` reports what is wrong
        finally:
            db.close()
        return commit is not None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._set_up(db)
        except (sqlite3.OperationalError, StoreError):
            db.close()
            raise
        except UNREADABLE as error:
            db.close()
            raise self._damaged(error) from error
        return db

    def _set_up(self, db: sqlite3.Connection) -> None:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"the store in {self._directory} cannot keep a write-ahead log there: use a local disk")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA busy_timeout = 5000")
        db.execute("PRAGMA secure_delete = ON")
        create_tables(db)
        summaries.create(db)

    def _last_commit(self, *, is_verified: bool) -> LastCommit:
        try:
            commit = last_commit(self._writing)
            if commit is None:
                raise self._damaged("no commit number")
            if not is_verified:
                self._check(self._writing, commit)
        except UNREADABLE as error:
            raise self._damaged(error) from error
        return commit

    def _check(self, db: sqlite3.Connection, commit: LastCommit) -> None:
        self._counter.check(commit.number)
        self._is_whole = is_whole(db, commit.heads)
        if not self._is_whole and not is_explained(db, commit.heads):
            raise StoreError(f"the database in {self._directory} {MISMATCH}")

    def _damaged(self, problem: object) -> StoreError:
        return StoreError(f"the database in {self._directory} is damaged ({_one_line(problem)}): restore it from a backup")


def _one_line(error: object) -> str:
    """The error in one line: for a damaged schema, SQLite quotes whole statements."""
    return " ".join(str(error).split())[:200]
