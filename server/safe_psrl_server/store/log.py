"""The log of the embedded store: what each commit appended, in a file beside the database, until the database has it.

A commit is one write, into room that the file has already, which returns when it is on the disk. Records stand one behind the
other from the beginning of the file, with zeros after the last one up to the end of its block. Once the database has all of
them the next one is written there again; what is left of those before has lower numbers.
"""

import ctypes
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from errno import EINVAL, ENOSPC
from functools import partial
from mmap import mmap
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from safe_psrl_server.store.polled_write import PolledWriter

LOG: Final = "safe-psrl.log"
ROOM: Final = 1 << 20  # bytes that are there from the start: a flush of them need not change the file's size, too
BLOCK: Final = 4096  # bytes
MEMORY: Final = 1 << 16  # bytes of blocks that are kept: more than most commits need
DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)  # past the system's cache
LOOK_AGAIN: Final = 64  # writes alone, of which one is waited for in the way that seems to take longer
REMEMBERED: Final = 0.2  # how much the latest write counts in what is usual: at most as one of twice the time
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
    """One process's, which has the directory to itself. Whole blocks are written, past the system's cache if it allows that.

    The last block, which is not full yet, is written again with the next commit. What it had stays as it was, whichever part
    of it reaches the disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._end = 0
        self._polled = PolledWriter()
        self._usual_seconds = [0.0, 0.0]  # of a write that is waited for asleep, and awake; unknown ones are tried
        self._writes_alone = 0
        self._take_memory(MEMORY)

    def read(self) -> bytes:
        """All of it; nothing if there is none."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def clear(self) -> None:
        """Begin with an empty one: the database has everything. Nothing is left of it that could be taken for a commit."""
        file = self._open() if self._file is None else self._file
        self._fill(file)
        os.fsync(file)
        _flush_directory(self._path.parent)
        self._end = 0

    def append(self, commit: bytes) -> None:
        """Durable when it returns. Raises OSError, after which nobody can say what became of it."""
        self._append(commit, self._write)

    def append_alone(self, commit: bytes, meanwhile: Callable[[], None]) -> None:
        """The same by somebody who has nothing else to do until then. It is waited for in the way that usually takes less.

        That is awake on a processor with nothing else to do, and asleep beside busy programs: whoever asks again and again
        must let them run in between. Now and then it is the other way, to see whether that is still so. Whoever is awake
        does `meanwhile`.
        """
        asleep, awake = self._usual_seconds
        self._writes_alone += 1
        way = int(self._polled.is_open and (awake < asleep) != (self._writes_alone % LOOK_AGAIN == 0))
        began = time.perf_counter()
        self._append(commit, partial(self._write_awake, meanwhile) if way else self._write)
        took, usual = time.perf_counter() - began, self._usual_seconds[way]
        self._usual_seconds[way] = usual + REMEMBERED * (min(took, 2 * usual) - usual) if usual else took

    def restart(self) -> None:
        """The database has everything that was appended."""
        if self._end > ROOM:
            assert self._file is not None  # noqa: S101  # opened by `clear`
            os.ftruncate(self._file, ROOM)
        if len(self._blocks) > MEMORY:
            self._take_memory(MEMORY)
        self._end = 0

    def close(self) -> None:
        self._polled.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        """Past the cache, unless the file system refuses that: at once, or when it is written to."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DSYNC
        try:
            self._file = os.open(self._path, flags | DIRECT, 0o644)
            self._fill(self._file)
        except OSError as error:
            self.close()
            if error.errno != EINVAL:
                raise
            self._file = os.open(self._path, flags, 0o644)
        else:
            self._polled.open()
        return self._file

    def _fill(self, file: int) -> None:
        """With zeros, to have the room."""
        os.ftruncate(file, 0)
        if os.pwrite(file, mmap(-1, ROOM), 0) < ROOM:
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    def _take_memory(self, size: int) -> None:
        """For blocks, at the beginning of a page. The first of them is the one that is not full yet."""
        self._blocks = mmap(-1, size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._blocks))

    def _append(self, commit: bytes, write: Callable[[int, int], None]) -> None:
        begin = self._end % BLOCK
        end = begin + len(commit)
        size = -(-end // BLOCK) * BLOCK
        if size > len(self._blocks):
            started = self._blocks[:begin]
            self._take_memory(size)
            self._blocks[:begin] = started
        blocks = self._blocks
        blocks[begin:end] = commit
        blocks[end:size] = bytes(size - end)
        write(size, self._end - begin)
        self._end += len(commit)
        rest = end % BLOCK
        if rest != end:
            blocks[:rest] = blocks[end - rest : end]

    def _write(self, size: int, place: int, written: int = 0) -> None:
        assert self._file is not None  # noqa: S101  # opened by `clear`
        with memoryview(self._blocks) as blocks:
            while written < size:  # a disk that is nearly full takes a part, and then none
                written += os.pwrite(self._file, blocks[written:size], place + written)

    def _write_awake(self, meanwhile: Callable[[], None], size: int, place: int) -> None:
        assert self._file is not None  # noqa: S101  # opened by `clear`
        written = self._polled.write(self._file, self._address, size, place, meanwhile)
        if written < size:
            self._write(size, place, written)


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
