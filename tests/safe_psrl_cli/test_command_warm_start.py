"""`safe-psrl agent create` with --from-log, --from-agent and --from-fleet."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import Result

from safe_psrl_client import Client, RemoteAgent, play
from safe_psrl_testbed import scenario_named
from tests.safe_psrl_cli.test_command_agent import Command, command

TOY = ("--preset", "factored-toy")


@pytest.fixture
def run(server: str) -> Command:
    return partial(command, server)


def counted(client: Client, name: str) -> float:
    return sum(client.get_agent(name, with_spec=True).spec.warm_start.transition_counts.values)


def learned(client: Client, name: str, episodes: int) -> None:
    client.create_agent(name, "factored-toy")
    play(scenario_named("factored-toy").environment(1), RemoteAgent(client, name), episodes=episodes)


def test_from_a_log(run: Command, client: Client, agent_name: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("s,action,next_state\n0,0,0\n0,0,0\n9,0,0\n", encoding="utf-8")
    create = ("create", agent_name, *TOY, "--from-log", str(file), "--columns", "state=s", "--weight", "0.5")
    refused: Result = run(*create, code=2)
    assert "1 of 3 rows contradict the specification; row 3: state must be from 0 to" in " ".join(refused.stderr.split())
    assert "left out" in run(*create, "--skip-bad").stderr
    assert "already exists, with the same definition" in run(*create, "--skip-bad").stdout
    origin = client.get_agent(agent_name, with_spec=True).spec.warm_start
    assert (origin.source, origin.rows, origin.weight, counted(client, agent_name)) == ("log.csv", 2, 0.5, 1.0)
    assert "as stored" in run("verify", agent_name).stdout
    assert "began with      log.csv: 2 transitions of weight 0.5" in run("show", agent_name).stdout


def test_from_a_parquet_log(run: Command, client: Client, agent_name: str, tmp_path: Path) -> None:
    file = tmp_path / "log.parquet"
    parquet.write_table(pa.table({"s": [0, 0, 1], "action": [0, 0, 1], "next_state": [0, 0, 2]}), file)
    run("create", agent_name, *TOY, "--from-log", str(file), "--columns", "state=s", "--weight", "0.5")
    origin = client.get_agent(agent_name, with_spec=True).spec.warm_start
    assert (origin.source, origin.rows, counted(client, agent_name)) == ("log.parquet", 3, 1.5)


def test_from_an_agent_and_from_a_fleet(run: Command, client: Client, agent_name: str) -> None:
    base = agent_name[:80]
    learned(client, f"{base}/1", 2)
    learned(client, f"{base}/2", 4)
    one = client.get_agent(f"{base}/1").status.transitions
    two = client.get_agent(f"{base}/2").status.transitions
    run("create", f"{base}-a", *TOY, "--from-agent", f"{base}/1")
    assert counted(client, f"{base}-a") == one > 0
    run("create", f"{base}-f", *TOY, "--from-fleet", f"{base}/*", "--weight", "0.5")
    assert counted(client, f"{base}-f") == pytest.approx((one + two) / 4)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--from-agent", "a", "--from-fleet", "b"), "give one of"),
        (("--from-fleet", "none/*"), "no agent matches"),
        (("--from-agent", "none"), "no agent"),
        (("--skip-bad",), "are for --from-log"),
        (("--weight", "0.5"), "give --from-log, --from-agent or --from-fleet, too"),
        (("--from-log", "absent.csv"), "No such file"),
        (("--from-log", __file__), "must be a file of"),
    ],
)
def test_mistakes(run: Command, agent_name: str, options: tuple[str, ...], reason: str) -> None:
    assert reason in " ".join(run("create", agent_name, *TOY, *options, code=2).stderr.replace("│", " ").split())
