"""How the server shuts down, and how it reports that it cannot start."""

import signal
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from tests.system.players import Player, check_player, streaming_buffer, thinker
from tests.system.server_process import NOT_SERVING, SERVING, NewServer, ServerProcess, wait_until


def refusal(server: ServerProcess) -> str:
    """The one line with which it does not start."""
    server.spawn()
    assert server.wait() == 2
    (line,) = server.log.splitlines()
    assert line.startswith("safe-psrl: ")
    return line


@pytest.mark.slow
def test_a_stop_waits_for_calls_under_way_and_leaves_snapshots(started_server: NewServer) -> None:
    server = started_server(metrics=True, settings="drain_seconds = 100")
    player = Player(server, "buffer", streaming_buffer)
    player.create()
    for _ in range(3):
        player.play_episode()
    server.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent="thinker", spec=thinker(300, 4, 50, draws=25)))
    starting = control_pb2.StartEpisodeRequest(agent="thinker", request_id="only", with_policy=True)

    thinking = server.control.StartEpisode.future(starting, timeout=100)
    server.admin.GetAgent(admin_pb2.GetAgentRequest(agent="thinker"))  # behind it on the same connection
    server.signal(signal.SIGTERM)
    wait_until(lambda: server.http("/healthz") == (503, "not ready\n"), 20, "a balancer is told to look elsewhere")
    assert not thinking.done()
    begun = thinking.result()
    assert begun.episode == 1
    assert server.wait(50) == 0
    assert '"event": "stopped"' in server.log.splitlines()[-1]

    server.start()
    for agent in ("buffer", "thinker"):
        found = server.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=agent))
        assert (found.ok, found.events) == (True, 0), "events were read, so no snapshot was taken"
    assert server.control.StartEpisode(starting) == begun
    player.play_episode()
    check_player(player)


@pytest.mark.slow
def test_watchers_receive_the_shutdown_and_do_not_delay_it(started_server: NewServer) -> None:
    """Of the health and of the agents: streams that have no end of their own. It stops for Ctrl-C as for SIGTERM."""
    server = started_server(settings="drain_seconds = 100")
    server.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent="buffer", preset="streaming-buffer"))
    health = server.health.Watch(health_pb2.HealthCheckRequest(service=""))
    assert next(health).status == SERVING
    agents = server.admin.WatchAgents(admin_pb2.WatchAgentsRequest(interval_seconds=60))
    assert [status.agent for status in next(agents).agents] == ["buffer"]
    server.signal(signal.SIGINT)
    assert next(health).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as ended:
        next(agents)
    assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
    assert server.wait(50) == 0


@pytest.mark.slow
def test_a_call_that_takes_longer_than_the_drain_is_given_up(started_server: NewServer) -> None:
    server = started_server(settings="drain_seconds = 0.2")
    server.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent="thinker", spec=thinker(300, 4, 50, draws=20)))
    starting = control_pb2.StartEpisodeRequest(agent="thinker", request_id="only")
    thinking = server.control.StartEpisode.future(starting, timeout=100)
    server.admin.GetAgent(admin_pb2.GetAgentRequest(agent="thinker"))
    server.signal(signal.SIGTERM)
    assert isinstance(thinking.exception(), grpc.RpcError)
    assert server.wait() == 0


def test_a_second_server_in_the_same_directory_does_not_start(new_server: NewServer) -> None:
    first, second = new_server(), new_server()
    first.start()
    second.store = first.store
    line = refusal(second)
    assert f"{first.data} is in use by another server: stop it" in line
    first.admin.ListAgents(admin_pb2.ListAgentsRequest())


def test_a_port_that_is_taken(new_server: NewServer) -> None:
    server = new_server(metrics=True)
    for target, line in (
        (server.target, f"cannot listen on '{server.target}'"),
        (server.metrics, f"metrics: cannot listen on {server.metrics}: Address already in use"),
    ):
        with socket.create_server(("127.0.0.1", int(target.rpartition(":")[2]))):
            assert line in refusal(server)


def test_a_directory_that_cannot_be_written_to(new_server: NewServer) -> None:
    """By a name that no user may use, root neither: permissions would not stop root."""
    server = new_server()
    server.data.write_text("a file, not a directory", encoding="ascii")
    assert f"the store in {server.data} cannot be opened for writing" in refusal(server)
    server.store = "sqlite:/proc/self/fd/nowhere"
    assert "the store in /proc/self/fd/nowhere cannot be opened for writing" in refusal(server)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ("max_agents = 3", "max_agents: "),
        ("[limits]\nmax_agent = 3", "limits.max_agent: "),
        ("[limits]\nmax_agents = 0", "limits.max_agents: "),
        ("listen = = 3", "config.toml: "),
        ('[[agents]]\nname = "a"\npreset = "nowhere"', "agents: a: "),
    ],
)
def test_a_wrong_configuration(new_server: NewServer, settings: str, part: str) -> None:
    assert part in refusal(new_server(settings=settings))
