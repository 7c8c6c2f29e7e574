"""Series of agents that play, come and go."""

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.safe_psrl_server.metrics.scrapes import Samples, about_agents, agents_in, moved, scrape, value
from tests.safe_psrl_server.specs import transition
from tests.safe_psrl_server.store.appending import execute
from tests.safe_psrl_server.wire import serving


def test_an_agent_that_has_not_played_has_no_last_transition() -> None:
    """1970 would set off alarms. In memory there is no disk to tell of."""
    with serving(metrics="127.0.0.1:0") as wire:
        agent = wire.create()
        samples = scrape(wire.metrics_port)
        assert value(samples, "snapshot_lag_events", agent=agent) == 1
        assert value(samples, "posterior_visited_ratio", agent=agent) == 0
        missing = {"last_transition_timestamp_seconds", "snapshot_age_seconds", "store_bytes", "store_free_bytes"}
        assert not {f"safe_psrl_{name}" for name in missing} & {key[0] for key in samples}


def test_a_scrape_does_not_miss_what_happened_since_the_one_before() -> None:
    """Lines are kept between scrapes, but never for an agent that changed."""
    with serving(metrics="127.0.0.1:0") as wire:
        one, other = wire.create(name="one"), wire.create(name="other")
        for number in range(1, 4):
            wire.start(one)
            for step in range(3):
                wire.report(one, moved())
                samples = scrape(wire.metrics_port)
                assert value(samples, "observed_transitions", agent=one) == 3 * (number - 1) + step + 1
                assert value(samples, "posterior_visited_ratio", agent=one) == wire.status(one).visited_ratio > 0
            assert value(samples, "completed_episodes", agent=one) == number
            assert value(samples, "episode_index", agent=other) == 0
        wire.pause(one)
        samples = scrape(wire.metrics_port)
        assert value(samples, "paused", agent=one) == 1
        assert value(samples, "fallback_active", agent=one) == 0
        wire.resume(one)
        assert value(scrape(wire.metrics_port), "paused", agent=one) == 0


def test_metrics_outlive_a_restart_and_end_with_their_agent(tmp_path: Path) -> None:
    """What was learned is the same after the server was stopped; a deleted agent is gone from the next scrape."""
    settings: dict[str, Any] = {"store": f"sqlite:{tmp_path}", "metrics": "127.0.0.1:0"}
    with serving(**settings) as wire:
        agent = wire.create(name="site/1")
        for _ in range(4):
            wire.report_episode(agent, wire.start(agent).episode, *[moved()] * 3)
        wire.start(agent)
        before = about_agents(scrape(wire.metrics_port))
    with serving(**settings) as wire:
        samples = scrape(wire.metrics_port)
        after = about_agents(samples)
        lag = ("safe_psrl_snapshot_lag_events", (("agent", agent),))
        assert before.pop(lag) == 14  # four episodes of a beginning, a trajectory and an end; a fifth that began; the creation
        assert after.pop(lag) == 0, "stopping takes a snapshot"
        assert after == before
        assert value(samples, "snapshot_age_seconds", agent=agent) == 0
        assert value(samples, "transitions_total") == 0
        wire.delete(agent)
        samples = scrape(wire.metrics_port)
        assert not agents_in(samples)
        assert value(samples, "agents") == 0
        wire.create(name=agent)
        assert value(scrape(wire.metrics_port), "episode_index", agent=agent) == 0


def test_only_so_many_agents_have_series_those_nearest_to_their_budgets(tmp_path: Path) -> None:
    """The others are counted, and move up when there is room."""
    settings: dict[str, Any] = {
        "store": f"sqlite:{tmp_path}",
        "metrics": "127.0.0.1:0",
        "limits": {"max_agents_in_metrics": 3},
    }
    with serving(**settings) as wire:
        for name in "fbdac":
            wire.create(name=name)
        for name, action in (("a", 1), ("b", 0)):  # at some cost, and at none
            wire.report_episode(name, wire.start(name).episode, *[transition(state, action, 2) for state in (0, 2, 2)])
        samples = scrape(wire.metrics_port)
        assert agents_in(samples) == {"a", "b", "f"}
        assert value(samples, "agents_without_series") == 2
        assert value(samples, "agents") == 5
        assert value(samples, "worst_cost_ratio", agent="a") > value(samples, "worst_cost_ratio", agent="b")
    with serving(**settings) as wire:
        assert agents_in(scrape(wire.metrics_port)) == {"a", "b", "f"}
        wire.delete("b")
        samples = scrape(wire.metrics_port)
        assert agents_in(samples) == {"a", "f", "d"}
        assert value(samples, "agents_without_series") == 1


def test_a_quarantined_agent_is_counted_and_has_no_series(tmp_path: Path) -> None:
    """Once a call has found the damage. Nothing is known of it that could be shown; the others are as they were."""
    settings: dict[str, Any] = {"store": f"sqlite:{tmp_path}", "metrics": "127.0.0.1:0"}
    with serving(**settings) as wire:
        wire.create(name="whole")
        wire.create(name="damaged")
    execute(tmp_path, "DELETE FROM snapshots WHERE agent = 'damaged'")
    execute(tmp_path, "UPDATE events SET payload = x'00' WHERE agent = 'damaged'")
    with serving(**settings) as wire:
        with pytest.raises(grpc.RpcError, match="DATA_LOSS"):
            wire.start("damaged")
        samples = scrape(wire.metrics_port)
        assert agents_in(samples) == {"whole"}
        assert [value(samples, name) for name in ("agents", "quarantined_agents", "agents_without_series")] == [2, 1, 0]


def test_agents_that_come_and_go_do_not_break_a_scrape() -> None:
    with serving(metrics="127.0.0.1:0") as wire:
        kept, done, scrapes = wire.create(name="kept"), threading.Event(), list[Samples]()

        def scrape_on() -> None:
            while not done.is_set():
                scrapes.append(scrape(wire.metrics_port))

        scrapers = [threading.Thread(target=scrape_on) for _ in range(2)]
        for scraper in scrapers:
            scraper.start()
        for i in range(30):
            name = wire.create(name=f"a{i}")
            wire.report_episode(name, wire.start(name).episode, *[moved()] * 3)
            if i % 2:
                wire.delete(name)
        done.set()
        for scraper in scrapers:
            scraper.join()
        assert len(scrapes) >= 2
        per_agent = len(about_agents(scrapes[-1])) / len(agents_in(scrapes[-1]))
        assert all(kept in agents_in(samples) for samples in scrapes)
        assert per_agent >= 14
        assert agents_in(scrape(wire.metrics_port)) == {kept, *(f"a{i}" for i in range(0, 30, 2))}


def test_a_pattern_chooses_the_agents_with_series() -> None:
    """The others are counted, and are still among the worst and in the totals."""
    with serving(metrics="127.0.0.1:0", metrics_agents="cell/*") as wire:
        for name in ("cell/1", "cell/2", "player"):
            wire.create(name=name)
            wire.report_episode(name, wire.start(name).episode, *[transition(state, 1, 2) for state in (0, 2, 2)])
        samples = scrape(wire.metrics_port)
        assert agents_in({key: one for key, one in samples.items() if "episode_index" in key[0]}) == {"cell/1", "cell/2"}
        assert value(samples, "agents_without_series") == 1
        assert value(samples, "agents_cost_ratio_count") == 3
        assert value(samples, "worst_cost_ratio", agent="player") > 0
