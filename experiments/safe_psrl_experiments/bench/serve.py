"""`bench serve`: how fast the service answers, as a ratio to a gRPC echo of the same run.

Turns of echo and service alternate; a ratio is the median of the turns' ratios. Every step is durable when it is answered.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, Protocol

import uvloop
from grpc.aio import Channel

from safe_psrl_experiments.bench import load
from safe_psrl_experiments.bench.echo_server import BARE, DURABLE, GROUP
from safe_psrl_experiments.bench.load import Target
from safe_psrl_experiments.bench.measure import Bar, Report, Result, judged, percentile, silent
from safe_psrl_proto.v1 import model_pb2

CALLS: Final = 2_000  # per turn: short, because the speed of a shared machine changes from second to second
IN_FLIGHT: Final = 64
STREAMING: Final = 32  # agents on streams
STREAMS: Final = 2  # which they share
PLAYERS: Final = 16  # clients that report whole episodes
SMALL: Final = 8  # agents whose actions are requested while a large one plans
LARGE_STATES: Final = 500

Measure = Callable[[], Awaitable[float]]


class Service(Protocol):
    """A service in another process."""

    @property
    def target(self) -> str: ...
    @property
    def pid(self) -> int: ...


@dataclass(frozen=True)
class Row:
    """What is measured in turns: a quantity of the service, and its limit."""

    name: str
    unit: str
    bar: Bar
    limit_name: str
    limit: Measure
    value: Measure


class Turn(NamedTuple):
    """A row's value and limit, measured one after the other."""

    value: float
    limit: float


class Setting(NamedTuple):
    """How a run is made. `beside`: busy processes during all turns. `pin`: servers on the first core, clients on the last."""

    turns: int = 15
    pin: bool = False
    beside: int = 0
    calls: int = CALLS


def bench_serve(service: Service, setting: Setting, report: Report = silent) -> list[Result]:
    """Of a service that has no agents yet."""
    with ExitStack() as stack:
        modes = (DURABLE,) if setting.beside else (BARE, GROUP)
        echoes = {mode: stack.enter_context(_echo_server(mode)) for mode in modes}
        for _ in range(setting.beside):
            stack.enter_context(_child("-c", "while True: pass"))
        if setting.pin:
            stack.enter_context(_pinned([service.pid, *(echo.pid for echo in echoes.values())]))
        targets = {mode: echo.target for mode, echo in echoes.items()}
        return uvloop.run(_bench(service.target, targets, setting, report))


async def _bench(target: str, echo_targets: dict[str, str], setting: Setting, report: Report) -> list[Result]:
    async with AsyncExitStack() as stack:
        service = Target(await stack.enter_async_context(load.connected(target)))
        echoes = {mode: await stack.enter_async_context(load.connected(each)) for mode, each in echo_targets.items()}
        agents = [f"agent-{number:02}" for number in range(IN_FLIGHT)]
        await service.create(agents)
        if setting.beside:
            rows = _rows_beside(service, echoes[DURABLE], agents, setting)
        else:
            await service.create(["large"], _large())
            rows = _rows(service, echoes[BARE], echoes[GROUP], agents, setting.calls)
        turns: list[list[Turn]] = [[] for _ in rows]
        for number in range((setting.turns + 1) * len(rows)):  # all rows, again and again: the first time warms up
            row = rows[number % len(rows)]
            report(row.name, number, (setting.turns + 1) * len(rows))
            limit = await row.limit()
            turns[number % len(rows)].append(Turn(await row.value(), limit))
        report("done", len(turns[0]) * len(rows), len(turns[0]) * len(rows))
        return [_result(row, measured[1:]) for row, measured in zip(rows, turns, strict=True)]


def _rows(service: Target, bare: Channel, group: Channel, agents: list[str], calls: int) -> list[Row]:
    streaming, players, small = agents[:STREAMING], agents[:PLAYERS], agents[:SMALL]

    def step() -> Awaitable[float]:
        return load.step_unary(service, agents, calls)

    def echo(clients: int, make: load.Make = load.sample_step) -> tuple[str, Measure]:
        return f"bare echo, {clients} in flight", lambda: load.echo_unary(bare, clients, calls, make)

    def actions() -> Awaitable[list[float]]:
        return load.get_action_sequential(service, small, calls)

    async def without_plans() -> float:
        return percentile(await actions())

    async def beside_plans() -> float:
        async with _planning(service):
            return percentile(await actions())

    shared = "echo with group commit, 64 in flight"
    return [
        _sequential(service, agents[0], bare, "bare echo", ("<=", 2.4), calls),
        Row("Step, 64 in flight", "1/s", (">=", 0.6), *echo(IN_FLIGHT), step),
        Row("Step, 64 concurrent", "1/s", (">=", 0.6), shared, lambda: load.echo_unary(group, IN_FLIGHT, calls), step),
        Row(
            "StepStream in batches, 32 agents",
            "1/s",
            (">=", 1.8),
            *echo(STREAMING),
            lambda: load.step_batches(service, streaming, STREAMS, 2 * calls),
        ),
        Row(
            "ReportEpisode, 16 clients",
            "1/s",
            (">=", 4),
            *echo(PLAYERS, load.sample_episode),
            lambda: load.report_episodes(service, players, 4 * calls),
        ),
        Row(
            "GetAction, 64 in flight",
            "1/s",
            (">=", 0.85),
            *echo(IN_FLIGHT, load.sample_action),
            lambda: load.get_action(service, agents, calls),
        ),
        Row(f"GetAction beside plans of S={LARGE_STATES}, p99", "ms", ("<=", 3), "without plans", without_plans, beside_plans),
    ]


def _rows_beside(service: Target, durable: Channel, agents: list[str], setting: Setting) -> list[Row]:
    """Of service and echo, both beside the busy processes."""
    name = "echo with one durable write"
    return [
        _sequential(service, agents[0], durable, name, ("<=", 3), setting.calls),
        Row(
            "Step, 64 in flight",
            "1/s",
            (">=", 0.5),
            f"{name}, 64 in flight",
            lambda: load.echo_unary(durable, IN_FLIGHT, setting.calls),
            lambda: load.step_unary(service, agents, setting.calls),
        ),
    ]


def _sequential(service: Target, agent: str, echo: Channel, echo_name: str, bar: Bar, calls: int) -> Row:
    """The median latency of one call after the other."""

    async def limit() -> float:
        return median(await load.echo_sequential(echo, calls // 8))

    async def value() -> float:
        return median(await load.step_sequential(service, agent, calls // 8))

    return Row("Step, sequential", "ms", bar, echo_name, limit, value)


def _result(row: Row, turns: list[Turn]) -> Result:
    values, limits = zip(*turns, strict=True)
    ratio, limit = median(turn.value / turn.limit for turn in turns), median(limits)
    result = judged(row.name, ratio * limit, limit, row.limit_name, row.unit, row.bar)
    return replace(result, times=values, limit_times=limits)


@asynccontextmanager
async def _planning(service: Target) -> AsyncIterator[None]:
    """The large agent plans one episode after the other."""

    async def plan() -> None:
        while True:
            await service.start("large")

    planning = asyncio.create_task(plan())
    try:
        yield
    finally:
        planning.cancel()
        await asyncio.wait([planning])


def _large() -> model_pb2.AgentSpec:
    """500 states, 4 actions, horizon 50; the first action is free."""
    pairs = [LARGE_STATES, 4]
    reward = model_pb2.Table(shape=pairs, values=[(state % 7) / 7 for state in range(LARGE_STATES) for _ in range(4)])
    cost = model_pb2.Table(shape=pairs, values=[action / 4 for _ in range(LARGE_STATES) for action in range(4)])
    constraint = model_pb2.Constraint(name="cost", cost=cost, cost_budget=10.0, satisfiable_cost=0.0)
    cmdp = model_pb2.CmdpSpec(num_states=LARGE_STATES, num_actions=4, horizon=50, reward=reward, constraints=[constraint])
    return model_pb2.AgentSpec(cmdp=cmdp)


class _EchoServer(NamedTuple):
    target: str
    pid: int


@contextmanager
def _echo_server(mode: str) -> Iterator[_EchoServer]:
    with _child("-m", "safe_psrl_experiments.bench.echo_server", mode) as process:
        assert process.stdout is not None  # noqa: S101  # piped
        yield _EchoServer(f"127.0.0.1:{process.stdout.readline().strip()}", process.pid)


@contextmanager
def _child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Python with these arguments, in its own session, so that Ctrl-C does not reach it; killed in the end."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:  # noqa: S603
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _pinned(servers: list[int]) -> Iterator[None]:
    """All threads of the servers on the first core and this process on the last; afterwards this one is free again."""
    before = os.sched_getaffinity(0)
    for pid in servers:
        _pin(pid, {min(before)})
    _pin(os.getpid(), {max(before)})
    try:
        yield
    finally:
        _pin(os.getpid(), before)


def _pin(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # gRPC ends idle threads
            os.sched_setaffinity(int(thread.name), cores)
