"""What a running server takes, looked at once a second from outside."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safe_psrl_server.store.sqlite.store import DATABASE_FILE
from tests.system.server_process import ServerProcess

INTERVAL: Final = 1.0
WORK: Final = bytes(1_000_000)


class Sample(NamedTuple):
    """One second. Sizes in MB, latencies in ms; NaN where nothing could be measured."""

    seconds: float  # since the soak began
    life: int  # how often the server had been started
    memory: float
    descriptors: float
    threads: float
    p50: float
    p99: float
    calls: float  # that were acknowledged
    database: float
    log: float  # the write-ahead log
    machine: float  # ms that a fixed piece of work takes here, whatever the server does


class Latencies:
    """Of all callers, until they are taken."""

    def __init__(self) -> None:
        self._taken: list[float] = []
        self._lock = threading.Lock()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A call that fails, or that waits for a server which is away, has no latency."""
        began = time.perf_counter()
        yield
        with self._lock:
            self._taken.append((time.perf_counter() - began) * 1000)

    def take(self) -> list[float]:
        with self._lock:
            taken, self._taken = self._taken, []
        return taken


class Sampler:
    """Samples one server in a thread of its own, from `start` to `stop`."""

    def __init__(self, server: ServerProcess, began: float) -> None:
        self.latencies = Latencies()
        self.samples: list[Sample] = []
        self.kills: list[float] = []  # seconds
        self._server = server
        self._began = began
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def lives(self, quantity: str, after: float) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Seconds and values of each life, from `after` seconds of it on."""
        series = []
        for life in sorted({sample.life for sample in self.samples}):
            samples = [sample for sample in self.samples if sample.life == life]
            late = [sample for sample in samples if sample.seconds >= samples[0].seconds + after]
            seconds = np.array([sample.seconds for sample in late])
            values = np.array([getattr(sample, quantity) for sample in late])
            known = np.isfinite(values)
            if known.sum() >= 2:
                series.append((seconds[known], values[known]))
        return series

    def _run(self) -> None:
        due = time.monotonic()
        while not self._enough.wait(max(0.0, due - time.monotonic())):
            due += INTERVAL
            with suppress(OSError, KeyError):  # killed while it was looked at: then it has no files, or no memory
                self._look()

    def _look(self) -> None:
        process = self._server.process
        taken = self.latencies.take()
        if process is None or process.poll() is not None:
            return
        pid, life = process.pid, self._server.starts
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        p50, p99 = np.quantile(taken, [0.5, 0.99]) if taken else (np.nan, np.nan)
        database = self._server.data / DATABASE_FILE
        self.samples.append(
            Sample(
                seconds=self.now,
                life=life,
                memory=int(fields["VmRSS"].split()[0]) / 1000,
                descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
                threads=int(fields["Threads"]),
                p50=float(p50),
                p99=float(p99),
                calls=len(taken),
                database=database.stat().st_size / 1e6,
                log=Path(f"{database}-wal").stat().st_size / 1e6,
                machine=_machine_ms(),
            )
        )


def _machine_ms() -> float:
    began = time.perf_counter()
    hashlib.sha256(WORK)
    return (time.perf_counter() - began) * 1000
