"""`bench grow`: what many agents take in one service, and how it plays when many of them are active."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Final, Literal, NamedTuple, Protocol

from safe_psrl_experiments.bench import load
from safe_psrl_experiments.bench.measure import Report, Result, fetch, judged, process_kilobytes, silent
from safe_psrl_proto.v1 import admin_pb2

CLIENTS: Final = 16  # that create and read agents
CALLS: Final = 10_000  # steps of a turn
ROUNDS: Final = 3
CONNECTIONS: Final = 4  # of the playing clients: the server limits the concurrent calls of one


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
    report("starting a service, stopping it, starting it again")
    service.start()
    stopped_empty = _stop(service)
    service.start()
    fleet = asyncio.run(_measure(service, size, report))
    report(f"stopping the service, with {size.agents:,} snapshots")
    stopped = max(_stop(service) - stopped_empty, 0.0)
    report(f"starting it again with {size.agents:,} agents")
    service.start()
    lines = fetch(service.metrics_url).decode().splitlines()
    recovered = next(float(line.split()[1]) for line in lines if line.startswith("safe_psrl_recovery_seconds "))
    _stop(service)
    each = f"of {size.agents:,} agents"
    created, read = (seconds / size.agents * 1e3 for seconds in (fleet.created, fleet.read))
    made: tuple[str, str, tuple[Literal["<="], float]] = ("creating it", "ms", ("<=", 1))
    active, few = f"steps, {size.active:,} agents active", f"{size.few} agents active"
    return [
        judged(f"create {each}, each", created, read, "GetAgent", "ms", ("<=", 5)),
        judged(f"resident memory {each}, each", fleet.kilobytes / size.agents, 20.0, "20 kB", "kB", ("<=", 1)),
        judged(f"stop with a snapshot {each}, each", stopped / size.agents * 1e3, created, *made),
        judged(f"start from snapshots {each}, each", recovered / size.agents * 1e3, created, *made),
        judged(active, fleet.rate_many, fleet.rate_few, few, "steps/s", (">=", 0.7)),
    ]


class _Fleet(NamedTuple):
    """What was measured of a running service: seconds, memory, and steps per second."""

    created: float
    read: float
    kilobytes: int
    rate_many: float
    rate_few: float


async def _measure(service: Service, size: FleetSize, report: Report) -> _Fleet:
    names = [f"agent-{number:05}" for number in range(size.agents)]
    empty = process_kilobytes("VmRSS", service.pid)
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(load.connected(service.target)) for _ in range(CONNECTIONS)]
        targets = [load.Target(channel) for channel in channels]
        target = targets[0]

        async def read(name: str) -> None:
            await target.admin.GetAgent(admin_pb2.GetAgentRequest(agent=name), timeout=load.DEADLINE)

        report("creating agents")
        create_seconds = await _call_for_all(names, lambda name: target.create([name]))
        report("reading agents")
        read_seconds = await _call_for_all(names, read)
        resident = process_kilobytes("VmRSS", service.pid) - empty
        report("playing")
        many, few = names[: size.active], names[: size.few]
        rates = [(await _steps(targets, many), await _steps(targets, few)) for _ in range(ROUNDS + 1)]
    rates_many, rates_few = zip(*rates[1:], strict=True)  # the first turn warms up
    return _Fleet(create_seconds, read_seconds, resident, median(rates_many), median(rates_few))


async def _steps(targets: Sequence[load.Target], names: Sequence[str]) -> float:
    """Steps per second of these agents, each on one of the connections."""
    shares = [names[first :: len(targets)] for first in range(len(targets))]
    calls = CALLS // len(targets)
    return sum(await asyncio.gather(*(load.step_unary(*pair, calls) for pair in zip(targets, shares, strict=True) if pair[1])))


async def _call_for_all(names: Sequence[str], call: Callable[[str], Awaitable[None]]) -> float:
    """The seconds of one call for each, some at once."""

    async def client(some: Sequence[str]) -> None:
        for name in some:
            await call(name)

    began = time.perf_counter()
    await asyncio.gather(*(client(names[first::CLIENTS]) for first in range(CLIENTS)))
    return time.perf_counter() - began


def _stop(service: Service) -> float:
    """The seconds that a clean stop takes."""
    began = time.perf_counter()
    if service.stop() != 0:
        raise RuntimeError("the service did not stop cleanly")
    return time.perf_counter() - began
