"""Faults of the disk: full, failing on write, failing on flush, and a write that is torn by the end of the process."""

import errno
import random
import resource
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import BinaryIO, ClassVar

from tests.system.debian import program
from tests.system.server_process import START_SECONDS

from tests.faults.fault import STORE_FAILED, Fault
from tests.faults.shim import FAIL_DURABLE_WRITE, FAIL_SYNC, FAIL_WRITE, TEAR_WRITE, Shim

SMALL_DISK = 16 * 1024 * 1024
CANNOT_START = 2
STALLS = (30, 300)  # milliseconds; whoever replies too early has the time to


class Shimmed(Fault):
    """A server with the shim."""

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        self.shim = Shim(directory, directory / "server" / "data")
        super().__init__(directory, chosen)

    def command(self) -> Sequence[str]:
        return self.shim.command(super().command())


class FailingCalls(Shimmed):
    """One call fails, or all from one on. The server leaves with its code for that; the disk is repaired; it starts again."""

    mode: int
    errors: ClassVar[Sequence[int]]
    most: ClassVar[int]  # calls that may still go well

    def strike(self) -> float:
        hits = self.shim.hits
        after, error = self.chosen.randrange(self.most), self.chosen.choice(self.errors)
        self.shim.arm(self.mode, after, error, lasting=self.chosen.random() < 0.5, stall=self.chosen.choice(STALLS))
        left = self.fails_to_write()
        assert self.shim.hits > hits, "it left for another reason"
        self.shim.lift()
        self.server.spawn()
        return left


class WriteFails(FailingCalls):
    """EIO or ENOSPC of write and pwrite, wherever in a commit."""

    title = "write fails: EIO, ENOSPC (shim)"
    mode = FAIL_WRITE
    errors = (errno.EIO, errno.ENOSPC)
    most = 40


class SyncFails(FailingCalls):
    """EIO of fsync, fdatasync and writes that flush: once, after which the kernel would say that all is well, or for good.

    In turns of the writes that flush alone: events would be lost if those of the log did not.
    """

    title = "fsync fails: EIO (shim)"
    errors = (errno.EIO,)
    most = 10

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        super().__init__(directory, chosen)
        self._modes = cycle((FAIL_DURABLE_WRITE, FAIL_SYNC))

    def strike(self) -> float:
        self.mode = next(self._modes)
        return super().strike()


class SyncFailsAlone(SyncFails):
    """The writes of commits that nobody shares are asynchronous: what became of one is told when it is asked for."""

    title = "fsync fails: EIO (shim), one client alone"
    has_one_player = True


class TornWrite(Shimmed):
    """Half of a write reaches the file, and the process is gone."""

    title = "half a write, then SIGKILL (shim)"
    restarts_at_the_end = True

    def strike(self) -> float:
        hits = self.shim.hits
        self.shim.arm(TEAR_WRITE, self.chosen.randrange(40), stall=self.chosen.choice(STALLS))
        assert self.leaves() == -9, self.server.log
        struck = time.monotonic()
        assert self.shim.hits == hits + 1
        self.shim.lift()
        self.server.spawn()
        return struck


class TornWriteAlone(TornWrite):
    """Of a commit that nobody shares."""

    title = "half a write, then SIGKILL (shim), one client alone"
    has_one_player = True


@contextmanager
def _reading(data: Path) -> Iterator[None]:
    """Somebody reads the database, as for a backup. Until they are done its log cannot be begun anew, which takes no room, and
    on which a server goes on for a while, rightly."""
    with closing(sqlite3.connect(f"{(data / 'safe-psrl.db').as_uri()}?mode=ro", uri=True, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.execute("SELECT number FROM commits").fetchone()
        yield


class DiskFull(Fault):
    """A small file system that something else fills. Room is made, and the server is started again."""

    title = "full disk (tmpfs of 16 MB)"

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        super().__init__(directory, chosen)
        self._ballast = self.server.data / "ballast"
        self._mounted = False

    def start(self) -> None:
        self.server.data.mkdir()
        self._mounted = mounted(self.server.data)
        if not self._mounted:
            self.note = "no right to mount: files limited in size instead"
        super().start()

    def strike(self) -> float:
        if not self._mounted:
            return self._strike_by_limit()
        with _reading(self.server.data):
            with self._ballast.open("wb", buffering=0) as file:
                _fill(file)
            left = self.fails_to_write()
        if self.chosen.random() < 0.3:
            self._start_on_a_full_disk()
        self._ballast.unlink()
        self.server.spawn()
        return left

    def close(self) -> None:
        super().close()
        if self._mounted:
            subprocess.run([program("umount", "mount"), self.server.data], check=True)

    def _start_on_a_full_disk(self) -> None:
        """It may refuse, or serve until a commit fails."""
        self.server.spawn()
        code = self.server.wait(START_SECONDS)
        assert code in {CANNOT_START, STORE_FAILED}, f"it left with {code}: {self.server.log}"
        assert "Traceback" not in self.server.log, self.server.log

    def _strike_by_limit(self) -> float:
        """SQLite meets it as it would meet a full disk: a write fails in a commit."""
        size = (self.server.data / "safe-psrl.db-wal").stat().st_size
        limit = size + 20_000
        resource.prlimit(self.server.running.pid, resource.RLIMIT_FSIZE, (limit, limit))
        left = self.fails_to_write()
        self.server.spawn()
        return left


def mounted(directory: Path) -> bool:
    """Whether a small file system could be put there."""
    options = f"size={SMALL_DISK}"
    command = [program("mount", "mount"), "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    done = subprocess.run(command, check=False, capture_output=True)
    return done.returncode == 0


def _fill(file: BinaryIO) -> None:
    """To the last byte."""
    for size in (1 << 16, 1 << 12, 1):
        with suppress(OSError):
            while True:
                file.write(bytes(size))
