"""Who may use the console: its own pages, under its own names. Real HTTP to a console in its own process."""

import http.client
import socket
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.safe_psrl_console.conftest import BIN, running_console

SOCKET_IO = "/_nicegui_ws/socket.io/?EIO=4&transport="
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_console("127.0.0.1:1", "--host", "Console.Example") as url:
        yield urlsplit(url).port


def reply(port: int, method: str, path: str, host: str, **headers: str | None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": host.replace("PORT", str(port)), **headers}.items():
            if value is not None:
                connection.putheader(name, value.replace("PORT", str(port)))
        connection.endheaders()
        response = connection.getresponse()
        if response.status != 101:
            response.read()
        return response
    finally:
        connection.close()


OURS = ["127.0.0.1:PORT", "localhost:PORT", "LOCALHOST", "[::1]:PORT", "127.0.0.2", "console.example", "console.example:8443"]
OTHERS = [
    "rebound.example:PORT",
    "127.0.0.1.rebound.example",
    "localhost.rebound.example",
    "192.0.2.1:PORT",
    "",
    "rebound.example@127.0.0.1",
    "127.0.0.1:PORT/",
    "[::1",
    "console.example.",
]


@pytest.mark.parametrize("host", OURS)
def test_its_own_names_are_served(port: int, host: str) -> None:
    assert reply(port, "GET", "/", host).status == 200


@pytest.mark.parametrize("host", OTHERS)
def test_a_page_under_a_rebound_name_gets_nothing(port: int, host: str) -> None:
    """As with DNS rebinding: the name is the attacker's, the address is ours, and the origin is the same host."""
    origin = f"http://{host}"
    assert reply(port, "GET", "/", host).status in {400, 403}
    assert reply(port, "GET", SOCKET_IO + "polling", host, Origin=origin).status in {400, 403}
    assert reply(port, "GET", SOCKET_IO + "websocket", host, Origin=origin, **UPGRADE).status in {400, 403}


def test_a_request_without_a_host_is_rejected(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(1000).split()[1] in {b"400", b"403"}


@pytest.mark.parametrize("origin", ["http://127.0.0.1:PORT", "https://console.example"])
def test_its_own_pages_may_open_the_websocket(port: int, origin: str) -> None:
    """A proxy in front may send its own address as the host."""
    assert reply(port, "GET", SOCKET_IO + "websocket", "127.0.0.1:PORT", Origin=origin, **UPGRADE).status == 101
    assert reply(port, "GET", SOCKET_IO + "polling", "127.0.0.1:PORT", Origin=origin).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "",
        "http://other.example",
        "http://127.0.0.1:1",
        "http://localhost:PORT",
        "file://127.0.0.1:PORT",
        "127.0.0.1:PORT",
    ],
)
def test_other_pages_may_not(port: int, origin: str | None) -> None:
    """Nor another program's page on the same machine. Without an origin nothing can be changed."""
    host = "127.0.0.1:PORT"
    assert reply(port, "GET", SOCKET_IO + "websocket", host, Origin=origin, **UPGRADE).status == 403
    assert reply(port, "POST", SOCKET_IO + "polling", host, Origin=origin).status == 403
    assert reply(port, "OPTIONS", SOCKET_IO + "polling", host, Origin=origin).status == 403
    assert reply(port, "GET", SOCKET_IO + "polling", host, Origin=origin).status == (200 if origin is None else 403)


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [("/", "localhost", 200), ("/agent/x", "localhost", 200), ("/", "rebound.example", 403)],
)
def test_every_response_restricts_the_browser(port: int, path: str, host: str, status: int) -> None:
    response = reply(port, "GET", path, host)
    assert response.status == status
    assert response.headers["X-Frame-Options"] == "DENY"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"
    policy = dict(rule.split(" ", 1) for rule in response.headers["Content-Security-Policy"].split("; "))
    assert policy["frame-ancestors"] == policy["default-src"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert not any("*" in sources or "http" in sources for sources in policy.values())


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_other_interfaces_need_the_flag(listen: str) -> None:
    command = [BIN, "console", "--listen", listen]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "is not on the loopback interface" in ended.stderr
    assert "--insecure" in ended.stderr


def test_with_the_flag_it_is_known_by_the_address_that_was_connected_to() -> None:
    with running_console("127.0.0.1:1", "--listen", "0.0.0.0:0", "--insecure") as url:
        port = urlsplit(url).port
        assert reply(port, "GET", "/", "127.0.0.1").status == 200
        assert reply(port, "GET", "/", "192.0.2.1").status == 403
        here = outside_address()
        if here is not None:
            connection = http.client.HTTPConnection(here, port, timeout=20)
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
            connection.close()


def outside_address() -> str | None:
    """Of this machine, if it has one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])
