"""The whole service inside another program, for testbeds that want the network path too."""

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

import structlog

from safe_psrl_server.config import load_config
from safe_psrl_server.logs import set_up_logs
from safe_psrl_server.server import Server


class EmbeddedServer:
    """A context manager: `with EmbeddedServer() as server: Client(server.target)`.

    It listens on a free port of the loopback interface and keeps everything in memory, unless settings of `ServerConfig`
    say otherwise: `store="sqlite:DIR"`, `listen="unix:/tmp/s"`.
    """

    def __init__(self, store: str = "memory:", listen: str = "127.0.0.1:0", metrics: str = "", **settings: Any) -> None:
        self._config = load_config(None, {}, {"store": store, "listen": listen, "metrics": metrics, **settings})
        if not structlog.is_configured():
            set_up_logs(self._config.log_format, "warning")  # not on the host program's standard output
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="safe-psrl-server", daemon=True)

    @property
    def target(self) -> str:
        """Where to connect."""
        return self.server.target

    @property
    def metrics_port(self) -> int | None:
        return self.server.metrics_port

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # raised in the thread that uses the server
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.server = Server(self._config)
        await self.server.start()
        self._started.set()
        await self.server.until(self._stopping)
        await self.server.drain()
        self.server.raise_failure()
