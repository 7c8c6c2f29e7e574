"""Ctrl-C on the real command, at a terminal, with its processes."""

import csv
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # whole processes, which load their kernels
COMMAND = Path(sys.executable).parent / "safe-psrl"
EPISODES = 1_000_000_000
DEADLINE = 120  # seconds


class Terminal:
    """`safe-psrl` at a terminal of its own, whose Ctrl-C reaches the command and all its processes."""

    def __init__(self, *arguments: str) -> None:
        self.deadline = time.monotonic() + DEADLINE
        self.seen = ""
        self._screen, screen = os.openpty()
        self.process = subprocess.Popen(
            [COMMAND, *arguments],
            stdout=screen,
            stderr=screen,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "120", "TERM": "xterm"},
        )
        os.close(screen)

    def wait_until(self, pattern: str) -> None:
        """Read on until the screen has shown `pattern`."""
        while not re.search(pattern, self.seen):
            assert self._read(), f"ended without showing {pattern}:\n{self.seen}"

    def wait_until_processes_start(self, number: int) -> None:
        """Read on until that many processes of the pool are there; they take a second to be ready."""
        while self._pool_size() < number:
            assert self._read(), f"ended without processes:\n{self.seen}"

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def wait_for_end(self) -> int:
        while self._read():
            pass
        return self.process.wait(self._left())

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._screen)

    def _pool_size(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii").split()
        lines = [Path(f"/proc/{child}/cmdline") for child in children]
        return sum(b"spawn_main" in line.read_bytes() for line in lines if line.exists())

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        assert left > 0, f"took too long:\n{self.seen}"
        return left

    def _read(self) -> bool:
        """Wait for more on the screen, where a bar moves ten times a second; False if it was closed."""
        ready, _, _ = select.select([self._screen], [], [], self._left())
        if not ready:
            return True
        try:
            text = os.read(self._screen, 65536).decode(errors="replace")
        except OSError:  # all who wrote to the terminal are gone
            return False
        self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        return bool(text)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(
        *("experiment", "factored-toy", "--episodes", str(EPISODES), "--seeds", "3", "--jobs", "2", "--out", str(tmp_path))
    )
    yield opened
    opened.close()


def test_ctrl_c_leaves_complete_files_of_what_was_done(terminal: Terminal, tmp_path: Path) -> None:
    """Two of three runs are under way; the third never begins."""
    terminal.wait_until(rf"[1-9][\d,]+/{3 * EPISODES:,}")
    terminal.press_ctrl_c()
    assert terminal.wait_for_end() == 130, terminal.seen
    assert "Traceback" not in terminal.seen
    assert terminal.seen.rstrip().endswith("safe-psrl: stopped")
    files = {path.name for path in tmp_path.iterdir()} - {"checkpoints"}
    assert files == {"average_regret.png", "comparison.md", "cumulative_regret.png", "results.csv", "summary.json"}
    assert (tmp_path / "checkpoints").is_dir()
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["interrupted"]
    assert summary["requested_episodes"] == EPISODES
    assert 1 <= summary["episodes"] < EPISODES
    assert 1 <= summary["seeds"] <= 2
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert all(None not in row.values() for row in rows)
    assert {row["seed"] for row in rows} <= {"1", "2"}
    last = max(int(row["episode"]) for row in rows)
    assert summary["episodes"] <= last < EPISODES
    for name in ("average_regret.png", "cumulative_regret.png"):
        assert b"IEND" in (tmp_path / name).read_bytes()[-12:]


def test_ctrl_c_while_the_processes_start_is_as_gentle(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_until_processes_start(2)
    terminal.press_ctrl_c()
    assert terminal.wait_for_end() == 130, terminal.seen
    assert "Traceback" not in terminal.seen
    assert "safe-psrl: stopped" in terminal.seen
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
