"""A server with identities, a bystander, and attacks in processes of their own; what the bystander notices is measured."""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np

from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.security.identities import create_token, read_identities, write_identities
from safe_psrl_server.security.roles import Role
from tests.attacks import attackers
from tests.attacks.bystander import Call, call_until_stopped
from tests.safe_psrl_server.wire import Wire
from tests.system.server_process import ServerProcess, show

ROWS: Final = os.environ.get("SAFE_PSRL_ATTACK_ROWS")  # a directory for the rows of the table
NORMAL_SECONDS: Final = 3.0  # without attack
LEAST_SECONDS: Final = 3.0  # of an attack that is over sooner
LEAST_P99: Final = 0.002  # of the normal one: what is smaller is noise
MOST_TIMES: Final = 10.0  # the normal p99
MB: Final = 2**20
SMALL: Final = "small/agent"  # the bystander's
PROCESSES: Final = multiprocessing.get_context("spawn")
T = TypeVar("T")


@dataclass
class Row:
    """What an attack did to the bystander and to the server. Times in seconds."""

    attack: str
    normal: float  # p99 of the bystander without attack
    attacked: float  # and with it
    longest: float  # call of the bystander during the attack
    calls: int  # of the bystander during the attack
    memory: int  # bytes: peak during the attack, above what it was before

    @property
    def times(self) -> float:
        return self.attacked / max(self.normal, LEAST_P99)

    def check(self) -> None:
        show(
            f"{self.attack}: p99 {1e3 * self.normal:.2f} ms, attacked {1e3 * self.attacked:.2f} ms ({self.times:.1f} times), "
            f"longest {1e3 * self.longest:.0f} ms of {self.calls} calls; memory +{self.memory / 2**20:.0f} MB"
        )
        if ROWS:
            name = "".join(letter if letter.isalnum() else "-" for letter in self.attack)
            (Path(ROWS) / f"{name}.json").write_text(json.dumps(self.__dict__), encoding="utf-8")
        assert self.times <= MOST_TIMES


class Bystander:
    """A context manager: the process, from the first reply on."""

    def __init__(self, target: str, token: str) -> None:
        self._here, there = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=call_until_stopped, args=(target, token, SMALL, there), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        assert self._here.poll(60)
        assert self._here.recv() == "ready"
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.join()

    def stop(self) -> list[Call]:
        """All its calls, none of which may have failed."""
        self._here.send("stop")
        assert self._here.poll(120)
        calls, failures = self._here.recv()
        assert failures == [], failures[:3]
        return list(calls)


class Scene:
    """Identities: bystander, attacker (agents attack/*), other (other/*), and ops, who may do everything."""

    def __init__(self, server: ServerProcess, identities: Path) -> None:
        self.server = server
        patterns = {"bystander": "small/*", "attacker": "attack/*", "other": "other/*", "ops": "*"}
        self.tokens = {name: create_token(identities, name, [Role.ADMIN], [agents]) for name, agents in patterns.items()}
        self._identities = identities

    @property
    def target(self) -> str:
        return self.server.target

    def allow(self, name: str, **quotas: Any) -> None:
        """Set quotas of an identity, before the server starts."""
        known = read_identities(self._identities)
        entries = [entry.model_copy(update=quotas) if entry.name == name else entry for entry in known.token]
        self._identities.write_text(write_identities(known.model_copy(update={"token": entries})), encoding="utf-8")

    @contextmanager
    def as_(self, name: str) -> Iterator[Wire]:
        """A client in this process."""
        with Wire(self.target, token=self.tokens.get(name, "")) as wire:
            yield wire

    @contextmanager
    def attack(self, name: str, most_memory: int) -> Iterator["Attackers"]:
        """The block is the attack. Checks the bystander's latencies, the memory, and that the server is exact afterwards."""
        with self.as_("ops") as ops:
            ops.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=SMALL, preset="factored-toy"))
            ops.start(SMALL, abandon_open=True)
            before = ops.status(SMALL)
            with Bystander(self.target, self.tokens["bystander"]) as bystander, Attackers() as crowd:
                crowd.warm_up()
                began = time.monotonic()
                _wait_until(began + NORMAL_SECONDS)
                resident = self.server.resident_bytes
                reset_peak(self.server)
                attacked = time.monotonic()
                yield crowd
                _wait_until(attacked + LEAST_SECONDS)
                ended = time.monotonic()
                calls = bystander.stop()
            peak = peak_bytes(self.server)
            after, stored = ops.status(SMALL), ops.verify(SMALL)
        assert (after.version, after.state_digest) == (before.version, before.state_digest)
        assert stored.ok
        usual = [seconds for start, seconds in calls if began <= start < attacked]
        during = [seconds for start, seconds in calls if attacked <= start + seconds and start < ended]
        p99 = [float(np.quantile(taken, 0.99)) for taken in (usual, during)]
        row = Row(name, *p99, max(during), len(during), max(0, peak - resident))
        row.check()
        assert row.memory <= most_memory


class Attackers:
    """Processes that do not take the processor from the server or the bystander, as if they were on another machine."""

    def __enter__(self) -> Self:
        self._pool = ProcessPoolExecutor(2, PROCESSES, os.nice, (15,))
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown()

    def warm_up(self) -> None:
        """Start the processes and import what they need."""
        for ready in [self._pool.submit(attackers.ready) for _ in range(2)]:
            ready.result(60)

    def begin(self, work: Callable[..., T], *given: Any, **named: Any) -> "Future[T]":
        return self._pool.submit(work, *given, **named)

    def run(self, work: Callable[..., T], *given: Any, **named: Any) -> T:
        return self.begin(work, *given, **named).result(120)


def reset_peak(server: ServerProcess) -> None:
    Path(f"/proc/{server.running.pid}/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(server: ServerProcess) -> int:
    """The most memory that the server had since `reset_peak`."""
    status = Path(f"/proc/{server.running.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def _wait_until(moment: float) -> None:
    threading.Event().wait(max(0.0, moment - time.monotonic()))
