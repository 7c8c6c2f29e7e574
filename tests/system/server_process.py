"""`safe-psrl serve` as a process that can be started, killed and started again on the same port and directory."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from safe_psrl_proto.v1 import admin_pb2_grpc, control_pb2_grpc

SCRIPT: Final = (str(Path(sys.executable).parent / "safe-psrl"),)
START_SECONDS: Final = 180.0  # kernels may have to be compiled, and the machine may be busy
SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
CHANNEL: Final = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100))

T = TypeVar("T")


class ServerProcess:
    """One server. `settings` go into its configuration file; `command` is what stands before `serve`."""

    def __init__(
        self, root: Path, *, command: Sequence[str] = SCRIPT, metrics: bool = False, settings: str = "", listen: str = ""
    ) -> None:
        root.mkdir()
        self.data = root / "data"
        self.target = listen or f"127.0.0.1:{reserved_port()}"
        self.metrics = f"127.0.0.1:{reserved_port()}" if metrics else ""
        self.store = f"sqlite:{self.data}"
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.preexec: Callable[[], None] | None = None  # runs in the child before the server
        self._root = root
        self._command = command
        self._config = root / "config.toml"
        self._config.write_text(settings, encoding="utf-8")
        self.channel = grpc.insecure_channel(self.target, CHANNEL)
        self.control = control_pb2_grpc.ControlServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    # --- life

    def spawn(self) -> None:
        """Begin to start; see `wait_until_serving`."""
        assert self.process is None, "it runs already"
        self.starts += 1
        address = ["--listen", self.target, "--metrics", self.metrics, "--store", self.store]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command, "serve", "--config", self._config, "--log-format", "json", *address],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("SAFE_PSRL_")},
                preexec_fn=self.preexec,  # noqa: PLW1509  # sets limits only
            )

    def start(self) -> float:
        """Start, and return the seconds until it serves."""
        began = time.monotonic()
        self.spawn()
        self.wait_until_serving()
        return time.monotonic() - began

    def wait_until_serving(self) -> None:
        def is_serving() -> bool:
            assert self.running.poll() is None, f"the server ended with {self.running.returncode}: {self.log}"
            return self.health_of("") == SERVING

        wait_until(is_serving, START_SECONDS, "the server serves")

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        self.running.send_signal(number)

    def wait(self, seconds: float = 60.0) -> int:
        """The exit code of a server that ends by itself within `seconds`."""
        code = self.running.wait(seconds)
        self.process = None
        return code

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        self.channel.close()

    # --- looking at it

    @property
    def running(self) -> "subprocess.Popen[bytes]":
        assert self.process is not None, "it is not running"
        return self.process

    @property
    def log(self) -> str:
        """What it wrote since its last start."""
        return self._log.read_text(encoding="utf-8")

    @property
    def _log(self) -> Path:
        return self._root / f"log-{self.starts}"

    def health_of(self, service: str) -> int | None:
        """The status of its health service; None if it does not respond."""
        with contextlib.suppress(grpc.RpcError):
            return self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status
        return None

    def http(self, path: str) -> tuple[int, str]:
        """Status and body of a page of its metrics address; 0 if it does not respond."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.running.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


NewServer = Callable[..., ServerProcess]  # the fixtures `new_server` and `started_server`


def reserved_port() -> int:
    """A port of the loopback interface that stays bound to this process, so that the system gives it to nothing else.

    It does not listen: a server that sets SO_REUSEADDR, as all here do, can bind the port as well, and again after a restart.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        holder.detach()
    return port


def counter(page: str, name: str) -> float:
    """The value of `safe_psrl_NAME`, which has no labels, in a page of metrics."""
    (value,) = [line.split()[1] for line in page.splitlines() if line.startswith(f"safe_psrl_{name} ")]
    return float(value)


def wait_until(condition: Callable[[], T], seconds: float, what: str) -> T:
    """The first true value of `condition`; AssertionError if there is none for so long."""
    until, pause = time.monotonic() + seconds, Event()
    while not (found := condition()):
        assert time.monotonic() < until, f"for {seconds:g} seconds it did not happen that {what}"
        pause.wait(0.01)
    return found


# A stopping gRPC server ends the calls that it has not begun with CANCELLED.
GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def insist(method: Callable[..., T], request: Any, seconds: float = START_SECONDS) -> T:
    """The reply, however often the server goes away meanwhile: such a call is repeated, any other failure is raised."""
    until, pause = time.monotonic() + seconds, Event()
    while True:
        try:
            return method(request, timeout=until - time.monotonic(), wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() not in GONE:
                raise
        pause.wait(0.01)


def show(line: str) -> None:
    """A measured figure, for those who run pytest with -rP."""
    print(line)  # noqa: T201
