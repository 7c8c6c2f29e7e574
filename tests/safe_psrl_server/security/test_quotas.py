"""How much one identity gets, and that nobody holds the server by being slow."""

import queue
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.safe_psrl_server.wire import Code, Wire, eventually, refusal, serving

from safe_psrl.problem.presets import preset
from safe_psrl_client import Client, RemoteAgent, ResourceExhaustedError
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc
from safe_psrl_server.agents.definition_checks import table_entries
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.config import Quotas
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.errors import LimitExceededError
from safe_psrl_server.security.identities import Identity, create_token
from safe_psrl_server.security.quotas import CallSlots, RateLimiter
from safe_psrl_server.security.roles import Role

AGENTS = [{"name": "a", "preset": "inventory"}]


def identity(name: str = "x", **limits: Any) -> Identity:
    return Identity(name=name, roles=[Role.ACT], agents=["*"], **limits)


def test_a_rate_is_an_average_with_bursts() -> None:
    now = [0.0]
    limiter = RateLimiter(Quotas(calls_per_second=10, burst_seconds=0.5), lambda: now[0])
    assert [limiter.wait_seconds(identity()) == 0 for _ in range(7)] == [True] * 5 + [False] * 2
    assert limiter.wait_seconds(identity()) == pytest.approx(0.1)
    assert limiter.wait_seconds(identity("another")) == 0
    now[0] = 0.1
    assert [limiter.wait_seconds(identity()) == 0 for _ in range(2)] == [True, False]
    now[0] = 100.0
    assert sum(limiter.wait_seconds(identity()) == 0 for _ in range(20)) == 5


def test_an_entry_of_ones_own_outdoes_the_general_one() -> None:
    limiter = RateLimiter(Quotas(calls_per_second=1, burst_seconds=1), lambda: 0.0)
    assert sum(limiter.wait_seconds(identity(calls_per_second=50)) == 0 for _ in range(100)) == 50


def test_slots_are_limited_in_all_and_for_each_holder() -> None:
    slots = CallSlots(3)
    slots.take("one", 2)
    slots.take("one", 2)
    with pytest.raises(LimitExceededError, match="'one' has 2 concurrent calls"):
        slots.take("one", 2)
    slots.take("another", 2)
    with pytest.raises(LimitExceededError, match="the server has 3 concurrent calls"):
        slots.take("another", 2)
    slots.give_back("one")
    slots.take("another", 2)


def test_without_quotas_there_is_no_end() -> None:
    limiter = RateLimiter(Quotas(), lambda: 0.0)
    assert not any(limiter.wait_seconds(identity()) for _ in range(10_000))


def test_too_many_calls_are_refused_with_the_time_to_wait() -> None:
    """Health is always answered. The client library raises the error with the time to wait."""
    quotas = {"calls_per_second": 5.0, "burst_seconds": 1.0}
    with EmbeddedServer(quotas=quotas, agents=AGENTS) as server, grpc.insecure_channel(server.target) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)

        def until_refused() -> None:
            for _ in range(1000):
                stub.ListAgents(admin_pb2.ListAgentsRequest(), timeout=20)

        refused = refusal(until_refused, Code.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert 0 < refused.retry_seconds <= 0.2
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        for _ in range(20):
            health(b"", timeout=20)

        def start_until_refused() -> None:
            with Client(server.target) as client:
                for _ in range(1000):
                    client.start_episode("a", 0, abandon_open=True)

        with pytest.raises(ResourceExhaustedError) as caught:
            start_until_refused()
        assert 0 < caught.value.retry_after <= 0.2


@pytest.mark.parametrize("together", [False, True], ids=["messages", "batch"])
def test_calls_of_a_stream_are_slowed_down_not_refused(together: bool) -> None:
    """Thirty at fifty a second, ten of them at once: none fails, and they take their time, in thirty messages or in one. An
    empty batch counts as a message."""
    start = control_pb2.StartEpisodeRequest(agent="a", abandon_open=True)
    calls = [control_pb2.StepStreamRequest(tag=tag, start_episode=start) for tag in range(30)]
    batches = [control_pb2.StepStreamBatch(), control_pb2.StepStreamBatch(calls=calls)]
    messages = [control_pb2.StepStreamRequest(tag=tag, batch=batch) for tag, batch in enumerate(batches)] if together else calls
    with serving(quotas={"calls_per_second": 50.0, "burst_seconds": 0.2}, agents=AGENTS) as wire:
        began = time.monotonic()
        replies = list(wire.control.StepStream(iter(messages), timeout=30))
        took = time.monotonic() - began
    assert [reply.tag for reply in replies] == list(range(len(messages)))
    single = replies[1].batch.replies if together else replies
    assert [reply.WhichOneof("outcome") for reply in single] == ["start_episode"] * 30
    assert took > 0.35


def test_calls_at_once_are_limited_for_each_identity(tmp_path: Path) -> None:
    """A watch is one. When it ends, there is room again."""
    file = tmp_path / "identities.toml"
    tokens = [create_token(file, name, [Role.READ], ["*"]) for name in ("one", "two")]
    settings: dict[str, Any] = {"security": {"identities": file}, "quotas": {"concurrent_calls": 1}}
    with (
        EmbeddedServer(**settings) as server,
        Wire(server.target, token=tokens[0]) as one,
        Wire(server.target, token=tokens[1]) as two,
    ):
        watch = one.admin.WatchAgents(admin_pb2.WatchAgentsRequest(interval_seconds=0.1), timeout=60)
        next(watch)
        refused = refusal(one.list, Code.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
        assert refused.retry_seconds
        two.list()
        watch.cancel()
        eventually(one.list)


def test_an_identity_has_so_many_agents_and_no_more(tmp_path: Path) -> None:
    """Counted among those that it may administer; what exists already may be created again; import is no way round."""
    file = tmp_path / "identities.toml"
    token = create_token(file, "site", [Role.ADMIN], ["site/*"])
    every = create_token(file, "every", [Role.ADMIN], ["*"])
    file.write_text(file.read_text().replace('name = "site"\n', 'name = "site"\nmax_agents = 2\n'))
    with (
        EmbeddedServer(security={"identities": file}) as server,
        Client(server.target, token=token) as client,
        Client(server.target, token=every) as operator,
    ):
        operator.create_agent("other/a", "inventory")
        for name in ("site/a", "site/b", "site/b"):
            client.create_agent(name, "inventory")
        for creation in (
            lambda: client.create_agent("site/c", "inventory"),
            lambda: client.import_agent("site/c", client.export_agent("site/a")),
        ):
            with pytest.raises(ResourceExhaustedError) as caught:
                creation()
            assert caught.value.reason == "AGENT_QUOTA"
        client.delete_agent("site/a")
        client.create_agent("site/c", "inventory")
        operator.create_agent("site/d", "inventory")


def test_all_agents_together_have_so_much_memory_and_no_more() -> None:
    """Measured by their tables. What is deleted makes room."""
    limits = {"max_total_table_entries": 2 * table_entries(cmdp_to_message(preset("inventory")))}
    with EmbeddedServer(limits=limits) as server, Client(server.target) as client:
        for name in ("a", "b", "b"):
            client.create_agent(name, "inventory")
        export = client.export_agent("a")
        for creation in (lambda: client.create_agent("c", "inventory"), lambda: client.import_agent("c", export)):
            with pytest.raises(ResourceExhaustedError) as caught:
                creation()
            assert caught.value.reason == "MEMORY_QUOTA"
        client.delete_agent("a")
        client.import_agent("c", export)


@pytest.mark.parametrize("method", ["StepStream", "ImportAgent"])
def test_a_stream_that_says_nothing_is_ended(method: str) -> None:
    with (
        EmbeddedServer(limits={"stream_idle_seconds": 0.3}, agents=AGENTS) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        if method == "StepStream":
            call = control_pb2_grpc.ControlServiceStub(channel).StepStream(iter(messages.get, None), timeout=30)
            messages.put(control_pb2.StepStreamRequest(start_episode={"agent": "a"}))
            assert next(call).start_episode.episode == 1
            refused = refusal(lambda: list(call))
        else:
            messages.put(admin_pb2.ImportAgentRequest(agent="b"))
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            refused = refusal(lambda: stub.ImportAgent(iter(messages.get, None), timeout=30))
        messages.put(None)
        assert (refused.code, refused.reason) == (Code.UNAVAILABLE, "STREAM_IDLE")


def test_an_old_connection_makes_way_and_play_goes_on() -> None:
    """A watch on it is cut after the grace; an agent that plays does not notice."""
    limits = {"max_connection_age_seconds": 0.5, "connection_grace_seconds": 0.5}
    with (
        EmbeddedServer(limits=limits, agents=AGENTS) as server,
        Client(server.target) as client,
        grpc.insecure_channel(server.target) as channel,
    ):
        watch = admin_pb2_grpc.AdminServiceStub(channel).WatchAgents(admin_pb2.WatchAgentsRequest(), timeout=30)
        with RemoteAgent(client, "a", abandon_open=True) as agent:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                agent.begin(0)
        with pytest.raises(grpc.RpcError) as caught:
            list(watch)
        assert caught.value.code() is Code.UNAVAILABLE


@pytest.fixture
def silent(server: EmbeddedServer) -> Iterator[list[socket.socket]]:
    """Connections that never say a word of HTTP/2."""
    host, _, port = server.target.rpartition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(200)]
    yield sockets
    for end in sockets:
        end.close()


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(agents=AGENTS) as server:
        yield server


@pytest.mark.slow
def test_connections_that_never_speak_are_hung_up_on(server: EmbeddedServer, silent: list[socket.socket]) -> None:
    """While they are there, others are answered."""
    with Client(server.target) as client:
        assert client.get_agent("a").status.agent == "a"
    for end in silent:
        end.settimeout(20)
        while end.recv(4096):
            pass
