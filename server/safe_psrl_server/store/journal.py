"""The journal of the embedded store: events of all agents in the order in which they came, until they are filed.

Filed, each agent's events lie together, to be read and dropped together: so a commit of many agents would write a page for
each of them. In the journal they take a page or two. It is filed when it is long, and before anything is read.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

StoredRow = tuple[str, int, bytes, bytes]  # agent, version, payload, link

LONG: Final = 1_024  # events, after which it is filed
EMPTY: Final = b""
FILING: Final = (
    "INSERT INTO events SELECT agent, version, payload, link FROM journal ORDER BY agent, version",
    "INSERT OR REPLACE INTO streams SELECT agent, max(version), link FROM journal GROUP BY agent",
    "DELETE FROM journal",
    "UPDATE commits SET journal = x''",
)


class JournalDamagedError(Exception):
    """What is in the journal is not what was entered."""


class Journal:
    """Of one connection, which has a transaction open whenever something is entered or filed."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._begin()

    def __len__(self) -> int:
        return self._length

    @property
    def digest(self) -> bytes:
        """Of who has which event, and its checksum: nothing can be lost from the journal, or change hands, unnoticed."""
        return self._seen.digest() if self._length else EMPTY

    def enter(self, rows: Sequence[StoredRow]) -> None:
        """Rows of any agents, those of each in order."""
        self._db.executemany("INSERT INTO journal (agent, version, payload, link) VALUES (?, ?, ?, ?)", rows)
        self._see((agent, version, link) for agent, version, _payload, link in rows)

    def file(self) -> None:
        """Move everything to where its agent's events are."""
        if self._length:
            for statement in FILING:
                self._db.execute(statement)
        self._begin()

    def file_leftover(self) -> None:
        """The same with what another process entered last. Raises `JournalDamagedError` if it is not what that was."""
        (noted,) = self._db.execute("SELECT journal FROM commits").fetchone()
        self._see(self._db.execute("SELECT agent, version, link FROM journal ORDER BY place"))
        if noted != self.digest:
            raise JournalDamagedError("the journal is not what was written")
        if not self._length:
            return
        self._db.execute("BEGIN IMMEDIATE")
        self.file()
        self._db.execute("COMMIT")

    def _begin(self) -> None:
        self._length, self._seen = 0, hashlib.blake2b(digest_size=16)

    def _see(self, rows: Iterable[tuple[object, object, object]]) -> None:
        for row in rows:
            self._seen.update(repr(row).encode())
            self._length += 1
