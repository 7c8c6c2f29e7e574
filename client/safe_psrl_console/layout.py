"""The layout of every page: the heading, the state of the connection, the choice of light or dark."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import Final

from nicegui import ui

from safe_psrl_console import theme
from safe_psrl_console.connection import Connection

LOOK_SECONDS: Final = 0.5
LONGEST_REASON: Final = 90


@contextmanager
def page_layout(connection: Connection) -> Iterator[None]:
    """A page with the block's content."""
    ui.add_head_html(theme.HEAD)
    with ui.element("header").classes("top"):
        with ui.element("a").classes("brand").props('href="/"'):
            ui.html(theme.ICON, sanitize=False).classes("logo").props("aria-hidden=true")
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
