"""What Prometheus and a load balancer see over HTTP."""

import gzip
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from safe_psrl.version import __version__
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.metrics.http import HttpEndpoint
from tests.safe_psrl_server.metrics.scrapes import OPEN, get, moved, page, scrape, value
from tests.safe_psrl_server.specs import make_spec
from tests.safe_psrl_server.wire import Wire, serving
from tests.system.server_process import wait_until

# Metrics of an agent and of a constraint, with the field of the status that they show.
PER_AGENT = {
    "episode_index": "episode",
    "completed_episodes": "completed_episodes",
    "observed_transitions": "transitions",
    "overridden_actions": "overridden_actions",
    "episode_reward": "last_reward",
    "cumulative_reward": "cumulative_reward",
    "predicted_reward": "predicted_reward",
    "posterior_visited_ratio": "visited_ratio",
    "plan_seconds": "plan_seconds",
}
PER_CONSTRAINT = {"episode_cost": "last_cost", "episode_cost_mean": "mean_cost", "constraint_violations": "violations"} | {
    name: name
    for name in (
        *("cost_budget", "satisfiable_cost", "predicted_cost", "cost_price", "constraint_regret", "constraint_regret_max"),
        *("constraint_regret_bound", "dual_variable", "dual_variable_bound", "pessimism", "strong_violation", "certified_cost"),
        "cumulative_budget",
    )
}
GAUGES = [
    *(*PER_AGENT, "open_episodes", "paused", "fallback_active", "last_transition_timestamp_seconds", "snapshot_age_seconds"),
    *("snapshot_lag_events", "created_timestamp_seconds", *PER_CONSTRAINT, "episode_cost_recent"),
    *("drift_statistic", "drift_alarm", "drift_detections", "definition_version", "paused_by_guard", "mode", "shadow_episodes"),
    *("agents", "quarantined_agents", "recovery_seconds", "store_free_bytes", "store_bytes", "agents_without_series"),
    *("paused_agents", "resident_agents", "resident_bytes", "worst_cost_ratio", "build_info"),
]
COUNTERS = ["transitions", "duplicates", "rejections", "plans", "plans_infeasible", "fallback_actions", "agent_hits"]
COUNTERS += ["agent_evictions"]
HISTOGRAMS = ["plan_duration_seconds", "store_commit_seconds", "store_commit_events", "snapshot_bytes", "agent_load_seconds"]
HISTOGRAMS += ["agents_cost_ratio"]
GRPC_COUNTERS = [f"grpc_server_{name}" for name in ("started", "handled", "msg_received", "msg_sent")]


def served(registry: CollectorRegistry, ready: bool, path: str) -> tuple[int, str]:
    """A page of an endpoint on its own."""
    endpoint = HttpEndpoint(("127.0.0.1", 0), registry, lambda: ready)
    try:
        return page(endpoint.start(), path)
    finally:
        endpoint.stop()


@pytest.mark.parametrize(("ready", "status", "body"), [(True, 200, "ok\n"), (False, 503, "not ready\n")])
def test_health_follows_readiness(ready: bool, status: int, body: str) -> None:
    assert served(CollectorRegistry(), ready, "/healthz") == (status, body)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """Without agents."""
    with EmbeddedServer(metrics="127.0.0.1:0") as server:
        yield server


def test_a_server_that_serves_is_healthy_and_knows_two_paths(server: EmbeddedServer) -> None:
    """Anything else is 404; without an address there is no HTTP at all."""
    assert page(server.metrics_port, "/healthz") == (200, "ok\n")
    for path in ("/", "/metric", "/healthz/", "/metrics/x"):
        assert page(server.metrics_port, path) == (404, "not found: the paths are /metrics and /healthz\n")
    assert value(scrape(server.metrics_port), "quarantined_agents") == 0
    with EmbeddedServer() as other:
        assert other.metrics_port is None


class OverloadedCollector(Collector):
    def collect(self) -> list[Metric]:
        raise TimeoutError


def test_a_loop_that_does_not_respond_is_503() -> None:
    registry = CollectorRegistry()
    registry.register(OverloadedCollector())
    assert served(registry, True, "/metrics")[0] == 503


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=x", "text/plain; version=a.b", "*/*", "nonsense"])
def test_an_accept_header_without_a_usable_version_gets_the_usual_format(server: EmbeddedServer, accept: str) -> None:
    response, body = get(server.metrics_port, "/metrics", Accept=accept)
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"safe_psrl_agents 0.0" in body


def test_a_page_is_compressed_for_those_who_can_read_it(server: EmbeddedServer) -> None:
    response, body = get(server.metrics_port, "/metrics", **{"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert b"safe_psrl_agents 0.0" in gzip.decompress(body)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, str]]:
    """A client of a server whose agent has done everything once, and that agent's name."""
    directory = tmp_path_factory.mktemp("store")
    with serving(store=f"sqlite:{directory}", metrics="127.0.0.1:0", snapshots={"every_events": 6}) as wire:
        agent = wire.create(make_spec(fallback=True), "site/" + "x" * 123)
        for _ in range(4):
            wire.report_episode(agent, wire.start(agent).episode, *[moved()] * 3)
        wire.start(agent)
        wire.report(agent, moved())
        wire.pause(agent)
        wire.act(agent, 0)
        age = ("safe_psrl_snapshot_age_seconds", (("agent", agent),))
        wait_until(lambda: age in scrape(wire.metrics_port), 30, "a snapshot is taken")
        yield wire, agent


@pytest.mark.parametrize("is_open", [False, True], ids=["text", "openmetrics"])
def test_everything_that_is_promised_is_there_and_says_what_it_is(busy: tuple[Wire, str], is_open: bool) -> None:
    """In both formats: each family once, with its type, a help text and at least one series."""
    wire, _ = busy
    response, body = get(wire.metrics_port, "/metrics", Accept=OPEN if is_open else "")
    assert response.headers["Content-Type"].startswith("application/openmetrics-text" if is_open else "text/plain")
    families = list((parse_open if is_open else parse_text)(body.decode()))
    wanted = [(f"safe_psrl_{name}", "gauge") for name in GAUGES]
    wanted += [(name, "counter") for name in (*(f"safe_psrl_{counter}" for counter in COUNTERS), *GRPC_COUNTERS)]
    wanted += [(name, "histogram") for name in (*(f"safe_psrl_{name}" for name in HISTOGRAMS), "grpc_server_handling_seconds")]
    if is_open:  # has a type of its own for it
        wanted.remove(("safe_psrl_build_info", "gauge"))
        wanted.append(("safe_psrl_build", "info"))
    assert sorted((family.name, family.type) for family in families) == sorted(wanted)
    assert [family.name for family in families if not family.samples] == ["safe_psrl_rejections"]
    assert all(family.documentation.endswith(".") for family in families)


def test_an_exemplar_leads_from_a_slow_plan_to_its_agent_and_episode(busy: tuple[Wire, str]) -> None:
    """Long names are cut, because an exemplar has 128 characters."""
    wire, agent = busy
    _, body = get(wire.metrics_port, "/metrics", Accept=OPEN)
    (plans,) = [family for family in parse_open(body.decode()) if family.name == "safe_psrl_plan_duration_seconds"]
    exemplars = [sample.exemplar for sample in plans.samples if sample.exemplar]
    assert exemplars
    assert all(exemplar.labels["agent"] == agent[:96] for exemplar in exemplars)
    assert {int(exemplar.labels["episode"]) for exemplar in exemplars} <= set(range(1, 6))


def test_values_are_those_of_the_agents_status(busy: tuple[Wire, str]) -> None:
    wire, agent = busy
    samples, status = scrape(wire.metrics_port), wire.status(agent)
    expected = {name: getattr(status, field) for name, field in PER_AGENT.items()} | {
        "open_episodes": len(status.open_episodes),
        "paused": 1,
        "fallback_active": 1,
        "created_timestamp_seconds": status.created_micros / 1e6,
    }
    assert {name: value(samples, name, agent=agent) for name in expected} == expected
    assert status.episode == 5
    assert status.transitions == 13
    assert value(samples, "last_transition_timestamp_seconds", agent=agent) == pytest.approx(time.time(), abs=120)
    for constraint in status.constraints:
        shown = {name: getattr(constraint, field) for name, field in PER_CONSTRAINT.items()}
        labels = {"agent": agent, "constraint": constraint.name}
        assert {name: value(samples, name, **labels) for name in shown} == shown
        assert constraint.mean_cost == pytest.approx(3 * {"energy": 0.5, "wear": 0.25}[constraint.name])
    assert value(samples, "build_info", version=__version__) == 1
    assert value(samples, "agents") == 1
    assert value(samples, "store_bytes") > 4096
    assert value(samples, "store_free_bytes") > 0
