"""`safe-psrl agent export --transitions`: what an agent saw is a log that another one begins with."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typer.testing import Result

from safe_psrl_client import Client, Transition
from tests.safe_psrl_cli.test_command_agent import command
from tests.safe_psrl_server.specs import make_spec

Command = Callable[..., Result]


@pytest.fixture
def run(server: str) -> Command:
    return partial(command, server)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_log_of_an_agent_warms_another(run: Command, client: Client, agent_name: str, tmp_path: Path, kind: str) -> None:
    """The same counts, and what was corrected is written as corrected."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    client.create_agent(agent_name, make_spec(learned=True))
    for number in (1, 2, 3):
        client.start_episode(agent_name, 0)
        moves = [Transition(0, 1, 2, 0.5, (0.25, 0.0)), Transition(2, 0, 0, 0.0, (0.0, 1.0)), Transition(0, 0, 0, 1.0, (0, 0))]
        client.report_episode(agent_name, number, moves)
    client.correct_signal(agent_name, 3, 0, reward=0.75)
    file = tmp_path / f"seen.{kind}"
    assert f"wrote {file} (9 transitions)" in run("export", agent_name, "--transitions", str(file)).stdout.replace("\n", "")
    spec, other = tmp_path / "spec.json", f"{agent_name[:100]}-2"
    spec.write_text(json.dumps(json.loads(run("show", agent_name, "--spec", "--json").stdout)["spec"]), encoding="utf-8")
    run("create", other, "--spec", str(spec), "--from-log", str(file))
    assert client.get_posterior(other).counts == client.get_posterior(agent_name).counts
    warm = client.get_agent(other, with_spec=True).spec.warm_start
    assert (warm.rows, sum(warm.signal_sums.values)) == (9, pytest.approx(3 * (0.5 + 0.25 + 1.0 + 1.0) + 0.25))


def test_what_snapshots_dropped_is_counted(run: Command, client: Client, agent_name: str, tmp_path: Path) -> None:
    """An import is a snapshot: it has its kept episodes only."""
    client.create_agent(agent_name, make_spec())
    for number in (1, 2, 3):
        client.start_episode(agent_name, 0)
        client.report_episode(agent_name, number, [Transition(0, 1, 0)] * 3)
    other, file = f"{agent_name[:100]}-2", tmp_path / "seen.csv"
    client.import_agent(other, client.export_agent(agent_name))
    written = json.loads(run("export", other, "--transitions", str(file), "--json").stdout)
    assert (written["rows"], written["dropped"]) == (3 * len(file.read_text().split("\n")[1:-1]) // 3, 9 - written["rows"])
    assert 0 < written["rows"] < 9
    assert "older ones are only kept as counts" in run("export", other, "--transitions", str(file)).stdout


def test_one_file_is_written_and_of_a_known_kind(run: Command, client: Client, agent_name: str, tmp_path: Path) -> None:
    client.create_agent(agent_name, make_spec())
    assert "give either FILE or" in run("export", agent_name, code=2).stderr
    refused = run("export", agent_name, "--transitions", str(tmp_path / "seen.xls"), code=2)
    assert "must be a file of .csv, .jsonl, .parquet" in refused.stderr
    assert list(tmp_path.iterdir()) == []
