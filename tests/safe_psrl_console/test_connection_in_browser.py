"""A service that comes late, goes away and returns."""

import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from safe_psrl_client import Client
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.logs import set_up_logs
from tests.safe_psrl_console.conftest import running_console

pytestmark = pytest.mark.slow
expect.set_options(timeout=60_000)


@pytest.fixture
def listen() -> Iterator[str]:
    set_up_logs("console", "critical")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"127.0.0.1:{port}"


def test_it_says_so_while_there_is_no_service_and_heals_by_itself(browser: Browser, listen: str, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'data'}"
    with running_console(listen) as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.get_by_test_id("loading")).to_be_visible()
        expect(page.get_by_test_id("banner")).to_have_text(
            re.compile(rf"Not connected to {listen} since \d\d:\d\d:\d\d; trying again")
        )

        with EmbeddedServer(store=store, listen=listen), Client(listen) as client:
            client.create_agent("survivor", "streaming-buffer")
            expect(page.locator("[data-agent=survivor]")).to_be_visible()
            expect(page.get_by_test_id("banner")).to_be_hidden()

        expect(page.get_by_test_id("banner")).to_contain_text(f"Not connected to {listen} since")
        expect(page.locator(".fleet")).to_have_class(re.compile("stale"))
        expect(page.locator("[data-agent=survivor]")).to_be_visible()

        with EmbeddedServer(store=store, listen=listen):
            expect(page.get_by_test_id("banner")).to_be_hidden()
            expect(page.locator(".fleet")).not_to_have_class(re.compile("stale"))
            page.goto(f"{url}/agent/survivor")
            expect(page.locator(".events")).to_contain_text("Connected again")
        page.close()


def test_an_agent_whose_stored_events_are_damaged_is_said_to_be_quarantined(
    browser: Browser, listen: str, tmp_path: Path
) -> None:
    with EmbeddedServer(store=f"sqlite:{tmp_path}", listen=listen), Client(listen) as client:
        for name in ("sound", "damaged"):
            client.create_agent(name, "streaming-buffer")
    with closing(sqlite3.connect(tmp_path / "safe-psrl.db")) as database, database:
        database.execute("UPDATE events SET payload = x'00' WHERE agent = 'damaged'")
        database.execute("DELETE FROM snapshots")
    with EmbeddedServer(store=f"sqlite:{tmp_path}", listen=listen), running_console(listen) as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.locator("[data-agent=damaged]")).to_contain_text("quarantined")
        expect(page.locator("[data-agent=damaged]")).to_contain_text("not readable")
        expect(page.locator("[data-agent=sound]")).to_contain_text("no episode yet")
        page.locator("[data-agent=damaged] a").click()
        expect(page.get_by_test_id("message")).to_contain_text("damaged is quarantined")
        page.close()
