"""`safe-psrl agent compare`, `promote` and `demote`: what people see at 80 columns, and scripts."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typer.testing import Result

from safe_psrl_client import Client, Transition
from tests.safe_psrl_cli.test_command_agent import command
from tests.safe_psrl_server.agents.test_shadow import choice

Command = Callable[..., Result]


@pytest.fixture
def run(server: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return partial(command, server)


@pytest.fixture
def shadow(client: Client, agent_name: str) -> str:
    """An agent in shadow beside a controller that earns nothing, for 20 episodes."""
    client.create_agent(agent_name, choice())
    for _ in range(20):
        episode = client.start_episode(agent_name).episode
        client.report_episode(agent_name, episode, [Transition(0, 0, 0)] * 2)
    return agent_name


def test_compare_promote_demote(run: Command, client: Client, shadow: str, tmp_path: Path) -> None:
    policy = tmp_path / "rule.json"
    policy.write_text("[[1], [0]]", encoding="utf-8")
    shown = run("compare", shadow, "--policy", str(policy)).stdout
    for words in ("(shadow)", "20 episodes", "given policy", "2 ± 0", "1 ± 0", "cost of energy", "gain", "may be promoted"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 110  # the verdict is a sentence
    assert "shadow" in run("list").stdout
    assert "it proposes, and another controller acts" in run("show", shadow).stdout
    assert "is live from its next episode on" in run("promote", shadow, "--reason", "ready").stdout
    assert client.get_agent(shadow).status.mode == "live"
    assert "; nothing changed" in run("promote", shadow).stdout
    assert "its actions are proposals" in run("demote", shadow, "--reason", "firmware").stdout
    history = run("history", shadow).stdout
    assert "mode is live, was shadow" in history
    assert "firmware" in history


def test_a_refused_promotion_is_one_line(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, choice())
    refused = run("promote", agent_name, code=2)
    assert refused.stderr.count("\n") == 1
    assert "0 of 20 shadow episodes are completed" in refused.stderr
    assert client.get_agent(agent_name).status.mode == "shadow"
    forced = json.loads(run("promote", agent_name, "--force", "--json").stdout)
    assert forced["status"]["mode"] == "live"


def test_a_verdict_against_a_promotion_says_no(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, choice())
    assert json.loads(run("compare", agent_name, "--json").stdout)["verdict"] == "too_few_episodes"


def test_for_scripts(run: Command, shadow: str) -> None:
    found = json.loads(run("compare", shadow, "--json").stdout)
    assert (found["verdict"], found["gain"]["mean"], found["shadow_episodes"]) == ("promote", pytest.approx(2.0), 20)


def test_a_policy_that_is_none_is_a_mistake(run: Command, shadow: str, tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    for text in ("{", "[1, 2]", "[[1]]"):
        file.write_text(text, encoding="utf-8")
        assert "Traceback" not in run("compare", shadow, "--policy", str(file), code=2).output
