"""`/metrics` and `/healthz` over HTTP or HTTPS, in threads of their own: a slow scraper delays no call.

Connections wait for their request on an event loop, where they cost no thread. Complete requests use a few worker threads.
When all connections are in use, a new one replaces the oldest that is waiting for its request, so that idle connections cannot
keep a scraper out.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

PLAIN = ("Content-Type", "text/plain; charset=utf-8")
WORKERS: Final = 8
MAX_CONNECTIONS: Final = 64
MAX_HEAD_BYTES: Final = 16 * 1024  # of the request line and the headers
READ_SECONDS: Final = 5.0  # for the TLS handshake, the request line and the headers
WRITE_SECONDS: Final = 10.0
ACCEPT_PAUSE_SECONDS: Final = 0.1  # after a failure, such as no free file descriptor
TOO_LARGE: Final = b"HTTP/1.0 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"


class _Listener(WSGIServer):
    """Holds the listening socket and the application; connections are accepted by `HttpEndpoint`."""

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], app: Callable[..., Iterable[bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Exchange)
        self.set_app(app)
        self.socket.setblocking(False)


class _Exchange(WSGIRequestHandler):
    """One request and its reply, from bytes to bytes."""

    def setup(self) -> None:
        self.rfile, self.wfile = BytesIO(self.request), BytesIO()

    def finish(self) -> None:
        """The reply stays readable."""

    @property
    def reply(self) -> bytes:
        return self.wfile.getvalue()  # type: ignore[attr-defined,no-any-return]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Scrapes are not logged."""


class HttpEndpoint:
    """Listens from `start` to `stop`. `may_scrape` receives the Authorization header. `tls` is called for each connection."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        is_ready: Callable[[], bool],
        may_scrape: Callable[[str], bool] = lambda _: True,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._address = address
        self._metrics = make_wsgi_app(registry)
        self._is_ready = is_ready
        self._may_scrape = may_scrape
        self._tls = tls
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="http")
        self._open: set[asyncio.Task[None]] = set()
        self._reading: dict[asyncio.Task[None], None] = {}  # in the order of their arrival
        self._writing: dict[asyncio.Task[None], None] = {}

    def start(self) -> int:
        """Returns the port, which the system chooses for 0. Raises OSError if it is in use."""
        self._listener = _Listener(self._address, self._respond)
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()
        return self._listener.server_port

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._accepting)
        finally:
            self._listener.server_close()
            self._workers.shutdown(wait=False, cancel_futures=True)  # a scrape may be waiting for the thread that stops us
            self._loop.close()

    async def _accept(self) -> None:
        try:
            while True:
                try:
                    connection, address = await self._loop.sock_accept(self._listener.socket)
                except OSError:
                    await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                if len(self._open) >= MAX_CONNECTIONS and not self._evict():
                    connection.close()
                    continue
                task = self._loop.create_task(self._serve(connection, address))
                self._open.add(task)
                self._reading[task] = None
                task.add_done_callback(self._forget)
                await asyncio.sleep(0)  # it has begun, and closes its connection if it is cancelled
        finally:
            rest = list(self._open)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    def _evict(self) -> bool:
        """Drop the oldest connection without a complete request, or else the oldest with a reader that is slow."""
        oldest = next(chain(self._reading, self._writing), None)
        if oldest is None:
            return False
        oldest.cancel()
        self._forget(oldest)
        return True

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._open.discard(task)
        self._reading.pop(task, None)
        self._writing.pop(task, None)

    async def _serve(self, connection: socket.socket, address: Any) -> None:
        """One request. Connections are not reused."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # for the type checker
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(READ_SECONDS):
                context = None if self._tls is None else self._tls()
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
                head = await _head(reader)
            self._reading.pop(task, None)
            reply = await self._loop.run_in_executor(self._workers, self._reply, head, address) if head else TOO_LARGE
            self._writing[task] = None
            async with asyncio.timeout(WRITE_SECONDS):
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                writer.write(reply)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError):  # time-outs, failed handshakes and broken connections are the peer's concern
            pass
        finally:
            if transport is not None:
                transport.abort()

    def _reply(self, head: bytes, address: Any) -> bytes:
        return _Exchange(head, address, self._listener).reply  # type: ignore[arg-type]  # bytes instead of a connection

    def _respond(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._scrape(environ, start_response)
        if path == "/healthz":
            ready = self._is_ready()
            start_response("200 OK" if ready else "503 Service Unavailable", [PLAIN])
            return [b"ok\n" if ready else b"not ready\n"]
        start_response("404 Not Found", [PLAIN])
        return [b"not found: the paths are /metrics and /healthz\n"]

    def _scrape(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if not self._may_scrape(environ.get("HTTP_AUTHORIZATION", "")):
            start_response("401 Unauthorized", [PLAIN, ("WWW-Authenticate", "Bearer")])
            return [b"needs a token that may read all agents\n"]
        try:
            choose_encoder(environ.get("HTTP_ACCEPT", ""))
        except (TypeError, ValueError):  # a version that is not a number
            del environ["HTTP_ACCEPT"]
        try:
            page: Iterable[bytes] = self._metrics(environ, start_response)
        except (TimeoutError, CancelledError):
            start_response("503 Service Unavailable", [PLAIN])
            return [b"the server is overloaded or stopping\n"]
        return page


async def _head(reader: asyncio.StreamReader) -> bytes:
    """The request line and the headers; what was sent if the peer ends its side early; empty if they are too large."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            raise
        return error.partial
    except asyncio.LimitOverrunError:
        return b""
