"""Metrics of the real server: what a kill must not change, and a thousand agents in one scrape."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from safe_psrl_proto.v1 import admin_pb2, control_pb2
from tests.system.players import Player, streaming_buffer
from tests.system.server_process import NewServer, ServerProcess, show, wait_until

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
AGE = "safe_psrl_snapshot_age_seconds"
EVERY_EVENTS = 20  # so that some are left over after four episodes
AGENTS, SERIES, MOST_SECONDS = 1000, 39, 1.0


def without_age(samples: Samples) -> Samples:
    return {key: value for key, value in samples.items() if key[0] != AGE}


def scrape(server: ServerProcess) -> Samples:
    status, text = server.http("/metrics")
    assert status == 200
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}


def about_agents(server: ServerProcess) -> Samples:
    """Every series with an agent's name."""
    return {key: value for key, value in scrape(server).items() if "agent" in dict(key[1])}


@pytest.mark.slow
def test_a_kill_resets_no_gauge_of_what_was_learned(started_server: NewServer) -> None:
    """Of agents in every condition: played, in the middle of an episode, paused, new."""
    server = started_server(metrics=True, settings=f"[snapshots]\nevery_events = {EVERY_EVENTS}\n")
    players = [Player(server, name, streaming_buffer, seed) for seed, name in enumerate(("played", "open", "paused", "new"))]
    for player in players:
        player.create()
    for player in players[:3]:
        for _ in range(4):
            player.play_episode()
    server.control.StartEpisode(control_pb2.StartEpisodeRequest(agent="open"))
    server.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent="paused"))

    def snapshots_are_taken() -> bool:
        lags = [value for (name, _), value in about_agents(server).items() if name == "safe_psrl_snapshot_lag_events"]
        return len(lags) == 4 and max(lags) < EVERY_EVENTS

    wait_until(snapshots_are_taken, 60, "snapshots are taken")
    before = about_agents(server)
    server.kill()
    server.start()
    assert without_age(about_agents(server)) == without_age(before), "before any call, all have series"
    for player in players:
        server.admin.GetAgent(admin_pb2.GetAgentRequest(agent=player.agent))
    after = about_agents(server)
    assert before.keys() == after.keys()
    ages = [key for key in before if key[0] == AGE]
    assert {dict(labels)["agent"] for _, labels in ages} == {"played", "open", "paused"}
    for key in ages:
        assert before[key] < after.pop(key), "time goes on while the server is away"
        del before[key]
    assert after == before
    assert scrape(server)["safe_psrl_recovery_seconds", ()] > 0
    episodes = {dict(labels)["agent"]: value for (name, labels), value in after.items() if name == "safe_psrl_episode_index"}
    assert episodes == {"played": 4, "open": 5, "paused": 4, "new": 0}


@pytest.mark.slow
def test_a_thousand_agents_are_scraped_within_a_second(started_server: NewServer) -> None:
    """All of them, with all of their series; it costs less again if nothing has changed."""
    server = started_server(metrics=True)
    names = [f"agent-{number:04}" for number in range(AGENTS)]

    def create(name: str) -> None:
        server.admin.CreateAgent(admin_pb2.CreateAgentRequest(agent=name, preset="streaming-buffer"), timeout=60)
        server.control.StartEpisode(control_pb2.StartEpisodeRequest(agent=name), timeout=60)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(create, names))
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        assert server.http("/metrics")[0] == 200
        seconds.append(time.monotonic() - began)
    show(f"scrapes of {AGENTS} agents: {', '.join(f'{each:.3f}' for each in seconds)} s")
    series = dict.fromkeys(names, 0)
    for _, labels in about_agents(server):
        series[dict(labels)["agent"]] += 1
    assert series == dict.fromkeys(names, SERIES)
    assert min(seconds) < MOST_SECONDS
