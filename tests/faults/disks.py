"""Faults of the disk: full, failing on write or flush, stalled, and a write torn by the end of the process."""

import errno
import random
import resource
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, ClassVar

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from tests.faults.fault import STORE_FAILED, Fault
from tests.faults.history import OK
from tests.faults.shim import FAIL_SYNC, FAIL_WRITE, STALL_SYNC, TEAR_WRITE, Shim
from tests.faults.traffic import Traffic
from tests.faults.worlds import World
from tests.system.debian import program
from tests.system.server_process import SERVING, START_SECONDS, wait_until

SMALL_DISK = 16 * 1024 * 1024
CANNOT_START = 2
STALL_SECONDS = 10.0
MOST_READ_SECONDS = 1.0  # of GetAction, health and metrics while the disk stalls
STALLS = (30, 300)  # milliseconds: a server that replies too early has the time to


class Shimmed(Fault):
    """A server with the shim."""

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        self.shim = Shim(directory, directory / "server" / "data")
        super().__init__(directory, chosen)

    def command(self) -> Sequence[str]:
        return self.shim.command(super().command())


class FailingCalls(Shimmed):
    """One call fails, or all from one on. The server exits with its code for that, the disk is repaired, it starts again."""

    mode: int
    errors: ClassVar[Sequence[int]]
    most: ClassVar[int]  # calls that may still succeed

    def strike(self) -> float:
        hits = self.shim.hits
        after, error = self.chosen.randrange(self.most), self.chosen.choice(self.errors)
        self.shim.arm(self.mode, after, error, lasting=self.chosen.random() < 0.5, stall=self.chosen.choice(STALLS))
        left = self.fails_to_write()
        assert self.shim.hits > hits, "it exited for another reason"
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
    """EIO of fsync and fdatasync: once, after which the kernel reports success, or for good."""

    title = "fsync fails: EIO (shim)"
    mode = FAIL_SYNC
    errors = (errno.EIO,)
    most = 10


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


class TornWriteSingle(TornWrite):
    title = "half a write, then SIGKILL (shim), a single client"
    single_client = True


class DiskStalls(Shimmed):
    """A flush blocks for ten seconds. Meanwhile reads are answered; the calls that write wait and succeed."""

    title = "disk stalls for 10 s (shim)"
    patience = 60.0

    def start(self) -> None:
        super().start()
        problem = World(1, learned=False).spec(seed=1)
        self.server.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent="reader", spec=problem))
        self.server.control.StartEpisode(control_pb2.StartEpisodeRequest(agent="reader", state=0))

    def strikes_at(self, traffic: Traffic) -> None:
        super().strikes_at(traffic)
        if self.patience > STALL_SECONDS:
            traffic.uncertain = frozenset()  # every call must succeed

    def strike(self) -> float:
        hits = self.shim.hits
        self.shim.arm(STALL_SYNC, self.chosen.randrange(10), stall=int(1000 * STALL_SECONDS))
        wait_until(lambda: self.shim.hits > hits, 60, "a flush blocks")
        stalled = time.monotonic()
        slowest = 0.0
        while (now := time.monotonic()) < stalled + STALL_SECONDS - 1.5:
            slowest = max(slowest, *(self._seconds(read) for read in (self._act, self._check_health, self._scrape)))
            assert slowest <= MOST_READ_SECONDS, f"{now - stalled:.1f} s after the disk stalled a read took {slowest:.2f} s"
        assert self._latest_acknowledged() < stalled + 1, "calls were acknowledged while no flush could succeed"
        self.note = f"a read took at most {slowest:.2f} s meanwhile"
        return stalled

    def _latest_acknowledged(self) -> float:
        """When the latest call that writes was acknowledged."""
        entries = self.traffic.history.entries()
        return max(entry.end for entry in entries if entry.outcome == OK and entry.call not in {"GetAgent", "GetAction"})

    def _seconds(self, read: Callable[[], object]) -> float:
        began = time.monotonic()
        read()
        return time.monotonic() - began

    def _act(self) -> None:
        request = control_pb2.GetActionRequest(agent="reader", state=0, episode=1, step=0)
        self.server.control.GetAction(request, timeout=6 * STALL_SECONDS)

    def _check_health(self) -> None:
        assert self.server.health_of("") == SERVING
        assert self.server.http("/healthz") == (200, "ok\n")

    def _scrape(self) -> None:
        status, page = self.server.http("/metrics")
        assert status == 200
        assert 'agent="reader"' in page


class DiskStallsRetried(DiskStalls):
    """Clients give up after two seconds and repeat their calls: what was waiting may be carried out twice, and is not."""

    title = "disk stalls for 10 s (shim), clients retry every 2 s"
    patience = 2.0


@contextmanager
def _reading(data: Path) -> Iterator[None]:
    """A reader, like a backup, that keeps the write-ahead log from being reused, so that commits need space."""
    with closing(sqlite3.connect(f"{(data / 'safe-psrl.db').as_uri()}?mode=ro", uri=True, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.execute("SELECT number FROM commits").fetchone()
        yield


class DiskFull(Fault):
    """A small file system that another program fills. Space is freed, and the server is started again."""

    title = "full disk (tmpfs of 16 MB)"

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        super().__init__(directory, chosen)
        self._ballast = self.server.data / "ballast"
        self._mounted = False

    def start(self) -> None:
        self.server.data.mkdir()
        self._mounted = mounted(self.server.data)
        if not self._mounted:
            self.note = "mounting is not permitted: file sizes are limited instead"
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
        """It may refuse to start, or serve until a commit fails."""
        self.server.spawn()
        code = self.server.wait(START_SECONDS)
        assert code in {CANNOT_START, STORE_FAILED}, f"it exited with {code}: {self.server.log}"
        assert "Traceback" not in self.server.log, self.server.log

    def _strike_by_limit(self) -> float:
        """Like a full disk: a write fails in a commit."""
        size = (self.server.data / "safe-psrl.db-wal").stat().st_size
        limit = size + 20_000
        resource.prlimit(self.server.running.pid, resource.RLIMIT_FSIZE, (limit, limit))
        left = self.fails_to_write()
        self.server.spawn()
        return left


def mounted(directory: Path) -> bool:
    """Whether a small file system could be mounted there."""
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
