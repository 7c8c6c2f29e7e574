"""`simulate lte-cell` in short, where ns-3 is installed (`make lte`). The long run is described in docs/testbed.md."""

import importlib.util
import json
import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from safe_psrl_client import Client
from safe_psrl_testbed.lte.network_process import NetworkProcess
from safe_psrl_testbed.lte.settings import CellSettings
from tests.system.server_process import SCRIPT, NewServer, ServerProcess, show, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ns3") is None, reason="ns-3 is not installed: make lte"),
]

UES = 2
ALL_FAST = np.ones(UES, np.bool_)


def command(server: ServerProcess, episodes: int, *more: str) -> list[str]:
    sizes = ["--ues", str(UES), "--episodes", str(episodes)]
    return [*SCRIPT, "simulate", "lte-cell", "--target", server.target, "--json", *sizes, *more]


def test_agents_and_rules_play_the_cell(started_server: NewServer, tmp_path: Path) -> None:
    server = started_server()
    episodes, figure = 8, tmp_path / "lte.png"
    ended = subprocess.run(
        command(server, episodes, "--figure", str(figure)), capture_output=True, text=True, check=False, timeout=500
    )
    assert ended.returncode == 0, ended.stderr
    assert "Failed to materialize" not in ended.stderr  # what ns-3's compiler mutters is not for users
    summary = json.loads(ended.stdout)
    show(f"{summary['simulated_seconds']:.0f} s of network in {summary['seconds']:.0f} s")
    policies = summary["policies"]
    assert policies["always-slow"]["cost"] == 0
    assert policies["always-fast"]["cost"] == 10
    assert policies["fast-at-first"]["cost"] == 5
    assert policies["always-fast"]["stalls"] < policies["fast-at-first"]["stalls"] < policies["always-slow"]["stalls"]
    rows = {(row["service"], row["buffer"]): row["cell"] for row in summary["kernel"]}
    assert rows["fast", "empty"]["up"] > rows["slow", "empty"]["up"]  # the knob is one
    with Client(server.target) as client:
        for i in range(UES):
            status = client.get_agent(f"lte-{i + 1}").status
            assert (status.completed_episodes, status.transitions) == (episodes, episodes * 10)
        regrets = [status.constraints[0].constraint_regret for status in client.list_agents()]
    assert max(regrets) == policies["learned"]["constraint_regret"] == summary["agents_constraint_regret"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_rule_acts_until_the_agents_are_promoted(started_server: NewServer, tmp_path: Path) -> None:
    server, figure = started_server(), tmp_path / "lte.png"
    options = ["--shared", "--no-compare", "--shadow", "fast-below-half@3", "--figure", str(figure)]
    ended = subprocess.run(command(server, 5, *options), capture_output=True, text=True, check=False, timeout=500)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    played = {name: policy["episodes"] for name, policy in summary["policies"].items()}
    assert played == {"learned": 2, "in shadow": 3}
    assert "shadow episodes are completed" in summary["shadow"]["verdicts"]["lte"]
    with Client(server.target) as client:
        status = client.get_agent("lte").status
    assert (status.mode, status.shadow_episodes, status.completed_episodes) == ("live", 3 * UES, 2 * UES)
    assert status.constraints[0].constraint_regret == summary["agents_constraint_regret"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_cell_without_an_end_is_played_in_windows(started_server: NewServer, tmp_path: Path) -> None:
    server, figure, windows = started_server(), tmp_path / "lte.png", 20
    options = ["--continuing", "--no-compare", "--shadow", "fast-at-first@8", "--figure", str(figure)]
    ended = subprocess.run(command(server, windows, *options), capture_output=True, text=True, check=False, timeout=500)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["unit"], summary["policies"]["in shadow"]["cost"]) == ("window", 5)
    with Client(server.target) as client:
        for i in range(UES):
            found = client.get_agent(f"lte-{i + 1}", with_spec=True)
            assert found.spec.cmdp.continuing
            assert found.status.transitions == windows * 10
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_ends_the_network_and_tells(started_server: NewServer) -> None:
    server = started_server()
    with (
        Client(server.target, timeout=30) as client,
        subprocess.Popen(
            command(server, 100_000, "--shared", "--no-compare"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        wait_until(
            lambda: any(status.completed_episodes >= UES for status in client.list_agents()), 300, "an episode is played"
        )
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the networks' processes too
        told, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        summary = json.loads(told)
        assert summary["interrupted"]
        assert summary["agents"] == ["lte"]
        status = client.get_agent("lte").status
        assert summary["episodes"] * UES == status.completed_episodes
        assert summary["agents_constraint_regret"] == status.constraints[0].constraint_regret
        wait_until(lambda: not _group_lives(process.pid), 30, "no process of the simulation is left")


def test_ues_that_join_take_capacity() -> None:
    """Media with a guaranteed rate arrives more slowly once more such streams share the cell."""
    epochs, settings = 60, CellSettings(ues=UES, joining_ues=6, joining_epoch=60)
    with closing(NetworkProcess(settings)) as network:
        before, _, after = (sum(sum(network.advance(ALL_FAST)) for _ in range(epochs)) for _ in range(3))
    show(f"{before / epochs / UES:.2f} units an epoch before, {after / epochs / UES:.2f} after")
    assert after < 0.8 * before


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
