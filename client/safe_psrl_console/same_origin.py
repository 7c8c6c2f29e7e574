"""Accepts only requests that the console's own pages make, and tells browsers what those pages may do.

A page of another site cannot read the console or act through it: `Host` must be an address or a name of the console, which ends
DNS rebinding, and `Origin` must be the same host.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# NiceGUI's page has inline scripts and styles, and Vue compiles its templates in the browser.
POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)  # of every response
SAFE_METHODS: Final = {"GET", "HEAD"}


class SameOriginMiddleware:
    """Rejects requests for hosts other than the loopback interface, the address that was connected to, and `names`."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = {host_name(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None if scope["type"] == "lifespan" else self._problem(scope)
        if problem is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()  # websocket.connect
            await send({"type": "websocket.close"})  # before it is accepted: 403
        else:
            await PlainTextResponse(problem, 403)(scope, receive, send)

    def _problem(self, scope: Scope) -> str | None:
        """Why the request is rejected, or None."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._is_ours(hosts[0], scope):
            return "This host name is not the console's: --host adds a name.\n"
        if not origins:
            needed = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
            return "The request needs an Origin.\n" if needed else None
        if len(origins) > 1 or not self._is_same(origins[0], hosts[0]):
            return "The request comes from a page of another site.\n"
        return None

    def _is_ours(self, host: str, scope: Scope) -> bool:
        name = host_name(host)
        if name in self._names or name == "localhost":
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        here = scope["server"]  # the address that this connection came to
        return address.is_loopback or (here is not None and address == ip_address(here[0]))

    def _is_same(self, origin: str, host: str) -> bool:
        """A proxy may replace the host that the browser sees, which is then one of the names."""
        scheme, _, place = origin.partition("://")
        return scheme in {"http", "https"} and (place.lower() == host.lower() or host_name(place) in self._names)


def host_name(host: str) -> str:
    """Of HOST or HOST:PORT, in lower case; empty if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or "" if not set(host) & set("/?#@\\") else ""
    except ValueError:
        return ""
