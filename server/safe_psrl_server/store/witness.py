"""A second place that remembers how many commits were acknowledged.

A log that was cut short, SQLite's or ours, looks like one whose last commits never happened.
This file, one number beside the database, tells: it is written after each commit and not flushed, so it may lag behind
after a power failure, but is never ahead of what was acknowledged.
"""

import os
from pathlib import Path

from safe_psrl_server.store.interface import StoreError


class CommitWitness:
    """The number of the last commit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def check(self, stored: int) -> None:
        """Raise `StoreError` if the database has fewer commits than were acknowledged."""
        noted = self.noted()
        if noted > stored:
            raise StoreError(
                f"the database is {noted - stored} commits behind what was acknowledged: its log was damaged. "
                f"Restore it from a backup; to go on with what is left, delete {self._path}"
            )

    def noted(self) -> int:
        """What the file says."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return noted_in(os.pread(self._file, 32, 0))

    def note(self, number: int) -> None:
        assert self._file is not None  # noqa: S101  # opened by `noted`
        os.pwrite(self._file, f"{number:020d}\n".encode(), 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def noted_in(content: bytes) -> int:
    """The number in a file's content; 0 if there is none, or nothing that makes sense."""
    text = content.decode(errors="replace").strip("\n ")
    return int(text) if text.isdecimal() else 0
