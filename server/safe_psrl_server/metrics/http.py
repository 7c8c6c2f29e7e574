"""`/metrics` and `/healthz` over HTTP, in a thread of their own: a slow scraper delays no call."""

import gzip
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer, gzip_accepted

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

PLAIN = ("Content-Type", "text/plain; charset=utf-8")
FAST = 1  # level of compression
Page = Callable[[str], tuple[str, bytes]]  # from what is accepted to content type and body


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the base class's
        """Scrapes are not lifecycle events."""


class HttpEndpoint:
    """Listens from `start` to `stop`."""

    def __init__(
        self, host: str, port: int, page: Page, is_ready: Callable[[], bool], may_scrape: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._address = host, port
        self._page = page
        self._is_ready = is_ready
        self._may_scrape = may_scrape  # with the header Authorization

    def start(self) -> int:
        """Returns the port, which the system chooses for 0. Raises OSError if it is taken."""
        host, port = self._address
        self._server = make_server(host, port, self._answer, ThreadingWSGIServer, _QuietHandler)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()
        return self._server.server_port

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path == "/healthz":
            ready = self._is_ready()
            start_response("200 OK" if ready else "503 Service Unavailable", [PLAIN])
            return [b"ok\n" if ready else b"not ready\n"]
        start_response("404 Not Found", [PLAIN])
        return [b"there are /metrics and /healthz\n"]

    def _metrics(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if not self._may_scrape(environ.get("HTTP_AUTHORIZATION", "")):
            start_response("401 Unauthorized", [PLAIN, ("WWW-Authenticate", "Bearer")])
            return [b"a token is needed that may read all agents\n"]
        try:
            content_type, body = self._page(environ.get("HTTP_ACCEPT", ""))
        except (TimeoutError, CancelledError):
            start_response("503 Service Unavailable", [PLAIN])
            return [b"the server is too busy, or stopping\n"]
        headers = [("Content-Type", content_type)]
        if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
            body = gzip.compress(body, FAST)
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", headers)
        return [body]
