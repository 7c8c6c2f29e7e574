"""The journal of the embedded store: what was committed to its log, of whichever agents, and is not filed in the database.

Filed, each agent's events lie together, to be read and dropped together: so a commit of many agents would change a page for
each of them. In the log it is one record. The journal is filed when it is long, and before anything is read.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import Final

from safe_psrl_server.store.log import Record, record

StoredRow = tuple[str, int, bytes, bytes]  # agent, version, payload, link

LONG: Final = 1_024  # events, after which it is filed
LARGE: Final = 4 << 20  # bytes of them, likewise: until then they are in memory, too
AT_ONCE: Final = (256, 16, 1)  # rows of a statement: the interpreter is given away and taken back once for each of them
ENTRY: Final = Struct(
    "<HQ8sI"
)  # of an event: the length of the agent's name, which follows; version, link, size of the payload


class JournalDamagedError(Exception):
    """What is stored of it cannot be what was entered."""


def filed_commits(db: sqlite3.Connection) -> int | None:
    """How many the database knows of; None if that cannot be said."""
    row = db.execute("SELECT number FROM commits").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else None


class Journal:
    """Of one connection, which has a transaction open whenever something is filed."""

    def __init__(self, db: sqlite3.Connection, commits: int) -> None:
        self._db = db
        self._rows: list[StoredRow] = []  # that are not filed
        self._size = 0  # of their payloads
        self.commits = commits

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_long(self) -> bool:
        """Whether it should be filed."""
        return len(self._rows) >= LONG or self._size >= LARGE

    def enter(self, rows: Sequence[StoredRow]) -> bytes:
        """The record, for the log, of a commit with `rows`: of any agents, those of each in order."""
        self.commits += 1
        self._rows += rows
        payloads = b"".join([payload for _agent, _version, payload, _link in rows])
        self._size += len(payloads)
        return record(self.commits, _entries(rows), payloads)

    def file(self, rows: Sequence[StoredRow] = ()) -> None:
        """Put everything where its agent's events are, and `rows` with it."""
        filed = sorted([*self._rows, *rows])
        self._rows, self._size = [], 0
        heads = {agent: (agent, version, link) for agent, version, _payload, link in filed}
        _insert(self._db, "INSERT INTO events VALUES", filed)
        _insert(self._db, "INSERT OR REPLACE INTO streams VALUES", list(heads.values()))

    def count_filed(self) -> None:
        """A commit of the database itself, which has everything from then on."""
        self.commits += 1
        self._db.execute("UPDATE commits SET number = ?", (self.commits,))

    def file_leftover(self, commits: Sequence[Record]) -> None:
        """What another process committed to the log last. Raises `JournalDamagedError` if that cannot be."""
        if not commits:
            return
        for one in commits:
            self._rows += _read(one)
        self.commits = commits[-1].number
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self.file()
        except sqlite3.IntegrityError as error:  # of a database that has them already, whatever its count says
            raise JournalDamagedError(f"the log does not follow the database: {error}") from error
        self._db.execute("UPDATE commits SET number = ?", (self.commits,))
        self._db.execute("COMMIT")


def _insert(db: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    done = 0
    for size in AT_ONCE:
        while len(rows) - done >= size:
            some = rows[done : done + size]
            places = ", ".join([f"({', '.join('?' * len(some[0]))})"] * size)
            db.execute(f"{statement} {places}", list(chain.from_iterable(some)))
            done += size


def _entries(rows: Sequence[StoredRow]) -> bytes:
    """Who has which event, and its checksum."""
    parts = list[bytes]()
    for agent, version, payload, link in rows:
        name = agent.encode()
        parts += (ENTRY.pack(len(name), version, link, len(payload)), name)
    return b"".join(parts)


def _read(commit: Record) -> Iterator[StoredRow]:
    """Its rows. Payloads that were changed are found by their agents' chains of checksums."""
    place = start = 0
    while place < len(commit.entries):
        length, version, link, size = ENTRY.unpack_from(commit.entries, place)
        place += ENTRY.size + length
        yield commit.entries[place - length : place].decode(), version, commit.payloads[start : start + size], link
        start += size
