"""The service as a whole: starting, declared agents, quarantine as clients see it, draining, stopping."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from safe_psrl_client import Client
from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.config import ConfigError, load_config
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.server import Server
from tests.safe_psrl_server.store.appending import execute
from tests.safe_psrl_server.wire import Code, Wire, refusal, serving


def test_declared_agents_exist_when_the_server_is_ready(tmp_path: Path) -> None:
    """Created at the first start, found at the second, with what they learned."""
    declared = [{"name": "a", "preset": "inventory", "seed": 3, "options": {"confidence": 0.9}}]
    for episode in (1, 2):
        with serving(store=f"sqlite:{tmp_path}", agents=declared) as wire:
            spec = wire.admin.GetAgent(admin_pb2.GetAgentRequest(agent="a", with_spec=True)).spec
            assert (spec.seed, spec.options.method, spec.options.confidence) == (3, "certified", 0.9)
            assert wire.start("a", 0, abandon_open=True).episode == episode


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"name": "a b", "preset": "inventory"}, "agents: a b: agent: "),
        ({"name": "a", "preset": "inventry"}, "agents: a: preset = 'inventry'"),
        ({"name": "a", "spec": "/nowhere/spec.toml"}, "agents: a: "),
        ({"name": "a", "preset": "inventory", "options": {"pessimism": 1}}, "agents: a: pessimism = 1: is not a field"),
    ],
)
def test_a_declaration_that_cannot_be_met_stops_the_server(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught, EmbeddedServer(agents=[declared]):
        pass
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_another_definition_than_the_stored_one_stops_the_server(tmp_path: Path) -> None:
    """What was learned for one problem is not served for another."""
    store = f"sqlite:{tmp_path}"
    with EmbeddedServer(store=store, agents=[{"name": "a", "preset": "inventory"}]):
        pass
    with (
        pytest.raises(ConfigError, match="num_states: cannot change"),
        EmbeddedServer(store=store, agents=[{"name": "a", "preset": "factored-toy"}]),
    ):
        pass
    with EmbeddedServer(store=store, agents=[{"name": "a", "preset": "inventory"}]):
        pass


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": "127.0.0.1:99999"},
        {"listen": "50551"},
        {"listen": "192.0.2.1:0"},
        {"metrics": "nowhere"},
        {"metrics": "127.0.0.1:x"},
        {"warm_up": "everything"},
    ],
)
def test_a_setting_that_cannot_be_met_stops_the_server(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(settings))}: "), EmbeddedServer(**settings):
        pass


def test_a_taken_port_stops_the_server() -> None:
    """Two servers never share one: half of the clients would not find their agents."""
    with EmbeddedServer() as server, pytest.raises(ConfigError, match=r"^listen: "), EmbeddedServer(listen=server.target):
        pass


def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    with serving(listen=f"unix:{tmp_path / 's'}") as wire:
        assert wire.start(wire.create()).episode == 1


def test_a_quarantined_agent_over_the_wire(tmp_path: Path) -> None:
    """DATA_LOSS with its name by every call; listed as quarantined with the reason; the other agent goes on."""
    store = f"sqlite:{tmp_path}"
    with serving(store=store) as wire:
        for name in ("a", "b"):
            wire.create(name=name)
            wire.start(name)
    for table in ("snapshots", "events"):
        execute(tmp_path, f"UPDATE {table} SET payload = x'00' WHERE agent = 'a'")  # noqa: S608  # ours
    with serving(store=store, agents=[]) as wire:
        for call in (
            lambda: wire.status("a"),
            lambda: wire.start("a"),
            lambda: wire.act("a", 0),
            lambda: wire.create(name="a"),
            lambda: wire.delete("a"),
            lambda: list(wire.admin.ExportAgent(admin_pb2.ExportAgentRequest(agent="a"))),
        ):
            refused = refusal(call, Code.DATA_LOSS, "AGENT_QUARANTINED")
            assert refused.metadata["agent"] == "a"
        damaged, whole = wire.list().agents
        assert damaged.condition == admin_pb2.AGENT_CONDITION_QUARANTINED
        assert "was changed" in damaged.condition_reason
        assert (whole.condition, whole.episode) == (admin_pb2.AGENT_CONDITION_ACTIVE, 1)
        assert wire.act("b", 0).episode == 1


def test_a_server_that_is_not_ready_says_so() -> None:
    """UNAVAILABLE by every call; an empty list would look as if the agents were gone."""
    with EmbeddedServer() as server, Wire(server.target) as wire:
        wire.create(name="a")
        server.server.agents.runtime.ready = False
        for call in (
            lambda: wire.start("a"),
            lambda: wire.act("a", 0),
            lambda: wire.status("a"),
            lambda: wire.create(name="b"),
            wire.list,
            lambda: next(wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest())),
        ):
            refusal(call, Code.UNAVAILABLE)
        server.server.agents.runtime.ready = True
        assert wire.status("a").agent == "a"


def test_stopping_ends_streams_that_have_no_end() -> None:
    """A watcher and an idle StepStream are told UNAVAILABLE at once, and do not hold the server until its deadline."""
    done = Event()

    def idle() -> Iterator[control_pb2.StepStreamRequest]:
        yield control_pb2.StepStreamRequest(tag=1)
        done.wait(60)

    server = EmbeddedServer(drain_seconds=50.0)
    with server:
        wire = Wire(server.target)
        watch = wire.admin.WatchAgents(admin_pb2.WatchAgentsRequest(interval_seconds=60.0))
        stream = wire.control.StepStream(idle())
        assert not next(watch).agents
        assert next(stream).tag == 1
        began = time.monotonic()
    assert time.monotonic() - began < 20
    for call in (watch, stream):
        refusal(lambda call=call: next(call), Code.UNAVAILABLE, "DRAINING")
    done.set()
    wire.channel.close()


async def test_health_follows_the_servers_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOT_SERVING while agents are recovered, SERVING then, NOT_SERVING again while calls drain."""
    server = Server(load_config(None, {}, {"listen": "127.0.0.1:0", "metrics": "", "store": f"sqlite:{tmp_path}"}))
    seen: list[int] = []

    async def look() -> None:
        async with grpc.aio.insecure_channel(server.target) as channel:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
            seen.append(reply.status)

    open_agents = server.agents.open

    async def look_and_open() -> None:
        await look()
        await open_agents()

    monkeypatch.setattr(server.agents, "open", look_and_open)
    await server.start()
    await look()
    async with grpc.aio.insecure_channel(server.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=20)
        replies = aiter(watch)
        assert (await anext(replies)).status == seen[-1]
        draining = asyncio.create_task(server.drain())
        seen.append((await anext(replies)).status)
        await asyncio.wait_for(draining, 30)
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert seen == [not_serving, serving, not_serving]


def test_a_declared_definition_is_brought_into_effect_at_start(tmp_path: Path) -> None:
    """What can change does, with an entry in the agent's log; a misspelt field stops the server."""
    store, declared = f"sqlite:{tmp_path}", {"name": "a", "preset": "inventory"}
    with EmbeddedServer(store=store, agents=[declared]):
        pass
    forgetting, misspelt = {**declared, "drift": {"on_detect": "forget"}}, {**declared, "drift": {"on_detct": "forget"}}
    with EmbeddedServer(store=store, agents=[forgetting]) as server, Client(server.target) as client:
        (updated, created) = client.list_events("a")
        assert updated.details == ["drift.on_detect is forget, was alert"]
        assert updated.reason == "declared in the configuration"
        assert not created.details
        assert client.get_agent("a").status.on_detect == "forget"
    with pytest.raises(ConfigError, match="did you mean on_detect"), EmbeddedServer(agents=[misspelt]):
        pass
