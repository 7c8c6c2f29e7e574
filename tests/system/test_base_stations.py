"""`simulate base-stations` against a real server that is killed meanwhile: what was learned is what happened, once."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from safe_psrl_client import Client
from tests.system.server_process import SCRIPT, NewServer, ServerProcess, show, wait_until

pytestmark = pytest.mark.slow

CELLS, DEVICES = 4, 24


def command(server: ServerProcess, episodes: int, *more: str) -> list[str]:
    sizes = ["--cells", str(CELLS), "--devices", str(DEVICES), "--episodes", str(episodes)]
    return [*SCRIPT, "simulate", "base-stations", "--target", server.target, "--patience", "180", "--json", *sizes, *more]


def completed(client: Client) -> int:
    return sum(status.completed_episodes for status in client.list_agents())


def test_a_server_that_is_killed_is_a_pause(started_server: NewServer, tmp_path: Path) -> None:
    server = started_server()
    episodes, figure = 25, tmp_path / "figures" / "stations.png"
    with Client(server.target, timeout=30, patience=180) as client:
        with subprocess.Popen(
            command(server, episodes, "--figure", str(figure)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_until(lambda: completed(client) >= 2 * DEVICES, 120, "two rounds of episodes are played")
            server.kill()
            server.start()
            told, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        summary = json.loads(told)
        show(f"{summary['steps_per_second']:,.0f} steps/s, with a kill and a restart")
        statuses = list(client.list_agents())
        assert len(statuses) == CELLS
        assert sum(status.completed_episodes for status in statuses) == episodes * DEVICES
        assert sum(status.transitions for status in statuses) == summary["steps"] == episodes * DEVICES * 10
        regrets = [status.constraints[0].constraint_regret for status in statuses]
        assert max(regrets) == pytest.approx(summary["agents_constraint_regret"])
    assert summary["handovers"] > 0
    assert set(summary["policies"]) == {"learned", "always-slow", "always-fast", "fast-below-half", "fast-at-first"}
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_tells_what_was_done_and_the_next_run_goes_on(started_server: NewServer) -> None:
    server = started_server()
    with Client(server.target, timeout=30) as client:
        with subprocess.Popen(command(server, 1_000_000), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: completed(client) >= DEVICES, 120, "a round of episodes is played")
            os.kill(process.pid, signal.SIGINT)
            told, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert json.loads(told)["interrupted"]
        done = completed(client)
        ended = subprocess.run(command(server, 2), capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == 0, ended.stderr
        assert completed(client) == done + 2 * DEVICES
