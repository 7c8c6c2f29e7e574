"""The layout of every page: the style sheet, the heading, the state of the connection, the choice of light or dark.

Nothing is loaded from other hosts.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Final

from nicegui import ui

from safe_psrl_console.connection import Connection

LOOK_SECONDS: Final = 0.5
LONGEST_REASON: Final = 90
HERE: Final = Path(__file__).parent

HEAD: Final = (
    '<meta name="description" content="Safe PSRL: are the constraints holding?">'
    f"<style>{(HERE / 'console.css').read_text(encoding='utf-8')}</style>"
    f"<script>{(HERE / 'theme.js').read_text(encoding='utf-8')}</script>"
    f"<script>{(HERE / 'chart_tip.js').read_text(encoding='utf-8')}</script>"
)

ICON: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<rect width="32" height="32" rx="8" fill="#0b4f7d"/>
<path d="M5 10h22" stroke="#f5b942" stroke-width="2.6" stroke-dasharray="4 2.6"/>
<path d="M5 26c4 0 5-11 9-11s4 3 7 0 4-2 6-2" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>"""


@contextmanager
def page_layout(connection: Connection) -> Iterator[None]:
    """A page with the block's content."""
    ui.add_head_html(HEAD)
    with ui.element("header").classes("top"):
        with ui.element("a").classes("brand").props('href="/"'):
            ui.html(ICON, sanitize=False).classes("logo").props("aria-hidden=true")
            ui.label("Safe PSRL")
        ui.element("span").classes("gap")
        pill = ui.label().classes("pill").props("data-testid=connection")
        with (
            ui.element("button").classes("appearance").props('type=button data-theme-button aria-label="Appearance"') as button
        ):
            ui.element("i").props("aria-hidden=true")
        button.on("click", js_handler="() => window.safePsrlNextTheme()")
    banner = ui.label().classes("banner").props("role=alert data-testid=banner")
    with ui.element("main").classes("page"):
        yield
    _show_connection(connection, pill, banner)
    ui.timer(LOOK_SECONDS, lambda: _show_connection(connection, pill, banner))


def _show_connection(connection: Connection, pill: ui.label, banner: ui.label) -> None:
    fleet, target = connection.fleet, connection.client.target
    state = "live" if fleet.connected else "away" if fleet.failure else "connecting"
    pill.set_text(f"{state} · {target}" if fleet.connected else target)
    pill.classes(replace=f"pill is-{state}")
    banner.set_visibility(state == "away")
    if fleet.since is not None and state == "away":
        since = time.strftime("%H:%M:%S", time.localtime(fleet.since))
        banner.set_text(f"Not connected to {target} since {since}; trying again. ({shorten(fleet.failure, LONGEST_REASON)})")
