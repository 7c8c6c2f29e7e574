"""The console shows its credentials like every client, and is refused without them."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from threading import Event
from typing import Any

import pytest

BIN = Path(sys.executable).parent / "safe-psrl"
WATCHES = re.compile(r'grpc_server_msg_sent_total{.*"WatchAgents".*} (\S+)')
REFUSED = re.compile(r'safe_psrl_rejections_total{reason="CREDENTIAL_MISSING"} (\S+)')


def counted(port: int, sample: re.Pattern[str]) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        found = sample.search(page.read().decode())
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(("with_token", "grows"), [(True, WATCHES), (False, REFUSED)], ids=["token", "none"])
def test_a_console_watches_with_its_token_only(guarded: Any, tmp_path: Path, with_token: bool, grows: re.Pattern[str]) -> None:
    """Told by the service's own counters: replies to its watch, or refusals."""
    (tmp_path / "token").write_text(guarded.tokens["admin"], encoding="utf-8")
    before = {sample: counted(guarded.server.metrics_port, sample) for sample in (WATCHES, REFUSED)}
    command = [BIN, "console", "--target", guarded.target, "--listen", "127.0.0.1:0"]
    command += ["--token-file", tmp_path / "token"] if with_token else []
    outside = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # NiceGUI looks for it
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=outside) as process:
        until = time.monotonic() + 60
        while counted(guarded.server.metrics_port, grows) == before[grows]:
            assert time.monotonic() < until, "the console does not reach the service"
            assert process.poll() is None, "the console has ended"
            Event().wait(0.1)
        process.send_signal(signal.SIGTERM)
    other = REFUSED if grows is WATCHES else WATCHES
    assert counted(guarded.server.metrics_port, other) == before[other]
