"""The service as a child process: to start it, to kill it without mercy, and to start it again."""

import contextlib
import http.client
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

START_SECONDS = 180.0  # the very first start compiles the kernels


class ServerProcess:
    """`safe-psrl serve` on fixed ports of the loopback interface, with its store and log in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "server.log"
        self._port, self._http_port = _free_port(), _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._http_port}/metrics"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> float:
        """Start, wait until it is healthy, return the seconds that it took. Raises RuntimeError with the log's last line."""
        self.directory.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "safe_psrl_cli.main", "serve", "--listen", self.target]
        command += ["--metrics", f"127.0.0.1:{self._http_port}", "--store", f"sqlite:{self.directory / 'store'}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own command; it may outlive this one, so it shares nothing with it
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() - began > START_SECONDS:
                self.kill()
                lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() or ["it said nothing"]
                raise RuntimeError(f"the server did not start: {lines[-1]}")
            time.sleep(0.05)
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: no chance to save anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: finish calls, take snapshots, leave. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        return self._process.wait()

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=1.0)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
