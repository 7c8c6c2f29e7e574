"""The documentation site builds without a broken link, and a real browser shows it without another host."""

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request

from tests.docs.markdown import ROOT
from tests.safe_psrl_console.conftest import PATIENCE, browser, outside_pytest  # noqa: F401  # a fixture

pytestmark = pytest.mark.slow
DESKTOP, PHONE = 1280, 390
GENERATED = ("client", "library", "testbed", "command", "configuration", "metrics", "proto/control", "proto/admin")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Writes nothing."""


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", source, "--site-dir", target]
    quiet = {**outside_pytest(), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    ended = build(ROOT / "mkdocs.yml", target)
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    return target


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_generated_pages_have_content(site: Path) -> None:
    pages = {name: (site / "reference" / f"{name}.html").read_text(encoding="utf-8") for name in GENERATED}
    for name, expected in {
        "client": "start_episode",
        "library": "CmdpSpec",
        "testbed": "GymBridge",
        "command": "safe-psrl agent create",
        "configuration": "max_<wbr>table_<wbr>entries",
        "metrics": "safe_<wbr>psrl_<wbr>constraint_<wbr>regret",
        "proto/control": "StartEpisodeRequest",
    }.items():
        assert expected in pages[name], name


@pytest.fixture
def visited(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """A page, and what it requested from other hosts or failed with."""
    context = browser.new_context(viewport={"width": DESKTOP, "height": 900})
    context.set_default_timeout(PATIENCE)
    page, errors = context.new_page(), list[str]()

    def check(request: Request) -> None:
        if urlsplit(request.url).hostname not in {None, "", "127.0.0.1"}:
            errors.append(request.url)

    page.on("request", check)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page, errors
    context.close()


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_no_page_scrolls_sideways_or_contacts_another_host(
    visited: tuple[Page, list[str]], site: Path, address: str, width: int
) -> None:
    page, errors = visited
    page.set_viewport_size({"width": width, "height": 900})
    paths = [path.relative_to(site) for path in site.rglob("*.html")]
    paths = [path for path in paths if path.parts[0] != "source" or path.name == "index.html"]  # files look all the same
    assert len(paths) > 40
    for path in paths:
        page.goto(f"{address}/{path}")
        if page.evaluate("document.documentElement.scrollWidth") > width:
            errors.append(f"{path} scrolls sideways at {width} px")
    assert errors == []


def test_search_finds_a_page(visited: tuple[Page, list[str]], address: str) -> None:
    page, errors = visited
    page.goto(f"{address}/index.html?q=fallback+policy")
    page.wait_for_selector(".md-search-result__item a", state="attached")
    assert errors == []


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text("# Page\n\n[nowhere](nothing.md)\n", encoding="utf-8")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {os.fspath(ROOT / 'mkdocs.yml')}\ndocs_dir: docs\nhooks: []\nnav: [README.md]\n", encoding="utf-8"
    )
    ended = build(config, tmp_path / "site")
    assert ended.returncode != 0
    assert "nothing.md" in ended.stderr
