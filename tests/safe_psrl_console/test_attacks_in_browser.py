"""A real browser with a hostile page, or a hostile service: the console is neither used nor taken over."""

import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from safe_psrl_client import Client
from tests.safe_psrl_cli.hostile_service import HARMFUL, SHOWN, hostile_service
from tests.safe_psrl_console.conftest import PATIENCE, chromium, running_console

pytestmark = pytest.mark.slow
expect.set_options(timeout=30_000)
# Takes part in the console's protocol, as far as it is let in, and reports how far it came.
ATTACK = """async (url) => {
  const outcome = {};
  try { outcome.page = (await (await fetch(url + "/_nicegui_ws/socket.io/?EIO=4&transport=polling")).text()).slice(0, 1); }
  catch { outcome.page = "refused"; }
  outcome.socket = await new Promise((resolve) => {
    const socket = new WebSocket(url.replace("http", "ws") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket");
    socket.onopen = () => resolve("open");
    socket.onerror = () => resolve("refused");
  });
  const frame = document.createElement("iframe");
  frame.src = url;
  const loaded = new Promise((resolve) => { frame.onload = () => resolve(); });
  document.body.append(frame);
  await loaded;
  return outcome;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The name `rebound.example` leads to this machine, as after DNS rebinding."""
    path = chromium()
    with sync_playwright() as playwright:
        arguments = ["--host-resolver-rules=MAP rebound.example 127.0.0.1"]
        opened = playwright.chromium.launch(
            executable_path=path, args=[*arguments, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        )
        yield opened
        opened.close()


@contextmanager
def other_site() -> Iterator[int]:
    """An empty page of another program on this machine; its port."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><body>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_rebound_name_shows_nothing(browser: Browser, client: Client, console: str) -> None:
    client.create_agent("secret", "streaming-buffer")
    page = browser.new_page()
    reply = page.goto(f"http://rebound.example:{urlsplit(console).port}/agent/secret")
    assert reply is not None
    assert reply.status == 403
    assert "secret" not in page.content()
    page.close()


@pytest.mark.parametrize("site", ["rebound.example", "127.0.0.1", "localhost"])
def test_a_page_of_another_site_gets_no_connection_and_no_frame(browser: Browser, console: str, site: str) -> None:
    with other_site() as port:
        page = browser.new_page()
        page.goto(f"http://{site}:{port}/")
        outcome = page.evaluate(ATTACK, console)
        assert (outcome["page"], outcome["socket"]) == ("refused", "refused")
        (frame,) = page.frames[1:]
        assert frame.url in {"", "chrome-error://chromewebdata/"}
        page.close()


def test_texts_of_a_hostile_service_are_only_texts(browser: Browser) -> None:
    with hostile_service() as target, running_console(target) as url:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(url)
        expect(page.locator("[data-agent]")).to_have_count(2)
        expect(page.locator("[data-agent]").filter(has_text="gnp").first).to_contain_text(SHOWN)
        expect(page.locator("[data-agent] .condition").first).to_have_attribute("title", SHOWN)
        assert not HARMFUL & set(page.content())

        page.goto(f"{url}/agent/a")
        expect(page.locator(".why").last).to_have_text(SHOWN)
        expect(page.locator(".constraint h2").first).to_have_text(SHOWN + "1")
        expect(page.locator(".events li p").first).to_have_text(SHOWN)
        page.locator("[data-chart=cost] svg").hover()
        expect(page.locator("[data-chart=cost] .chart-tip")).to_contain_text("onerror")
        page.get_by_role("button", name="Change budgets …").click()
        page.get_by_label("Budget of").first.fill("4")
        page.get_by_label("Reason").fill("x")
        page.get_by_role("dialog").get_by_role("button", name="Preview").click()
        expect(page.locator(".change")).to_have_text(SHOWN)
        assert not HARMFUL & set(page.content())
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("button", name="Pause …").click()
        page.get_by_label("Reason").fill("x")
        page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
        expect(page.locator(".q-notification")).to_contain_text(SHOWN)
        assert not HARMFUL & set(page.content())

        page.goto(f"{url}/agent/%1b%E2%80%AE%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
        expect(page.get_by_test_id("message")).to_contain_text(r"There is no agent \x1b\u202e<img src=x")
        assert r"\x1b\u202e<img src=x" in page.title()
        assert page.locator("img[src=x]").count() == 0
        assert dialogs == []
        page.close()
