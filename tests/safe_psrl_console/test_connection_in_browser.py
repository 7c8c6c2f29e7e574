"""A service that comes late, goes away and returns."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from safe_psrl_client import Client, DataLossError
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_server.logs import set_up_logs
from tests.safe_psrl_console.conftest import running_console

pytestmark = pytest.mark.slow
expect.set_options(timeout=60_000)


@pytest.fixture
def listen(tmp_path: Path) -> str:
    """An address that a restarted server listens on again."""
    set_up_logs("console", "critical")
    return f"unix:{tmp_path}/socket"


def test_it_reports_a_missing_service_and_reconnects(browser: Browser, listen: str, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'data'}"
    with running_console(listen) as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.get_by_test_id("loading")).to_be_visible()
        expect(page.get_by_test_id("banner")).to_have_text(
            re.compile(rf"Not connected to {re.escape(listen)} since \d\d:\d\d:\d\d; trying again")
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
            expect(page.locator(".events")).to_contain_text("Created")
        page.close()


def test_an_agent_with_damaged_events_is_shown_as_quarantined(browser: Browser, listen: str, tmp_path: Path) -> None:
    """As soon as a use of the agent has found the damage: a start reads no agents."""
    with EmbeddedServer(store=f"sqlite:{tmp_path}/data", listen=listen), Client(listen) as client:
        for name in ("sound", "damaged"):
            client.create_agent(name, "streaming-buffer")
    with closing(sqlite3.connect(tmp_path / "data" / "safe-psrl.db")) as database, database:
        database.execute("UPDATE events SET payload = x'00' WHERE agent = 'damaged'")
        database.execute("DELETE FROM snapshots")
    with EmbeddedServer(store=f"sqlite:{tmp_path}/data", listen=listen), running_console(listen) as url:
        page = browser.new_page()
        page.goto(url)
        with Client(listen) as client, pytest.raises(DataLossError):
            client.verify_agent("damaged")
        expect(page.locator("[data-agent=damaged]")).to_contain_text("quarantined")
        expect(page.locator("[data-agent=damaged]")).to_contain_text("not readable")
        expect(page.locator("[data-agent=sound]")).to_contain_text("too early")
        page.locator("[data-agent=damaged] a").click()
        expect(page.get_by_test_id("message")).to_contain_text("damaged is quarantined")
        page.close()
