"""The service and the console as child processes that choose their own ports and report them in their logs."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

START_SECONDS: Final = 180.0  # the very first start compiles the kernels
CONSOLE_START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.05
ANY_PORT: Final = "127.0.0.1:0"


class ChildProcess:
    """`safe-psrl COMMAND …` in its own session, so that Ctrl-C does not reach it, with its output in the file `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if it does not end; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _spawn(self, arguments: list[str], ready: str, seconds: float) -> str:
        """Start, and wait for the first line of output that matches `ready`. Raises RuntimeError with the last line."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + seconds
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(  # noqa: S603  # our own command
                [sys.executable, "-m", "safe_psrl_cli.main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while True:
            ended = self._process.poll() is not None
            output = self.log.read_bytes()[begin:].decode(errors="replace")
            for line in output.splitlines(keepends=True):
                if line.endswith("\n") and re.search(ready, line):
                    return line
            if ended or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{arguments[0]} did not start: {(output.splitlines() or ['no output'])[-1]}")
            time.sleep(POLL_SECONDS)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class ServerProcess(ChildProcess):
    """`safe-psrl serve` with its store and log in `directory`. A restart listens on the same ports.

    `warm_up` is the setting of that name: the method whose kernels are loaded before the service is ready. `settings` are
    those of a configuration file.
    """

    def __init__(self, directory: Path, *, warm_up: str = "all", store: str = "", settings: str = "") -> None:
        super().__init__(directory / "server.log")
        self.directory, self._warm_up = directory, warm_up
        self.store = store or f"sqlite:{directory / 'store'}"
        self._config = directory / "config.toml"
        self._settings = settings
        self.target = ANY_PORT
        self._metrics = ANY_PORT

    @property
    def metrics_url(self) -> str:
        return f"http://{self._metrics}/metrics"

    def start(self) -> float:
        """Start, wait until it serves, return the seconds that it took."""
        began = time.monotonic()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text(self._settings, encoding="utf-8")
        addresses = ["--listen", self.target, "--metrics", self._metrics, "--store", self.store]
        options = ["--config", str(self._config), "--log-format", "json", "--warm-up", self._warm_up]
        line = self._spawn(["serve", *options, *addresses], '"event": "serving"', START_SECONDS)
        serving = json.loads(line)
        self.target, self._metrics = serving["target"], f"127.0.0.1:{serving['metrics']}"
        return time.monotonic() - began


class ConsoleProcess(ChildProcess):
    """`safe-psrl console` for the service at `target`."""

    def __init__(self, target: str, log: Path) -> None:
        super().__init__(log)
        self._target = target

    def start(self) -> str:
        """Its address. Raises RuntimeError if it cannot start."""
        if find_spec("nicegui") is None:
            raise RuntimeError("it needs nicegui: pip install 'safe-psrl[console]'")
        line = self._spawn(["console", "--target", self._target, "--listen", ANY_PORT], "http://", CONSOLE_START_SECONDS)
        return next(word for word in line.split() if word.startswith("http://"))
