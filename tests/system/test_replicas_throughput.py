"""What a step costs each process, for one, two and three replicas on one database. Shows figures; pytest -rP prints them."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc
from tests.system.front import Front
from tests.system.postgres_process import PostgresProcess
from tests.system.server_process import NewServer, ServerProcess, show

pytestmark = pytest.mark.slow

AGENTS = 64  # that step at the same time
SECONDS = float(os.environ.get("SAFE_PSRL_THROUGHPUT_SECONDS", "3"))
TICKS = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    """Steps that were acknowledged, and the seconds that they took."""

    steps: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_steps_through_the_front(new_server: NewServer, tmp_path: Path, replicas: int) -> None:
    with PostgresProcess() as postgres:
        servers = [new_server() for _ in range(replicas)]
        for server in servers:
            server.store = postgres.address
            server.spawn()
        for server in servers:
            server.wait_until_serving()
        front = Front(tmp_path / "front", [server.target for server in servers])
        try:
            front.start()
            asyncio.run(_steps(front.target, 1.0))
            before = _cpu(postgres, servers, front)
            load = asyncio.run(_steps(front.target, SECONDS))
            after = _cpu(postgres, servers, front)
        finally:
            front.close()
            for server in servers:
                server.kill()
    costs = ", ".join(f"{name} {1e6 * (after[name] - before[name]) / load.steps:.0f}" for name in after)
    show(f"{replicas} replicas: {load.rate:,.0f} steps/s of {AGENTS} agents; microseconds of processor a step: {costs}")
    assert load.steps >= AGENTS


async def _steps(target: str, seconds: float) -> Load:
    async with grpc.aio.insecure_channel(target) as channel:
        control, admin = control_pb2_grpc.ControlServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel)
        began = time.monotonic()
        counts = await asyncio.gather(*(_play(control, admin, f"agent-{i}", began + seconds) for i in range(AGENTS)))
        return Load(sum(counts), time.monotonic() - began)


async def _play(control: Any, admin: Any, agent: str, until: float) -> int:
    """Steps of one agent in a state that never changes."""
    header, steps = (("agent", agent),), 0
    await admin.CreateAgent(
        admin_pb2.CreateAgentRequest(agent=agent, preset="streaming-buffer"), metadata=header, timeout=60, wait_for_ready=True
    )
    while time.monotonic() < until:
        start = control_pb2.StartEpisodeRequest(agent=agent, state=0, abandon_open=True)
        action = (await control.StartEpisode(start, metadata=header, timeout=60)).action
        done = False
        while not done and time.monotonic() < until:
            move = control_pb2.Transition(state=0, action=action, next_state=0)
            reply = await control.Step(control_pb2.StepRequest(agent=agent, transition=move), metadata=header, timeout=60)
            action, done, steps = reply.action, reply.episode_done, steps + 1
    return steps


def _cpu(postgres: PostgresProcess, servers: list[ServerProcess], front: Front) -> dict[str, float]:
    """Seconds of processor time so far."""
    database = [postgres.pid, *_children(postgres.pid)]
    return {
        "replicas": sum(_seconds(server.running.pid) for server in servers),
        "database": sum(map(_seconds, database)),
        "front": _seconds(front.pid),
    }


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
