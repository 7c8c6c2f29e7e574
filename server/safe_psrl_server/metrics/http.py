"""`/metrics` and `/healthz` over HTTP, each request in its own thread: a slow scraper delays no call."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer, choose_encoder

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

PLAIN = ("Content-Type", "text/plain; charset=utf-8")


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Scrapes are not logged."""


class HttpEndpoint:
    """Listens from `start` to `stop`. `may_scrape` receives the Authorization header."""

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        is_ready: Callable[[], bool],
        may_scrape: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._address = address
        self._metrics = make_wsgi_app(registry)
        self._is_ready = is_ready
        self._may_scrape = may_scrape

    def start(self) -> int:
        """Returns the port, which the system chooses for 0. Raises OSError if it is in use."""
        self._server = make_server(*self._address, self._respond, ThreadingWSGIServer, _QuietHandler)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()
        return self._server.server_port

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

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
