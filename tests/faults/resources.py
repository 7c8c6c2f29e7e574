"""Faults of resources: no memory, thousands of idle connections, and clients that never read what they asked for."""

import random
import resource
import socket
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc

from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, model_pb2
from tests.faults.fault import Fault, pause
from tests.faults.load import OWN_CONNECTION
from tests.system.server_process import SCRIPT

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings
IDLE: Final = 2000
SPARE_FILES: Final = 200
SLOW_READERS: Final = 20
MESSAGES: Final = 4000  # of each; the replies are much larger than what a connection holds
MOST_AGENTS: Final = 2000
MEGABYTE: Final = 1 << 20


class NoMemory(Fault):
    """Its address space may not grow, while more and more agents are created. It refuses them, or dies and is started again."""

    title = "no more memory (address space limited)"
    uncertain = frozenset({"UNKNOWN", "INTERNAL"})

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        super().__init__(directory, chosen)
        self._outcomes: Counter[str] = Counter()

    def strike(self) -> float:
        spare = self.chosen.choice([0, 0, 1, 4]) * MEGABYTE
        self._limit(self._size() + spare)
        self._outcomes[self._outcome_of_asking_for_much()] += 1
        self.note = ", ".join(f"{times} times {outcome}" for outcome, times in self._outcomes.items())
        if self.server.running.poll() is None:
            self._limit(resource.RLIM_INFINITY)
        struck = time.monotonic()
        if self._has_died():
            self.server.wait()
            self.server.spawn()
        return struck

    def _has_died(self) -> bool:
        """A process that could not go on may take a moment to be gone; one that could answers."""
        while self.server.running.poll() is None:
            if self.server.health_of("") is not None:
                return False
        return True

    def _limit(self, size: int) -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(self.server.running.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

    def _size(self) -> int:
        pages = int(Path(f"/proc/{self.server.running.pid}/statm").read_text(encoding="ascii").split()[0])
        return pages * resource.getpagesize()

    def _outcome_of_asking_for_much(self) -> str:
        """Small agents are created, or large ones, until one is refused, as it must be."""
        states = self.chosen.choice([20, 50, 1500])
        for number in range(MOST_AGENTS):
            table = model_pb2.Table(shape=[states, 2], values=[0.5] * (2 * states))
            toll = model_pb2.Constraint(name="toll", cost=table, cost_budget=2, satisfiable_cost=0.5)
            problem = model_pb2.CmdpSpec(num_states=states, num_actions=2, horizon=5, reward=table, constraints=[toll])
            name = f"much-{self._outcomes.total()}-{number}"
            request = admin_pb2.CreateAgentRequest(agent=name, spec=model_pb2.AgentSpec(cmdp=problem))
            try:
                self.server.admin.CreateAgent(request, timeout=5)
            except grpc.RpcError as error:
                return "died" if self.server.running.poll() is not None else f"refused ({error.code().name})"
        raise AssertionError("its memory was not limited")


class Beside(Fault):
    """Something that others do must not be felt: the time that an action takes is measured alone and beside it."""

    patience = 5.0

    def __init__(self, directory: Path, chosen: random.Random) -> None:
        super().__init__(directory, chosen)
        self._alone: list[float] = []
        self._beside: list[float] = []
        self._largest = 0

    def latencies(self, count: int = 40) -> list[float]:
        question, taken = admin_pb2.GetAgentRequest(agent="stream"), list[float]()
        for _ in range(count):
            began = time.perf_counter()
            self.server.admin.GetAgent(question, timeout=30)
            taken.append(time.perf_counter() - began)
        return taken

    def measure_alone(self) -> None:
        self._alone += self.latencies()
        self._before = self.server.resident_bytes

    def measure_beside(self) -> None:
        self._beside += self.latencies()
        self._largest = max(self._largest, self.server.resident_bytes - self._before)
        alone, beside = statistics.median(self._alone), statistics.median(self._beside)
        self.note = (
            f"a call takes {1e3 * alone:.1f} ms alone, {1e3 * beside:.1f} ms beside it (medians); "
            f"{self._largest / MEGABYTE:.0f} MB more memory at most"
        )
        assert beside < 20 * alone + 1.0, self.note


class IdleConnections(Beside):
    """Connections that have shaken hands and say no more."""

    title = f"{IDLE:,} idle connections"

    def command(self) -> Sequence[str]:
        files = str(raised_limit(IDLE + SPARE_FILES))
        return ["prlimit", f"--nofile={files}:{files}", *SCRIPT]

    def strike(self) -> float:
        self.measure_alone()
        host, _, port = self.server.target.rpartition(":")
        connections: list[socket.socket] = []
        try:
            for _ in range(min(IDLE, raised_limit(IDLE + SPARE_FILES) - SPARE_FILES)):
                connections.append(socket.create_connection((host, int(port)), timeout=30))
                connections[-1].sendall(PREFACE)
                assert connections[-1].recv(9)[3] == 4, "a connection was not answered with settings"
            began = time.monotonic()
            self.measure_beside()
            pause(self.chosen.uniform(0.2, 0.5))
        finally:
            for connection in connections:
                connection.close()
        return began


class SlowReaders(Beside):
    """Streams whose clients send on and on, and never take a reply; watchers that never look."""

    title = f"{SLOW_READERS} clients that never read"

    def strike(self) -> float:
        self.measure_alone()
        channels = [grpc.insecure_channel(self.server.target, OWN_CONNECTION) for _ in range(SLOW_READERS)]
        calls = [self._call(channel) for channel in channels]
        began = time.monotonic()
        pause(self.chosen.uniform(0.5, 1.0))
        self.measure_beside()
        assert all(call.is_active() for call in calls), "a reader was thrown out"
        for call, channel in zip(calls, channels, strict=True):
            call.cancel()
            channel.close()
        return began

    def _call(self, channel: grpc.Channel) -> grpc.Call:
        if self.chosen.random() < 0.3:
            watching = admin_pb2.WatchAgentsRequest(interval_seconds=0.1)
            watch: grpc.Call = admin_pb2_grpc.AdminServiceStub(channel).WatchAgents(watching, timeout=120)
            return watch
        # Of an agent that there is not: each is refused, at some length.
        request = control_pb2.StepStreamRequest(start_episode=control_pb2.StartEpisodeRequest(agent="nobody" * 15))
        stream: grpc.Call = control_pb2_grpc.ControlServiceStub(channel).StepStream(iter([request] * MESSAGES), timeout=120)
        return stream


def raised_limit(wanted: int) -> int:
    """Open files that this process may have: `wanted`, or as many as it can get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)
