"""The log of the embedded store: what each commit appended, in a file beside the database, until the database has it.

A commit is one write, into room that the file has already, which returns when it is on the disk. Records stand one behind the
other from the beginning of the file. Once the database has all of them the next one is written there again; what is left of
those before has lower numbers.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

LOG: Final = "safe-psrl.log"
ROOM: Final = 1 << 20  # bytes that are there from the start: a flush of them need not change the file's size, too
FIELDS: Final = Struct("<QII16s")  # number of the commit, sizes of entries and payloads, digest of the payloads
DIGEST: Final = 16  # bytes, of the fields and entries, before them


class Record(NamedTuple):
    """A commit as it was found."""

    number: int
    entries: bytes
    payloads: bytes
    is_whole: bool  # whether the payloads are what was written; the entries are


def record(number: int, entries: bytes, payloads: bytes) -> bytes:
    """What is written of a commit. Entries and payloads have digests of their own, so that damage can be told from loss."""
    head = FIELDS.pack(number, len(entries), len(payloads), _digest(payloads)) + entries
    return b"".join((_digest(head), head, payloads))


def following(data: bytes, filed: int, acknowledged: int) -> list[Record]:
    """The commits after number `filed` in the content of a log, as far as they follow each other.

    The last one may have been under way when its process died: then it was not acknowledged, and does not count.
    """
    found = list[Record]()
    for one in _records(data):
        if one.number == filed + len(found) + 1:
            found.append(one)
        elif found or one.number > filed:
            break
    if found and not found[-1].is_whole and found[-1].number > acknowledged:
        found.pop()
    return found


class LogFile:
    """One process's, which has the directory to itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._end = 0

    def read(self) -> bytes:
        """All of it; nothing if there is none."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def clear(self) -> None:
        """Begin with an empty one: the database has everything. Nothing is left of it that could be taken for a commit."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DSYNC, 0o644)
        os.ftruncate(self._file, 0)
        self._end = 0
        self._write(bytes(ROOM))
        os.fsync(self._file)
        _flush_directory(self._path.parent)
        self._end = 0

    def append(self, commit: bytes) -> None:
        """Durable when it returns. Raises OSError, after which nobody can say what became of it."""
        self._write(commit)

    def restart(self) -> None:
        """The database has everything that was appended."""
        if self._end > ROOM:
            assert self._file is not None  # noqa: S101  # opened by `clear`
            os.ftruncate(self._file, ROOM)
        self._end = 0

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, data: bytes) -> None:
        assert self._file is not None  # noqa: S101  # opened by `clear`
        written = os.pwrite(self._file, data, self._end)
        while written < len(data):  # a disk that is nearly full takes a part, and then none
            written += os.pwrite(self._file, data[written:], self._end + written)
        self._end += written


def _records(data: bytes) -> Iterator[Record]:
    place, smallest = 0, DIGEST + FIELDS.size
    while len(data) - place >= smallest:
        number, entries_size, payloads_size, digest = FIELDS.unpack_from(data, place + DIGEST)
        middle = place + smallest + entries_size
        end = middle + payloads_size
        if middle > len(data) or _digest(data[place + DIGEST : middle]) != data[place : place + DIGEST]:
            return
        payloads = data[middle:end]
        yield Record(number, data[place + smallest : middle], payloads, _digest(payloads) == digest)
        place = end


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def _flush_directory(directory: Path) -> None:
    """So that the file itself is there after a power failure."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
