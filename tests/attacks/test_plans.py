"""Specifications that need much work, and plans that take as long as is permitted."""

import signal
import time
from collections.abc import Callable, Sequence

import grpc
import numpy as np
import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from tests.attacks.attackers import send_loops, send_requests
from tests.attacks.conftest import NewScene
from tests.attacks.scene import MB, Scene
from tests.safe_psrl_server.wire import Wire
from tests.system.players import thinker
from tests.system.server_process import show

pytestmark = pytest.mark.slow

ADMIN = "/safe_psrl.v1.AdminService"
DRAIN_SECONDS = 2.0
ENDLESS = ("attack/a", "attack/b")


def flat_spec(num_states: int, num_actions: int, horizon: int) -> model_pb2.AgentSpec:
    """Every action is worth and costs the same."""
    size = num_states * num_actions
    zeros = model_pb2.Table(shape=[num_states, num_actions], values=np.zeros(size))
    toll = model_pb2.Constraint(name="toll", cost=zeros, cost_budget=horizon / 2, satisfiable_cost=1.0)
    cmdp = model_pb2.CmdpSpec(num_states=num_states, num_actions=num_actions, horizon=horizon, reward=zeros, constraints=[toll])
    return model_pb2.AgentSpec(cmdp=cmdp)


def test_specifications_of_too_much_work(scene: Scene) -> None:
    request = admin_pb2.CreateAgentRequest(agent="attack/work", spec=flat_spec(4000, 1, 5000)).SerializeToString()
    assert len(request) < 65_000
    calls = [(f"{ADMIN}/CreateAgent", request)]
    with scene.attack("specifications of 160,000,000,000 products", most_memory=200 * MB) as attackers:
        given = scene.target, scene.tokens["attacker"], calls
        alone = attackers.run(send_requests, *given, times=20, at_once=1, seconds=2)
        many = attackers.run(send_requests, *given, times=10_000, at_once=4, seconds=4)
    assert set(alone.outcomes) == set(many.outcomes) == {"INVALID_ARGUMENT INVALID_ARGUMENT"}
    assert alone.slowest < 0.5


def test_the_largest_agents_that_are_permitted(scene: Scene) -> None:
    """Created, read in every way and deleted, again and again. Other callers can read their agents meanwhile."""
    name, spec = "attack/large", flat_spec(1000, 2, 1200)
    requests = {
        "CreateAgent": admin_pb2.CreateAgentRequest(agent=name, spec=spec),
        "VerifyAgent": admin_pb2.VerifyAgentRequest(agent=name),
        "GetPosterior": admin_pb2.GetPosteriorRequest(agent=name),
        "GetAgent": admin_pb2.GetAgentRequest(agent=name, with_spec=True),
        "ExportAgent": admin_pb2.ExportAgentRequest(agent=name),
        "DeleteAgent": admin_pb2.DeleteAgentRequest(agent=name),
    }
    loops, taken = [], []
    for number in range(8):
        for request in requests.values():
            request.agent = f"{name}-{number}"
        loops.append([(f"{ADMIN}/{method}", request.SerializeToString()) for method, request in requests.items()])
    with scene.attack("agents of 4,800,000,000 products, created and read", most_memory=1000 * MB) as attackers:
        given = scene.target, scene.tokens["attacker"]
        attacks = [attackers.begin(send_loops, *given, loops[half::2], seconds=8.0) for half in (0, 1)]
        with scene.as_("other") as other:
            other.create(name="other/small")
            while not all(attack.done() for attack in attacks):
                began = time.perf_counter()
                other.status("other/small")
                taken.append(time.perf_counter() - began)
        outcomes = [attack.result().outcomes for attack in attacks]
    show(f"GetAgent of another identity: p99 {1e3 * np.quantile(taken, 0.99):.1f} ms, longest {1e3 * max(taken):.0f} ms")
    assert {outcome for found in outcomes for outcome in found} <= {"OK", "DEADLINE_EXCEEDED"}
    assert max(taken) < 2.0


def test_plans_that_draw_a_million_kernels(new_scene: NewScene) -> None:
    """Another identity's plans get a thread, and SIGTERM ends the server in time."""
    scene = new_scene(f"drain_seconds = {DRAIN_SECONDS}\n")
    with scene.as_("attacker") as own, scene.as_("other") as other:
        for name in ENDLESS:
            own.create(thinker(20, 2, 10, draws=1_000_000), name=name)
        other.create(thinker(200, 4, 50, draws=8), name="other/long")
        alone = timed(lambda: other.start("other/long", abandon_open=True))
        with scene.attack("plans that draw 1,000,000 kernels", most_memory=200 * MB) as attackers:
            loops = [starts(name) for name in ENDLESS for _ in range(4)]
            attack = attackers.begin(send_loops, scene.target, scene.tokens["attacker"], loops, seconds=6.0, call_seconds=6.0)
            await_plans(own)
            beside = [timed(lambda: other.start("other/long", abandon_open=True)) for _ in range(3)]
            attack.result()
        show(f"another identity's plan: alone {alone:.2f} s, beside it {max(beside):.2f} s")
        assert max(beside) < 10 * alone + 1.0
        last = [own.control.StartEpisode.future(control_pb2.StartEpisodeRequest(agent=name)) for name in ENDLESS]
        await_plans(own)
        stopping = timed(lambda: (scene.server.signal(signal.SIGTERM), scene.server.wait(60)))
        assert all(call.exception() is not None for call in last)
    show(f"SIGTERM: ended after {stopping:.2f} s")
    assert stopping < DRAIN_SECONDS + 5.0


@pytest.mark.parametrize("waits", [False, True], ids=["running", "waiting"])
def test_an_agent_that_plans_can_be_paused_and_deleted(scene: Scene, waits: bool) -> None:
    """Whether its plan runs or `waits` for a thread, which another agent of the same identity has."""
    with scene.as_("attacker") as own, scene.as_("ops") as ops:
        for name in ENDLESS:
            own.create(thinker(20, 2, 10, draws=1_000_000), name=name)
        calls = [own.control.StartEpisode.future(control_pb2.StartEpisodeRequest(agent=ENDLESS[0]))]
        await_plans(own, ENDLESS[:1])
        if waits:
            calls.append(own.control.StartEpisode.future(control_pb2.StartEpisodeRequest(agent=ENDLESS[1])))
            await_plans(own, ENDLESS[1:])
        name = ENDLESS[1] if waits else ENDLESS[0]
        try:
            request = admin_pb2.PauseAgentRequest(agent=name)
            pausing = timed(lambda: ops.admin.PauseAgent(request, timeout=5.0))
            deleting = timed(lambda: ops.delete(name))
        finally:
            for call in calls:
                call.cancel()
            for other in {*ENDLESS} & {status.agent for status in ops.list().agents}:
                ops.delete(other)
    show(f"PauseAgent {pausing:.2f} s, DeleteAgent {deleting:.2f} s")
    assert max(pausing, deleting) < 2.0


def await_plans(wire: Wire, names: Sequence[str] = ENDLESS) -> None:
    """Return when the agents are busy: another call waits."""
    for name in names:
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            wire.control.StartEpisode(control_pb2.StartEpisodeRequest(agent=name), timeout=0.5)


def starts(agent: str) -> list[tuple[str, bytes]]:
    request = control_pb2.StartEpisodeRequest(agent=agent, abandon_open=True)
    return [("/safe_psrl.v1.ControlService/StartEpisode", request.SerializeToString())]


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began
