"""The console as an operator meets it: its own process, a real service, a real browser."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

from safe_psrl_client import Client
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.logs import set_up_logs
from tests.system.debian import program

BIN = Path(sys.executable).parent / "safe-psrl"
PATIENCE = 30_000  # milliseconds that a browser waits for what must appear


def outside_pytest() -> dict[str, str]:
    """NiceGUI behaves otherwise in a process that it takes for a test."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@contextmanager
def running_console(target: str, *options: str) -> Iterator[str]:
    """A console of the service at `target`; its address. It must leave with exit code 0 and have nothing to say."""
    command = [BIN, "console", "--target", target, "--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=outside_pytest())
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found, process.communicate(timeout=10)[1]
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    set_up_logs("console", "error")
    with EmbeddedServer(store="memory:") as running:
        yield running.target


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Client]:
    with Client(server) as connected:
        yield connected


@pytest.fixture(scope="module")
def console(server: str) -> Iterator[str]:
    with running_console(server) as url:
        yield url


def chromium() -> str:
    """Debian's: nothing is downloaded by the driver."""
    return program("chromium", "chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one module: while it is open its event loop is the thread's, which tests with a loop of their own could not bear."""
    path = chromium()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, console: str) -> Iterator[OpenPage]:
    """Opens a path of the console. In the end nothing may have gone wrong in the browser or been asked of another host."""
    contexts, troubles = [], []
    host = urlsplit(console).netloc

    def is_foreign(request: Request) -> bool:
        return urlsplit(request.url).scheme not in {"data", "blob"} and urlsplit(request.url).netloc != host

    def open_path(path: str, width: int = 1280, height: int = 800, **options: object) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: troubles.append(request.url) if is_foreign(request) else None)
        page.goto(console + path)
        return page

    yield open_path
    for context in contexts:
        context.close()
    assert troubles == []
