"""The composition root: the connection, the pages, the web server. The only file that starts anything."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from nicegui import app, ui

from safe_psrl_client import AsyncClient
from safe_psrl_client.visible_text import visible
from safe_psrl_console.agent_page import agent_page
from safe_psrl_console.connection import Connection, watch
from safe_psrl_console.fleet import Fleet
from safe_psrl_console.fleet_page import fleet_page
from safe_psrl_console.layout import ICON
from safe_psrl_console.same_origin import HEADERS, SameOriginMiddleware

TIMEOUT = 5.0  # seconds for a call and its retries: a person is waiting
SHUTDOWN_SECONDS = 2  # for browsers to disconnect
KEEP_ALIVE_SECONDS = 5
MAX_CONNECTIONS = 512  # further requests get 503
MAX_MESSAGE_BYTES = 1024 * 1024  # from a browser


class Console:
    """Serves the pages on `listener`, which is bound, for browsers that know it by address, as localhost, or by one of `hosts`.

    `connect` returns a client of the service.
    """

    def __init__(self, connect: Callable[..., AsyncClient], listener: socket.socket, hosts: Iterable[str] = ()) -> None:
        self._connect = connect
        self._listener = listener
        self._hosts = tuple(hosts)

    def run(self, announce: Callable[[], None]) -> None:
        """Serve until SIGTERM or Ctrl-C. `announce` is called when the pages are served."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)  # called after the web server has stopped, which handles them first
        app.on_startup(self._start)
        app.on_startup(announce)
        app.on_shutdown(self._stop)
        app.add_middleware(SameOriginMiddleware, names=self._hosts)
        ui.page("/")(self._fleet_page)
        ui.page("/agent/{name:path}")(self._agent_page)
        ui.run(
            fd=self._listener.fileno(),
            title="Safe PSRL",
            favicon=ICON,
            dark=None,
            tailwind=False,
            reload=False,
            show=False,
            show_welcome_message=False,
            binding_refresh_interval=None,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            limit_concurrency=MAX_CONNECTIONS,
            ws_max_size=MAX_MESSAGE_BYTES,
            server_header=False,
            headers=list(HEADERS),
            uvicorn_logging_level="error",
        )

    async def _start(self) -> None:
        self._connection = Connection(self._connect(timeout=TIMEOUT, patience=TIMEOUT), Fleet())
        self._watching = asyncio.create_task(watch(self._connection))
        self._watching.add_done_callback(_report_failure)

    async def _stop(self) -> None:
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching
        await self._connection.client.close()

    def _fleet_page(self) -> None:
        fleet_page(self._connection)

    def _agent_page(self, name: str) -> None:
        agent_page(self._connection, visible(name))


def _report_failure(task: "asyncio.Task[None]") -> None:
    """`watch` ends only by a defect: stop the console rather than show stale figures as current."""
    if not task.cancelled() and task.exception() is not None:
        asyncio.get_running_loop().call_exception_handler({"message": "watch ended", "exception": task.exception()})
        app.shutdown()


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)
