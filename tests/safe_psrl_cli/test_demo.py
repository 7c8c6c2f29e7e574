"""The demonstration: a crash in the middle, nothing lost, and an honest exit code."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from safe_psrl_cli import demo_play
from safe_psrl_cli.main import app
from safe_psrl_client import Client

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent / "safe-psrl"


def test_it_kills_the_server_loses_nothing_and_can_leave_it_running(tmp_path: Path) -> None:
    """Exit code 0, a figure, and a summary that says what was compared; with --keep the service goes on answering."""
    command = [str(BIN), "demo", "--seconds", "6", "--out", str(tmp_path / "out"), "--store", str(tmp_path / "data"), "--keep"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = " ".join(ended.stdout.split())
    pid = int(re.search(r"to stop it: kill (\d+)", told).group(1))
    target = re.search(r"gRPC on (\S+),", told).group(1)
    try:
        summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
        assert summary["nothing_lost"]
        assert summary["equals_uninterrupted"]
        assert 0 < summary["killed_at_episode"] < summary["episodes"]
        assert summary["transitions"] == 10 * summary["episodes"]
        assert "Killed the server with SIGKILL" in told
        assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
        with Client(target) as client:
            assert client.get_agent("demo").status.transitions == summary["transitions"]
    finally:
        os.kill(pid, signal.SIGTERM)


def test_a_lost_step_is_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Were one acknowledged transition missing in the store, the comparison would say so."""
    finish = demo_play.TallyingAgent.finish

    def finish_with_one_more(agent: demo_play.TallyingAgent) -> None:
        finish(agent)
        agent.acknowledged[0, 0, 0] += 1

    monkeypatch.setattr(demo_play.TallyingAgent, "finish", finish_with_one_more)
    arguments = ["demo", "--seconds", "1", "--out", str(tmp_path / "out"), "--store", str(tmp_path / "data")]
    assert app(arguments, standalone_mode=False) == 1
    assert "DIFFERENT" in capsys.readouterr().out
    assert not json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))["nothing_lost"]


@pytest.mark.parametrize("missing", ["numba", "matplotlib"])
def test_a_missing_package_is_one_line_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, missing: str
) -> None:
    monkeypatch.setattr("safe_psrl_cli.demo.find_spec", lambda name: None if name == missing else object())
    with pytest.raises(SystemExit) as ended:
        app(["demo", "--out", str(tmp_path / "out")], standalone_mode=False)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"safe-psrl: the demo needs {missing}: pip install 'safe-psrl[demo]'\n"
    assert not (tmp_path / "out").exists()
