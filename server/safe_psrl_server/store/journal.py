"""The journal of the embedded store: what each commit appended, of whichever agents, until it is filed.

Filed, each agent's events lie together, to be read and dropped together: so a commit of many agents would write a page for
each of them. In the journal it is one row. It is filed when it is long, and before anything is read.
"""

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from struct import Struct
from typing import Final

StoredRow = tuple[str, int, bytes, bytes]  # agent, version, payload, link

LONG: Final = 1_024  # events, after which it is filed
AT_ONCE: Final = (256, 16, 1)  # rows of a statement: the interpreter is given away and taken back once for each of them
ENTRY: Final = Struct(
    "<HQ8sI"
)  # of one event: the length of the agent's name, which follows; version, link, size of the payload
COUNT: Final = "SELECT max(number) FROM (SELECT number FROM commits UNION ALL SELECT number FROM journal)"
LEFTOVER: Final = """
    SELECT number, CAST(entries AS BLOB), CAST(payloads AS BLOB), CAST(digest AS BLOB) FROM journal ORDER BY number
"""  # whatever their type is now: text that is none could not be read
NOT_WRITTEN: Final = "the journal is not what was written"
FIRST_WITH_NUMBERS: Final = 4  # version of the schema


class JournalDamagedError(Exception):
    """What is in the journal is not what was entered."""


def count_commits(db: sqlite3.Connection) -> int | None:
    """How many there were; None if that cannot be said."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    row = db.execute(COUNT if version >= FIRST_WITH_NUMBERS else "SELECT number FROM commits").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else None


class Journal:
    """Of one connection, which has a transaction open whenever something is entered or filed."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows: list[StoredRow] = []  # that are not filed
        self.commits = 0

    def __len__(self) -> int:
        return len(self._rows)

    def enter(self, rows: Sequence[StoredRow]) -> None:
        """All rows of a commit: of any agents, those of each in order."""
        self.commits += 1
        entries = _entries(rows)
        payloads = b"".join([payload for _agent, _version, payload, _link in rows])
        digest = _digest(self.commits, entries)
        self._db.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", (self.commits, entries, payloads, digest))
        self._rows += rows

    def file(self, rows: Sequence[StoredRow] = ()) -> None:
        """Move everything to where its agent's events are, and `rows` with it."""
        filed = sorted([*self._rows, *rows])
        self._rows = []
        heads = {agent: (agent, version, link) for agent, version, _payload, link in filed}
        _insert(self._db, "INSERT INTO events VALUES", filed)
        _insert(self._db, "INSERT OR REPLACE INTO streams VALUES", list(heads.values()))
        self._db.execute("DELETE FROM journal")

    def count_filed(self) -> None:
        """A commit that entered nothing here."""
        self.commits += 1
        self._db.execute("UPDATE commits SET number = ?", (self.commits,))

    def file_leftover(self) -> None:
        """What another process entered last. Raises `JournalDamagedError` if it is not what that was."""
        found = self._db.execute("SELECT number FROM commits").fetchone()
        if found is None or not isinstance(found[0], int):
            raise JournalDamagedError("no count of commits")
        before = self.commits = found[0]
        for row in self._db.execute(LEFTOVER):
            self.commits += 1
            self._rows += _read(self.commits, *row)
        if self.commits == before:
            return
        self._db.execute("BEGIN IMMEDIATE")
        self.file()
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


def _digest(number: int, entries: bytes) -> bytes:
    """Nothing can be lost from the journal, change hands or places, unnoticed; the payloads have checksums of their own."""
    return hashlib.blake2b(entries, digest_size=16, key=number.to_bytes(8, "little")).digest()


def _read(number: int, stored_number: object, entries: object, payloads: object, digest: object) -> Iterator[StoredRow]:
    """The rows of commit `number`."""
    if not (isinstance(entries, bytes) and isinstance(payloads, bytes)):
        raise JournalDamagedError(NOT_WRITTEN)
    if stored_number != number or digest != _digest(number, entries):
        raise JournalDamagedError(NOT_WRITTEN)
    place = start = 0
    while place < len(entries):
        length, version, link, size = ENTRY.unpack_from(entries, place)
        place += ENTRY.size + length
        yield entries[place - length : place].decode(), version, payloads[start : start + size], link
        start += size
    if start != len(payloads):
        raise JournalDamagedError(NOT_WRITTEN)
