"""`safe-psrl simulate`: agents are created, played in every mode, and told about."""

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from safe_psrl import SafePsrl, SafePsrlOptions, SimulatedRun, exact_optimum
from safe_psrl_cli.simulate import simulate
from safe_psrl_client import Client
from safe_psrl_client.agent import MODES
from safe_psrl_testbed import Scenario, scenario_named
from tests.service_fixtures import Command

app = typer.Typer()
app.command("simulate")(simulate)


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("mode", MODES)
def test_one_agent_learns_as_the_library_does(
    server: str, client: Client, agent_name: str, mode: str, buffer: Scenario
) -> None:
    client.create_agent(agent_name, "streaming-buffer", seed=5, options={"method": "published"})
    arguments = ("streaming-buffer", "--target", server, "--agent", agent_name, "--episodes", "20", "--mode", mode)
    summary = json.loads(run(*arguments, "--seed", "5", "--json").stdout)
    library = SimulatedRun(
        SafePsrl(buffer.spec, SafePsrlOptions("published"), seed=5), buffer.transitions_for(5), environment_seed=5
    )
    library.advance(20)
    (agent,) = summary["agents"]
    assert agent["agent"] == agent_name
    assert agent["episodes"] == summary["episodes"] == 20
    assert agent["constraints"][0]["dual_variable"] == library.dual_variables[0]
    if mode == "local":
        assert summary["regret"] == "exact"
        assert agent["objective_regret"] == pytest.approx(library.ledger.objective_regret[0], abs=1e-9)
    else:
        assert summary["regret"] == "realised"


@pytest.mark.parametrize("mode", MODES)
def test_the_world_changes_while_an_agent_plays(
    server: str, client: Client, agent_name: str, mode: str, buffer: Scenario
) -> None:
    """The agent is the service's; the environment, its optimum and the totals since are those of the new world."""
    client.create_agent(agent_name, "streaming-buffer", seed=5, options={"method": "published"})
    arguments = ("streaming-buffer", "--target", server, "--agent", agent_name, "--episodes", "30", "--mode", mode)
    later = scenario_named("streaming-buffer:departure=0.1")
    summary = json.loads(run(*arguments, "--then", f"{later.name}@20", "--seed", "5", "--json").stdout)
    library = SimulatedRun(
        SafePsrl(buffer.spec, SafePsrlOptions("published"), seed=5), buffer.transitions_for(5), environment_seed=5
    )
    library.advance(20)
    before = float(library.ledger.objective_regret[0])
    library.move_to(later.transitions_for(5))
    library.advance(10)
    (agent,) = summary["agents"]
    since = agent["since_change"]
    assert summary["changes"] == [{"after_episodes": 20, "environment": later.name}]
    assert (agent["episodes"], since["episodes"]) == (30, 10)
    assert agent["drift_detections"] == client.get_agent(agent_name).status.drift_detections
    assert agent["optimum"]["reward"] == exact_optimum(buffer.spec, later.transitions_for(5)).reward
    assert agent["constraints"][0]["dual_variable"] == library.dual_variables[0]
    if mode == "local":
        assert agent["objective_regret"] == pytest.approx(library.ledger.objective_regret[0], abs=1e-9)
        assert since["objective_regret"] == pytest.approx(library.ledger.objective_regret[0] - before, abs=1e-9)


@pytest.mark.slow
def test_a_served_agent_detects_the_change(server: str, agent_name: str) -> None:
    arguments = ("streaming-buffer", "--target", server, "--agent", agent_name, "--create", "--mode", "local")
    then = ("--then", "streaming-buffer:departure=0.2@600")
    before = json.loads(run(*arguments, "--episodes", "10", "--json").stdout)["agents"][0]
    after = json.loads(run(*arguments, "--episodes", "900", *then, "--json").stdout)["agents"][0]
    assert before["drift_detections"] == 0
    assert after["drift_detections"] >= 1
    shown = run(*arguments, "--episodes", "1").stdout
    assert f"has detected drift {after['drift_detections']} times." in shown


def test_a_change_is_shown_in_the_table(server: str) -> None:
    then = ("--then", "streaming-buffer:departure=0.5@3")
    arguments = ("streaming-buffer", "--target", server, "--agent", "changing", "--episodes", "5", "--create")
    shown = run(*arguments, *then).stdout
    assert "since the change" in shown
    assert "The environment changes to streaming-buffer:departure=0.5 after 3 episodes." in shown
    assert "since the change" not in run(*arguments, "--walk", "departure=0.1@2").stdout


def test_several_agents_play_concurrently_and_are_shown_in_a_table(server: str, agent_name: str, client: Client) -> None:
    name = agent_name[:40]
    arguments = ("inventory", "--target", server, "--agent", name, "--episodes", "5", "--parallel", "3", "--mode", "stream")
    told = run(*arguments, "--create").stdout
    assert "inventory: 15 episodes" in told
    assert "Exact optimum" in told
    for i in (1, 2, 3):
        assert client.get_agent(f"{name}-{i}").status.completed_episodes == 5


def test_a_continuing_task_is_counted_in_steps_and_epochs(server: str, agent_name: str, safe_psrl: Command) -> None:
    shown = run("continuing-buffer", "--target", server, "--agent", agent_name, "--create", "--episodes", "300").stdout
    assert "300 steps in" in shown
    assert "episode" not in shown
    agent = safe_psrl("agent", "show", agent_name, "--target", server).out
    assert "epochs completed" in agent or re.search(r"mean cost of the last \d+ epochs", agent)
    assert "0.5 a step" in agent
    assert "episode" not in agent


def test_it_continues_an_existing_agent(server: str, agent_name: str, client: Client) -> None:
    client.create_agent(agent_name, "factored-toy")
    client.start_episode(agent_name, 0)
    run("factored-toy", "--target", server, "--agent", agent_name, "--episodes", "2")
    assert client.get_agent(agent_name).status.episode == 3


def test_mistakes_have_code_2(server: str, agent_name: str, client: Client) -> None:
    missing = run("factored-toy", "--target", server, "--agent", agent_name, code=2)
    assert f"there is no agent {agent_name}: correct --agent, or add --create" in missing.stderr
    assert agent_name not in [status.agent for status in client.list_agents()]
    client.create_agent(agent_name, "factored-toy")
    other = run("inventory", "--target", server, "--agent", agent_name, code=2)
    assert "is not for" in other.stderr


def test_ctrl_c_reports_the_results_so_far(server: str, agent_name: str) -> None:
    script = "import typer; from safe_psrl_cli.simulate import simulate; a = typer.Typer(); a.command()(simulate); a()"
    arguments = ["factored-toy", "--target", server, "--agent", agent_name, "--episodes", "1000000", "--create", "--json"]
    with (
        Client(server) as client,
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process,
    ):
        for reply in client.watch_agents(interval=0.1, timeout=60):
            if any(status.agent == agent_name and status.completed_episodes >= 3 for status in reply.agents):
                break
        os.kill(process.pid, signal.SIGINT)
        told, _ = process.communicate(timeout=30)
        assert process.returncode == 130
        summary = json.loads(told)
        assert summary["interrupted"]
        assert summary["episodes"] == client.get_agent(agent_name).status.completed_episodes


@pytest.mark.parametrize(
    "command", [["streaming-buffer", "--agent", "a"], ["lte-cell"], ["base-stations"]], ids=lambda one: one[0]
)
def test_a_service_that_is_missing_is_reported_before_kernels_are_loaded(command: list[str]) -> None:
    script = """
import sys
sys.modules["numba"] = None  # importing it fails
from safe_psrl_cli.main import main
main()
"""
    arguments = [sys.executable, "-c", script, "simulate", *command, "--target", "127.0.0.1:1"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "safe-psrl: no service at 127.0.0.1:1: start it with safe-psrl serve"
