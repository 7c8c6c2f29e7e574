"""`safe-psrl agent update` and `history`: what people see."""

import json
from collections.abc import Callable
from functools import partial

import pytest
from typer.testing import Result

from safe_psrl_client import Client, Transition
from tests.safe_psrl_cli.test_command_agent import command

Command = Callable[..., Result]
BUDGET = "constraints.fast-service.cost_budget"


@pytest.fixture
def run(server: str) -> Command:
    return partial(command, server)


def test_a_dry_run_shows_both_plans_and_changes_nothing(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "streaming-buffer")
    shown = run("update", agent_name, "--set", f"{BUDGET}=3", "--dry-run").stdout
    assert "would be updated" in shown
    assert f"{BUDGET} is 3.0, was 5.0" in shown
    for words in ("before", "after", "reward", "cost of fast-service", "certified"):
        assert words in shown
    assert client.get_agent(agent_name).status.definition_version == 1


def test_an_update_and_the_history(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "streaming-buffer")
    assert "from its next episode on" in run("update", agent_name, "--set", f"{BUDGET}=3", "--reason", "night").stdout
    assert "nothing to change" in run("update", agent_name, "--set", f"{BUDGET}=3").stdout
    lines = run("history", agent_name).stdout.splitlines()
    assert lines[0].endswith("updated, after 0 episodes: night")
    assert lines[1].strip() == f"{BUDGET} is 3.0, was 5.0"
    assert "created" in lines[2]
    document = json.loads(run("history", agent_name, "--json").stdout)
    assert [entry["kind"] for entry in document] == ["updated", "created"]


def test_a_continuing_task_has_epochs(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "continuing-buffer")
    client.start_episode(agent_name, 0)
    assert "updated, from its next epoch on" in run("update", agent_name, "--set", f"{BUDGET}=0.4").stdout
    assert "updated, after 1 epochs" in run("history", agent_name).stdout


def test_drift_is_called_drift(run: Command, client: Client, agent_name: str) -> None:
    """In the table, and for scripts."""
    client.create_agent(agent_name, "streaming-buffer")
    client.update_agent(agent_name, {"drift.memory_visits": 2.0, "drift.false_alarm_steps": 1.1})
    for state in (0, 9):
        for _ in range(3):
            episode = client.start_episode(agent_name, 0).episode
            client.report_episode(agent_name, episode, [Transition(0, 0, state, terminal=True)])
    client.start_episode(agent_name, 0)
    assert "UTC  drift detected, after" in run("history", agent_name).stdout
    assert json.loads(run("history", agent_name, "--json").stdout)[0]["kind"] == "drift_detected"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("seed=3", "seed: cannot be updated"),
        ("nonsense", "write KEY=VALUE"),
        (f"{BUDGET}=99", "must be above 0 and at most the horizon"),
        ("constraints.fast.cost_budget=3", "no constraint 'fast'; it has 'fast-service'"),
    ],
)
def test_a_mistake_is_one_line(run: Command, client: Client, agent_name: str, setting: str, complaint: str) -> None:
    client.create_agent(agent_name, "streaming-buffer")
    refused = run("update", agent_name, "--set", setting, code=2)
    assert complaint in refused.stderr
    assert "Traceback" not in refused.output
