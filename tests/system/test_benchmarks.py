"""The benchmarks at their smallest: their figures and arithmetic. What they measure is judged by running them, not here."""

import json
import os
import sqlite3
from pathlib import Path

import pytest

from safe_psrl_cli import child_process
from safe_psrl_cli.main import main
from safe_psrl_experiments.bench import fleet, grow, history, scrape
from safe_psrl_experiments.bench.figures import draw_serve
from safe_psrl_experiments.bench.measure import percentile
from safe_psrl_experiments.bench.serve import Setting, bench_serve
from tests.system.server_process import NewServer


@pytest.mark.slow
def test_bench_scrape_measures_scrapes_and_the_calls_beside_them(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "TURN_SECONDS", 0.1)
    server, said = new_server(metrics=True), list[str]()
    server.start()
    url = f"http://{server.metrics}/metrics"
    results = scrape.bench_scrape(server.target, url, 2, lambda what, *_: said.append(what), agents=20)
    assert {result.name: result.bar for result in results} == {
        "scrape of 20 agents, changed": "<= 1",
        "scrape of 20 agents, unchanged": "<= 1",
        "Step beside scrapes, median": "<= 1.2",
        "Step beside scrapes, 99 %": None,
    }
    for result in results:
        assert result.value > 0
        assert result.unit == "ms"
        assert result.ratio == pytest.approx(result.value / result.limit)
    assert said[0] == "creating 20 agents"
    _, text = server.http("/metrics")
    assert "safe_psrl_agents 20.0" in text


def test_the_ninety_ninth_percentile() -> None:
    assert percentile([float(number) for number in range(100, 0, -1)]) == 100
    assert percentile([float(number) for number in range(1000)]) == 990


BARS = {
    "Step, sequential": "<= 2.4",
    "Step, 64 in flight": ">= 0.6",
    "Step, 64 concurrent": ">= 0.6",
    "StepStream in batches, 32 agents": ">= 1.8",
    "ReportEpisode, 16 clients": ">= 4",
    "GetAction, 64 in flight": ">= 0.85",
    "GetAction beside plans of S=500, p99": "<= 3",
}
BARS_BESIDE = {"Step, sequential": "<= 3", "Step, 64 in flight": ">= 0.5"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "bars"), [(Setting(1, pin=True, calls=640), BARS), (Setting(1, beside=1, calls=640), BARS_BESIDE)]
)
def test_every_call_is_measured_against_the_echo(setting: Setting, bars: dict[str, str], tmp_path: Path) -> None:
    server, free = child_process.ServerProcess(tmp_path / "server"), os.sched_getaffinity(0)
    reports = list[tuple[int, int | None]]()
    try:
        server.start()
        results = bench_serve(server, setting, lambda _what, done=0, total=None: reports.append((done, total)))
    finally:
        server.kill()
    assert {result.name: result.bar for result in results} == bars
    assert all(result.ratio > 0 and len(result.times) == 1 for result in results)
    assert reports == [(number, 2 * len(bars)) for number in range(2 * len(bars) + 1)]
    assert os.sched_getaffinity(0) == free
    assert draw_serve(tmp_path / "serve.png", results).stat().st_size > 10_000


@pytest.mark.slow  # it starts a service three times
def test_bench_grow_measures_a_fleet_and_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grow, "CALLS", 250)
    monkeypatch.setattr(grow, "ROUNDS", 1)
    path = tmp_path / "grow.json"
    sizes = ["--agents", "30", "--active", "25", "--transitions", "2000"]
    monkeypatch.setattr("sys.argv", ["safe-psrl", "bench", "grow", *sizes, "--json", str(path)])
    with pytest.raises(SystemExit) as left:
        main()
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert {result["name"]: (result["unit"], result["bar"]) for result in results} == {
        "create of 30 agents, each": ("ms", "<= 5"),
        "resident memory of 30 agents, each": ("kB", "<= 1"),
        "stop with a snapshot of 30 agents, each": ("ms", "<= 1"),
        "start from snapshots of 30 agents, each": ("ms", "<= 1"),
        "steps, 25 agents active": ("steps/s", ">= 0.7"),
        "recovery of 2,000 transitions, no snapshot": ("events/s", ">= 0.15"),
        "recovery of 2,000 transitions, snapshots": ("ms", "<= 1.5"),
        "database for each step": ("bytes", "<= 2"),
    }
    assert left.value.code == (0 if all(result["ok"] for result in results) else 1)
    assert "MISSED" in capsys.readouterr().out or left.value.code == 0
    database = results[-1]
    assert 30 < database["limit"] < database["value"] < 1_000


@pytest.mark.slow  # it starts a service several times
def test_bench_fleet_measures_a_store_that_is_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice on one store: the second time nothing is stored."""
    path, store = tmp_path / "fleet.json", tmp_path / "store"
    monkeypatch.setattr(fleet, "TURNS", 1)
    monkeypatch.setattr(fleet, "READS", 30)
    monkeypatch.setattr(fleet, "STARTS", 10)
    sizes = ["--agents", "250", "--resident", "20", "--transitions", "20", "--store", f"sqlite:{store}"]
    versions = set[int]()
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["safe-psrl", "bench", "fleet", *sizes, "--json", str(path)])
        with pytest.raises(SystemExit) as left:
            main()
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
        assert left.value.code == (0 if all(result["ok"] for result in results) else 1)
        with sqlite3.connect(store / "safe-psrl.db") as db:
            versions |= {version for (version,) in db.execute("SELECT version FROM streams")}
            assert db.execute("SELECT count(*) FROM streams").fetchone() == (250,)
        db.close()
    events = len(fleet.prepared(20).payloads)
    assert min(versions) == events, "agents without a call are as they were stored"
    times = {
        "resident memory after the start": "MB",
        "the same after calls to 40 agents": "MB",
        f"start, 250 agents, {250 * events:,} events": "s",
        "processor time of the start": "s",
        "first GetAgent of an agent": "ms",
        "second GetAgent of an agent": "ms",
        "first StartEpisode of an agent": "ms",
        "fleet page of the console": "ms",
        "/metrics": "ms",
        "processor time of /metrics": "ms",
    } | {f"ListAgents of 1,000, {order}": "ms" for order in fleet.ORDERS.values()}
    assert {result["name"]: result["unit"] for result in results} == times
    assert all(result["value"] > 0 for result in results)


@pytest.mark.slow
def test_the_history_is_what_an_agent_stores() -> None:
    """It folds, episode by episode, to as many transitions as were asked for."""
    from safe_psrl_server.agents.record import AgentRecord  # noqa: PLC0415

    record = AgentRecord("a")
    for event in history.history(95):
        record.apply(event)
    assert (record.totals.transitions, record.totals.completed_episodes, record.state.episode) == (100, 10, 10)
    assert record.definition.learner.settle(record.state).transition_counts[0, 0, 0, 0] == 100
