"""`bench serve`: how fast the service answers, against a bare echo in the same framework, in turns.

Server and echo have one core, the clients another, so that neither takes time from the other. Every step is durable when it is
answered. The ratio of a figure is the median of the ratios of its turns.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, Protocol

import uvloop

from safe_psrl_experiments.bench import load
from safe_psrl_experiments.bench.echo_server import POLITE, UNARY
from safe_psrl_experiments.bench.load import Echo, Target, Turn
from safe_psrl_experiments.bench.measure import Bar, Result, judged
from safe_psrl_experiments.bench.native import native_rate
from safe_psrl_proto.v1 import control_pb2, model_pb2

CALLS: Final = 2_000  # of a turn: short, because the speed of a shared machine changes from second to second
IN_FLIGHT: Final = 64
STREAMING: Final = 32  # agents on streams
STREAMS: Final = 2  # that they share where calls share messages
PLAYERS: Final = 16
SMALL: Final = 8  # agents that are asked for actions while a large one plans
LARGE_STATES: Final = 500
FLUSHES: Final = 64

Report = Callable[[str], None]


class Service(Protocol):
    """A service in another process."""

    @property
    def target(self) -> str: ...
    @property
    def pid(self) -> int: ...


class Pair(NamedTuple):
    """What is measured, and its limit."""

    value: float
    limit: float


def bench_serve(service: Service, rounds: int = 15, report: Report = lambda _: None, calls: int = CALLS) -> list[Result]:
    """Of a service that has no agents yet. Pins processes: the first core for servers, the last for this one."""
    cores = sorted(os.sched_getaffinity(0))
    with _echo_server() as (port, echo_pid), _echo_server(POLITE) as (polite_port, polite_pid):
        pinned = dict.fromkeys((service.pid, echo_pid, polite_pid), cores[0]) | {os.getpid(): cores[-1]}
        with _pinned(pinned):
            echo_target, polite_target = f"127.0.0.1:{port}", f"127.0.0.1:{polite_port}"
            results = uvloop.run(_bench(service.target, echo_target, polite_target, rounds, calls, report))
            if shutil.which("h2load"):
                report("GetAction from h2load, 64 in flight")
                results.append(_native(service.target, echo_target, rounds, calls))
    return results


async def _bench(target: str, echo_target: str, polite_target: str, rounds: int, calls: int, report: Report) -> list[Result]:
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(load.connected(each)) for each in (target, echo_target, polite_target)]
        service, echo, polite = Target(channels[0]), Echo(channels[1]), Echo(channels[2])
        agents = [f"agent-{number:02}" for number in range(IN_FLIGHT)]
        streaming, players = agents[:STREAMING], agents[:PLAYERS]
        await service.create(agents)

        async def rates(name: str, bar: Bar | None, measure: Callable[[], Awaitable[Turn]]) -> Result:
            report(name)

            async def turn() -> Pair:
                limit = (await load.echo_unary(echo, IN_FLIGHT, calls)).rate
                return Pair((await measure()).rate, limit)

            return await _in_turns(name, turn, rounds, f"bare unary echo, {IN_FLIGHT} in flight", "1/s", bar)

        async def latency(floor: Callable[[], float]) -> Pair:
            limit = median(await load.echo_sequential(echo, calls // 8)) + floor()
            return Pair(median(await load.step_sequential(service, agents[0], calls // 8)), limit)

        report("sequential Step")
        return [
            await _in_turns(
                "sequential Step, median", lambda: latency(lambda: 0.0), rounds, "bare unary echo", "ms", ("<=", 1.6)
            ),
            await _in_turns(
                "sequential Step beside an echo that flushes",
                lambda: latency(_flush_time),
                rounds,
                "bare unary echo and one flush",
                "ms",
                None,
            ),
            await rates("Step, 64 in flight", (">=", 0.7), lambda: load.step_unary(service, agents, calls)),
            await rates("StepStream, 32 agents", (">=", 2), lambda: load.step_batches(service, streaming, STREAMS, 2 * calls)),
            await rates("StepStream, a stream an agent", None, lambda: load.step_stream(service, streaming, 2 * calls)),
            await rates("ReportEpisode, 16 clients", (">=", 5), lambda: load.report_episodes(service, players, 4 * calls)),
            await rates(
                "ReportEpisode on StepStream, 16 agents",
                None,
                lambda: load.report_batches(service, players, STREAMS, 4 * calls),
            ),
            await rates("GetAction, 64 in flight", (">=", 0.9), lambda: load.get_action(service, agents, calls)),
            await rates("echo, threads scheduled as the service's", None, lambda: load.echo_unary(polite, IN_FLIGHT, calls)),
            await _beside_a_plan(service, agents[:SMALL], rounds, 2 * calls, report),
        ]


async def _beside_a_plan(service: Target, agents: list[str], rounds: int, calls: int, report: Report) -> Result:
    report(f"GetAction while an agent of {LARGE_STATES} states plans")
    await service.create(["large"], spec=_large())

    async def plan() -> None:
        request = control_pb2.StartEpisodeRequest(agent="large", abandon_open=True)
        while True:
            await service.control.StartEpisode(request, timeout=load.DEADLINE)

    async def turn() -> Pair:
        limit = _percentile(await load.get_action_sequential(service, agents, calls // 2))
        planning = asyncio.create_task(plan())
        try:
            beside = await load.get_action_sequential(service, agents, calls // 2)
        finally:
            planning.cancel()
            await asyncio.wait([planning])
        return Pair(_percentile(beside), limit)

    name = f"GetAction beside plans of S={LARGE_STATES}, 99 %"
    return await _in_turns(name, turn, rounds, "without plans", "ms", ("<=", 2))


async def _in_turns(
    name: str, turn: Callable[[], Awaitable[Pair]], rounds: int, limit_name: str, unit: str, bar: Bar | None
) -> Result:
    turns = [await turn() for _ in range(rounds + 1)][1:]  # the first one warms up
    return _result(name, turns, limit_name, unit, bar)


def _result(name: str, turns: list[Pair], limit_name: str, unit: str, bar: Bar | None) -> Result:
    ratio = median(pair.value / pair.limit for pair in turns)
    limit = median(pair.limit for pair in turns)
    result = judged(name, ratio * limit, limit, limit_name, unit, bar)
    values, limits = zip(*turns, strict=True)
    return replace(result, times=values, limit_times=limits)


def _native(target: str, echo_target: str, rounds: int, calls: int) -> Result:
    """Without a client in Python, whose time would be shared by both."""
    method = "/safe_psrl.v1.ControlService/GetAction"
    request = control_pb2.GetActionRequest(agent="agent-00", state=0).SerializeToString()
    turns = [
        Pair(
            native_rate(target, method, request, IN_FLIGHT, calls),
            native_rate(echo_target, UNARY, request, IN_FLIGHT, calls),
        )
        for _ in range(rounds)
    ]
    return _result("GetAction from h2load, 64 in flight", turns, "bare unary echo from h2load", "1/s", None)


def _large() -> model_pb2.AgentSpec:
    """500 states, 4 actions, horizon 50; the first action is free."""
    pairs = [LARGE_STATES, 4]
    reward = model_pb2.Table(shape=pairs, values=[(state % 7) / 7 for state in range(LARGE_STATES) for _ in range(4)])
    cost = model_pb2.Table(shape=pairs, values=[action / 4 for _ in range(LARGE_STATES) for action in range(4)])
    constraint = model_pb2.Constraint(name="cost", cost=cost, cost_budget=10.0, satisfiable_cost=0.0)
    cmdp = model_pb2.CmdpSpec(num_states=LARGE_STATES, num_actions=4, horizon=50, reward=reward, constraints=[constraint])
    return model_pb2.AgentSpec(cmdp=cmdp)


def _percentile(times: list[float]) -> float:
    """The 99th."""
    return sorted(times)[len(times) * 99 // 100]


def _flush_time() -> float:
    """Milliseconds that the disk takes for a page that is there already: what a durable step cannot do without."""
    with tempfile.TemporaryFile() as file:
        page = bytes(4096)
        os.pwrite(file.fileno(), page * FLUSHES, 0)
        os.fsync(file.fileno())
        times = []
        for number in range(FLUSHES):
            began = time.perf_counter()
            os.pwrite(file.fileno(), page, number * len(page))
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1e3)
    return median(times)


@contextmanager
def _echo_server(*options: str) -> Iterator[tuple[int, int]]:
    """Its port and process."""
    command = [sys.executable, "-m", "safe_psrl_experiments.bench.echo_server", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  # our own module
        try:
            assert process.stdout is not None  # noqa: S101  # piped
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


@contextmanager
def _pinned(cores: dict[int, int]) -> Iterator[None]:
    """All threads of each process on its core; afterwards this one is free again."""
    before = os.sched_getaffinity(0)
    for pid, core in cores.items():
        _pin(Path(f"/proc/{pid}/task"), {core})
    try:
        yield
    finally:
        _pin(Path("/proc/self/task"), before)


def _pin(threads: Path, cores: set[int]) -> None:
    for thread in threads.iterdir():
        with suppress(ProcessLookupError):  # gRPC ends those that it has no work for
            os.sched_setaffinity(int(thread.name), cores)
