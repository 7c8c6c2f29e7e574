"""The HTTP endpoint under attack: idle, slow and oversized connections use few resources and keep no scraper out."""

import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from safe_psrl_server.metrics import http as endpoint_module
from safe_psrl_server.metrics.http import MAX_CONNECTIONS, MAX_HEAD_BYTES, WORKERS, HttpEndpoint
from tests.safe_psrl_server.security.conftest import Authority

IDLE = 1_000
LOCAL = ("DNS:localhost", "IP:127.0.0.1")
BEGINNINGS = [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"]


@contextmanager
def running(registry: CollectorRegistry | None = None, **options: Any) -> Iterator[int]:
    endpoint = HttpEndpoint(("127.0.0.1", 0), registry or CollectorRegistry(), lambda: True, **options)
    port = endpoint.start()
    try:
        yield port
    finally:
        endpoint.stop()


def get(port: int, path: str = "/metrics", context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    address = ("127.0.0.1", port)
    connection = (
        http.client.HTTPConnection(*address, timeout=20)
        if context is None
        else http.client.HTTPSConnection(*address, timeout=20, context=context)
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # counted only


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def connect(port: int, stack: ExitStack, beginning: bytes = b"") -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
    connection.sendall(beginning)
    return connection


@pytest.fixture
def https(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context and that of a client that trusts it."""
    authority = Authority(tmp_path)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(*authority.sign("server", *LOCAL))
    return ours, ssl.create_default_context(cafile=str(authority.certificate))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("beginning", BEGINNINGS, ids=["silent", "half a request"])
def test_idle_connections_cost_little_and_keep_no_scraper_out(beginning: bytes, tls: bool, https: Any) -> None:
    registry = CollectorRegistry()
    Gauge("there", "Something to scrape.", registry=registry)
    ours, theirs = https
    threads, files = threading.active_count(), open_files()
    with running(registry, tls=(lambda: ours) if tls else None) as port, ExitStack() as stack:
        for _ in range(IDLE):
            connect(port, stack, beginning if not tls else b"\x16\x03\x01" if beginning else b"")
        for _ in range(3):
            began = time.monotonic()
            status, page = get(port, context=theirs if tls else None)
            assert (status, b"there 0.0" in page) == (200, True)
            assert time.monotonic() - began < endpoint_module.READ_SECONDS / 2  # it does not wait for those to be closed
        assert threading.active_count() <= threads + 1 + WORKERS
        assert open_files() - files - IDLE <= MAX_CONNECTIONS + 20
    eventually(lambda: open_files() <= files + 1)


@pytest.mark.parametrize("beginning", BEGINNINGS, ids=["silent", "half a request"])
def test_a_request_must_arrive_in_time(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its bytes keep coming: the time is that of the whole request."""
    monkeypatch.setattr(endpoint_module, "READ_SECONDS", 0.3)
    with running() as port, ExitStack() as stack:
        connection = connect(port, stack, beginning)
        connection.settimeout(0.05)
        began = time.monotonic()
        while True:
            assert time.monotonic() - began < 10
            try:
                connection.send(b"A")
                if connection.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break


class LargePage(Collector):
    def collect(self) -> list[Metric]:
        metric = Metric("large", "x" * 50_000_000, "gauge")
        metric.add_sample("large", {}, 1.0)
        return [metric]


def test_a_reply_must_be_read_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "WRITE_SECONDS", 0.3)
    registry = CollectorRegistry()
    registry.register(LargePage())
    files = open_files()
    with running(registry) as port, ExitStack() as stack:
        connect(port, stack, b"GET /metrics HTTP/1.0\r\n\r\n").recv(100)
        loop_files = 1 + 3  # the listener, and what the event loop needs
        eventually(lambda: open_files() <= files + 1 + loop_files)
        assert get(port, "/healthz") == (200, b"ok\n")


@pytest.mark.parametrize("start", [b"GET /", b"GET /metrics HTTP/1.1\r\nA: "], ids=["request line", "header"])
def test_a_request_is_bounded_in_size(start: bytes) -> None:
    with running() as port, ExitStack() as stack:
        connection = connect(port, stack)
        reply = b""
        try:
            for _ in range(64):
                connection.sendall(start + b"a" * MAX_HEAD_BYTES)
                start = b""
            reply = connection.recv(1000)
        except ConnectionError:
            pass
        assert reply == b"" or reply.startswith(b"HTTP/1.0 431 ")
        assert get(port, "/healthz") == (200, b"ok\n")


class StuckCollector(Collector):
    def __init__(self) -> None:
        self.release = threading.Event()
        self.busy = threading.Semaphore(0)

    def collect(self) -> list[Metric]:
        self.busy.release()
        self.release.wait(30)
        return []


def test_further_connections_are_closed_while_all_others_have_complete_requests() -> None:
    stuck = StuckCollector()
    registry = CollectorRegistry()
    registry.register(stuck)
    endpoint = HttpEndpoint(("127.0.0.1", 0), registry, lambda: True)
    port = endpoint.start()
    try:
        with ExitStack() as stack:
            asked = [connect(port, stack, b"GET /metrics HTTP/1.0\r\n\r\n") for _ in range(MAX_CONNECTIONS)]
            eventually(lambda: len(endpoint._open) == MAX_CONNECTIONS and not endpoint._reading)
            assert connect(port, stack).recv(1) == b""
            stuck.release.set()
            assert all(one.recv(100).startswith(b"HTTP/1.0 200 OK") for one in asked)
    finally:
        stuck.release.set()
        endpoint.stop()


def test_stopping_waits_for_no_scrape() -> None:
    stuck = StuckCollector()
    registry = CollectorRegistry()
    registry.register(stuck)
    with ExitStack() as stack:
        try:
            with running(registry) as port:
                connect(port, stack, b"GET /metrics HTTP/1.0\r\n\r\n")
                assert stuck.busy.acquire(timeout=20)
                began = time.monotonic()
            assert time.monotonic() - began < 2
        finally:
            stuck.release.set()


def test_a_peer_that_ends_its_side_early_is_answered() -> None:
    with running() as port, ExitStack() as stack:
        connection = connect(port, stack, b"nonsense")
        connection.shutdown(socket.SHUT_WR)
        assert b"400" in connection.recv(1000)
