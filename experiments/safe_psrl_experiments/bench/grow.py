"""`bench grow`: what many agents take in one service, and how it plays when many of them are active."""

import http.client
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Final, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import grpc

from safe_psrl_experiments.bench.measure import Report, Result, judged, silent
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc

STREAMS: Final = 10
CALL_SECONDS: Final = 120.0
PLAY_SECONDS: Final = 3.0
ROUNDS: Final = 3
PRESET: Final = "streaming-buffer"


class Service(Protocol):
    """A service in another process, whose store outlives it."""

    @property
    def target(self) -> str: ...
    @property
    def metrics_url(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> float:
        """Returns when it is healthy, with the seconds that it took."""
        ...

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        ...


class FleetSize(NamedTuple):
    """How many agents there are, and how many of them are active at once: many, and for comparison few."""

    agents: int = 10_000
    active: int = 1_000
    few: int = 10


def bench_fleet(service: Service, size: FleetSize, report: Report = silent) -> list[Result]:
    """Of a service that has no agents yet and is not running. It is stopped in the end."""
    names = [f"agent-{number:05}" for number in range(size.agents)]
    report("starting a service, stopping it, starting it again")
    service.start()
    stopped_empty = _stop(service)
    service.start()
    empty = resident_kilobytes(service.pid)
    with grpc.insecure_channel(service.target) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        created = _call_for_all(names, lambda seed, name: _create(admin, seed, name), "creating", report)
        read = _call_for_all(names, lambda _, name: _get(admin, name), "reading", report)
        resident = resident_kilobytes(service.pid) - empty
        many, few = _play_in_turn(channel, names[: size.active], names[: size.few], report)
    report(f"stopping the service, with {size.agents:,} snapshots")
    stopped = max(_stop(service) - stopped_empty, 0.0)
    report(f"starting it again with {size.agents:,} agents")
    service.start()
    recovered = _recovery_seconds(service.metrics_url)
    _stop(service)
    each = f"of {size.agents:,} agents"
    made: tuple[str, str, tuple[Literal["<="], float]] = ("creating it", "ms", ("<=", 1))
    return [
        judged(f"create {each}, each", created / size.agents * 1e3, read / size.agents * 1e3, "GetAgent", "ms", ("<=", 5)),
        judged(f"resident memory {each}, each", resident / size.agents, 20.0, "20 kB", "kB", ("<=", 1)),
        judged(f"stop with a snapshot {each}, each", stopped / size.agents * 1e3, created / size.agents * 1e3, *made),
        judged(f"start from snapshots {each}, each", recovered / size.agents * 1e3, created / size.agents * 1e3, *made),
        judged(f"steps, {size.active:,} agents active", many, few, f"{size.few} agents active", "steps/s", (">=", 0.7)),
    ]


def resident_kilobytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


# --- inside


def _stop(service: Service) -> float:
    """The seconds that a clean stop takes."""
    began = time.perf_counter()
    if service.stop() != 0:
        raise RuntimeError("the service did not stop cleanly")
    return time.perf_counter() - began


def _call_for_all(names: Sequence[str], call: Callable[[int, str], object], what: str, report: Report) -> float:
    """The seconds of one call for each, some at once."""

    def one(numbered: tuple[int, str]) -> None:
        call(*numbered)
        if numbered[0] % 100 == 0:
            report(f"{what} agents: {numbered[0]:,} of {len(names):,}")

    began = time.perf_counter()
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(one, enumerate(names)))
    return time.perf_counter() - began


def _create(admin: admin_pb2_grpc.AdminServiceStub, seed: int, name: str) -> None:
    admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=name, preset=PRESET, seed=seed), timeout=CALL_SECONDS)


def _get(admin: admin_pb2_grpc.AdminServiceStub, name: str) -> None:
    admin.GetAgent(admin_pb2.GetAgentRequest(agent=name), timeout=CALL_SECONDS)


def _play_in_turn(channel: grpc.Channel, many: Sequence[str], few: Sequence[str], report: Report) -> tuple[float, float]:
    """Steps a second with many agents and with few: medians of turns that alternate. The first one warms up."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(ROUNDS + 1):
        for is_many, names in ((True, many), (False, few)):
            report(f"{len(names):,} agents active, turn {number + 1} of {ROUNDS + 1}")
            rate = _play(channel, names, PLAY_SECONDS)
            if number:
                rates[is_many].append(rate)
    return median(rates[True]), median(rates[False])


def _play(channel: grpc.Channel, names: Sequence[str], seconds: float) -> float:
    """Steps a second of all `names` together, on a few streams; each agent has one step under way."""
    parts = [part for part in (names[number::STREAMS] for number in range(STREAMS)) if part]
    ready = threading.Barrier(len(parts) + 1)
    streams = [_Stream(channel, part, ready) for part in parts]
    with ThreadPoolExecutor(len(streams)) as threads:
        playing = [threads.submit(stream.play) for stream in streams]
        ready.wait(CALL_SECONDS)  # every agent has an open episode
        began = time.perf_counter()
        time.sleep(seconds)
        steps = sum(stream.steps for stream in streams)
        took = time.perf_counter() - began
        for stream in streams:
            stream.stopping = True
        for played in playing:
            played.result()
    return steps / took


class _Stream:
    """Agents that share a stream, all of them always in state 0."""

    def __init__(self, channel: grpc.Channel, names: Sequence[str], ready: threading.Barrier) -> None:
        self._control = control_pb2_grpc.ControlServiceStub(channel)
        self._names = names
        self._ready = ready
        self._outbox: SimpleQueue[control_pb2.StepStreamRequest | None] = SimpleQueue()
        self._waiting: deque[str] = deque()  # agents whose replies are due, in order
        self.steps = 0
        self.stopping = False

    def play(self) -> None:
        """Until `stopping`; then every request that was sent is answered."""
        replies = self._control.StepStream(iter(self._outbox.get, None))
        for name in self._names:
            self._start(name)
        started = 0
        for reply in replies:
            name = self._waiting.popleft()
            if reply.HasField("error"):
                raise RuntimeError(f"{name}: {reply.error.message}")
            if started < len(self._names):
                started += 1
                if started == len(self._names):
                    self._ready.wait(CALL_SECONDS)
            self.steps += reply.HasField("step")
            if not self.stopping:
                self._go_on(name, reply)
            elif not self._waiting:
                self._outbox.put(None)

    def _go_on(self, name: str, reply: control_pb2.StepStreamResponse) -> None:
        if reply.HasField("step") and reply.step.episode_done:
            self._start(name)
            return
        action = reply.step.action if reply.HasField("step") else reply.start_episode.action
        transition = control_pb2.Transition(state=0, action=action, next_state=0)
        self._send(name, control_pb2.StepStreamRequest(step=control_pb2.StepRequest(agent=name, transition=transition)))

    def _start(self, name: str) -> None:
        request = control_pb2.StartEpisodeRequest(agent=name, state=0, abandon_open=True)
        self._send(name, control_pb2.StepStreamRequest(start_episode=request))

    def _send(self, name: str, request: control_pb2.StepStreamRequest) -> None:
        self._waiting.append(name)
        self._outbox.put(request)


def _recovery_seconds(metrics_url: str) -> float:
    """As the service reports."""
    where = urlsplit(metrics_url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=CALL_SECONDS)
    try:
        connection.request("GET", where.path)
        lines: Iterator[str] = (line.decode() for line in connection.getresponse().readlines())
        return next(float(line.split()[1]) for line in lines if line.startswith("safe_psrl_recovery_seconds "))
    finally:
        connection.close()
