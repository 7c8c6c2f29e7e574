"""`bench serve`: how fast the service answers, against a bare echo in the same framework, in turns.

Server and echo have one core, the clients another, so that neither takes time from the other. Every step is durable when it is
answered. The ratio of a figure is the median of the ratios of its turns.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, Protocol

import uvloop

from safe_psrl_experiments.bench import load
from safe_psrl_experiments.bench.echo_server import DURABLE, POLITE, UNARY
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
    with ExitStack() as stack:
        echoes = [stack.enter_context(_echo_server(*options)) for options in ((), (POLITE,), (DURABLE,))]
        pids = (service.pid, *(echo.pid for echo in echoes))
        with _pinned(dict.fromkeys(pids, cores[0]) | {os.getpid(): cores[-1]}):
            targets = [echo.target for echo in echoes]
            results = uvloop.run(_bench(service.target, targets, rounds, calls, report))
            if shutil.which("h2load"):
                report("GetAction from h2load, 64 in flight")
                results.append(_native(service.target, targets[0], rounds, calls))
    return results


async def _bench(target: str, echo_targets: Sequence[str], rounds: int, calls: int, report: Report) -> list[Result]:
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(load.connected(each)) for each in (target, *echo_targets)]
        service, (echo, polite, durable) = Target(channels[0]), map(Echo, channels[1:])
        agents = [f"agent-{number:02}" for number in range(IN_FLIGHT)]
        streaming, players = agents[:STREAMING], agents[:PLAYERS]
        await service.create(agents)

        async def rates(
            name: str,
            bar: Bar | None,
            measure: Callable[[], Awaitable[Turn]],
            clients: int = IN_FLIGHT,
            make: load.Make = load.some_step,
        ) -> Result:
            """Beside an echo with as many clients and messages of the same size."""
            report(name)

            async def turn() -> Pair:
                limit = (await load.echo_unary(echo, clients, calls, make)).rate
                return Pair((await measure()).rate, limit)

            return await _in_turns(name, turn, rounds, f"bare unary echo, {clients} in flight", "1/s", bar)

        report("sequential Step")
        return [
            *await _sequential(service, agents[0], echo, durable, rounds, calls // 8),
            await rates("Step, 64 in flight", (">=", 0.7), lambda: load.step_unary(service, agents, calls)),
            await rates(
                "StepStream, 32 agents",
                (">=", 2),
                lambda: load.step_batches(service, streaming, STREAMS, 2 * calls),
                STREAMING,
            ),
            await rates(
                "StepStream, a stream an agent", None, lambda: load.step_stream(service, streaming, 2 * calls), STREAMING
            ),
            await rates(
                "ReportEpisode, 16 clients",
                (">=", 5),
                lambda: load.report_episodes(service, players, 4 * calls),
                PLAYERS,
                load.some_episode,
            ),
            await rates(
                "ReportEpisode on StepStream, 16 agents",
                None,
                lambda: load.report_batches(service, players, STREAMS, 4 * calls),
                PLAYERS,
                load.some_episode,
            ),
            await rates(
                "GetAction, 64 in flight",
                (">=", 0.9),
                lambda: load.get_action(service, agents, calls),
                make=load.some_question,
            ),
            await rates("echo, set up like the service", None, lambda: load.echo_unary(polite, IN_FLIGHT, calls)),
            await _beside_a_plan(service, agents[:SMALL], rounds, 2 * calls, report),
        ]


async def _sequential(service: Target, agent: str, echo: Echo, durable: Echo, rounds: int, calls: int) -> list[Result]:
    """A call after the other: of the echo, of an echo whose calls wait for the disk as those of the service must, and steps."""
    turns = [
        (
            median(await load.echo_sequential(echo, calls)),
            median(await load.echo_sequential(durable, calls)),
            median(await load.step_sequential(service, agent, calls)),
        )
        for _ in range(rounds + 1)
    ][1:]  # the first one warms up
    bare, written = "bare unary echo", "echo with one durable write"
    return [
        _result("sequential Step, median", [Pair(step, plain) for plain, _, step in turns], bare, "ms", ("<=", 1.6)),
        _result(f"{written}, median", [Pair(disk, plain) for plain, disk, _ in turns], bare, "ms", None),
        _result("sequential Step beside that", [Pair(step, disk) for _, disk, step in turns], written, "ms", None),
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


class _EchoServer(NamedTuple):
    """One in a process of its own."""

    target: str
    pid: int


@contextmanager
def _echo_server(*options: str) -> Iterator[_EchoServer]:
    command = [sys.executable, "-m", "safe_psrl_experiments.bench.echo_server", *options]
    environment = os.environ
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603  # our own module
        try:
            assert process.stdout is not None  # noqa: S101  # piped
            yield _EchoServer(f"127.0.0.1:{process.stdout.readline().strip()}", process.pid)
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
