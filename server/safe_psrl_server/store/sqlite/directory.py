"""A data directory: the lock of the database, the commit counter, and the head record.

The lock is an advisory lock on the database file: one server per database. The counter is a file with the number of the last
acknowledged commit. The database contains this number as well, in the row that holds the head record.
"""

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from safe_psrl_server.store.checksums import explains, head_record
from safe_psrl_server.store.interface import StoreError

_held: Final = set[tuple[int, int]]()  # device and inode: closing a second descriptor would drop SQLite's own locks
TAILS: Final = """
    SELECT agent, max(version), link
    FROM (SELECT agent, version, link FROM events UNION ALL SELECT agent, version, link FROM snapshots) GROUP BY agent
"""


class DatabaseLock:
    """Held until `release`, or until the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def acquire(self) -> None:
        """Raises `StoreError` if another server has the database open, OSError if it cannot be opened."""
        if self._path.exists() and _identity(self._path.stat()) in _held:
            raise self._in_use()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise self._in_use() from None
        self._file = descriptor
        _held.add(_identity(os.fstat(descriptor)))

    def release(self) -> None:
        if self._file is not None:
            _held.discard(_identity(os.fstat(self._file)))
            os.close(self._file)
            self._file = None

    def is_in_place(self) -> bool:
        """Whether the path still names the locked file: it may have been moved, deleted or replaced."""
        try:
            return self._file is not None and _identity(self._path.stat()) == _identity(os.fstat(self._file))
        except OSError:
            return False

    def _in_use(self) -> StoreError:
        return StoreError(
            f"the data directory {self._path.parent} is in use by another server: stop it, or choose another directory "
            "with --store"
        )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


COUNTER_FILE: Final = "commit-counter"


class CommitCounter:
    """Opened by `open`, closed by `close`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / COUNTER_FILE
        self._file: int | None = None

    def open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def check(self, committed: int) -> None:
        """Raise `StoreError` if the database has fewer commits than were acknowledged, or if the counter is unreadable."""
        require_commits(self._path.parent, acknowledged_commits(self._path), committed)

    def write(self, number: int) -> None:
        assert self._file is not None  # noqa: S101  # opened by `open`
        os.pwrite(self._file, f"{number:020d}\n".encode(), 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def acknowledged_commits(path: Path) -> int:
    """The number in the file; 0 if the file is missing or empty. Raises `StoreError` if it holds anything else."""
    try:
        text = path.read_bytes().decode(errors="replace").strip("\n ")
    except FileNotFoundError:
        return 0
    if text and not text.isdecimal():
        raise StoreError(f"the commit counter {path} is unreadable: restore the directory from a backup")
    return int(text or 0)


def require_commits(directory: Path, acknowledged: int, committed: int) -> None:
    """Raise `StoreError` if `committed` is less than `acknowledged`."""
    missing = acknowledged - committed
    if missing > 0:
        raise StoreError(
            f"the database in {directory} is {missing} commits behind what was acknowledged: its write-ahead log was cut "
            "or removed, or the database file is an older one. Put the missing files back, or restore the directory from a "
            "backup with 'safe-psrl store restore'"
        )


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
    """Whether the streams match exactly, without damaged rows."""
    found = db.execute("SELECT agent, digest FROM streams").fetchall()
    digests = dict(found)
    with suppress(TypeError):  # a damaged row
        if head_record(digests.values()) == record and len(digests) == len(found):  # no agent twice
            return True
    return False


def is_explained(db: sqlite3.Connection, record: int) -> bool:
    """Whether damaged and missing rows are the only reason why they do not match."""
    rows = db.execute("SELECT agent, version, link, digest FROM streams").fetchall()
    return explains(record, rows, db.execute(TAILS).fetchall())
