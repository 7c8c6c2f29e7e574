"""What Prometheus and a load balancer see over HTTP."""

import asyncio
import gzip
import http.client
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from safe_psrl.version import __version__
from safe_psrl_proto.v1 import admin_pb2, control_pb2
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.metrics import agents
from safe_psrl_server.metrics.http import HttpEndpoint

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
MakeWire = Callable[..., Any]
OPEN = "application/openmetrics-text; version=1.0.0"

PER_AGENT = [
    "episode_index",
    "completed_episodes",
    "observed_transitions",
    "overridden_actions",
    "episode_reward",
    "cumulative_reward",
    "predicted_reward",
    "posterior_visited_ratio",
    "plan_seconds",
    "open_episodes",
    "paused",
    "fallback_active",
    "last_transition_timestamp_seconds",
    "snapshot_age_seconds",
    "snapshot_lag_events",
    "created_timestamp_seconds",
]
PER_CONSTRAINT = [
    "cost_budget",
    "satisfiable_cost",
    "episode_cost",
    "episode_cost_mean",
    "predicted_cost",
    "constraint_regret",
    "constraint_regret_max",
    "constraint_violations",
    "dual_variable",
    "dual_variable_bound",
    "constraint_regret_bound",
    "pessimism",
    "cost_price",
]
SERVER_WIDE = [
    "agents",
    "quarantined_agents",
    "recovery_seconds",
    "store_free_bytes",
    "store_bytes",
    "agents_without_series",
    "build_info",
]
COUNTERS = ["transitions", "duplicates", "rejections", "plans", "plans_infeasible", "fallback_actions"]
HISTOGRAMS = ["plan_duration_seconds", "store_commit_seconds", "store_commit_events", "snapshot_bytes"]
GRPC_COUNTERS = [f"grpc_server_{name}" for name in ("started", "handled", "msg_received", "msg_sent")]


def get(port: int | None, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def page(port: int | None, path: str) -> tuple[int, str]:
    response, body = get(port, path)
    return response.status, body.decode()


def scrape(port: int | None) -> Samples:
    """Every sample, by its name and labels."""
    status, text = page(port, "/metrics")
    assert status == 200
    samples = [sample for family in parse_text(text) for sample in family.samples]
    by_key = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    assert len(by_key) == len(samples), "a series is there twice"
    return by_key


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"safe_psrl_{name}", tuple(sorted(labels.items()))]


def about_agents(samples: Samples) -> Samples:
    """All series with an agent's name but the one that changes while nothing happens."""
    return {
        key: number for key, number in samples.items() if "agent" in dict(key[1]) and key[0] != "safe_psrl_snapshot_age_seconds"
    }


def agents_in(samples: Samples) -> set[str]:
    return {labels["agent"] for labels in (dict(key[1]) for key in samples) if "agent" in labels}


def moved(**fields: Any) -> control_pb2.Transition:
    return control_pb2.Transition(state=0, action=1, next_state=0, reward=1.0, costs=[0.5, 0.25], **fields)


# --- HTTP


@pytest.mark.parametrize(("ready", "status", "body"), [(True, 200, "ok\n"), (False, 503, "not ready\n")])
def test_health_follows_readiness(ready: bool, status: int, body: str) -> None:
    """200 only while calls are served."""
    endpoint = HttpEndpoint(("127.0.0.1", 0), CollectorRegistry(), lambda: ready)
    port = endpoint.start()
    try:
        assert page(port, "/healthz") == (status, body)
    finally:
        endpoint.stop()


def test_a_server_that_serves_is_healthy_and_knows_two_paths() -> None:
    """Anything else is 404; without an address there is no HTTP at all."""
    with EmbeddedServer(metrics="127.0.0.1:0") as server:
        assert page(server.metrics_port, "/healthz") == (200, "ok\n")
        for path in ("/", "/metric", "/healthz/", "/metrics/x"):
            assert page(server.metrics_port, path) == (404, "not found: the paths are /metrics and /healthz\n")
        assert value(scrape(server.metrics_port), "quarantined_agents") == 0
    with EmbeddedServer() as server:
        assert server.metrics_port is None


class OverloadedCollector(Collector):
    def collect(self) -> list[Metric]:
        raise TimeoutError


def test_a_loop_that_does_not_respond_is_503() -> None:
    """Without half a page."""
    registry = CollectorRegistry()
    registry.register(OverloadedCollector())
    endpoint = HttpEndpoint(("127.0.0.1", 0), registry, lambda: True)
    port = endpoint.start()
    try:
        assert page(port, "/metrics")[0] == 503
    finally:
        endpoint.stop()


def test_a_page_is_compressed_for_those_who_can_read_it() -> None:
    with EmbeddedServer(metrics="127.0.0.1:0") as server:
        response, body = get(server.metrics_port, "/metrics", **{"Accept-Encoding": "gzip"})
        assert response.headers["Content-Encoding"] == "gzip"
        assert b"safe_psrl_agents 0.0" in gzip.decompress(body)


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=x", "text/plain; version=a.b", "*/*", "nonsense"])
def test_an_accept_header_without_a_usable_version_gets_the_usual_format(accept: str) -> None:
    with EmbeddedServer(metrics="127.0.0.1:0") as server:
        response, body = get(server.metrics_port, "/metrics", Accept=accept)
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"safe_psrl_agents 0.0" in body


# --- what is on the page


@pytest.fixture(scope="module")
def busy_server(tmp_path_factory: pytest.TempPathFactory, make_wire: MakeWire, make_spec: Callable[..., Any]) -> Any:
    """A server whose agent has done everything once, and its agent's name."""
    directory = tmp_path_factory.mktemp("store")
    with (
        EmbeddedServer(store=f"sqlite:{directory}", metrics="127.0.0.1:0", snapshots={"every_events": 6}) as server,
        make_wire(server.target) as wire,
    ):
        agent = wire.create(make_spec(fallback=True), "site/" + "x" * 123)
        for _ in range(4):
            wire.report_episode(agent, wire.start(agent).episode, *[moved()] * 3)
        wire.start(agent)
        wire.report(agent, moved())
        wire.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent=agent))
        wire.act(agent, 0)
        until = time.monotonic() + 30
        while ("safe_psrl_snapshot_age_seconds", (("agent", agent),)) not in scrape(server.metrics_port):
            assert time.monotonic() < until, "no snapshot was taken"
        yield server, wire, agent


@pytest.mark.parametrize("is_open", [False, True], ids=["text", "openmetrics"])
def test_everything_that_is_promised_is_there_and_says_what_it_is(busy_server: Any, is_open: bool) -> None:
    """In both formats: each family once, with its type, a help text and at least one series."""
    server, _, _ = busy_server
    response, body = get(server.metrics_port, "/metrics", Accept=OPEN if is_open else "")
    assert response.headers["Content-Type"].startswith("application/openmetrics-text" if is_open else "text/plain")
    families = list((parse_open if is_open else parse_text)(body.decode()))
    wanted = [(f"safe_psrl_{name}", "gauge") for name in (*PER_AGENT, *PER_CONSTRAINT, *SERVER_WIDE)]
    wanted += [(name, "counter") for name in (*(f"safe_psrl_{counter}" for counter in COUNTERS), *GRPC_COUNTERS)]
    wanted += [(name, "histogram") for name in (*(f"safe_psrl_{name}" for name in HISTOGRAMS), "grpc_server_handling_seconds")]
    if is_open:  # has a type of its own for it
        wanted.remove(("safe_psrl_build_info", "gauge"))
        wanted.append(("safe_psrl_build", "info"))
    assert sorted((family.name, family.type) for family in families) == sorted(wanted)
    assert [family.name for family in families if not family.samples] == ["safe_psrl_rejections"]
    assert all(family.documentation.endswith(".") for family in families)


def test_an_exemplar_leads_from_a_slow_plan_to_its_agent_and_episode(busy_server: Any) -> None:
    """Long names are cut, because an exemplar has 128 characters."""
    server, _, agent = busy_server
    _, body = get(server.metrics_port, "/metrics", Accept=OPEN)
    (plans,) = [family for family in parse_open(body.decode()) if family.name == "safe_psrl_plan_duration_seconds"]
    exemplars = [sample.exemplar for sample in plans.samples if sample.exemplar]
    assert exemplars
    assert all(exemplar.labels["agent"] == agent[:96] for exemplar in exemplars)
    assert {int(exemplar.labels["episode"]) for exemplar in exemplars} <= set(range(1, 6))


def test_values_are_those_of_the_agents_status(busy_server: Any) -> None:
    server, wire, agent = busy_server
    samples, status = scrape(server.metrics_port), wire.status(agent)
    expected = {
        "episode_index": status.episode,
        "completed_episodes": status.completed_episodes,
        "observed_transitions": status.transitions,
        "overridden_actions": status.overridden_actions,
        "episode_reward": status.last_reward,
        "cumulative_reward": status.cumulative_reward,
        "predicted_reward": status.predicted_reward,
        "posterior_visited_ratio": status.visited_ratio,
        "plan_seconds": status.plan_seconds,
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
        per_constraint = {
            "cost_budget": constraint.cost_budget,
            "satisfiable_cost": constraint.satisfiable_cost,
            "episode_cost": constraint.last_cost,
            "episode_cost_mean": constraint.mean_cost,
            "predicted_cost": constraint.predicted_cost,
            "constraint_regret": constraint.constraint_regret,
            "constraint_regret_max": constraint.constraint_regret_max,
            "constraint_violations": constraint.violations,
            "dual_variable": constraint.dual_variable,
            "dual_variable_bound": constraint.dual_variable_bound,
            "constraint_regret_bound": constraint.constraint_regret_bound,
            "pessimism": constraint.pessimism,
            "cost_price": constraint.cost_price,
        }
        labels = {"agent": agent, "constraint": constraint.name}
        assert {name: value(samples, name, **labels) for name in per_constraint} == per_constraint
        assert constraint.mean_cost == pytest.approx(3 * {"energy": 0.5, "wear": 0.25}[constraint.name])
    assert value(samples, "build_info", version=__version__) == 1
    assert value(samples, "agents") == 1
    assert value(samples, "store_bytes") > 4096
    assert value(samples, "store_free_bytes") > 0


def test_an_agent_that_has_not_played_has_no_last_transition(make_wire: MakeWire) -> None:
    """1970 would set off alarms. In memory there is no disk to tell of."""
    with EmbeddedServer(metrics="127.0.0.1:0") as server, make_wire(server.target) as wire:
        agent = wire.create()
        samples = scrape(server.metrics_port)
        assert value(samples, "snapshot_lag_events", agent=agent) == 1
        assert value(samples, "posterior_visited_ratio", agent=agent) == 0
        missing = {"last_transition_timestamp_seconds", "snapshot_age_seconds", "store_bytes", "store_free_bytes"}
        assert not {f"safe_psrl_{name}" for name in missing} & {key[0] for key in samples}


def test_a_scrape_does_not_miss_what_happened_since_the_one_before(make_wire: MakeWire) -> None:
    """Lines are kept between scrapes, but never for an agent that changed."""
    with EmbeddedServer(metrics="127.0.0.1:0") as server, make_wire(server.target) as wire:
        one, other = wire.create(name="one"), wire.create(name="other")
        for number in range(1, 4):
            wire.start(one)
            for step in range(3):
                wire.report(one, moved())
                samples = scrape(server.metrics_port)
                assert value(samples, "observed_transitions", agent=one) == 3 * (number - 1) + step + 1
                assert value(samples, "posterior_visited_ratio", agent=one) == wire.status(one).visited_ratio > 0
            assert value(samples, "completed_episodes", agent=one) == number
            assert value(samples, "episode_index", agent=other) == 0
        wire.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent=one))
        samples = scrape(server.metrics_port)
        assert value(samples, "paused", agent=one) == 1
        assert value(samples, "fallback_active", agent=one) == 0
        wire.admin.ResumeAgent(admin_pb2.ResumeAgentRequest(agent=one))
        assert value(scrape(server.metrics_port), "paused", agent=one) == 0


# --- agents that come and go


def test_metrics_outlive_a_restart_and_end_with_their_agent(tmp_path: Path, make_wire: MakeWire) -> None:
    """What was learned is the same after the server was stopped; a deleted agent is gone from the next scrape."""
    settings: dict[str, Any] = {"store": f"sqlite:{tmp_path}", "metrics": "127.0.0.1:0"}
    with EmbeddedServer(**settings) as server, make_wire(server.target) as wire:
        agent = wire.create(name="site/1")
        for _ in range(4):
            wire.report_episode(agent, wire.start(agent).episode, *[moved()] * 3)
        wire.start(agent)
        before = about_agents(scrape(server.metrics_port))
    with EmbeddedServer(**settings) as server, make_wire(server.target) as wire:
        samples = scrape(server.metrics_port)
        after = about_agents(samples)
        lag = ("safe_psrl_snapshot_lag_events", (("agent", agent),))
        assert before.pop(lag) == 14  # four episodes of a beginning, a trajectory and an end; a fifth that began; the creation
        assert after.pop(lag) == 0, "stopping takes a snapshot"
        assert after == before
        assert value(samples, "snapshot_age_seconds", agent=agent) == 0
        assert value(samples, "transitions_total") == 0
        wire.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent=agent))
        samples = scrape(server.metrics_port)
        assert not agents_in(samples)
        assert value(samples, "agents") == 0
        wire.create(name=agent)
        assert value(scrape(server.metrics_port), "episode_index", agent=agent) == 0


def test_only_so_many_agents_have_series_and_always_the_same(tmp_path: Path, make_wire: MakeWire) -> None:
    """Those that were created first; the others are counted, and move up when there is room."""
    settings: dict[str, Any] = {
        "store": f"sqlite:{tmp_path}",
        "metrics": "127.0.0.1:0",
        "limits": {"max_agents_in_metrics": 3},
    }
    with EmbeddedServer(**settings) as server, make_wire(server.target) as wire:
        for name in "fbdac":
            wire.create(name=name)
        samples = scrape(server.metrics_port)
        assert agents_in(samples) == {"f", "b", "d"}
        assert value(samples, "agents_without_series") == 2
        assert value(samples, "agents") == 5
    with EmbeddedServer(**settings) as server, make_wire(server.target) as wire:
        assert agents_in(scrape(server.metrics_port)) == {"f", "b", "d"}
        wire.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent="b"))
        samples = scrape(server.metrics_port)
        assert agents_in(samples) == {"f", "d", "a"}
        assert value(samples, "agents_without_series") == 1


def test_a_quarantined_agent_is_counted_and_has_no_series(tmp_path: Path, make_wire: MakeWire) -> None:
    """Nothing is known of it that could be shown; the others are as they were."""
    settings: dict[str, Any] = {"store": f"sqlite:{tmp_path}", "metrics": "127.0.0.1:0"}
    with EmbeddedServer(**settings) as server, make_wire(server.target) as wire:
        wire.create(name="whole")
        wire.create(name="damaged")
    with closing(sqlite3.connect(tmp_path / "safe-psrl.db")) as database, database:
        database.execute("DELETE FROM snapshots WHERE agent = 'damaged'")
        database.execute("UPDATE events SET payload = x'00' WHERE agent = 'damaged'")
    with EmbeddedServer(**settings) as server:
        samples = scrape(server.metrics_port)
        assert agents_in(samples) == {"whole"}
        assert [value(samples, name) for name in ("agents", "quarantined_agents", "agents_without_series")] == [2, 1, 0]


async def test_an_agent_that_is_deleted_during_a_scrape_is_not_in_it(
    bench: Any, make_spec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape yields to calls, and one of them may be that."""
    monkeypatch.setattr(agents, "AGENTS_AT_ONCE", 1)
    for name in ("one", "other"):
        await bench.commands.create(name, make_spec())
    bench.agents.registry.complete.set()
    collector = agents.AgentCollector(bench.agents, bench.store, asyncio.get_running_loop())
    reading = asyncio.create_task(collector.read())
    await asyncio.sleep(0)
    bench.agents.agents()[1].record.exists = False
    assert [view.status.agent for view in (await reading).views] == ["one"]


def test_agents_that_come_and_go_do_not_break_a_scrape(make_wire: MakeWire) -> None:
    """Scrapes run beside the calls that create, play and delete."""
    with EmbeddedServer(metrics="127.0.0.1:0") as server, make_wire(server.target) as wire:
        kept, done, scrapes = wire.create(name="kept"), threading.Event(), list[Samples]()

        def scrape_on() -> None:
            while not done.is_set():
                scrapes.append(scrape(server.metrics_port))

        scrapers = [threading.Thread(target=scrape_on) for _ in range(2)]
        for scraper in scrapers:
            scraper.start()
        for i in range(60):
            name = wire.create(name=f"a{i}")
            wire.report_episode(name, wire.start(name).episode, *[moved()] * 3)
            if i % 2:
                wire.admin.DeleteAgent(admin_pb2.DeleteAgentRequest(agent=name))
        done.set()
        for scraper in scrapers:
            scraper.join()
        assert len(scrapes) >= 2
        per_agent = len(about_agents(scrapes[-1])) / len(agents_in(scrapes[-1]))
        assert all(kept in agents_in(samples) for samples in scrapes)
        assert per_agent >= len(PER_AGENT) - 2
        assert agents_in(scrape(server.metrics_port)) == {kept, *(f"a{i}" for i in range(0, 60, 2))}
