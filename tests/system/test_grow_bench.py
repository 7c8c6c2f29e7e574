"""The benchmark of growth: its figures and its arithmetic. What it measures is judged by running it, not here."""

import json
from pathlib import Path

import pytest

from safe_psrl import settle
from safe_psrl_cli.main import main
from safe_psrl_experiments.bench import grow, history

pytestmark = pytest.mark.slow  # it starts a service three times


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


def test_the_history_is_what_an_agent_stores() -> None:
    """It folds, episode by episode, to as many transitions as were asked for."""
    from safe_psrl_server.agents.record import AgentRecord  # noqa: PLC0415

    record = AgentRecord("a")
    for event in history.history(95):
        record.apply(event)
    assert (record.totals.transitions, record.totals.completed_episodes, record.state.episode) == (100, 10, 10)
    assert settle(record.definition.learner.spec, record.state).transition_counts[0, 0, 0, 0] == 100
