"""What Prometheus and a load balancer see over HTTP."""

import http.client
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.http import HttpEndpoint

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def get(port: int | None, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def scrape(port: int | None) -> Samples:
    """Every sample, by its name and labels."""
    status, text = get(port, "/metrics")
    assert status == 200
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"safe_psrl_{name}", tuple(sorted(labels.items()))]


@pytest.mark.parametrize(("ready", "status", "body"), [(True, 200, "ok\n"), (False, 503, "not ready\n")])
def test_health_follows_readiness(ready: bool, status: int, body: str) -> None:
    """200 only while calls are served."""
    endpoint = HttpEndpoint("127.0.0.1", 0, CollectorRegistry(), lambda: ready)
    port = endpoint.start()
    try:
        assert get(port, "/healthz") == (status, body)
    finally:
        endpoint.stop()


def test_a_server_that_serves_is_healthy_and_knows_two_paths() -> None:
    """Anything else is 404; without an address there is no HTTP at all."""
    with EmbeddedServer(metrics="127.0.0.1:0") as server:
        assert get(server.metrics_port, "/healthz") == (200, "ok\n")
        for path in ("/", "/metric", "/healthz/", "/metrics/x"):
            assert get(server.metrics_port, path) == (404, "there are /metrics and /healthz\n")
        assert value(scrape(server.metrics_port), "quarantined_agents") == 0
    with EmbeddedServer() as server:
        assert server.metrics_port is None


def test_metrics_tell_what_was_learned_and_outlive_a_restart(tmp_path: Path, make_wire: Callable[..., Any]) -> None:
    """Episode index, dual variable, cost and budget per agent and constraint; the same after the server was stopped."""
    settings: dict[str, Any] = {"store": f"sqlite:{tmp_path}", "metrics": "127.0.0.1:0"}
    with EmbeddedServer(**settings) as server, make_wire(server.target) as wire:
        agent = wire.create(name="site/1")
        moved = control_pb2.Transition(state=0, action=1, next_state=0, reward=1.0, costs=[0.5, 0.25])
        for _ in range(4):
            wire.report_episode(agent, wire.start(agent).episode, *[moved] * 3)
        wire.start(agent)
        status = wire.status(agent)
        before = scrape(server.metrics_port)
        assert value(before, "episode_index", agent=agent) == 5
        for constraint, budget, cost in zip(status.constraints, (1.5, 2.4), (1.5, 0.75), strict=True):
            labels = {"agent": agent, "constraint": constraint.name}
            assert value(before, "dual_variable", **labels) == constraint.dual_variable
            assert value(before, "episode_cost", **labels) == cost
            assert value(before, "cost_budget", **labels) == pytest.approx(budget, abs=1e-12)
    with EmbeddedServer(**settings) as server, make_wire(server.target) as wire:
        after = scrape(server.metrics_port)
        timing = ("safe_psrl_recovery_seconds", ())
        assert {key: v for key, v in after.items() if key != timing} == {key: v for key, v in before.items() if key != timing}
        assert wire.status(agent) == status
        wire.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent=agent))
        assert not [key for key in scrape(server.metrics_port) if ("agent", agent) in key[1]]


def test_agents_that_come_and_go_do_not_break_a_scrape(make_wire: Callable[..., Any]) -> None:
    """Scrapes run beside the calls, in a thread of their own."""
    with EmbeddedServer(metrics="127.0.0.1:0") as server, make_wire(server.target) as wire:
        for i in range(30):
            wire.create(name=f"a{i}")
            assert value(scrape(server.metrics_port), "episode_index", agent=f"a{i}") == 0
