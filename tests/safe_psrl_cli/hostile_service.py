"""A service whose texts try to control a terminal or a page."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc

from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, events_pb2

RAW = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp\u2066\x00\nforged: line<img src=x onerror=alert(1)>[red]:cat:"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp\u2066\x00\nforged: line<img src=x onerror=alert(1)>[red]:cat:"
IN_ONE_LINE = SHOWN.replace(r"\r", " ").replace(r"\n", " ")  # errors are joined to one line first
HARMFUL = {one for one in RAW if not one.isprintable()} - {"\n"}


def status(name: str) -> admin_pb2.AgentStatus:
    def constraint(suffix: str) -> admin_pb2.ConstraintStatus:
        numbers: dict[str, Any] = {"cost_budget": 5.0, "mean_cost": 4.0, "last_cost": 4.0}
        return admin_pb2.ConstraintStatus(name=RAW + suffix, **numbers)

    return admin_pb2.AgentStatus(
        agent=name,
        condition=admin_pb2.AGENT_CONDITION_ACTIVE,
        condition_reason=RAW,
        state_digest=RAW,
        created_micros=1,
        episode=2,
        completed_episodes=2,
        constraints=[constraint("1"), constraint("2")],
    )


class HostileService(admin_pb2_grpc.AdminServiceServicer):
    """Lists one agent with a harmful name and one with a name that can be opened."""

    def ListAgents(self, _request: Any, _context: Any) -> admin_pb2.ListAgentsResponse:  # noqa: N802
        return admin_pb2.ListAgentsResponse(agents=[status(RAW), status("a")])

    def GetAgent(self, _request: Any, _context: Any) -> admin_pb2.GetAgentResponse:  # noqa: N802
        return admin_pb2.GetAgentResponse(status=status(RAW))

    def VerifyAgent(self, _request: Any, _context: Any) -> admin_pb2.VerifyAgentResponse:  # noqa: N802
        return admin_pb2.VerifyAgentResponse(ok=False, difference=RAW, events=1, state_digest=RAW)

    def ExplainAction(self, _request: Any, _context: Any) -> admin_pb2.ExplainActionResponse:  # noqa: N802
        """Its lists do not fit each other."""
        return admin_pb2.ExplainActionResponse(
            state_name=RAW,
            action=7,
            actions=[admin_pb2.ActionExplanation(name=RAW)],
            cost_prices=[1.0, 2.0, 3.0],
            budget_choices=[admin_pb2.BudgetChoice(budget_factor=1.0, probabilities=[1.0, 1.0])],
            constraint_names=[RAW, RAW],
        )

    def PauseAgent(self, _request: Any, context: grpc.ServicerContext) -> NoReturn:  # noqa: N802
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, RAW)

    def UpdateAgent(self, _request: Any, _context: Any) -> admin_pb2.UpdateAgentResponse:  # noqa: N802
        preview = admin_pb2.PlanPreview(costs=[1.0, 2.0])
        return admin_pb2.UpdateAgentResponse(status=status(RAW), changes=[RAW], before=preview, after=preview, warnings=[RAW])

    def GetHistory(self, _request: Any, _context: Any) -> admin_pb2.GetHistoryResponse:  # noqa: N802
        constraints = [admin_pb2.ConstraintPoint(cost=4.0, cost_budget=5.0)] * 2
        points = [admin_pb2.HistoryPoint(episode=i, episodes=1, constraints=constraints) for i in (1, 2)]
        kind = events_pb2.LOG_KIND_DRIFT_DETECTED
        entry = events_pb2.LogEntry(time_micros=1, kind=kind, episode=1, by=RAW, reason=RAW, details=[RAW, RAW])
        return admin_pb2.GetHistoryResponse(points=points, entries=[entry])

    def WatchAgents(self, _request: Any, context: grpc.ServicerContext) -> Iterator[admin_pb2.WatchAgentsResponse]:  # noqa: N802
        ended = threading.Event()
        context.add_callback(ended.set)
        yield admin_pb2.WatchAgentsResponse(agents=[status(RAW), status("a")])
        ended.wait()


@contextmanager
def hostile_service() -> Iterator[str]:
    """Its address."""
    server = grpc.server(ThreadPoolExecutor(8))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(HostileService(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
