"""What the server says of itself, over gRPC and HTTP, while it starts and afterwards."""

from collections.abc import Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from tests.system.players import Player, streaming_buffer
from tests.system.server_process import NOT_SERVING, SERVING, START_SECONDS, NewServer, wait_until

pytestmark = pytest.mark.slow

SERVICES = ("", "safe_psrl.v1.ControlService", "safe_psrl.v1.AdminService")


def refused(method: Callable[..., object], request: object) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        method(request, timeout=10)
    return error.value.code()


def test_it_does_not_serve_until_it_has_recovered(started_server: NewServer) -> None:
    server = started_server(metrics=True)
    player = Player(server, "buffer", streaming_buffer)
    player.create()
    player.play_episode()
    server.kill()

    server.spawn()
    first = wait_until(lambda: server.health_of(""), START_SECONDS, "anybody answers")
    assert first == NOT_SERVING
    assert {server.health_of(service) for service in SERVICES} == {NOT_SERVING}
    for method, request in (
        (server.control.GetAction, control_pb2.GetActionRequest(agent="buffer")),
        (server.control.StartEpisode, control_pb2.StartEpisodeRequest(agent="buffer")),
        (server.admin.GetAgent, admin_pb2.GetAgentRequest(agent="buffer")),
        (server.admin.ListAgents, admin_pb2.ListAgentsRequest()),
        (server.admin.CreateAgent, admin_pb2.CreateAgentRequest(agent="other", preset="inventory")),
    ):
        assert refused(method, request) == grpc.StatusCode.UNAVAILABLE
    assert server.http("/healthz") == (503, "not ready\n")
    assert server.health_of("") == NOT_SERVING, "it became ready while it was being asked"

    server.wait_until_serving()
    assert {server.health_of(service) for service in SERVICES} == {SERVING}
    unknown = health_pb2.HealthCheckRequest(service="safe_psrl.v1.Nothing")
    assert refused(server.health.Check, unknown) == grpc.StatusCode.NOT_FOUND
    assert server.http("/healthz") == (200, "ok\n")
    assert server.admin.GetAgent(admin_pb2.GetAgentRequest(agent="buffer")).status.completed_episodes == 1
