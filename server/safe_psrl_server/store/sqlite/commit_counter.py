"""The number of the last acknowledged commit, in a file beside the database.

A write-ahead log that was cut short looks to SQLite like one whose last commits never happened. The counter reveals it: it
is written after each commit and not flushed, so after a power failure it may lag, but it is never ahead of what was
acknowledged.
"""

import os
from pathlib import Path
from typing import Final

from safe_psrl_server.store.interface import StoreError

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
        require_commits(self._path, committed)

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
        raise StoreError(f"{path} is unreadable: restore the directory from a backup, or delete the file to skip its check")
    return int(text or 0)


def require_commits(path: Path, committed: int) -> None:
    """Raise `StoreError` if `committed` is less than the number in the file."""
    missing = acknowledged_commits(path) - committed
    if missing > 0:
        raise StoreError(
            f"the database is {missing} commits behind what was acknowledged: its write-ahead log was damaged. "
            f"Restore it from a backup; to continue with what is left, delete {path}"
        )
