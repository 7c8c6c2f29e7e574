"""A long plan of one agent does not keep the others waiting."""

import statistics
import threading
import time
from collections.abc import Callable

import pytest

from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message
from tests.safe_psrl.continuing_cases import large_task
from tests.system.players import thinker
from tests.system.server_process import NewServer, ServerProcess, show

pytestmark = pytest.mark.slow

PLANS = 3
PATIENT = "[limits]\ncall_seconds = 400\n"  # for slow machines: the order of durations is tested, not their length


def latencies_while(server: ServerProcess, going_on: Callable[[], bool], least: int = 1) -> list[float]:
    """Seconds that each GetAction of the small agent took, one after the other."""
    question, taken = control_pb2.GetActionRequest(agent="small", state=0), list[float]()
    while going_on() or len(taken) < least:
        began = time.perf_counter()
        server.control.GetAction(question, timeout=60)
        taken.append(time.perf_counter() - began)
    return taken


def test_a_long_plan_delays_no_other_agent(started_server: NewServer) -> None:
    """Be it long because of its tables, because it draws many kernels, or because a task without an end has many states."""
    server = started_server(settings=PATIENT)
    server.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent="small", preset="factored-toy"))
    check_beside(server, "large-tables", thinker(400, 4, 50, draws=8))
    check_beside(server, "many-draws", thinker(20, 2, 10, draws=10_000))
    check_beside(server, "many-states", model_pb2.AgentSpec(cmdp=cmdp_to_message(large_task(20_000, 8))))


def check_beside(server: ServerProcess, agent: str, spec: model_pb2.AgentSpec) -> None:
    server.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=agent, spec=spec))
    alone = latencies_while(server, lambda: False, least=200)

    plans: list[float] = []

    def think() -> None:
        for _ in range(PLANS):
            request = control_pb2.StartEpisodeRequest(agent=agent, state=0, abandon_open=True)
            server.control.StartEpisode(request, timeout=400)
            status = server.admin.GetAgent(admin_pb2.GetAgentRequest(agent=agent)).status
            plans.append(status.plan_seconds)

    thinking = threading.Thread(target=think, daemon=True)
    thinking.start()
    beside = latencies_while(server, thinking.is_alive)
    assert len(plans) == PLANS
    usual, longest = statistics.median(beside), max(beside)
    show(f"{agent}: a plan takes {statistics.median(plans):.2f} s")
    show(f"an action alone: median {1e3 * statistics.median(alone):.2f} ms")
    show(f"an action beside it: median {1e3 * usual:.2f} ms, longest {1e3 * longest:.0f} ms, of {len(beside)}")
    assert usual < min(plans) / 10
    assert longest < min(plans)
