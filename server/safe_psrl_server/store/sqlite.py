"""The embedded store: SQLite in a directory, and a log before it.

Whatever has queued up is committed together, and only then are the callers resolved: group commit. Appends are committed to
the log and filed in the database later, everything else at once, in one transaction with what waits to be filed. One
connection writes, another reads. Write-ahead log, `synchronous=FULL`: a commit that returned is on the disk. A commit that
fails stops everything, because nobody can say what became of it.
"""

import asyncio
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from safe_psrl_server.store import sqlite_streams
from safe_psrl_server.store.appends import Append
from safe_psrl_server.store.chain import BEGINNING, Link, next_link, transplanted
from safe_psrl_server.store.gathering import Gathering
from safe_psrl_server.store.interface import (
    NO_POLICIES,
    DamagedStreamError,
    OnCommit,
    StoredStream,
    StoreError,
    StoreFailedError,
    StoreUsage,
    StreamHead,
    VersionConflictError,
    nothing,
)
from safe_psrl_server.store.journal import Journal, JournalDamagedError, StoredRow, filed_commits
from safe_psrl_server.store.lock import DirectoryLock
from safe_psrl_server.store.log import LOG, LogFile, following
from safe_psrl_server.store.schema import migrate
from safe_psrl_server.store.witness import CommitWitness

FILE: Final = "safe-psrl.db"
UNREADABLE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)  # the latter from messages that quote damaged bytes
Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], object]  # runs inside the group's transaction


class _Other(NamedTuple):
    """Anything else that is written."""

    work: Work
    events: int  # that it appends
    future: "asyncio.Future[Any]"


_Entry = Append | _Other


@dataclass(eq=False, slots=True)
class _Group:
    """Entries that share a commit."""

    entries: list[_Entry]
    results: list[object] = field(default_factory=list)  # of each, once it is entered
    events: int = 0
    number: int = 0  # of the commit
    began: float = field(default_factory=time.perf_counter)
    is_filed: bool = True  # everything, after it
    is_long: bool = False  # the journal, after it
    record: bytes = b""  # for the log; none if it is committed to the database
    meanwhile: Callable[[], None] | None = None  # if the loop itself commits it: what it can do until that is over
    seconds: float = 0.0  # that it took


class SqliteStore:
    """All agents of one server in `directory`, which no other process may use meanwhile."""

    is_shared = False

    def __init__(self, directory: Path, on_commit: OnCommit = lambda _seconds, _events: None) -> None:
        self._directory = directory
        self._on_commit = on_commit
        self._lock = DirectoryLock(directory)
        self._witness = CommitWitness(directory / "commits")
        self._log = LogFile(directory / LOG)
        self._queue: SimpleQueue[_Group | None] = SimpleQueue()
        self._gathering: Gathering[_Entry] = Gathering(self._hand_over, _is_for_the_log)
        self._thread: threading.Thread | None = None
        self._reader = ThreadPoolExecutor(1, "store-reader")
        self._is_filed = True  # all that was committed: what is entered since cannot be read yet
        self._heads: dict[str, Link] = {}  # of whoever enters: version and link of each stream

    @property
    def failure(self) -> "asyncio.Future[StoreFailedError]":
        return self._failure

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathering.open(self._loop)
        self._failure: asyncio.Future[StoreFailedError] = self._loop.create_future()
        try:
            with ExitStack() as undo:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._lock.acquire()
                undo.callback(self._lock.release)
                undo.callback(self._witness.close)
                undo.callback(self._log.close)
                await asyncio.to_thread(self._refuse_loss)
                self._writing = await asyncio.to_thread(self._connect)
                undo.callback(self._writing.close)
                self._journal = await asyncio.to_thread(self._filed_journal)
                self._reading = await self._loop.run_in_executor(self._reader, self._connect)
                undo.pop_all()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"the store in {self._directory} cannot be opened for writing: {_one_line(error)}") from error
        self._thread = threading.Thread(target=self._write, name="store-writer", daemon=True)
        self._thread.start()

    async def agents(self) -> list[str]:
        try:
            names = [agent for (agent,) in await self._read(lambda db: db.execute(sqlite_streams.NAMES).fetchall())]
        except UNREADABLE as error:
            raise self._damaged(error) from error
        if not all(isinstance(name, str) for name in names):
            raise self._damaged("a name is not text")
        return names

    async def load(self, agent: str) -> StoredStream:
        try:
            return await self._read(lambda db: sqlite_streams.load(db, agent))
        except UNREADABLE as error:
            raise DamagedStreamError(f"the database cannot be read: {_one_line(error)}") from error

    async def load_tail(self, agent: str, after: int) -> StoredStream | None:
        try:
            return await self._read(lambda db: sqlite_streams.load_tail(db, agent, after))
        except UNREADABLE as error:
            raise DamagedStreamError(f"the database cannot be read: {_one_line(error)}") from error

    async def version(self, agent: str) -> int:
        found = await self._read(lambda db: db.execute("SELECT version FROM streams WHERE agent = ?", (agent,)).fetchone())
        return found[0] if found else 0

    async def heads(self) -> dict[str, StreamHead]:
        newest = "SELECT coalesce(max(version), 0) FROM snapshots WHERE snapshots.agent = streams.agent"
        rows = await self._read(lambda db: db.execute(f"SELECT agent, version, ({newest}) FROM streams").fetchall())  # noqa: S608  # constant
        return {agent: StreamHead(version, snapshot) for agent, version, snapshot in rows}

    def append(
        self,
        agent: str,
        expected_version: int,
        events: Sequence[bytes],
        policies: Mapping[int, bytes] = NO_POLICIES,
        dropped: Collection[int] = (),
        meanwhile: Callable[[], None] = nothing,
    ) -> Append:
        entry = Append(agent, expected_version, events, policies, dropped, meanwhile)
        self._submit(entry)
        entry.meanwhile = nothing  # its caller goes on
        return entry

    async def save_snapshot(self, agent: str, version: int, snapshot: bytes) -> None:
        await self._other(lambda db: sqlite_streams.save_snapshot(db, agent, version, snapshot))

    async def restore(self, agent: str, stream: StoredStream) -> None:
        def work(db: sqlite3.Connection) -> None:
            head = self._head(db, agent)
            if head.version:
                raise VersionConflictError(agent, 0, head.version)
            start, rows = transplanted(stream)
            db.execute("INSERT INTO streams (agent, version, link) VALUES (?, ?, ?)", (agent, *start))
            if stream.snapshot is not None:
                sqlite_streams.insert_snapshot(db, agent, start, stream.snapshot)
            self._journal.file([(agent, *row) for row in rows])
            sqlite_streams.insert_policies(db, agent, stream.version, stream.policies)
            self._heads[agent] = Link(rows[-1].version, rows[-1].link) if rows else start

        await self._other(work, len(stream.events))

    def usage(self) -> StoreUsage | None:
        used = 0
        for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", LOG):
            with suppress(FileNotFoundError):
                used += self._directory.joinpath(name).stat().st_size
        return StoreUsage(used, shutil.disk_usage(self._directory).free)

    async def close(self) -> None:
        if self._thread is not None:
            with suppress(StoreFailedError):  # whoever waits for the failure hears of it there
                while self._gathering.is_busy or not self._is_filed:
                    await self._other(_nothing)  # comes after whatever waits, and everything is filed then
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None
            await self._loop.run_in_executor(self._reader, self._reading.close)
            await asyncio.to_thread(self._writing.close)
        self._reader.shutdown()
        self._log.close()
        self._witness.close()
        self._lock.release()

    async def _read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        if not self._is_filed:
            await self._other(_nothing)  # before which the journal is filed
        return await self._loop.run_in_executor(self._reader, lambda: query(self._reading))

    def _other(self, work: Work, events: int = 0) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        self._submit(_Other(work, events, future))
        return future

    # --- group commit: entries wait on the loop, are committed there or in a thread, and are answered on the loop

    @property
    def is_gathering(self) -> bool:
        return self._gathering.is_wanted

    def gather(self, work: Callable[[], None]) -> None:
        if self._failure.done():
            work()
        else:
            self._gathering.gather(work)

    def _submit(self, entry: _Entry) -> None:
        if self._failure.done():
            _resolve([entry], [self._failure.result()])
        else:
            self._gathering.add(entry)

    def _hand_over(self, entries: list[_Entry], by_the_loop: bool) -> None:
        group = _Group(entries)
        if not all(map(_is_for_the_log, entries)):
            self._queue.put(group)
            return
        try:
            self._enter(group)
            if by_the_loop:
                group.meanwhile = entries[0].meanwhile  # type: ignore[union-attr]  # an append
                self._commit(group)
        except Exception as error:  # noqa: BLE001  # as if it had happened in the thread
            self._fail(group, error)
            return
        if by_the_loop:
            self._committed(group)
        else:
            self._queue.put(group)

    def _committed(self, group: "_Group") -> None:
        self._is_filed = group.is_filed
        _resolve(group.entries, group.results)
        self._on_commit(group.seconds, group.events)
        if group.is_long:
            self._file_soon()
        self._gathering.over(len(group.entries))

    def _file_soon(self) -> None:
        """With the next commit, by the thread: other work than appends is always done by it, and after the journal is filed."""
        self._other(_nothing).add_done_callback(lambda done: done.exception())  # seen: if it fails, everything does

    def _refuse_loss(self) -> None:
        """Compare with the witness before a byte is changed: a connection that may write drops a log that it cannot read."""
        path = self._directory / FILE
        if not path.exists():
            self._witness.check(0)
            return
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            commits = filed_commits(db)
        except UNREADABLE as error:
            if "no such table" not in str(error):
                return  # `_connect` says what is wrong
            commits = 0  # new, or all of it was in the write-ahead log
        finally:
            db.close()
        if commits is not None:
            self._witness.check(commits + len(following(self._log.read(), commits, self._witness.noted())))

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._directory / FILE, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except sqlite3.OperationalError:
            db.close()
            raise
        except UNREADABLE as error:
            db.close()
            raise self._damaged(error) from error
        except StoreError:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"the store in {self._directory} cannot keep a write-ahead log there: use a local disk")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA busy_timeout = 5000")
        migrate(db)

    def _filed_journal(self) -> Journal:
        """Of a database that has all of the log."""
        try:
            commits = filed_commits(self._writing)
            if commits is None:
                raise self._damaged("no count of commits")
            journal = Journal(self._writing, commits)
            leftover = following(self._log.read(), commits, self._witness.noted())
            self._witness.check(commits + len(leftover))
            journal.file_leftover(leftover)
        except sqlite3.OperationalError:  # a full disk, say: no damage
            raise
        except (*UNREADABLE, JournalDamagedError) as error:
            raise self._damaged(error) from error
        self._log.clear()
        return journal

    def _damaged(self, how: object) -> StoreError:
        return StoreError(f"the database in {self._directory} is damaged ({_one_line(how)}): restore it from a backup")

    def _head(self, db: sqlite3.Connection, agent: str) -> Link:
        if agent not in self._heads:
            row = db.execute("SELECT version, link FROM streams WHERE agent = ?", (agent,)).fetchone()
            self._heads[agent] = Link(*row) if row else BEGINNING
        return self._heads[agent]

    def _write(self) -> None:
        """The writing thread."""
        while (group := self._queue.get()) is not None:
            try:
                if not group.record:
                    self._enter_database(group)
                self._commit(group)
            except Exception as error:  # noqa: BLE001  # whatever it was, nobody can say what became of the commit
                self._loop.call_soon_threadsafe(self._fail, group, error)
                return
            self._loop.call_soon_threadsafe(self._committed, group)

    def _commit(self, group: "_Group") -> None:
        """Make what was entered last for ever. By the loop or by the thread, whichever has the group."""
        took: float | None
        if group.record:
            began = time.perf_counter()
            if group.meanwhile is None:
                self._log.append(group.record)
            else:
                self._log.append_alone(group.record, group.meanwhile)
            took = time.perf_counter() - began
        else:
            self._writing.execute("COMMIT")
            self._log.restart()
            took = None  # says nothing about commits to the log
        self._witness.note(group.number)
        self._gathering.took(took)
        group.seconds = time.perf_counter() - group.began

    def _enter(self, group: "_Group") -> None:
        """Make the record of a group of appends. Results are told after the commit; conflicts are results too.

        On the loop: it is work for the processor alone, and threads that both need the interpreter stop each other.
        """
        rows = list[StoredRow]()
        for entry in group.entries:
            assert isinstance(entry, Append)  # noqa: S101  # the log has nothing else
            self._enter_append(group, entry, rows)
        group.record = self._journal.enter(rows)
        group.number, group.is_filed, group.is_long = self._journal.commits, not self._journal, self._journal.is_long

    def _enter_database(self, group: "_Group") -> None:
        """Write a group with anything else in it, all but the commit. In the thread: snapshots and policies may be large."""
        db, rows = self._writing, list[StoredRow]()
        db.execute("BEGIN IMMEDIATE")
        for entry in group.entries:
            if isinstance(entry, Append):
                self._enter_append(group, entry, rows)
                continue
            self._journal.file(rows)
            rows.clear()
            try:
                group.results.append(entry.work(db))
                group.events += entry.events
            except (VersionConflictError, DamagedStreamError) as error:
                group.results.append(error)
        self._journal.file(rows)
        self._journal.count_filed()
        group.number = self._journal.commits

    def _enter_append(self, group: "_Group", entry: Append, rows: list[StoredRow]) -> None:
        try:
            group.results.append(self._chain(self._writing, entry, rows))
            group.events += len(entry.events)
        except VersionConflictError as error:
            group.results.append(error)

    def _chain(self, db: sqlite3.Connection, entry: Append, rows: list[StoredRow]) -> int:
        """Add the rows of `entry` to `rows`; the version that the stream will have."""
        agent = entry.agent
        head = version, link = self._head(db, agent)
        if version != entry.expected_version:
            raise VersionConflictError(agent, entry.expected_version, version)
        for payload in entry.events:
            version += 1
            link = next_link(link, version, payload)
            rows.append((agent, version, payload, link))
        if version != head.version:
            self._heads[agent] = Link(version, link)
            if entry.dropped:
                sqlite_streams.drop_policies(db, agent, entry.dropped)
            if entry.policies:
                sqlite_streams.insert_policies(db, agent, version, entry.policies)
        return version

    def _fail(self, group: "_Group", error: Exception) -> None:
        failure = StoreFailedError(f"a commit to {self._directory} failed: {error}")
        if not self._failure.done():
            self._failure.set_result(failure)
        entries = group.entries + self._gathering.give_up()
        _resolve(entries, [failure] * len(entries))


def _is_for_the_log(entry: _Entry) -> bool:
    """Events alone. Policies that come or go with them are rows of the database."""
    return isinstance(entry, Append) and not entry.policies and not entry.dropped


def _one_line(error: object) -> str:
    """SQLite quotes whole statements of a damaged schema."""
    return " ".join(str(error).split())[:200]


def _resolve(group: Sequence[_Entry], results: Sequence[object]) -> None:
    for entry, result in zip(group, results, strict=True):
        if isinstance(entry, Append):
            entry.settle(result)  # type: ignore[arg-type]  # a version, or why not
        elif entry.future.done():  # its caller has gone away
            continue
        elif isinstance(result, Exception):
            entry.future.set_exception(result)
        else:
            entry.future.set_result(result)


def _nothing(_db: sqlite3.Connection) -> None:
    """Work for the sake of what comes with it."""
