"""One server per database: an advisory lock on the database file itself."""

import fcntl
import os
from pathlib import Path
from typing import Final

from safe_psrl_server.store.interface import StoreError

_held: Final = set[tuple[int, int]]()  # device and inode: closing a second descriptor would drop SQLite's own locks


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
