"""`safe-psrl agent explain`: what people see at 80 columns, and scripts."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typer.testing import Result

from safe_psrl.problem.documents import spec_to_document, write_document
from safe_psrl.problem.presets import preset
from safe_psrl_client import Client
from tests.safe_psrl_cli.test_command_agent import command
from tests.safe_psrl_server.specs import make_spec

Command = Callable[..., Result]
STATES = [f"{packets} packets" for packets in range(10)]


@pytest.fixture
def run(server: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return partial(command, server)


@pytest.fixture
def named(tmp_path: Path) -> str:
    """A file with a definition in which states and actions have names."""
    document = spec_to_document(preset("streaming-buffer"))
    document |= {"state_names": STATES, "action_names": ["fast", "slow [bold]"]}
    file = tmp_path / "named.toml"
    file.write_text(write_document(document, "toml"), encoding="utf-8")
    return str(file)


def test_an_explanation_by_numbers(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "streaming-buffer")
    assert "episode 1, not yet begun, would play action" in run("explain", agent_name, "--state", "4").stdout
    client.start_episode(agent_name, 0)
    shown = run("explain", agent_name, "--state", "4", "--step", "2").stdout
    assert "state 4, step 2: episode 1 plays action" in shown
    for words in ("to go", "visits", "chosen", "action 0", "action 1", "±", "budgets -10 %", "as they are", "budgets +10 %"):
        assert words in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80


def test_an_explanation_by_names(run: Command, named: str, agent_name: str) -> None:
    run("create", agent_name, "--spec", named)
    shown = run("explain", agent_name, "--state", "4 packets").stdout
    assert "state 4 (4 packets), step 0" in shown
    rows = [line.split("  ")[0].strip() for line in shown.splitlines()]
    assert "fast" in rows
    assert "slow [bold]" in rows
    assert run("explain", agent_name, "--state", "4").stdout == shown


@pytest.mark.parametrize(
    ("state", "hint"), [("4 packet", "did you mean '4 packets'?"), ("full", "give a name or a number from 0 to 9")]
)
def test_a_name_that_is_wrong_has_a_hint(run: Command, named: str, agent_name: str, state: str, hint: str) -> None:
    run("create", agent_name, "--spec", named)
    shown = run("explain", agent_name, "--state", state, code=2).stderr.replace("│", " ")
    assert f"no state is called {state!r}; {hint}" in " ".join(shown.split())


def test_several_constraints_have_a_row_each(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, make_spec())
    rows = run("explain", agent_name, "--state", "1").stdout
    assert rows.count("  energy") == rows.count("  wear") == 3


def test_for_scripts(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "streaming-buffer", options={"method": "published"})
    client.start_episode(agent_name, 0)
    document = json.loads(run("explain", agent_name, "--state", "4", "--json").stdout)
    assert [one["action"] for one in document["actions"]] == [0, 1]
    assert document["action"] == client.get_policy(agent_name).actions[0][4]
    assert document["cost_prices"] == [0.0]
    assert set(document["actions"][0]["reward"]) == {"mean", "sigma"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--state", "10"], "state: must be from 0 to 9"),
        (["--state", "0", "--step", "10"], "step: must be from 0 to 9"),
        (["--state", "full"], "no names: give a number"),
    ],
)
def test_a_mistake_is_one_line(run: Command, client: Client, agent_name: str, arguments: list[str], complaint: str) -> None:
    client.create_agent(agent_name, "streaming-buffer")
    refused = run("explain", agent_name, *arguments, code=2)
    assert complaint in " ".join(refused.stderr.replace("│", " ").split())
    assert "Traceback" not in refused.output


def test_an_unknown_name_is_a_mistake(run: Command, named: str, agent_name: str) -> None:
    run("create", agent_name, "--spec", named)
    assert "no state is called 'full'" in run("explain", agent_name, "--state", "full", code=2).stderr


def test_a_continuing_task_shows_advantages_and_averages(run: Command, client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, "continuing-buffer")
    client.start_episode(agent_name, 0)
    shown = run("explain", agent_name, "--state", "0").stdout
    assert "state 0, step 0: epoch 1 plays action" in shown
    for words in ("advantage", "per step, on average: reward 0", "fast-service 0", "budgets as they are"):
        assert words in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80
